"""What a shard is asked for, and what it answers, whether pages are polled or pushed."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.domain.stream.sequence import PointKind, Position
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.records import StreamRecord


class StartKind(StrEnum):
    """``ShardIteratorType`` of GetShardIterator, ``Type`` of SubscribeToShard."""

    TRIM_HORIZON = "TRIM_HORIZON"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"


class StartingPosition(Struct, frozen=True):
    """Where reading begins; LATEST does not exist here, it is pinned first (hazard H7)."""

    kind: StartKind
    sequence_number: str | None = None
    instant_ms: int | None = None


FROM_TRIM_HORIZON = StartingPosition(StartKind.TRIM_HORIZON)


def start_of(position: Position) -> StartingPosition:
    """
    Return where reading begins for somebody who stands there: at what is done, never behind it.

    The record may be an aggregate that is done in part (hazard H4), and that it is still there
    proves that nothing behind it was trimmed.
    """
    match position.kind:
        case PointKind.SEQUENCE if position.done is not None:
            return StartingPosition(StartKind.AT_SEQUENCE_NUMBER, position.done.sequence_number)
        case PointKind.INSTANT:
            return StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=position.instant_ms)
        case _:
            return FROM_TRIM_HORIZON


class RecordsPage(Struct, frozen=True, kw_only=True):
    """
    One answer of a shard.

    Attributes:
        records: in shard order.
        resume_token: for the source that gave it: reading goes on behind this page; it may grow
            too old. None at the end of a closed shard.
        millis_behind_latest: None when the service did not say.
        child_shards: present at the end of a closed shard.
        size_bytes: payload and keys, if counted.
        page_token: like a resume token, but for this page itself; None: nobody keeps it.

    """

    records: Sequence[StreamRecord]
    resume_token: str | None
    millis_behind_latest: int | None
    child_shards: Sequence[ChildShard] = ()
    size_bytes: int | None = None
    page_token: str | None = None

    @property
    def first(self) -> str | None:
        """Return the sequence number of the first record, if there is one."""
        return self.records[0].sequence_number if self.records else None

    @property
    def says_nothing(self) -> bool:
        """Return whether it is empty although there is more (hazard H6)."""
        return (
            not self.records and self.resume_token is not None and bool(self.millis_behind_latest)
        )

    @property
    def lag_ms(self) -> int:
        """Return MillisBehindLatest, -1 when the service did not say."""
        return -1 if self.millis_behind_latest is None else self.millis_behind_latest

    @property
    def size(self) -> int:
        """Return payload and keys in bytes, as sent."""
        if self.size_bytes is not None:
            return self.size_bytes
        return sum([len(each.data) + len(each.partition_key) for each in self.records])


def divided(
    page: RecordsPage, records_most: int, *, now_ms: int
) -> tuple[RecordsPage, RecordsPage | None]:
    """Return so many records of a pushed page, as far behind as the next one, and what is left."""
    if len(page.records) <= records_most:
        return page, None
    first, rest = page.records[:records_most], page.records[records_most:]
    arrived_ms = rest[0].approximate_arrival_ms
    lag_ms = max(1, now_ms - arrived_ms) if arrived_ms else None
    token = first[-1].sequence_number
    part = RecordsPage(records=first, resume_token=token, millis_behind_latest=lag_ms)
    return part, replace(page, records=rest, size_bytes=None)
