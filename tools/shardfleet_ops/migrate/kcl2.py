"""
Whom workers of a KCL 2 elect as their leader, and those of a KCL 3 that upgrades from it.

There is no vote and no lock: each worker puts the owners of all leases in order, shuffles them as
every other one does, and takes the first (protocol.md §1.10;
``DeterministicShuffleShardSyncLeaderDecider``, ``java.util.Random``, ``Collections.shuffle``). An
owner that is none of Java's is elected like any other, and then nobody does what a leader does.
"""

from __future__ import annotations

from collections.abc import Iterable

_SEED = 1947
_MULTIPLIER, _INCREMENT, _MASK = 0x5DEECE66D, 0xB, (1 << 48) - 1
_INT_MOST = (1 << 31) - 1


def elected(owners: Iterable[str]) -> str | None:
    """Return the one of a table's owners that Java's workers take for their leader."""
    # Java compares strings by their UTF-16 units.
    hosts = sorted(set(owners), key=lambda owner: owner.encode("utf-16-be", "surrogatepass"))
    chance = _JavaRandom(_SEED)
    for size in range(len(hosts), 1, -1):
        other = chance.below(size)
        hosts[size - 1], hosts[other] = hosts[other], hosts[size - 1]
    return hosts[0] if hosts else None


class _JavaRandom:
    """``java.util.Random``, as far as a shuffle needs it."""

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ _MULTIPLIER) & _MASK

    def below(self, bound: int) -> int:
        """Return what ``nextInt(bound)`` does."""
        drawn = self._drawn()
        if bound & (bound - 1) == 0:
            return (bound * drawn) >> 31
        while drawn - drawn % bound + bound - 1 > _INT_MOST:
            drawn = self._drawn()
        return drawn % bound

    def _drawn(self) -> int:
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return self._state >> 17
