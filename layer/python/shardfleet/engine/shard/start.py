"""
Where reading a shard begins, and whether a position older than the retention lost anything.

A LATEST lease is pinned to an instant before its first read (hazard H7); nothing ever reads from
a LATEST that means another *now* each time (protocol.md §8 row 8b).

Kinesis answers a request for a trimmed sequence number with the oldest record it has, without a
word. Whether records were lost in between is unknown, unless this fleet was at the tip within the
shortest retention there is: then everything that came since is still there. So a caught-up shard
leaves a *tip mark* in the fleet state, at most once an hour.
The position behind which a loss was last told is noted beside it, so that a shard that is resumed
goes on there, and that a loss behind a later position is told, too.
"""

from __future__ import annotations

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import Lease
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
from shardfleet.engine.ports import Clock, StateStore, Written
from shardfleet.engine.state.fleet_state import TIP, FleetState

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
        clock: for a pin of our own, when a Java worker made the lease.

    """
    shard_id = lease.lease_key
    if not done.is_sentinel:
        return Position(incarnation, shard_id, PointKind.SEQUENCE, done=done)
    if done.sequence_number == LATEST:
        instant_ms = await state.pin(
            shard_id,
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

    def __init__(self, store: StateStore, clock: Clock) -> None:
        """Keep the ports."""
        self._store = store
        self._clock = clock
        self._marked_ms: dict[str, int] = {}

    async def proves_no_loss(self, lease_key: str, done: str) -> bool:
        """Tell whether nothing untold is lost behind a position that has been trimmed."""
        document = await self._store.read(TIP, lease_key)
        if document is None:
            return False
        # A shard that was resumed goes on behind the loss that was told, and behind no other.
        is_told = document.body.get("told") == done
        return is_told or self._clock.now_ms() - int(document.body["at_ms"]) < SHORTEST_RETENTION_MS

    async def last_ms(self, lease_key: str) -> int:
        """Return when the shard was last known to be at its tip, epoch milliseconds, 0 never."""
        document = await self._store.read(TIP, lease_key)
        return 0 if document is None else int(document.body["at_ms"])

    async def note_told(self, lease_key: str, done: str) -> None:
        """Note that the loss behind this position has been told."""
        current = await self._store.read(TIP, lease_key)
        version = None if current is None else current.version
        at_ms = 0 if current is None else int(current.body["at_ms"])
        body = {"at_ms": at_ms, "told": done}
        await self._store.write(TIP, lease_key, body, expected_version=version)

    async def mark(self, lease_key: str, *, at_ms: int | None = None) -> None:
        """
        Note that the shard is read to its tip.

        Best effort: somebody else's newer mark serves as well.

        Args:
            lease_key: the shard.
            at_ms: when it was at its tip, epoch milliseconds; None: now.

        """
        now_ms = self._clock.now_ms() if at_ms is None else at_ms
        marked_ms = self._marked_ms.get(lease_key)
        if marked_ms is not None and now_ms - marked_ms < _MARK_EVERY_MS:
            return
        current = await self._store.read(TIP, lease_key)
        is_recent = current is not None and now_ms - int(current.body["at_ms"]) < _MARK_EVERY_MS
        if current is not None and is_recent:
            self._marked_ms[lease_key] = int(current.body["at_ms"])
            return
        version = None if current is None else current.version
        result = await self._store.write(
            TIP, lease_key, {"at_ms": now_ms}, expected_version=version
        )
        if isinstance(result, Written):
            self._marked_ms[lease_key] = now_ms
