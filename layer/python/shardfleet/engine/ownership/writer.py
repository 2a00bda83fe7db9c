"""
The one way to write to a lease in a worker's hands.

A lock per lease serializes renewals and checkpoints, so that they never race for the counter
(protocol.md §1.6, §8 row 12). Memory changes only with an answer of the table: it never says
*checkpointed* when the table does not (§8 row 10). Losing is a result. An unknown outcome is
settled by reading the lease, then the slot's epoch (hazard H1). Java: ``DynamoDBLeaseRenewer``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from shardfleet.domain.leases.changes import failing
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeResult,
    CheckpointNotPast,
    Gone,
    Lease,
    LeaseChange,
    LeaseField,
    Lost,
)
from shardfleet.domain.slots.slot import LeaseOutcome
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ownership.lease import HeldLease, Instant
from shardfleet.engine.ports import Clock, EventSink, LeaseStore
from shardfleet.errors import MalformedLease, OutcomeUnknown, ProtocolError, StaleEpoch
from shardfleet.events.worker import (
    BackwardCheckpoint,
    HandoverNoticed,
    LeaseLost,
    OwnWriteRecognised,
)

# Each round answers a change by somebody else; more of them within one write mean a bug.
_ROUNDS_MOST = 8
_RELEASES = ("evict", "assign")


class LeaseWriter:
    """Conditional writes to held leases, with every answer understood."""

    def __init__(
        self,
        worker_id: str,
        *,
        failover_ms: int,
        store: LeaseStore,
        clock: Clock,
        events: EventSink,
        epoch_is_mine: Callable[[], Awaitable[bool]],
    ) -> None:
        """
        Keep the ports.

        Args:
            worker_id: the ``leaseOwner`` of everything held.
            failover_ms: a lease not confirmed for so long has expired for its owner, too.
            store: the lease table.
            clock: for local expiry.
            events: where losses and oddities are told.
            epoch_is_mine: reads the slot consistently (hazard H1).

        """
        self.worker_id = worker_id
        self.store = store
        self.epoch_is_mine = epoch_is_mine
        self._failover_ms = failover_ms
        self._clock = clock
        self._events = events
        self._fenced = False

    def fence(self) -> None:
        """Refuse every further write: another invocation has taken over (hazard H1)."""
        self._fenced = True

    def instant(self) -> Instant:
        """Return the present moment."""
        return Instant(self._clock.monotonic_ms(), self._clock.now_ms())

    def age_ms(self, held: HeldLease) -> int:
        """
        Return how long ago the table last confirmed the lease, counted from the sending.

        The larger of two clocks' differences: one may stand still while a sandbox is frozen, the
        other may be set back (hazard H15).
        """
        now = self.instant()
        confirmed = held.confirmed
        return max(now.monotonic_ms - confirmed.monotonic_ms, now.wall_ms - confirmed.wall_ms)

    async def apply(self, change: LeaseChange) -> ChangeResult:
        """
        Send one change, unless fenced.

        Raises:
            StaleEpoch: another invocation has taken over.
            OutcomeUnknown, Throttled: no answer.

        """
        if self._fenced:
            raise StaleEpoch(
                f"{change.operation} of {change.lease_key}: another invocation has taken over"
            )
        return await self.store.apply(change)

    async def write(
        self,
        held: HeldLease,
        build: Callable[[HeldLease], LeaseChange],
        *,
        older_than_ms: int = -1,
    ) -> bool:
        """
        Write to a held lease until the answer is clear.

        Args:
            held: the lease; let go of when it turns out to be lost.
            build: makes the change from the lease as it is known then.
            older_than_ms: nothing is written if the table confirmed the lease later than that, by
                a write that this one had to wait for; milliseconds, -1 whatever its age.

        Returns:
            Whether the lease is still held.

        Raises:
            Throttled: not written; try again.
            OutcomeUnknown: not known to be written, and not seen in the table; try again.
            StaleEpoch: another invocation of this slot has taken over.

        """
        async with held.lock:
            if not held.is_held:
                return False
            if self.age_ms(held) <= older_than_ms:
                return True
            try:
                return await self._write(held, build)
            except MalformedLease as error:
                # Somebody broke it; whoever can read it again goes on from what it says then.
                self._lose(held, str(error))
                return False

    async def _write(self, held: HeldLease, build: Callable[[HeldLease], LeaseChange]) -> bool:
        if self.age_ms(held) >= self._failover_ms and not await self._is_still_mine(held):
            return False
        for _ in range(_ROUNDS_MOST):
            change = build(held)
            sent = self.instant()
            wanted = change.sets.get(LeaseField.CHECKPOINT, held.lease.checkpoint)
            assert isinstance(wanted, ExtendedSequenceNumber)
            held.sent = wanted
            try:
                result = await self.apply(change)
            except OutcomeUnknown:
                held.unsure.append(wanted)
                held.release_sent |= change.operation in _RELEASES
                result = await self._look(held, change)
            clear = await self._understand(held, change, result=result, sent=sent)
            if clear is not None:
                return clear
        raise ProtocolError(f"lease {held.lease_key}: no clear answer in {_ROUNDS_MOST} rounds")

    async def _is_still_mine(self, held: HeldLease) -> bool:
        """Look after local expiry: nobody may have taken the lease, nor this slot."""
        current = await self.store.get(held.lease_key)
        counters = {held.lease.lease_counter, held.lease.lease_counter + bool(held.unsure)}
        if current is not None and self._is_given_up(held, current):
            return False
        if (
            current is None
            or current.effective_owner != self.worker_id
            or current.lease_counter not in counters
        ):
            self._lose(held, f"expired here after {self.age_ms(held)} ms, and taken meanwhile")
            return False
        await self.check_epoch()
        return True

    async def _look(self, held: HeldLease, change: LeaseChange) -> ChangeResult:
        """Read what became of a write without an answer."""
        current = await self.store.get(held.lease_key)
        if current is None:
            return Gone()
        if current.lease_counter == held.lease.lease_counter:
            raise OutcomeUnknown(
                f"{change.operation} of {held.lease_key}: no answer, and not seen in the table"
            )
        return Lost(current, failing(change, current))

    async def _understand(
        self, held: HeldLease, change: LeaseChange, *, result: ChangeResult, sent: Instant
    ) -> bool | None:
        """Return whether the lease is still held, None to write once more."""
        match result:
            case Gone():
                self._lose(held, "the lease was deleted")
                return False
            case Applied(lease):
                held.unsure.clear()
                held.confirmed = sent
                self._accept(held, lease)
                if lease.effective_owner == self.worker_id:
                    return True
                self._lose(held, f"now of {lease.effective_owner}", change)
                return False
            case Lost(current, failed):
                if held.unsure and await self._was_mine(held, current):
                    wanted = change.sets.get(LeaseField.CHECKPOINT)
                    return True if wanted in (None, current.checkpoint) else None
                return self._after_refusal(held, change, lost=Lost(current, failed))

    def _after_refusal(self, held: HeldLease, change: LeaseChange, *, lost: Lost) -> bool | None:
        current = lost.current
        fields = [c.field for c in lost.failed if not isinstance(c, CheckpointNotPast)]
        # The counter itself, not its condition: a release has none, and an outdated invocation that
        # took its successor's counter over would complete the handover of its successor (H1).
        has_moved = current.lease_counter != held.lease.lease_counter
        if self._is_given_up(held, current):
            return False
        if has_moved or current.effective_owner != self.worker_id:
            self._lose(held, f"counter {current.lease_counter} of {current.lease_owner}", change)
            return False
        if fields and current.checkpoint_owner == current.lease_owner:
            self._lose(held, "handover to its own owner: an illegal state (protocol.md §1.6)")
            return False
        if fields:
            self._accept(held, current)
            return None
        wanted = change.sets.get(LeaseField.CHECKPOINT)
        if wanted != current.checkpoint:
            # Equal is no step back: a SHARD_END of ours that had landed without an answer.
            self._events.emit(
                BackwardCheckpoint(
                    lease_key=held.lease_key,
                    worker_id=self.worker_id,
                    stored=str(current.checkpoint),
                    refused=str(wanted),
                )
            )
        self._accept(held, current)
        return True

    def _is_given_up(self, held: HeldLease, current: Lease) -> bool:
        """Let go of what a release of ours, whose answer never came, seems to have given up."""
        has_moved = current.lease_counter != held.lease.lease_counter
        if not held.release_sent or not has_moved or current.effective_owner == self.worker_id:
            return False
        # Ours, most likely; and if not, nothing is lost that was not to be given up.
        held.let_go(LeaseOutcome.HANDED_OVER)
        return True

    async def _was_mine(self, held: HeldLease, current: Lease) -> bool:
        """Recognise a write of ours whose answer never came; lease first, then epoch (H1)."""
        if (
            current.lease_counter != held.lease.lease_counter + 1
            or current.effective_owner != self.worker_id
            # It may be further on: a tool that stores progress leaves the counter alone (H8).
            or current.checkpoint < min(held.unsure)
        ):
            return False
        await self.check_epoch()
        held.unsure.clear()
        self._accept(held, current)
        self._events.emit(
            OwnWriteRecognised(
                lease_key=held.lease_key, worker_id=self.worker_id, counter=current.lease_counter
            )
        )
        return True

    async def check_epoch(self) -> None:
        """
        Look whether this invocation is still the slot's latest; fence it if not (hazard H1).

        Raises:
            StaleEpoch: another invocation of this slot has taken over.
            Throttled: no answer.

        """
        if not await self.epoch_is_mine():
            self.fence()
            raise StaleEpoch(f"worker {self.worker_id}: another invocation has taken over")

    def _accept(self, held: HeldLease, lease: Lease) -> None:
        """Remember what the table says; a handover that has begun is to end the work (§3.5)."""
        known = held.in_handover
        held.lease = lease
        if held.in_handover and not known and lease.effective_owner == self.worker_id:
            held.noticed_ms, held.noticed_beat = self._clock.monotonic_ms(), None
            self._events.emit(
                HandoverNoticed(
                    lease_key=held.lease_key,
                    worker_id=self.worker_id,
                    next_owner=lease.lease_owner or "",
                )
            )

    def _lose(self, held: HeldLease, reason: str, change: LeaseChange | None = None) -> None:
        if change is not None and change.operation in _RELEASES:
            held.let_go(LeaseOutcome.HANDED_OVER)
            return
        held.let_go(LeaseOutcome.LEASE_LOST)
        self._events.emit(
            LeaseLost(lease_key=held.lease_key, worker_id=self.worker_id, reason=reason)
        )
