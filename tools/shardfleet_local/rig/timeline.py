"""
What happened when, per shard: lag and throughput as a report draws them.

Lag is exact, not sampled: at any moment the age of the oldest record of the shard that was sent
and not yet handled (for the first time); zero when there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardfleet_local.rig.feed import SentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDisturbance:
    """
    Something that was done to the fleet.

    Attributes:
        at_ms: epoch milliseconds.
        kind: ``kill``, ``split``, ``merge`` or ``throttle``.
        text: for a person.
        until_ms: the end of something that lasts.

    """

    at_ms: int
    kind: str
    text: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSeries:
    """
    One shard over the time of a run, in steps of equal length.

    Attributes:
        shard_id: the shard.
        lag_ms: greatest lag in each step.
        handled: records first handled in each step.
        first_ms: when its first record was sent.
        last_ms: when its last record was handled.

    """

    shard_id: str
    lag_ms: tuple[int, ...]
    handled: tuple[int, ...]
    first_ms: int
    last_ms: int


def shard_series(
    sent: Sequence[SentRecord],
    first_handled_ms: Mapping[int, int],
    *,
    began_ms: int,
    ended_ms: int,
    step_ms: int,
) -> list[ShardSeries]:
    """
    Return the series of every shard that got a record, ordered by shard.

    Args:
        sent: what was sent, per shard in the order of sending.
        first_handled_ms: number of a record to when it was first handled.
        began_ms: the begin of step 0, epoch milliseconds.
        ended_ms: the end of the last step, at least.
        step_ms: length of a step.

    """
    steps = max(1, -(-(ended_ms - began_ms) // step_ms))
    by_shard: dict[str, list[tuple[int, int]]] = {}
    for record in sent:
        handled_ms = first_handled_ms.get(record.number, ended_ms)
        by_shard.setdefault(record.receipt.shard_id, []).append((record.sent_ms, handled_ms))
    return [
        ShardSeries(
            shard_id=shard_id,
            lag_ms=_lag(pairs, began_ms=began_ms, steps=steps, step_ms=step_ms),
            handled=_handled(pairs, began_ms=began_ms, steps=steps, step_ms=step_ms),
            first_ms=pairs[0][0],
            last_ms=max(handled for _, handled in pairs),
        )
        for shard_id, pairs in sorted(by_shard.items())
    ]


def _handled(
    pairs: Sequence[tuple[int, int]], *, began_ms: int, steps: int, step_ms: int
) -> tuple[int, ...]:
    counts = [0] * steps
    for _, handled_ms in pairs:
        counts[min(steps - 1, max(0, (handled_ms - began_ms) // step_ms))] += 1
    return tuple(counts)


def _lag(
    pairs: Sequence[tuple[int, int]], *, began_ms: int, steps: int, step_ms: int
) -> tuple[int, ...]:
    """Return each step's greatest age of a record that waited in it."""
    lags = [0] * steps
    for sent_ms, handled_ms in pairs:
        first = max(0, (sent_ms - began_ms) // step_ms)
        last = min(steps - 1, (handled_ms - began_ms) // step_ms)
        for step in range(first, last + 1):
            until_ms = min(handled_ms, began_ms + (step + 1) * step_ms)
            lags[step] = max(lags[step], until_ms - sent_ms)
    return tuple(lags)
