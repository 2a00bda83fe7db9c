"""One lease in a worker's hands: what is known of it, and what was done with its records."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from shardfleet.domain.delivery.lanes import LanesNote
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.slots.lags import lag_now
from shardfleet.domain.slots.slot import LeaseOutcome
from shardfleet.domain.slots.usage import next_throughput
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.retry import Halt


class Instant(Struct, frozen=True):
    """One moment on both clocks, milliseconds."""

    monotonic_ms: int
    wall_ms: int


class HeldLease:
    """
    One lease in this worker's hands.

    Attributes:
        lease: as the table is known to be; changes only with the table's answers.
        lease_key: its key.
        shard: what it is of.
        is_held: this worker may still write.
        outcome: ``HELD`` until it is finished, handed over or lost.
        halt: set when this worker must begin no more work on the shard.
        at_work: a consumer works on the shard; it ends a handover itself, after its batch.
        noticed_ms: when its handover was noticed, on the monotonic clock.
        noticed_beat: its next owner's last sign of life then, if that is a slot; None until known.
        is_unwanted: to be given up to nobody as soon as nothing runs: paused, or fast asleep.
        lag_ms: MillisBehindLatest of the last read, -1 unknown (hazard H18).
        read_ms: when that was, on the monotonic clock.
        throughput_kbps: average of what is read, KB/s; None until known (protocol.md §1.2).
        confirmed: when the last write that the table accepted was sent.
        release_sent: a release was sent that no answer came to. Renewals do not take it back: it
            has no counter among its conditions, and may land after them.
        lanes: how far lanes are beyond the checkpoint, whether or not the fleet state took it; None
            if they are not. Who begins the shard again in this process goes on from it.
        sent: the last checkpoint that was sent, whether or not it was answered, if any was.
        unsure: checkpoints that writes without an answer would have left behind (hazard H1).
        lock: serializes the writes.

    """

    __slots__ = (
        "_compared",
        "_rated_ms",
        "_read_bytes",
        "_safe",
        "_unstored",
        "at_work",
        "confirmed",
        "halt",
        "is_held",
        "is_unwanted",
        "lag_ms",
        "lanes",
        "lease",
        "lease_key",
        "lock",
        "noticed_beat",
        "noticed_ms",
        "outcome",
        "read_ms",
        "release_sent",
        "sent",
        "shard",
        "throughput_kbps",
        "unsure",
    )

    def __init__(self, lease: Lease, confirmed: Instant, *, stream_arn: str) -> None:
        """Hold a lease of a stream that was confirmed at that time."""
        self.lease = lease
        self.shard = ShardRef.of(lease.lease_key, stream_arn)
        self.lease_key = lease.lease_key
        self.outcome = LeaseOutcome.HELD
        self.is_held = True
        self.halt = Halt()
        self.at_work = False
        self.noticed_ms = confirmed.monotonic_ms
        self.noticed_beat: int | None = None
        self.is_unwanted = False
        self.lag_ms = -1
        self.read_ms = confirmed.monotonic_ms
        self.throughput_kbps = lease.throughput_kbps
        self._read_bytes = 0
        self._rated_ms = confirmed.monotonic_ms
        self.confirmed = confirmed
        self.release_sent = False
        self.lanes: LanesNote | None = None
        self.sent: ExtendedSequenceNumber | None = None
        self.unsure: list[ExtendedSequenceNumber] = []
        self.lock = asyncio.Lock()
        self._safe: ExtendedSequenceNumber | None = None
        self._unstored: ExtendedSequenceNumber | None = None
        # The lease that the progress was compared with: each look would compare it again.
        self._compared: Lease | None = None

    @property
    def in_handover(self) -> bool:
        """Return whether another worker is to have it; this one may finish its batch (§3.5)."""
        return self.lease.checkpoint_owner is not None

    @property
    def unstored(self) -> ExtendedSequenceNumber | None:
        """Return the progress that the table does not have yet, None if it has all."""
        if self._compared is not self.lease:
            self._compared, safe = self.lease, self._safe
            self._unstored = safe if safe is not None and safe > self.lease.checkpoint else None
        return self._unstored

    @property
    def done(self) -> ExtendedSequenceNumber:
        """Return the progress, whether or not the table has it yet."""
        return self.unstored or self.lease.checkpoint

    @property
    def done_text(self) -> str:
        """Return the progress for a person."""
        return str(self.done)

    @property
    def on_its_way(self) -> tuple[ExtendedSequenceNumber, ...]:
        """Return which checkpoints the table may have by now beside the one that is known."""
        sent = {self.sent, self.unstored, *self.unsure} - {None}
        return tuple(sorted(each for each in sent if each and each > self.lease.checkpoint))

    def note_read(self, lag_ms: int, *, now_ms: int, size_bytes: int = 0) -> None:
        """Remember how far behind the shard's tip a read was, when, and how much it brought."""
        self.lag_ms, self.read_ms = lag_ms, now_ms
        self._read_bytes += size_bytes

    def rate(self, now_ms: int, *, every_ms: int) -> None:
        """Bring the throughput up to date once a renewal interval has gone by."""
        elapsed_ms = now_ms - self._rated_ms
        if elapsed_ms >= every_ms:
            self.throughput_kbps = next_throughput(
                self.throughput_kbps, read_bytes=self._read_bytes, elapsed_ms=elapsed_ms
            )
            self._read_bytes, self._rated_ms = 0, now_ms

    def lag_at(self, now_ms: int, *, still_ms: int) -> int:
        """
        Return the lag now, -1 unknown.

        A read that lies more than ``still_ms`` back is no news: its records wait since (H18).
        """
        return lag_now(self.lag_ms, now_ms - self.read_ms, still_ms=still_ms)

    def note_progress(self, safe: ExtendedSequenceNumber) -> None:
        """Remember up to where everything is handled; it is stored by a later write."""
        if self._safe is None or safe > self._safe:
            self._safe, self._compared = safe, None

    def let_go(self, outcome: LeaseOutcome) -> None:
        """Stop working on the shard."""
        self.outcome = outcome
        self.is_held = False
        self.halt.set()
