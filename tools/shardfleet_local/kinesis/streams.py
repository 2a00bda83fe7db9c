"""
Streams: which shard a key goes to, how shards are split, merged and listed, and what expires.

Nothing here reads a clock: every method that depends on time takes `now_ms` (epoch ms, never
decreasing). Phases (CREATING, UPDATING, DELETING) are `status`; who sets it and when it ends is
account.py's business.
"""

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final

from shardfleet_local.kinesis.quotas import ShardQuota
from shardfleet_local.kinesis.sequence import SequenceMint
from shardfleet_local.kinesis.shards import HASH_KEYS, StoredShard

MS_PER_HOUR: Final = 3_600_000  # ours: a unit
MS_PER_DAY: Final = 24 * MS_PER_HOUR  # ours: a unit
DEFAULT_RETENTION_HOURS: Final = 24  # fact K81
"""Retention of a new stream (API reference, IncreaseStreamRetentionPeriod)."""
DEFAULT_RECORD_KIB: Final = 1_024  # fact K77
"""Largest record of a new stream in KiB (API reference, GetRecords: 1 MiB by default)."""


class StreamStatus(StrEnum):
    """The four statuses of the API."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    DELETING = "DELETING"


@dataclass(slots=True, eq=False)
class Consumer:
    """
    A registered enhanced fan-out consumer.

    `live` maps shard id to its subscription, `subscribed_ms` to when it last succeeded.
    """

    name: str
    arn: str
    stream_arn: str
    status: str
    created_ms: int
    tags: dict[str, str] = field(default_factory=dict)
    live: dict[str, Any] = field(default_factory=dict)
    subscribed_ms: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class StreamSettings:
    """What an owner can change about a stream without touching its shards."""

    mode: str = "PROVISIONED"
    retention_hours: int = DEFAULT_RETENTION_HOURS
    max_record_kib: int = DEFAULT_RECORD_KIB
    key_id: str | None = None
    key_since_ms: int = 0
    shard_level_metrics: list[str] = field(default_factory=list)
    policy: str | None = None
    scaled_ms: list[int] = field(default_factory=list)
    keyed_ms: list[int] = field(default_factory=list)

    @property
    def encryption(self) -> str:
        """`KMS` with a key, `NONE` without."""
        return "NONE" if self.key_id is None else "KMS"


class Stream:
    """One stream with all its shards that have not expired."""

    def __init__(self, *, name: str, arn: str, created_ms: int, settings: StreamSettings) -> None:
        self.name = name
        self.arn = arn
        self.created_ms = created_ms
        self.settings = settings
        self.status = StreamStatus.CREATING
        self.shards: dict[str, StoredShard] = {}
        self.consumers: dict[str, Consumer] = {}
        self.tags: dict[str, str] = {}
        self.mint = SequenceMint(created_ms)
        self._shards_since_ms = created_ms
        self._shards_ever = 0
        self._open: list[StoredShard] = []
        self._first_hashes: list[int] = []

    # Routing

    @property
    def open_shards(self) -> list[StoredShard]:
        """The open shards in the order of their hash ranges; they tile all hash keys."""
        return self._open

    def route(self, hash_key: int) -> StoredShard:
        """Return the open shard whose range holds the hash key."""
        return self._open[bisect_right(self._first_hashes, hash_key) - 1]

    # Opening, splitting, merging

    def open_evenly(self, count: int, now_ms: int) -> None:
        """Open that many shards with ranges of equal size, as CreateStream does."""
        self._shards_since_ms = now_ms
        for first, last in even_ranges(count):
            self._open_shard((first, last), (), now_ms=now_ms)

    def split(self, parent: StoredShard, new_first_hash: int, *, now_ms: int) -> None:
        """Close the shard and open two: below the new starting hash key, and from it on."""
        self._close(parent, now_ms)
        for part in (
            (parent.first_hash, new_first_hash - 1),
            (new_first_hash, parent.last_hash),
        ):
            parent.children.append(self._open_shard(part, (parent.shard_id,), now_ms=now_ms))
        parent.wake()

    def merge(self, one: StoredShard, other: StoredShard, *, now_ms: int) -> None:
        """Close two adjacent shards and open one over both ranges."""
        self._close(one, now_ms)
        self._close(other, now_ms)
        hashes = (one.first_hash, one.last_hash, other.first_hash, other.last_hash)
        child = self._open_shard(
            (min(hashes), max(hashes)), (one.shard_id, other.shard_id), now_ms=now_ms
        )
        for parent in (one, other):
            parent.children.append(child)
            parent.wake()

    def scale_evenly(self, count: int, *, now_ms: int) -> None:
        """
        Bring the stream to that many shards of equal size by splits, then merges.

        As UpdateShardCount does, this makes short-lived shards where old and new boundaries do not
        meet: first every new boundary is cut, then neighbours inside one new range are merged.
        """
        ranges = even_ranges(count)
        for first, _ in ranges:
            holder = self.route(first)
            if holder.first_hash != first:
                self.split(holder, first, now_ms=now_ms)
        for first, last in ranges:
            while self.route(first).last_hash != last:
                left = self.route(first)
                self.merge(left, self.route(left.last_hash + 1), now_ms=now_ms)

    def _open_shard(
        self, hashes: tuple[int, int], parents: tuple[str, ...], *, now_ms: int
    ) -> StoredShard:
        number = self._shards_ever
        self._shards_ever += 1
        shard = StoredShard(
            number=number,
            first_hash=hashes[0],
            last_hash=hashes[1],
            parents=parents,
            opened_ms=now_ms,
            starting_number=self.mint.mint(number, now_ms),
            quota=ShardQuota(now_ms),
        )
        self.shards[shard.shard_id] = shard
        insort(self._open, shard, key=lambda each: each.first_hash)
        self._first_hashes = [each.first_hash for each in self._open]
        return shard

    def _close(self, shard: StoredShard, now_ms: int) -> None:
        shard.closed_ms = now_ms
        shard.ending_number = self.mint.mint(shard.number, now_ms)
        self._open.remove(shard)
        self._first_hashes = [each.first_hash for each in self._open]

    # Retention

    def horizon_ms(self, now_ms: int) -> int:
        """Return the trim horizon: records and closed shards from before it are gone."""
        return now_ms - self.settings.retention_hours * MS_PER_HOUR

    def expire(self, now_ms: int) -> None:
        """Forget expired shards, and the records that are too old in all others."""
        horizon_ms = self.horizon_ms(now_ms)
        for shard in tuple(self.shards.values()):
            if shard.is_expired(horizon_ms):
                del self.shards[shard.shard_id]
            else:
                shard.log.trim(horizon_ms)

    def live_shard(self, shard_id: str, now_ms: int) -> StoredShard | None:
        """Return the shard without its expired records, or None if there is none (any more)."""
        shard = self.shards.get(shard_id)
        if shard is None:
            return None
        horizon_ms = self.horizon_ms(now_ms)
        if shard.is_expired(horizon_ms):
            del self.shards[shard_id]
            return None
        shard.log.trim(horizon_ms)
        return shard

    # Listing

    def shards_matching(self, kind: str, *, at_ms: int | None, now_ms: int) -> list[StoredShard]:
        """
        Return shards by ShardFilter type (all but AFTER_SHARD_ID), in the order of their ids.

        API reference, ShardFilter. A timestamp before the trim horizon counts as the trim horizon.
        """
        self.expire(now_ms)
        trim_ms = max(self._shards_since_ms, self.horizon_ms(now_ms))
        instant_ms = trim_ms if at_ms is None else max(at_ms, trim_ms)
        shards = self.shards.values()
        match kind:
            case "AT_LATEST":
                return [each for each in shards if each.is_open]
            case "AT_TRIM_HORIZON" | "AT_TIMESTAMP":
                return [each for each in shards if _was_open(each, instant_ms)]
            case "FROM_TIMESTAMP":
                return [each for each in shards if _ends_after(each, instant_ms)]
            case _:
                return list(shards)


def even_ranges(count: int) -> list[tuple[int, int]]:
    """Return `count` hash key ranges (inclusive) that tile all hash keys."""
    starts = [HASH_KEYS * index // count for index in range(count + 1)]
    return [(first, following - 1) for first, following in pairwise(starts)]


def _was_open(shard: StoredShard, at_ms: int) -> bool:
    return shard.opened_ms <= at_ms and _ends_after(shard, at_ms)


def _ends_after(shard: StoredShard, at_ms: int) -> bool:
    return shard.closed_ms is None or shard.closed_ms >= at_ms
