"""
How the limit of a batch is divided among its shards: by what waits in each, not evenly. Pure.

What waits in a shard is its recent inflow, over the time since everything in it was read. Each
shard gets in proportion; a sixteenth of the limit goes round all shards in turn, whatever is
thought to wait in them, so that none starves for a wrong guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from shardfleet_spark.offsets.plan_token import Stand

# Kinesis: a shard takes 1,000 records and 1 MiB a second (quotas of PutRecords).
_RECORDS_PER_MS = 1.0
_BYTES_PER_MS = 1024 * 1024 / 1_000
# One part in so many of a limit goes round in turn.
_ROUND = 16
# Parts of one waiting record, so that shares are whole numbers however little waits.
_FINE = 1_000
# Steps of the golden ratio fall evenly into a circle, however many there are.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, slots=True)
class Inflow:
    """
    What came into a shard, each batch counting twice as much as the one before it.

    Attributes:
        records: stream records.
        size_bytes: their data and keys.
        over_ms: in which time by arrival; 0: unknown.

    """

    records: float = 0.0
    size_bytes: float = 0.0
    over_ms: float = 0.0

    def then(self, records: int, size_bytes: int, over_ms: int) -> Inflow:
        """Return it with what one more batch has read."""
        return Inflow(
            self.records / 2 + records,
            self.size_bytes / 2 + size_bytes,
            self.over_ms / 2 + max(0, over_ms),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is expected to wait in a shard: stream records, and their data and keys."""

    records: float
    size_bytes: float


def done_until_ms(stand: Stand) -> int:
    """Return up to which arrival everything in a shard is read, 0 unknown."""
    return max(stand.arrived_ms, stand.tip_ms)


def waiting_in(
    stands: Mapping[str, Stand], inflows: Mapping[str, Inflow], *, now_ms: int
) -> dict[str, Waiting]:
    """
    Return what is expected to wait in each shard.

    One that was never read may hold as much as the fullest of the others.

    Args:
        stands: of the shards.
        inflows: of those that were read.
        now_ms: epoch milliseconds.

    """
    known = {
        shard_id: _expected(inflows[shard_id], max(0, now_ms - done_until_ms(stand)))
        for shard_id, stand in stands.items()
        if shard_id in inflows
    }
    fullest = Waiting(
        max((each.records for each in known.values()), default=0.0),
        max((each.size_bytes for each in known.values()), default=0.0),
    )
    return {shard_id: known.get(shard_id, fullest) for shard_id in stands}


def _expected(inflow: Inflow, behind_ms: int) -> Waiting:
    over_ms = max(inflow.over_ms, 1.0)
    return Waiting(
        behind_ms * min(inflow.records / over_ms, _RECORDS_PER_MS),
        behind_ms * min(inflow.size_bytes / over_ms, _BYTES_PER_MS),
    )


def plan_shares(waiting: Mapping[str, float], *, total: int, turn: int) -> dict[str, int]:
    """
    Divide a limit among shards; the shares add up to it.

    Args:
        waiting: what is expected in each shard, in the limit's unit.
        total: the limit.
        turn: the plan's number; what goes round goes on where the turn before has stopped, and
            what is less than one whole is given in some turns.

    """
    shards = sorted(waiting)
    weights = [int(waiting[shard_id] * _FINE) for shard_id in shards]
    whole = sum(weights)
    part = _ROUND if whole else 1
    first, last = total * turn // part, total * (turn + 1) // part
    often, rest = divmod(last - first, len(shards))
    shares = [often + ((index - first) % len(shards) < rest) for index in range(len(shards))]
    if whole:
        left = total - (last - first)
        offset = int(whole * (turn * _GOLDEN % 1.0))
        marks, seen = [offset // whole], 0
        for weight in weights:
            seen += weight
            marks.append((left * seen + offset) // whole)
        shares = [share + b - a for share, (a, b) in zip(shares, pairwise(marks), strict=True)]
    return dict(zip(shards, shares, strict=True))
