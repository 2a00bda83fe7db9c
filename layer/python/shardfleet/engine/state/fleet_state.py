"""
Typed reading and writing of the fleet-state table's documents.

What stands for a document that cannot be read is decided here, so that nothing is lost and nobody
owns twice what is in doubt: a shard whose stop cannot be read stays stopped, and a slot, a pin and
a window that nothing may stand for raise :class:`MalformedDocument`, which harms them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from shardfleet.domain.balance.loads import Loads
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.handovers import Handover
from shardfleet.domain.slots.sizing import Pace
from shardfleet.domain.slots.slot import Slot
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.ports import Clock, Conflict, Document, StateStore, Written
from shardfleet.engine.state.documents import DocumentKind, Documents, FoundDocument, malformed
from shardfleet.engine.state.kinds import (
    FINISHED,
    HANDOVERS,
    LOADS,
    LOCK,
    PACE,
    PIN,
    PLAN,
    PROMPT,
    SIGHTINGS,
    SLOT,
    STOP,
    STREAM,
    Lock,
    loads_body,
    rows_of_loads,
)
from shardfleet.engine.state.rows import rows_of, write_rows
from shardfleet.errors import MalformedDocument, OutcomeUnknown, ProtocolError, StreamReplaced

T = TypeVar("T")

MANAGER = "manager"
LAST = "last"
IDENTITY = "identity"
LOADS_PER_DOCUMENT = 1_000  # leases and workers; an item of DynamoDB holds 400 KB
FINISHED_PER_DOCUMENT = 2_000  # A shard's id has 128 characters at most.
# Manager, worker and CLI may write one document at a time; more rounds than this mean a bug.
_CAS_ROUNDS_MOST = 20


class VersionedSlot(Struct, frozen=True):
    """A slot and the document version it was read at."""

    slot: Slot
    version: int


class FleetState:
    """
    The fleet-state table, typed.

    Attributes:
        store: the documents themselves, for modules with kinds of their own.

    """

    def __init__(self, store: StateStore | Documents, clock: Clock) -> None:
        """Wrap a store; the clock stamps nothing but locks."""
        self.store = Documents.of(store)
        self._clock = clock
        # As they were read, for those that one writer replaces.
        self._found: dict[str, Sequence[Document]] = {}

    # --- slots

    async def slots(self) -> Sequence[VersionedSlot]:
        """Read all slots that can be read, ordered by id (manager and CLI only)."""
        found = await self.store.all(SLOT)
        return [VersionedSlot(each.body, each.version) for each in found if each.body]

    async def slot(self, slot_id: str) -> VersionedSlot | None:
        """Read one slot consistently; MalformedDocument if it cannot be read."""
        return _slot(await self.store.get(SLOT, slot_id))

    async def write_slot(self, slot: Slot, version: int | None) -> VersionedSlot | None:
        """
        Write a slot by compare-and-set; None when somebody else wrote first.

        An unknown outcome is read again and compared: the write was ours if the record says
        exactly what we wrote, at the next version.

        Raises:
            MalformedDocument: what somebody else wrote cannot be read.

        """
        now, is_ours = await self._write(slot, version)
        return now if is_ours else None

    async def update_slot(
        self, slot_id: str, change: Callable[[Slot], Slot | None]
    ) -> VersionedSlot | None:
        """
        Apply a pure change to the slot as it is now, again until the write goes through.

        Returns:
            The slot as written; None when there is no slot, it cannot be read, or ``change``
            declined.

        Raises:
            ProtocolError: the record would not hold still.

        """
        with suppress(MalformedDocument):
            return await self._update_slot(slot_id, change)
        return None

    async def _update_slot(
        self, slot_id: str, change: Callable[[Slot], Slot | None]
    ) -> VersionedSlot | None:
        # A lost race brings the record as it is now; to read it again might be refused for seconds,
        # in which a worker that is over would go on (H1).
        current = await self.slot(slot_id)
        for _ in range(_CAS_ROUNDS_MOST):
            wanted = None if current is None else change(current.slot)
            if current is None or wanted is None:
                return None
            if wanted == current.slot:
                return current
            current, is_ours = await self._write(wanted, current.version)
            if is_ours:
                return current
        raise ProtocolError(
            f"slot {slot_id}: not written in {_CAS_ROUNDS_MOST} rounds of compare-and-set"
        )

    async def _write(self, slot: Slot, version: int | None) -> tuple[VersionedSlot | None, bool]:
        """Write by compare-and-set; return the record as it is now, and whether we wrote it so."""
        body = slot_body(slot)
        try:
            result = await self.store.raw.write(SLOT, slot.slot_id, body, expected_version=version)
        except OutcomeUnknown:
            found = await self.slot(slot.slot_id)
            return found, found == VersionedSlot(slot, (version or 0) + 1)
        if isinstance(result, Written):
            return VersionedSlot(slot, result.document.version), True
        current = result.current
        return None if current is None else _slot(self.store.typed(SLOT, current)), False

    # --- sightings

    async def sightings(self) -> dict[str, Sighting]:
        """Read the persisted sightings of all leases (manager only)."""
        return rows_of(await self._all(SIGHTINGS))

    async def write_sightings(self, sightings: Mapping[str, Sighting]) -> None:
        """
        Persist the sightings instead of those that were read last.

        The turn lock makes this a single writer; what another one has written since stays.
        """
        rows = {
            # What most leases are is not written with each of them.
            key: (seen.counter, seen.owner, seen.first_seen_ms) if seen.is_renewed else seen
            for key, seen in sightings.items()
        }
        await write_rows(self.store.raw, SIGHTINGS, rows, found=self._found.pop(SIGHTINGS, None))

    async def _all(self, kind: DocumentKind[T]) -> list[FoundDocument[T]]:
        """Read the documents of a kind, of which those to be written next know."""
        found = self._found[kind] = await self.store.raw.list(kind)
        return [self.store.typed(kind, document) for document in found]

    # --- shards that are done with

    async def finished(self) -> frozenset[str] | None:
        """Read which listed shards are done with; None: that was never kept (manager only)."""
        documents = await self.store.all(FINISHED)
        return frozenset(rows_of(documents)) if documents else None

    async def write_finished(self, shard_ids: Collection[str]) -> None:
        """Keep them instead of those before (manager only)."""
        rows = dict.fromkeys(shard_ids, 1)
        await write_rows(self.store.raw, FINISHED, rows, per_document=FINISHED_PER_DOCUMENT)

    # --- pins

    async def pin(self, lease_key: str, *, instant_ms: int, created_ms: int) -> int:
        """
        Pin a LATEST lease to an instant, first writer wins (hazard H7).

        Args:
            lease_key: the lease.
            instant_ms: proposed epoch milliseconds.
            created_ms: creation time of the stream; a pin of an earlier incarnation is replaced.

        Returns:
            The instant that holds, ours or the earlier writer's.

        Raises:
            MalformedDocument: it cannot be read; another instant might pass records over.

        """
        body = {"instant_ms": instant_ms, "created_ms": created_ms}
        expected: int | None = None
        for _ in range(_CAS_ROUNDS_MOST):
            try:
                result = await self.store.raw.write(PIN, lease_key, body, expected_version=expected)
            except OutcomeUnknown:
                current = await self.store.raw.read(PIN, lease_key)
            else:
                current = result.document if isinstance(result, Written) else result.current
            if current is not None:
                pin = self.store.typed(PIN, current)
                if pin.body is None:
                    raise malformed(PIN, pin)
                if pin.body.created_ms == created_ms:
                    return pin.body.instant_ms
            expected = None if current is None else current.version
        raise ProtocolError(f"pin of {lease_key}: not written in {_CAS_ROUNDS_MOST} rounds")

    # --- what is beside checkpoints, stops

    async def beside(self, kind: DocumentKind[T], lease_key: str) -> tuple[T | None, int | None]:
        """
        Read what a way of delivering has noted beside a checkpoint, and its document's version.

        Raises:
            MalformedDocument: it cannot be read.

        """
        found = await self.store.get(kind, lease_key)
        if found is None:
            return None, None
        if found.body is None:
            raise malformed(kind, found)
        return found.body, found.version

    async def write_beside(self, kind: DocumentKind[T], note: T) -> None:
        """Note something beside the checkpoint of a shard that the caller owns."""
        body = _body(note)
        await self.overwrite(kind, body.pop("lease_key"), body)

    async def replace_beside(
        self, kind: DocumentKind[T], note: T, version: int | None
    ) -> int | None:
        """
        Do the same by compare-and-set: what is overwritten is in no checkpoint.

        Returns:
            The version that it has now; None when somebody else wrote first.

        """
        body = _body(note)
        lease_key = body.pop("lease_key")
        try:
            result = await self.store.raw.write(kind, lease_key, body, expected_version=version)
        except OutcomeUnknown:
            found, now = await self.beside(kind, lease_key)
            if found == note and now == (version or 0) + 1:
                return now
            raise
        return result.document.version if isinstance(result, Written) else None

    async def stop(self, lease_key: str) -> StopNote | None:
        """Read whether and why a shard is stopped; in doubt it is."""
        found = await self.store.get(STOP, lease_key)
        return None if found is None else self._stop(found)

    async def stops(self) -> Sequence[StopNote]:
        """Read all stopped shards (manager and CLI only)."""
        found = [self._stop(each) for each in await self.store.all(STOP)]
        return [stop for stop in found if stop is not None]

    def _stop(self, found: FoundDocument[StopNote]) -> StopNote | None:
        """Return a stop, None of one that is over; in doubt the shard stands still."""
        note = found.body or StopNote(
            lease_key=found.id,
            position="",
            error=f"why it is stopped cannot be read: {found.reason}",
            attempts=1,
            worker_id="",
            at_ms=self._clock.now_ms(),
        )
        return note if note.attempts else None

    async def write_stop(self, stop: StopNote) -> None:
        """Stop a shard that the caller owns, or let it go on."""
        await self.write_beside(STOP, stop)

    async def resume(self, lease_key: str) -> bool:
        """
        End the stop of a shard; False when it was not stopped (CLI only).

        It is kept as one that is over: a copy of the write that made it, which lands once more,
        would stop the shard again, if there were none.
        """
        stop = await self.stop(lease_key)
        if stop is not None:
            await self.write_stop(replace(stop, attempts=0))
        return stop is not None

    # --- prompts, lock, identity, plan

    async def prompt_manager(self) -> int:
        """Ask the running manager for an early turn (hazard H13)."""
        return await self.store.raw.increment(PROMPT, MANAGER)

    async def prompts(self) -> int:
        """Return how often the manager has been prompted."""
        document = await self.store.raw.read(PROMPT, MANAGER)
        return 0 if document is None else document.version

    async def take_lock(
        self,
        holder: str,
        *,
        duration_ms: int,
        longest_ms: int,
        function: str = "",
        token: int | None = None,
    ) -> int | None:
        """
        Take or prolong the turn lock (hazard H13).

        It saves calls and proves nothing: a holder that was frozen goes on when its time is long
        over, and clocks differ. So every write to leases and slots has a condition of its own.

        An end further away than ``longest_ms``, the longest hold and the skew allowed between two
        clocks, was written by a clock ahead of this one. It is brought back to that, once: who
        lives prolongs its hold. One that cannot be read is nobody's. With ``token``, which the
        holder was given last, a lock that nobody has written since is prolonged unread.

        Returns:
            The fencing token (rises with each hold), None while another holder's time runs.

        """
        mine = Lock(holder, self._clock.now_ms() + duration_ms, function)
        if token is not None:
            result = await self._write_lock(mine, token)
            if isinstance(result, Written):
                return result.document.version
        current = await self.store.get(LOCK, MANAGER)
        now_ms = self._clock.now_ms()
        if current is not None and (lock := current.body) is not None:
            held = lock.until_ms > now_ms and lock.holder != holder
            if held and lock.until_ms > now_ms + longest_ms:
                await self._write_lock(replace(lock, until_ms=now_ms + longest_ms), current.version)
            if held:
                return None
        mine = replace(mine, until_ms=now_ms + duration_ms)
        result = await self._write_lock(mine, current.version if current else None)
        return result.document.version if isinstance(result, Written) else None

    async def leader(self) -> str:
        """Return who has taken the turn lock last; empty: nobody."""
        found = await self.store.get(LOCK, MANAGER)
        return (found and found.body and found.body.holder) or ""

    async def release_lock(self, holder: str) -> None:
        """Let the next manager begin at once."""
        current = await self.store.get(LOCK, MANAGER)
        if current is not None and current.body and current.body.holder == holder:
            await self._write_lock(replace(current.body, until_ms=0), current.version)

    async def _write_lock(self, lock: Lock, version: int | None) -> Written | Conflict:
        write = self.store.raw.write
        return await write(LOCK, MANAGER, msgspec.to_builtins(lock), expected_version=version)

    async def check_incarnation(self, found: StreamIncarnation) -> None:
        """
        Compare the stream with the one on record; record the first one seen (hazard H12).

        A record that cannot be read is left as it is, and says nothing against the stream.

        Raises:
            StreamReplaced: the stream was deleted and created again.

        """
        body = {"arn": found.stream_arn, "created_ms": found.created_ms}
        result = await self.store.raw.write(STREAM, IDENTITY, body, expected_version=None)
        if isinstance(result, Conflict) and result.current is not None:
            known = self.store.typed(STREAM, result.current).body
            if known is not None and known != found:
                raise StreamReplaced(
                    f"stream {found.stream_arn} created at {found.created_ms} ms is not the one "
                    f"this fleet began with (created at {known.created_ms} ms): its shard ids "
                    "repeat but its records do not. Deploy a fleet with new tables, or delete "
                    "the leases and the fleet state to begin anew"
                )

    async def known_incarnation(self) -> StreamIncarnation | None:
        """Read the stream on record; None: there is none that can be read."""
        found = await self.store.get(STREAM, IDENTITY)
        return None if found is None else found.body

    async def write_plan(self, plan: Mapping[str, Any]) -> None:
        """Keep the last plan with its reasons, for ``explain``."""
        await self.overwrite(PLAN, LAST, plan)

    async def handovers(self) -> dict[str, Handover]:
        """Read which handovers were pending (manager only)."""
        return rows_of(await self._all(HANDOVERS))

    async def write_handovers(self, pending: Mapping[str, Handover]) -> None:
        """Keep which handovers are pending, as the sightings are kept (manager only)."""
        await write_rows(self.store.raw, HANDOVERS, pending, found=self._found.pop(HANDOVERS, None))

    async def write_pace(self, pace: Pace, version: int | None) -> None:
        """Keep what sizing remembers, over the version that was read (manager only)."""
        body = {"surplus_ms": pace.surplus_ms, "raised_ms": pace.raised_ms}
        await self.store.raw.write(PACE, MANAGER, body, expected_version=version)

    async def write_loads(self, loads: Loads) -> None:
        """Keep what the balancing compares, as the sightings are kept (manager only)."""
        workers = {worker_id: [*astuple(use)] for worker_id, use in loads.workers.items()}
        await write_rows(
            self.store.raw,
            LOADS,
            rows_of_loads(loads.leases, workers),
            per_document=LOADS_PER_DOCUMENT,
            found=self._found.pop(LOADS, None),
            body=loads_body,
        )

    async def loads(self) -> Loads:
        """Read what the balancing compares (manager only)."""
        bodies = [found.body for found in await self._all(LOADS) if found.body]
        return Loads(
            {key: rate for body in bodies for key, rate in body.leases.items()},
            {worker_id: use for body in bodies for worker_id, use in body.workers.items()},
        )

    async def plan(self) -> Mapping[str, Any] | None:
        """Read the last plan, as it was written; None: there is none that can be read."""
        document = await self.store.raw.read(PLAN, LAST)
        if document is None or self.store.typed(PLAN, document).body is None:
            return None
        return document.body

    async def overwrite(
        self,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        *,
        unless: Callable[[Document], bool] = lambda _: False,
    ) -> int | None:
        """
        Write whatever is there; only for documents whose writer is fenced elsewhere.

        Returns:
            The version that it has now; None: what is there is to stay, says `unless`.

        """
        current = await self.store.raw.read(kind, name)
        for _ in range(_CAS_ROUNDS_MOST):
            if current and unless(current):
                return None
            version = current.version if current else None
            try:
                result = await self.store.raw.write(kind, name, body, expected_version=version)
            except OutcomeUnknown:
                current = await self.store.raw.read(kind, name)
                if current is not None and current.body == body:
                    return current.version
                continue
            if isinstance(result, Written):
                return result.document.version
            current = result.current
        raise ProtocolError(
            f"{kind} {name}: not written in {_CAS_ROUNDS_MOST} rounds of compare-and-set"
        )


def slot_body(slot: Slot) -> dict[str, Any]:
    """Return the body of a slot's document."""
    body: dict[str, Any] = msgspec.to_builtins(slot)
    return body


def _slot(found: FoundDocument[Slot] | None) -> VersionedSlot | None:
    if found is None:
        return None
    if found.body is None:
        raise malformed(SLOT, found)
    return VersionedSlot(found.body, found.version)


def _body(note: object) -> dict[str, Any]:
    """Return all fields; the lease key is the document's id, and not in its body."""
    body: dict[str, Any] = msgspec.to_builtins(note)
    return body
