"""
Which kinds of faults met: on one lease or one worker, within one failover time.

Two faults that never meet prove nothing about what they do together; a run's sums say in how many
seeds each pair did. A fault is on the worker in whose invocation it strikes, on the lease that the
call is about, and on who owns that lease; some are on everybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

from shardfleet_testkit.clock import HOLDER
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.tables import LeaseTable

# A table that refuses, a manager that is missing or there twice, all clocks: they are everybody's.
_ON_EVERYBODY = frozenset({"table_outage", "manager_missing", "manager_twice", "clocks_jump"})
# What the manager reads wrongly of all leases and all shards.
_OF_EVERY_LEASE = frozenset({"stale_read", "stale_listing", "torn_listing"})
_SHARD = re.compile(r"shardId-\d+")
_EVERYBODY = ""


class Pairs:
    """
    Remembers what struck whom when.

    Attributes:
        met: pairs of kinds, each in the order of the alphabet; a kind may meet itself.

    """

    def __init__(self, now_ms: Callable[[], int], leases: LeaseTable, *, within_ms: int) -> None:
        """
        Begin with no fault.

        Args:
            now_ms: tells the simulation's time, milliseconds.
            leases: tells who owns a lease.
            within_ms: how far apart two faults may be, milliseconds.

        """
        self.met: set[tuple[str, str]] = set()
        self._now_ms = now_ms
        self._leases = leases.store.leases
        self._within_ms = within_ms
        self._struck: dict[str, dict[str, int]] = {_EVERYBODY: {}}

    def struck(self, kind: str, about: str) -> None:
        """Take down a fault of a kind; ``about`` names leases and workers, among other words."""
        now_ms = self._now_ms()
        earliest_ms = now_ms - self._within_ms
        for others in self._met_on(kind, about):
            for other, at_ms in others.items():
                if at_ms >= earliest_ms:
                    self.met.add((kind, other) if kind <= other else (other, kind))
            others[kind] = now_ms

    def _met_on(self, kind: str, about: str) -> Iterator[dict[str, int]]:
        actor = HOLDER.get()
        is_manager = isinstance(actor, Actor) and not actor.worker_id
        if kind in _ON_EVERYBODY or (kind in _OF_EVERY_LEASE and is_manager):
            return iter(self._struck.values())
        targets = set(_SHARD.findall(about))
        for key in tuple(targets & self._leases.keys()):
            targets.add(self._leases[key].lease_owner or key)
        if isinstance(actor, Actor) and actor.worker_id:
            targets.add(actor.worker_id)
        elif about and not targets:
            targets.add(about)
        own = (self._struck.setdefault(target, {}) for target in sorted(targets))
        return chain(own, (dict(self._struck[_EVERYBODY]),))
