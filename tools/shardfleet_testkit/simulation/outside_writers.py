"""
Other hands on the lease table: a tool that stores checkpoints, and a stranger who spoils rows.

A tool of another making stores progress and leaves the counter alone, as kcl-rust does: the
monotonic guard is there for that (hazard H8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from shardfleet.domain.leases.lease import ChangeKind, LeaseChange
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable

_GARBLED_S = (1.0, 10.0, 60.0)


@dataclass(slots=True)
class _Person:
    """Somebody who is no invocation; see ``Suspect``."""

    name: str
    worker_id: str = ""
    execution: tuple[int, int] = (0, 0)
    frozen_ms: int = 0
    thawed_ms: int | None = None
    faults: Sequence[tuple[int, str]] = field(default_factory=list)
    wall_ms: Callable[[], int] = int


class OtherHands:
    """Everybody who writes to the lease table by no code of ours."""

    def __init__(self, around: Surroundings, table: LeaseTable) -> None:
        """Begin with nothing touched."""
        self._around = around
        self._table = table
        self._chance = around.chance("hands")
        self._hole: str | None = None
        self._tool = _Person("tool")

    async def run(self) -> None:
        """Look at each lease once a second, until cancelled."""
        faults = self._around.faults
        while True:
            await asyncio.sleep(1)
            for key in sorted(self._table.store.leases):
                if faults.strike("malformed_lease", key):
                    self._around.spawn(self._garble(key), f"garble {key}")
                if faults.strike("foreign_checkpoint", key):
                    self._store_progress(key)
                if self._has_sibling(key) and faults.strike("lease_vanishes", key):
                    self._delete_by_mistake(key)
                if not self._has_followers(key) and faults.strike("lease_deleted", key):
                    self._delete_by_mistake(key)

    async def _garble(self, key: str) -> None:
        """Make a row unreadable, until somebody has mended it."""
        unreadable = self._table.store.unreadable
        if key in unreadable:
            return
        unreadable[key] = f"{key}: its counter is 'x'; a number is allowed"
        self._around.log(self._tool.name, "garbles", key)
        change = LeaseChange(
            operation="garble", lease_key=key, kind=ChangeKind.UPDATE, conditions=()
        )
        self._table.write_by_hand(self._table.store.leases[key], change, self._tool)
        await asyncio.sleep(self._chance.choice(_GARBLED_S))
        unreadable.pop(key, None)
        self._around.log(self._tool.name, "mends", key)

    def _store_progress(self, key: str) -> None:
        """Store how far the shard is truly done, without a look at counter or owner."""
        leases, truth = self._table.store.leases, self._around.ledger.shards[key]
        lease, done = leases[key], truth.done()
        # What an operator wants again is not done.
        is_set_back = key in self._around.ledger.wanted_again
        if lease.is_finished or not done or done[-1].is_excused or is_set_back:
            return
        reached = done[-1].place
        is_over = truth.first_unfinished() is None and truth.children
        if is_over and leases.keys() >= set(truth.children):
            reached = AT_SHARD_END
        if reached <= lease.checkpoint:
            return
        after = replace(lease, checkpoint=reached)
        change = LeaseChange(
            operation="foreign_checkpoint", lease_key=key, kind=ChangeKind.UPDATE, conditions=()
        )
        self._around.log(self._tool.name, "stores", key, after.checkpoint)
        self._table.write_by_hand(after, change, self._tool)

    def _has_sibling(self, key: str) -> bool:
        """Return whether this is the lease of an open shard beside one of a sibling."""
        leases, truth = self._table.store.leases, self._around.ledger.shards[key]
        siblings = {
            child for p in truth.parents for child in self._around.ledger.shards[p].children
        }
        return not truth.children and bool(leases.keys() & siblings - {key})

    def _has_followers(self, key: str) -> bool:
        """Return whether a child has a lease: nothing then shows that this shard is unfinished."""
        truth = self._around.ledger.shards[key]
        return not self._table.store.leases.keys().isdisjoint(truth.children)

    def _delete_by_mistake(self, key: str) -> None:
        """Delete the lease of a shard that is being read, one at a time."""
        leases = self._table.store.leases
        is_hole = self._hole is not None and self._hole not in leases
        if is_hole or key not in leases or leases[key].checkpoint.is_sentinel:
            return
        self._hole = key
        change = LeaseChange(
            operation="vanish", lease_key=key, kind=ChangeKind.DELETE, conditions=()
        )
        self._around.log(self._tool.name, "deletes", key)
        self._table.delete_by_hand(change, self._tool)
