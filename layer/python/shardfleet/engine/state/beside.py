"""
What stands beside checkpoints: written with a stamp, and read only as far as it still counts.

Hazard H20: a tip mark, a window's state, how far lanes are ahead and a crash note outlive the
checkpoint that they were made for. All of them are written and read here, by those who hold the
lease. What does not count any more is as if it were not there, which is the safe side of each:

============  =============================================================================
tip mark      proves nothing: what has expired is told as lost
window        its state begins anew behind the checkpoint, and records from there come again.
              What it has of before the checkpoint is in it alone, so it counts for every
              checkpoint that it was written for, whoever had the lease since, and
              where a setting-back was cut off before it touched the lease
lanes         what was done ahead of the checkpoint comes again
crash note    nobody is charged with deaths over another place; over the same one deaths count,
              whoever had the lease since, or what kills each new owner would go on for ever
============  =============================================================================

Every setting-back of ours (a rewind, an import of positions, ``release --ended``, a lease made
anew) raises the lease's generation before it touches the lease, so that one that is cut off in
between has made notes stale, which repeats and never loses, and spares a window.

Two kinds stand whatever is done to the checkpoint, and have no stamp. A *stop* is a person's to
take back (``shardfleet resume``): nothing behind it is read before. A *pin* is the earliest instant
from which a lease at LATEST is read: an older one repeats, and a newer one would skip (H7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.delivery.progress import read_position
from shardfleet.domain.leases.stamps import Generation, Stamp
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import Document, StateStore, Written
from shardfleet.engine.state.documents import DocumentKind, Documents, FoundDocument, read_as
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import GENERATION, NOTE, TIP, CrashNote, SetBack, TipMark
from shardfleet.errors import OutcomeUnknown, ProtocolError

_ROUNDS_MOST = 20  # Two people at most set back one lease at a time; more rounds mean a bug.

T = TypeVar("T")


async def generation_of(store: StateStore | Documents, lease_key: str) -> Generation:
    """
    Read how often a lease was set back.

    Raises:
        Throttled: try again.

    """
    return _generation(await Documents.of(store).get(GENERATION, lease_key))


async def raise_generation(
    store: StateStore, lease_key: str, *, now_ms: int, to: str = "", made: str = "", first: str = ""
) -> None:
    """
    Let nothing count any more that stands beside a checkpoint; before the lease is touched.

    Args:
        store: the fleet-state table.
        lease_key: the lease that is to be set back, or made.
        now_ms: epoch milliseconds.
        to: the checkpoint that will be written, ``number:sub``, if records come again from there.
        made: the checkpoint with which the lease will be made, ``number:sub``.
        first: sequence number of the first record that was counted to come again.

    Raises:
        Throttled: not raised; the lease is not to be touched.

    """
    current = await store.read(GENERATION, lease_key)
    for _ in range(_ROUNDS_MOST):
        version = None if current is None else current.version
        before = None if current is None else read_as(GENERATION, current)
        # By the clock, for the document goes with its lease and may be made again.
        known = _generation(before)
        number = max(now_ms, known.number + 1)
        # To the same place again, or somebody else had made it: that may have been cut off.
        is_spared = known.to == to or known.made
        spared = (known.number, *(known.before if is_spared else ()))[:_ROUNDS_MOST]
        body = {"at_ms": now_ms, "number": number, "to": to, "made": made, "first": first}
        body["before"] = spared
        try:
            result = await store.write(GENERATION, lease_key, body, expected_version=version)
        except OutcomeUnknown:
            # To raise it twice is to raise it.
            current = await store.read(GENERATION, lease_key)
            continue
        if isinstance(result, Written):
            return
        current = result.current
    raise ProtocolError(
        f"generation of {lease_key}: not written in {_ROUNDS_MOST} rounds of compare-and-set"
    )


class KnownTip(Struct, frozen=True, kw_only=True):
    """
    When a shard was last known to be read to its tip.

    Attributes:
        at_ms: epoch milliseconds; 0: never.
        done: the position there, as a lease says it; "": not known.
        told: the position behind which a loss was told last.
        counts: it proves something about the lease as it is now.
        version: of its document; None: there is none.

    """

    at_ms: int = 0
    done: str = ""
    told: str = ""
    counts: bool = False
    version: int | None = None


class LeaseNotes:
    """
    What stands beside the checkpoints of the leases of one worker turn.

    Each lease is begun with :meth:`begin` by whoever is about to read its shard.
    """

    def __init__(self, state: FleetState, worker_id: str = "") -> None:
        """
        Begin with no lease.

        Args:
            state: the fleet-state table.
            worker_id: whose turn it is; "" for who holds no lease.

        """
        self._state = state
        self._worker_id = worker_id
        self._held: dict[str, HeldLease] = {}
        self._generations: dict[str, Generation] = {}
        # Versions of the crash notes as they were read or written last.
        self._noted: dict[str, int] = {}

    async def begin(self, held: HeldLease) -> None:
        """
        Learn the generation of a lease that is held: one read for each time a shard is begun.

        Raises:
            Throttled: try again.

        """
        self._generations[held.lease_key] = await generation_of(self._state.store, held.lease_key)
        self._held[held.lease_key] = held
        self._noted.pop(held.lease_key, None)

    def generation(self, lease_key: str) -> Generation:
        """Return the generation of a lease that was begun."""
        return self._generations[lease_key]

    def life(self, lease_key: str) -> int:
        """Return the number of the generation of a lease that was begun; -1 of any other one."""
        known = self._generations.get(lease_key)
        return -1 if known is None else known.number

    # --- crash notes, and those of the ways of delivering

    async def note(self, lease_key: str) -> CrashNote | None:
        """Read the crash note of a lease; None where the checkpoint lies before what it is of."""
        document = await self._state.store.get(NOTE, lease_key)
        self._noted[lease_key] = 0 if document is None else document.version
        # Of a note that cannot be read nobody is charged.
        found = None if document is None else document.body
        if found is None or found.stamp is None:
            return None
        held, number = self._held[lease_key], self._generations[lease_key].number
        stamp, stands = found.stamp, held.done
        is_there = stamp.is_of(held.lease, number) and stamp.stands_as(held.lease)
        if not (is_there or stamp.counts(held.lease, number)):
            return None
        return None if stands < read_position(stamp.stood) else replace(found, stamp=None)

    async def write_note(self, note: CrashNote) -> None:
        """
        Write the crash note of a lease that is held.

        What a later owner has written stays: who finds that was frozen, and holds the lease no
        more. A former one may still close the note of its last call.
        """
        mine = self._stamp(self._held[note.lease_key])

        def is_a_later_owners(document: Document) -> bool:
            found = read_as(NOTE, document).body
            stamp = found.stamp if found else None
            return stamp is not None and stamp.owner != mine.owner and stamp.is_after(mine)

        await self._overwrite_note(note, unless=is_a_later_owners)

    async def close_note(self, note: CrashNote) -> None:
        """
        Close a crash note that this worker began, whether or not it is known to be there.

        A write of it without an answer may still land, and is refused then. What somebody else, or
        this worker's next turn, has written stays.
        """
        known = self._noted.get(note.lease_key)

        def is_anothers(document: Document) -> bool:
            return document.version != known and self._own(document) != note

        await self._overwrite_note(replace(note, is_open=False), unless=is_anothers)

    async def _overwrite_note(self, note: CrashNote, *, unless: Callable[[Document], bool]) -> None:
        body = msgspec.to_builtins(self._stamped(note))
        name = body.pop("lease_key")
        version = await self._state.overwrite(NOTE, name, body, unless=unless)
        if version is not None:
            self._noted[name] = version

    def _own(self, document: Document) -> CrashNote | None:
        """Return a crash note without its stamp; None: this worker has not written it."""
        found = read_as(NOTE, document).body
        is_own = found and found.stamp and found.stamp.owner == self._worker_id
        return replace(found, stamp=None) if found and is_own else None

    async def recall(self, kind: DocumentKind[T], lease_key: str) -> tuple[T | None, int | None]:
        """
        Read what was noted beside a checkpoint, if it counts, and the version of its document.

        Raises:
            MalformedDocument: it cannot be read.

        """
        found: Any
        found, version = await self._state.beside(kind, lease_key)
        generation = self._generations[lease_key]
        if found is None or not found.counts_for(self._held[lease_key].lease, generation):
            return None, version
        return replace(found, stamp=None), version

    async def write(self, kind: DocumentKind[T], note: T) -> None:
        """Note something beside the checkpoint of a lease that is held."""
        await self._state.write_beside(kind, self._stamped(note))

    async def replace(self, kind: DocumentKind[T], note: T, version: int | None) -> int | None:
        """Do the same by compare-and-set, as :meth:`FleetState.replace_beside` does."""
        return await self._state.replace_beside(kind, self._stamped(note), version)

    # --- tip marks

    async def tip(self, lease_key: str) -> KnownTip:
        """
        Read when a shard was last at its tip.

        Raises:
            Throttled: try again.

        """
        found = await self._state.store.get(TIP, lease_key)
        if found is None:
            return KnownTip()
        if found.body is None:  # What cannot be read proves nothing.
            return KnownTip(version=found.version)
        return KnownTip(
            at_ms=found.body.at_ms,
            done=found.body.done,
            told=found.body.told,
            counts=await self._tip_counts(lease_key, found.body),
            version=found.version,
        )

    async def _tip_counts(self, lease_key: str, mark: TipMark) -> bool:
        number = (await self._generation_of(lease_key)).number
        held = self._held.get(lease_key)
        if held is not None:
            # One of an earlier release counts until the lease is set back.
            return mark.stamp.counts(held.lease, number) if mark.stamp else not number
        return number == (0 if mark.stamp is None else mark.stamp.generation)

    async def write_tip(self, lease_key: str, mark: KnownTip) -> bool:
        """
        Write it over the one that was read, also of a shard whose lease is not held.

        Returns:
            Whether nobody else has written it since.

        """
        held, generation = self._held.get(lease_key), await self._generation_of(lease_key)
        stamp = Stamp(generation=generation.number) if held is None else self._stamp(held)
        body = msgspec.to_builtins(
            TipMark(at_ms=mark.at_ms, done=mark.done, told=mark.told, stamp=stamp)
        )
        result = await self._state.store.raw.write(
            TIP, lease_key, body, expected_version=mark.version
        )
        return isinstance(result, Written)

    async def _generation_of(self, lease_key: str) -> Generation:
        known = self._generations.get(lease_key)
        return known or await generation_of(self._state.store, lease_key)

    def _stamped(self, note: Any) -> Any:
        return replace(note, stamp=self._stamp(self._held[note.lease_key]))

    def _stamp(self, held: HeldLease) -> Stamp:
        number = self._generations[held.lease_key].number
        return Stamp.of(held.lease, self._worker_id, number)


def _generation(found: FoundDocument[SetBack] | None) -> Generation:
    """Return what a document says; of one that cannot be read its version is what counts."""
    if found is None:
        return Generation()
    if found.body is None:
        return Generation(number=found.version)
    body = found.body
    number = body.number or found.version
    return Generation(
        number=number,
        at_ms=body.at_ms,
        to=body.to,
        made=body.made,
        first=body.first,
        before=body.before,
    )
