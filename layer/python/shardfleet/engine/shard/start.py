"""
Where reading a shard begins, and whether a position older than the retention lost anything.

A LATEST lease is pinned to an instant before its first read (hazard H7); nothing ever reads from
a LATEST that means another *now* each time (protocol.md §8 row 8b).

Kinesis answers a request for a trimmed sequence number with the oldest record it has, without a
word. Whether records were lost in between is unknown, unless this fleet was at the tip within the
shortest retention there is: then everything that came since is still there. So a caught-up shard
leaves a *tip mark* in the fleet state, at most once an hour.
The mark says at which position, too, and so does one that is made when a shard is given up: a shard
that is empty when it is taken up again, however much later, has lost nothing that is known of
(facts: K16, justtrackio/gosoline#1124).
The position behind which a loss was last told is noted beside it, so that a shard that is resumed
goes on there, and that a loss behind a later position is told, too.
"""

from __future__ import annotations

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.leases.sync import PIN_BACK_MS
from shardfleet.domain.reading.cursor import SHORTEST_RETENTION_MS
from shardfleet.domain.stream.sequence import (
    AT_TIMESTAMP,
    LATEST,
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.engine.ports import Clock
from shardfleet.engine.state.beside import KnownTip, LeaseNotes
from shardfleet.engine.state.fleet_state import FleetState

_MARK_EVERY_MS = 3_600_000


async def start_position(
    lease: Lease,
    done: ExtendedSequenceNumber,
    *,
    incarnation: StreamIncarnation,
    config: FleetConfig,
    state: FleetState,
    clock: Clock,
) -> Position:
    """
    Return where to begin to read.

    Args:
        lease: of the shard.
        done: the furthest progress known: the lease's checkpoint, or more in memory.
        incarnation: the stream's life that the lease belongs to.
        config: for the instant of AT_TIMESTAMP.
        state: for the pins.
        clock: the stream's, for a pin of our own, when a Java worker made the lease.

    """
    shard_id = ShardRef.of(lease.lease_key, incarnation.stream_arn).shard_id
    if not done.is_sentinel:
        return Position(incarnation, shard_id, PointKind.SEQUENCE, done=done)
    if done.sequence_number == LATEST:
        instant_ms = await state.pin(
            lease.lease_key,
            instant_ms=clock.now_ms() - PIN_BACK_MS,
            created_ms=incarnation.created_ms,
        )
        return Position(incarnation, shard_id, PointKind.INSTANT, instant_ms=instant_ms)
    if done.sequence_number == AT_TIMESTAMP:
        # kcl-rust keeps the instant in the row, Java in its configuration (protocol.md §1.5).
        instant_ms = done.sub_sequence_number or config.initial_timestamp_ms
        return Position(incarnation, shard_id, PointKind.INSTANT, instant_ms=instant_ms)
    return Position(incarnation, shard_id, PointKind.TRIM_HORIZON)


class TipMarks:
    """When each shard was last known to be read to its tip."""

    def __init__(self, notes: LeaseNotes, clock: Clock) -> None:
        """
        Know of none yet.

        Args:
            notes: where marks are; each counts for the generation that it was made in.
            clock: the stream's.

        """
        self._notes = notes
        self._clock = clock
        self._marks: dict[str, tuple[int, str, int]] = {}

    async def proves_no_loss(self, lease_key: str, done: str) -> bool:
        """
        Return whether nothing untold is lost behind a position that has been trimmed.

        A mark of another position proves nothing: behind a later one there is only what came after
        the mark, which has expired later than it, and before an earlier one it never was.
        """
        mark = await self._notes.tip(lease_key)
        if not mark.counts:
            return False
        # A shard that was resumed goes on behind the loss that was told, and behind no other.
        is_recent = self._clock.now_ms() - mark.at_ms < SHORTEST_RETENTION_MS
        return mark.told == done or (mark.done == done and is_recent)

    async def stood_at(self, lease_key: str, done: str) -> bool:
        """
        Return whether the shard was at its tip with this position.

        Then nothing was left behind it.
        """
        mark = await self._notes.tip(lease_key)
        return mark.counts and mark.done == done

    async def last(self, lease_key: str) -> KnownTip:
        """
        Return when the shard was last known to be at its tip.

        That it was open then is so whatever has become of its lease.
        """
        return await self._notes.tip(lease_key)

    async def note_told(self, lease_key: str, done: str) -> None:
        """Note that the loss behind this position has been told."""
        mark = await self._notes.tip(lease_key)
        await self._notes.write_tip(lease_key, replace(mark, done="", told=done))

    async def mark(
        self,
        lease_key: str,
        *,
        done: str | None = None,
        at_ms: int | None = None,
        is_left: bool = False,
    ) -> None:
        """
        Note that the shard is read to its tip.

        Best effort: somebody else's newer mark serves as well.

        Args:
            lease_key: the shard.
            done: the position there; None: that of the last mark, since nothing has come.
            at_ms: when it was at its tip, epoch milliseconds; None: now.
            is_left: it is read no more: the position is noted, however young the last mark is.

        """
        now_ms = self._clock.now_ms() if at_ms is None else at_ms

        def is_due(marked_ms: int, marked: str) -> bool:
            return now_ms - marked_ms >= _MARK_EVERY_MS or (is_left and done != marked)

        life = self._notes.life(lease_key)
        known = self._marks.get(lease_key)
        if known is not None and known[2] == life and not is_due(*known[:2]):
            return
        mark = await self._notes.tip(lease_key)
        if mark.counts and not is_due(mark.at_ms, mark.done):
            self._marks[lease_key] = mark.at_ms, mark.done, life
            return
        position = mark.done if done is None else done
        if await self._notes.write_tip(
            lease_key, replace(mark, at_ms=now_ms, done=position, told="")
        ):
            self._marks[lease_key] = now_ms, position, life
