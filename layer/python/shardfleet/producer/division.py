"""
How what waits for a shard is divided among several aggregates of one request.

A key stands in one entry of a request only. Where the same few keys come again and again, the first
aggregate's worth of what waits has nearly all of them, and nothing is left for a second aggregate
beside it. So more of what waits is looked at, and goes key by key into one aggregate or another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from shardfleet.kpl.packing import looked_up
from shardfleet.producer.calls import Part

_RECURRING = 4  # Keys recur where more than one record of so many has a key of one before it.


def is_recurring(parts: Sequence[Part]) -> bool:
    """Return whether more than a quarter of the records repeat an earlier record's key."""
    records, keys = sum(map(len, parts)), set(_keys_of(parts))
    return (records - len(keys)) * _RECURRING > records


def divided(parts: Sequence[Part], *, records: int) -> list[list[Part]]:
    """
    Return the records in groups that have no key in common, each in its order.

    Args:
        parts: in their order.
        records: of a group at most, unless one key alone has more.

    """
    group_of: dict[str, int] = {}
    group = inside = 0
    for key, count in Counter(_keys_of(parts)).items():
        if inside and inside + count > records:
            group, inside = group + 1, 0
        group_of[key] = group
        inside += count
    found: list[list[Part]] = [[] for _ in range(group + 1)]
    for part in parts:
        for its_group, its in part.by(looked_up(group_of, part.columns.keys)):
            found[its_group].append(its)
    return found


def _keys_of(parts: Sequence[Part]) -> Iterator[str]:
    return chain.from_iterable([part.columns.keys for part in parts])
