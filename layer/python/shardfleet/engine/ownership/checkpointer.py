"""
All leases a worker holds: adopted, renewed, checkpointed, released.

Renewals run in a task of their own, whatever handlers and reads do (hazard H17); a checkpoint
counts as a renewal (H14), and a renewal that finds unstored progress stores it at the same price.
Java: ``DynamoDBLeaseRenewer`` and ``DynamoDBLeaseCoordinator``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial

from shardfleet.domain.leases.changes import (
    assign,
    checkpoint,
    create,
    evict,
    renew,
    set_children,
    take,
)
from shardfleet.domain.leases.lease import Applied, Gone, Lease, LeaseChange
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.refusals import Doubt
from shardfleet.domain.slots.slot import LeaseOutcome
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ownership.writer import LeaseWriter
from shardfleet.engine.ports import EventSink
from shardfleet.engine.retry import Halt, Halted, Patience, all_of
from shardfleet.errors import (
    ConfigurationError,
    MalformedLease,
    OutcomeUnknown,
    ShardfleetError,
    StaleEpoch,
    Throttled,
    Unsettled,
    kind_of,
)
from shardfleet.events.worker import (
    HandoverUnclaimed,
    LeaseAdopted,
    LeaseReleased,
    LeaseUnreadable,
    ShardEnded,
    WriteDelayed,
)

# How often, within a renewal time, is looked for leases that would be older than that by the next
# look: the fewer looks, the earlier they are renewed, and each renewal is a write that is paid for.
_TICKS = 16
# A lease that names us and is adopted while an outdated invocation still renews it: that one
# learns of its end within a tick, so a few rounds suffice.
_ADOPTION_ROUNDS_MOST = 3
# A slot that gives no sign of life for so many renewal times, the failover time, does not come.
_SILENT_RENEWALS = 3


BeatOf = Callable[[str], Awaitable[int | None]]


class Adoption(StrEnum):
    """What became of an attempt to adopt a lease."""

    ADOPTED = "ADOPTED"
    NOT_MINE = "NOT_MINE"  # of somebody else, or of nobody
    AWAITED = "AWAITED"  # its old owner is still to finish a batch (protocol.md §3.5)
    FINISHED = "FINISHED"
    UNREADABLE = "UNREADABLE"  # left alone until somebody mends it
    DELAYED = "DELAYED"  # the table refused; try again
    ABSENT = "ABSENT"


class Checkpointer:
    """
    The leases of one worker turn.

    Attributes:
        worker_id: the owner's name of everything held.

    """

    def __init__(
        self,
        writer: LeaseWriter,
        *,
        stream_arn: str,
        renew_ms: int,
        patience: Patience,
        events: EventSink,
        beat_of: BeatOf,
    ) -> None:
        """
        Begin with no leases.

        Args:
            writer: the one way to write to leases.
            stream_arn: whose leases they are.
            renew_ms: no lease is left unconfirmed for longer, while the table answers.
            patience: back-off after a refused write.
            events: where adoptions and releases are told.
            beat_of: the last sign of life of a slot, by its worker's id, epoch milliseconds; 0: it
                has given none since it was started; None: the worker is no slot.

        """
        self._writer = writer
        self.worker_id = writer.worker_id
        self._stream_arn = stream_arn
        self._renew_ms = renew_ms
        self._patience = patience
        self._events = events
        self._beat_of = beat_of
        self._known: dict[str, HeldLease] = {}
        self._on_its_way: set[str] = set()
        self._told_unreadable: set[str] = set()
        self._doubts: dict[str, Doubt] = {}

    @property
    def held(self) -> Sequence[HeldLease]:
        """Return what is held, in the order of adoption."""
        return [held for held in self._known.values() if held.is_held]

    def holds(self, lease_key: str) -> bool:
        """Return whether a lease is held."""
        return lease_key in self._known and self._known[lease_key].is_held

    def fence(self) -> None:
        """Refuse every further write: another invocation has taken over (hazard H1)."""
        self._writer.fence()

    async def read(self, lease_key: str) -> Lease | None:
        """
        Read any lease, consistently.

        Raises:
            MalformedLease: it cannot be read.

        """
        return await self._writer.store.get(lease_key)

    async def unfinished_parents(self, lease: Lease) -> tuple[str, ...]:
        """Return whose lease of the parents is not finished, or cannot be read, by key (§4.7)."""
        found, shard = [], ShardRef.of(lease.lease_key, self._stream_arn)
        for parent_id in lease.parent_shard_ids:
            parent = shard.key_of(parent_id)
            try:
                known = await self.read(parent)
            except MalformedLease as error:
                self._tell_unreadable(parent, error)
                found.append(parent)
                continue
            if known is not None and not known.is_finished:
                found.append(parent)
        return tuple(found)

    # --- getting leases

    async def adopt(self, lease_keys: Iterable[str]) -> dict[str, Adoption]:
        """
        Adopt leases whose row names this worker: read, renew, with a look at the epoch around it.

        The age of the row does not matter: it names us, and our epoch is current (H1). The look
        after the renewals decides; the one before keeps an outdated invocation, which may have
        waited long for this, from taking the counter away from its successor.

        A lease that the table refuses is told as delayed and keeps no other from being held.

        Raises:
            StaleEpoch: another invocation of this slot has taken over; nothing is held.
            Throttled: of the slot; try again.
            ConfigurationError: a right to a lease is missing, and has been for long.

        """
        keys = [key for key in dict.fromkeys(lease_keys) if self._may_get(key)]
        self._on_its_way.update(keys)
        try:
            if keys:
                await self._writer.check_epoch()
            found = await all_of(*(self._adopt(key) for key in keys))
            adopted = [held for held in found if isinstance(held, HeldLease)]
            if adopted:
                await self._writer.check_epoch()
            for held in adopted:
                self._hold(held)
        finally:
            self._on_its_way.difference_update(keys)
        return {
            key: Adoption.ADOPTED if isinstance(result, HeldLease) else result
            for key, result in zip(keys, found, strict=True)
        }

    async def _adopt(self, lease_key: str) -> HeldLease | Adoption:
        try:
            return await self._adopt_readable(lease_key)
        except MalformedLease as error:
            self._tell_unreadable(lease_key, error)
        except (Throttled, OutcomeUnknown) as error:
            self._raise_if_believed(lease_key, error)
            return Adoption.DELAYED
        except ShardfleetError:
            raise
        except Exception as error:  # noqa: BLE001 - what nobody foresaw is this lease's alone
            self._tell_unreadable(lease_key, error)
        return Adoption.UNREADABLE

    def _tell_unreadable(self, lease_key: str, error: Exception) -> None:
        """Emit that an item cannot be read, once in a turn, as the manager does."""
        if lease_key not in self._told_unreadable:
            self._told_unreadable.add(lease_key)
            self._events.emit(
                LeaseUnreadable(lease_key=lease_key, worker_id=self.worker_id, reason=str(error))
            )

    async def _adopt_readable(self, lease_key: str) -> HeldLease | Adoption:
        for _ in range(_ADOPTION_ROUNDS_MOST):
            lease = await self.read(lease_key)
            if lease is None:
                return Adoption.ABSENT
            if lease.checkpoint_owner == self.worker_id:
                # The old owner restarted in the middle of a handover: nothing of it runs here any
                # more, so the new owner may begin (protocol.md §3.5, #1729). Of a shard that it
                # has ended too: the new owner would wait for it.
                await self._writer.apply(assign(lease, lease.lease_owner or self.worker_id))
                return Adoption.NOT_MINE
            if lease.is_finished:
                return Adoption.FINISHED
            if lease.lease_owner != self.worker_id:
                return Adoption.NOT_MINE
            if lease.checkpoint_owner is not None:
                return Adoption.AWAITED
            held = HeldLease(lease, self._writer.instant(), stream_arn=self._stream_arn)
            sent = self._writer.instant()
            try:
                result = await self._writer.apply(_renewal(held))
            except OutcomeUnknown:
                continue
            if isinstance(result, Applied):
                held.lease, held.confirmed = result.lease, sent
                return held
        return Adoption.NOT_MINE

    async def take(self, lease: Lease) -> HeldLease | None:
        """
        Take a lease that nobody owns; None when somebody was quicker.

        Raises:
            StaleEpoch: another invocation of this slot has taken over.
            Throttled, OutcomeUnknown: try again with the lease read anew.

        """
        if not self._may_get(lease.lease_key):
            return None
        self._on_its_way.add(lease.lease_key)
        try:
            sent = self._writer.instant()
            result = await self._writer.apply(take(lease, self.worker_id))
            if not isinstance(result, Applied):
                return None
            return self._hold(HeldLease(result.lease, sent, stream_arn=self._stream_arn))
        finally:
            self._on_its_way.discard(lease.lease_key)

    def _may_get(self, lease_key: str) -> bool:
        """Return whether a lease is neither held nor on its way: twice, it would lose itself."""
        return not self.holds(lease_key) and lease_key not in self._on_its_way

    def _hold(self, held: HeldLease) -> HeldLease:
        self._known[held.lease_key] = held
        self._doubts.pop(held.lease_key, None)
        self._events.emit(
            LeaseAdopted(
                lease_key=held.lease_key,
                worker_id=self.worker_id,
                counter=held.lease.lease_counter,
                checkpoint=str(held.lease.checkpoint),
            )
        )
        return held

    # --- keeping leases

    async def renew(self, held: HeldLease, *, older_than_ms: int = -1) -> bool:
        """
        Renew, or store progress at the same price; return whether the lease is still held.

        Args:
            held: the lease.
            older_than_ms: as for :meth:`LeaseWriter.write`.

        """
        held.rate(self._writer.instant().monotonic_ms, every_ms=self._renew_ms)
        return await self._writer.write(held, _renewal, older_than_ms=older_than_ms)

    async def confirm(self, held: HeldLease) -> bool:
        """
        Make sure that the lease was confirmed within the renewal time: before each delivery.

        After a stall longer than that nothing is delivered until renewed (hazard H17).
        """
        if not self.is_fresh(held):
            return await self.renew(held, older_than_ms=self._renew_ms)
        return held.is_held

    def is_fresh(self, held: HeldLease) -> bool:
        """Return whether the lease was confirmed within the renewal time."""
        return self._writer.age_ms(held) <= self._renew_ms

    async def flush(self, held: HeldLease) -> bool:
        """Store progress that the table does not have; return whether the lease is still held."""
        return held.is_held if held.unstored is None else await self.renew(held)

    async def keep_renewing(self, halt: Halt) -> None:
        """
        Renew everything held, in time, until halted.

        Raises:
            StaleEpoch: another invocation of this slot has taken over.

        """
        failures = 0
        tick_ms = max(1, self._renew_ms // _TICKS)
        while not halt.is_set:
            due = [h for h in self.held if self._writer.age_ms(h) > self._renew_ms - tick_ms]
            # A checkpoint on its way may have renewed it by then (hazard H14).
            renew = partial(self.renew, older_than_ms=self._renew_ms - tick_ms)
            answered = await all_of(*(self.alone(held, renew) for held in due))
            asked = [h for h in self.held if h.in_handover and not h.halt.is_set]
            answered += await all_of(*(self.alone(held, self._look_for_next) for held in asked))
            # No batch is waited for where no consumer is at work, as while user code is imported
            # (protocol.md §3.5, #1743).
            ready = [h for h in self.held if h.in_handover and h.halt.is_set and not h.at_work]
            answered += await all_of(*(self.alone(held, self._hand_over) for held in ready))
            failures = 0 if all(answered) else failures + 1
            back_off_ms = self._patience.back_off_ms(failures) if failures else tick_ms
            await halt.wait(min(self._renew_ms // 2, back_off_ms))

    async def _look_for_next(self, held: HeldLease) -> None:
        """
        Let a lease go once its next owner looks for it; keep what that one does not come for (G2).

        A slot that waits gives a sign of life each renewal time: one that comes after the handover
        was noticed is proof that nobody would wait for a dead one. Where nothing was read, and of
        workers that are no slots, nothing is waited for but a look.
        """
        next_owner = held.lease.lease_owner or ""
        beat = await self._beat_of(next_owner) if held.lag_ms >= 0 else None
        waited_ms = self._writer.instant().monotonic_ms - held.noticed_ms
        if held.noticed_beat is None:
            held.noticed_beat = beat
        is_heard = (
            waited_ms >= self._renew_ms if beat is None else beat not in (0, held.noticed_beat)
        )
        if is_heard or held.lag_ms < 0:
            held.halt.set()
        elif waited_ms >= _SILENT_RENEWALS * self._renew_ms and await self._writer.write(
            held, lambda known: assign(known.lease, self.worker_id)
        ):
            self._events.emit(
                HandoverUnclaimed(
                    lease_key=held.lease_key, worker_id=self.worker_id, next_owner=next_owner
                )
            )

    async def renew_before_leaving(self, since_monotonic_ms: int, halt: Halt) -> None:
        """
        Renew last (hazard H16): each lease not confirmed since, progress included.

        Raises:
            Halted: the table did not answer in time.

        """

        async def leave(held: HeldLease) -> None:
            if held.unstored or held.confirmed.monotonic_ms < since_monotonic_ms:
                await self._patience.persist(partial(self.renew, held), halt)
            if held.is_held and held.in_handover:
                await self._patience.persist(partial(self._hand_over, held), halt)

        for held in self.held:
            await self.alone(held, leave)

    async def flush_all(self) -> None:
        """Store all progress in one attempt each: the turn ends, whatever happens."""
        await all_of(*(self.alone(held, self.renew) for held in self.held if held.unstored))

    async def _hand_over(self, held: HeldLease) -> None:
        if await self.flush(held):
            await self.release(held)

    async def alone(self, held: HeldLease, write: Callable[[HeldLease], Awaitable[object]]) -> bool:
        """
        Write to one lease; what goes wrong is told, and the others are written to all the same.

        Returns:
            Whether it was done.

        Raises:
            Halted, StaleEpoch, ConfigurationError: what concerns them all, a missing right only
                when it has lasted.

        """
        try:
            await write(held)
        except (Halted, StaleEpoch, ConfigurationError):
            raise
        except Exception as error:  # noqa: BLE001 - what nobody foresaw is this lease's alone
            self._raise_if_believed(held.lease_key, error)
            self._events.emit(
                WriteDelayed(
                    lease_key=held.lease_key,
                    worker_id=self.worker_id,
                    error=kind_of(error),
                    age_ms=self._writer.age_ms(held),
                )
            )
            return False
        self._doubts.pop(held.lease_key, None)
        return True

    def _raise_if_believed(self, lease_key: str, error: Exception) -> None:
        """Raise what only a person can mend, once a lease was refused for it for long enough."""
        if not (isinstance(error, Unsettled) and isinstance(error.verdict, ConfigurationError)):
            return
        doubt = self._doubts.setdefault(lease_key, Doubt())
        if doubt.believes(error, self._writer.instant().monotonic_ms):
            raise error.verdict from error

    # --- ending leases

    async def create(self, lease: Lease) -> None:
        """Create a lease that may exist already, readable or not: that is fine (§4.6)."""
        try:
            await self._writer.apply(create(lease))
        except MalformedLease as error:
            self._tell_unreadable(lease.lease_key, error)

    async def store_children(self, held: HeldLease, child_shard_ids: Sequence[str]) -> bool:
        """Write the child ids on the parent, before SHARD_END (protocol.md §4.6 step 4)."""
        async with held.lock:
            result = await self._writer.apply(set_children(held.lease, child_shard_ids))
            if isinstance(result, Gone):
                held.let_go(LeaseOutcome.LEASE_LOST)
        return held.is_held

    async def finish(self, held: HeldLease) -> bool:
        """Checkpoint SHARD_END and let go; False when the lease was lost before."""
        if not await self._writer.write(held, lambda h: checkpoint(h.lease, AT_SHARD_END)):
            return False
        if held.in_handover:
            # The next owner waits for a shard that is over: end the handover, too (§8 row 15).
            await self._writer.write(held, _release)
        held.let_go(LeaseOutcome.SHARD_END)
        self._events.emit(
            ShardEnded(
                lease_key=held.lease_key,
                worker_id=self.worker_id,
                children=held.lease.child_shard_ids,
            )
        )
        return True

    async def release(self, held: HeldLease) -> None:
        """
        Give a lease back: complete its handover, or leave it without an owner (evict).

        Progress must have been flushed. Java's workers let their leases expire instead
        (protocol.md §1.6, notes); releasing is legal and quicker for the next owner.
        """
        still_held = await self._writer.write(held, _release)
        if not still_held and held.outcome is LeaseOutcome.HANDED_OVER:
            self._events.emit(
                LeaseReleased(
                    lease_key=held.lease_key,
                    worker_id=self.worker_id,
                    checkpoint=str(held.lease.checkpoint),
                    next_owner=held.lease.lease_owner,
                )
            )


def _renewal(held: HeldLease) -> LeaseChange:
    progress: ExtendedSequenceNumber | None = held.unstored
    if progress is not None:
        return checkpoint(held.lease, progress, throughput_kbps=held.throughput_kbps)
    return renew(held.lease, throughput_kbps=held.throughput_kbps, in_handover=held.in_handover)


def _release(held: HeldLease) -> LeaseChange:
    if held.in_handover and held.lease.lease_owner is not None:
        return assign(held.lease, held.lease.lease_owner)
    return evict(held.lease)
