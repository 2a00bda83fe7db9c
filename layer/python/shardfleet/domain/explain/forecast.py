"""What is asked of `shardfleet what-if`, of what it is asked, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardfleet.domain.explain.turn_log import Entry
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import Reason
from shardfleet.domain.slots.slot import Slot
from shardfleet.domain.stream.shards import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """
    A fleet as it was read.

    Attributes:
        at_ms: when, epoch milliseconds.
        leases: all leases, with their smoothed throughput.
        slots: all slot records.
        shards: the unfiltered listing.
        expired: keys of leases whose owner is lost.
        paused: key and reason of leases that nobody is to have: paused, or asleep.

    """

    at_ms: int
    leases: Sequence[Lease]
    slots: Sequence[Slot]
    shards: Sequence[Shard]
    expired: frozenset[str] = frozenset()
    paused: Mapping[str, Reason] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    What is supposed; with nothing supposed: what happens as things are.

    Attributes:
        workers: the fleet has exactly so many slots.
        lose: this worker, or slot, is lost.
        split: this shard is split in its middle and has been read to its end.

    """

    workers: int | None = None
    lose: str = ""
    split: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """
    What would come of it.

    Attributes:
        turns: manager turns until nothing more happens.
        settled: whether that was reached within the most turns that are played.
        steps: turn (from 1) and what would happen in it, in order.
        before: worker to the shards it has now.
        after: worker to the shards it would have at the end.
        left: lease key to why nobody would have it at the end.

    """

    turns: int
    settled: bool
    steps: tuple[tuple[int, Entry], ...]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]
    left: Mapping[str, Reason]
