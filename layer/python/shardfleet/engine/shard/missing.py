"""
A held shard that the service does not know: missed, looked at again, and ended by evidence only.

The rule is :func:`shardfleet.domain.stream.gone_shards.judge_gone`; what it remembers outlives the
worker (:mod:`shardfleet.engine.state.gone_record`). Meanwhile the lease is kept and nothing is read
past.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import back_off_ms
from shardfleet.domain.reasons import Reason
from shardfleet.domain.stream.gone_shards import GoneNote, GoneVerdict, judge_gone
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import Clock, Entropy, EventSink, StreamDirectory
from shardfleet.engine.shard.start import TipMarks
from shardfleet.engine.state.gone_record import GoneRecord, VersionedGone
from shardfleet.errors import (
    OutcomeUnknown,
    ShardForeign,
    StreamGone,
    StreamReplaced,
    Throttled,
)
from shardfleet.events.worker import ShardExpired, ShardMissing

_MARK_EVERY_MS = 3_600_000


class MissingPorts(Struct, frozen=True, kw_only=True):
    """What looking for a shard works with."""

    stream: StreamDirectory
    record: GoneRecord
    tips: TipMarks
    clock: Clock
    entropy: Entropy
    events: EventSink


class MissingShardWatch:
    """Whether one held shard is missing, and since when."""

    def __init__(
        self,
        held: HeldLease,
        *,
        worker_id: str,
        config: FleetConfig,
        incarnation: StreamIncarnation,
        ports: MissingPorts,
    ) -> None:
        """
        Miss nothing yet.

        Args:
            held: the lease.
            worker_id: whose it is.
            config: for the failover time and the back-off.
            incarnation: the stream's life that the lease belongs to.
            ports: the stream, the record and the rest.

        """
        self._held = held
        self._worker_id = worker_id
        self._config = config
        self._incarnation = incarnation
        self._ports = ports
        self._stored = VersionedGone(GoneNote(lease_key=held.lease_key), None)
        self.is_doubted = False
        self._first_ms = 0
        self._looks = 0
        self._told: type[Reason] | None = None

    async def remember(self) -> None:
        """
        Read what earlier owners knew.

        Raises:
            Throttled: try again.

        """
        self._stored = await self._ports.record.read(self._held.lease_key)
        self.is_doubted = self._stored.note.is_open

    async def answered(self) -> None:
        """
        Forget everything: the shard has answered, or has ended.

        Raises:
            Throttled, OutcomeUnknown: try again.

        """
        self._first_ms = self._looks = 0
        self._told = None
        if self._stored.note.is_open:
            await self._ports.record.forget(self._stored, known_ms=self._read_ms())
            await self.remember()
        self.is_doubted = self._stored.note.is_open

    async def mark(self) -> None:
        """
        Note how far a shard behind its tip is read, at most once an hour, if that is possible.

        Of one at its tip :class:`TipMarks` tells, and this is not to be asked. What is known of a
        shard decides how long it is waited for after a fleet was off, while its children's records
        grow old.
        """
        note, known_ms = self._stored.note, self._read_ms()
        if known_ms - note.known_ms >= _MARK_EVERY_MS:
            try:
                await self._ports.record.write(
                    replace(note, known_ms=known_ms), self._stored.version
                )
                await self.remember()
            except (Throttled, OutcomeUnknown):
                return

    async def ended(self) -> None:
        """Forget everything if that is possible: nobody asks any more."""
        try:
            await self.answered()
        except (Throttled, OutcomeUnknown):
            return

    @property
    def pause_ms(self) -> int:
        """Return how long to wait before the shard is asked again: longer each time."""
        return back_off_ms(
            self._looks,
            first_ms=self._config.parent_poll_ms,
            most_ms=self._config.failover_ms,
            jitter=self._ports.entropy.uniform(0.0, 1.0),
        )

    async def judge(self) -> GoneVerdict:
        """
        Judge a shard that was not found just now.

        Raises:
            ShardForeign: the stream never had it; that is noted, for the manager to leave it alone,
                and the lease is unwanted.
            StreamGone, StreamReplaced: not the shard is gone, but its stream.
            Throttled, OutcomeUnknown: try again.

        """
        clock = self._ports.clock
        self._first_ms = self._first_ms or clock.now_ms()
        self._looks += 1
        self.is_doubted = True
        found = await self._ports.stream.incarnation()
        self._check(found)
        before_ms = clock.now_ms()
        try:
            listing = await self._ports.stream.list_shards()
        except StreamGone as error:  # It has just been described: one of the two is a lie.
            raise Throttled(str(error)) from error
        listed_ms = (before_ms, clock.now_ms())
        self._stored = stored = await self._ports.record.read(self._held.lease_key)
        verdict = judge_gone(
            await self._noted(stored.note),
            listing,
            shard_id=self._held.shard.shard_id,
            retention_ms=found.retention_ms,
            failover_ms=self._config.failover_ms,
            listed_ms=listed_ms,
        )
        if not verdict.is_over:
            await self._wait(verdict)
            if verdict.is_foreign:
                # To be given back: renewed, it would be kept from whoever can read it.
                self._held.is_unwanted = True
                self._held.halt.set()
                raise ShardForeign(f"lease {self._held.lease_key}: {verdict.reason}")
            return verdict
        self._ports.events.emit(
            ShardExpired(
                lease_key=self._held.lease_key,
                worker_id=self._worker_id,
                checkpoint=verdict.note.checkpoint,
                reason=verdict.reason,
            )
        )
        return verdict

    def _check(self, found: StreamIncarnation) -> None:
        if found != self._incarnation:
            message = (
                f"stream {found.stream_arn} was created again at {found.created_ms} ms "
                f"(before: {self._incarnation.created_ms}): lease {self._held.lease_key} belongs "
                "to the stream that was deleted"
            )
            raise StreamReplaced(message)

    async def _noted(self, note: GoneNote) -> GoneNote:
        """Add to what is remembered what this worker knows."""
        first_ms, known_ms = note.first_ms or self._first_ms, note.known_ms
        if not note.is_open:
            # A mark was made up to an hour before the shard last answered.
            known_ms = max(known_ms, (await self._ports.tips.last(note.lease_key)).at_ms)
            known_ms = min(first_ms, known_ms + _MARK_EVERY_MS) if known_ms else 0
        return replace(
            note,
            first_ms=first_ms,
            known_ms=max(known_ms, self._read_ms()),
            checkpoint=str(self._held.unstored or self._held.lease.checkpoint),
        )

    def _read_ms(self) -> int:
        """Return up to when this worker has read the shard, 0 unknown."""
        held, clock = self._held, self._ports.clock
        if held.lag_ms < 0:
            return 0
        return clock.now_ms() - (clock.monotonic_ms() - held.read_ms) - held.lag_ms

    async def _wait(self, verdict: GoneVerdict) -> None:
        note = verdict.note
        lasts_ms = self._ports.clock.now_ms() - note.first_ms
        if not (note.unlisted_ms or self._stored.note.is_open) and (
            lasts_ms < self._config.failover_ms
        ):
            return  # The service erred for once: that is not worth a write, nor a word.
        if note != self._stored.note:
            # Somebody else who writes is a person who decides: the next look reads it.
            await self._ports.record.write(note, self._stored.version)
            self._stored = await self._ports.record.read(note.lease_key)
        if type(verdict.reason) is not self._told:
            self._told = type(verdict.reason)
            self._ports.events.emit(
                ShardMissing(
                    lease_key=note.lease_key,
                    worker_id=self._worker_id,
                    checkpoint=note.checkpoint,
                    since_ms=note.first_ms,
                    reason=verdict.reason,
                )
            )
