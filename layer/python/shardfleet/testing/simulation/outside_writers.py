"""
Other hands on the lease table: an operator who rewinds, and a tool that stores checkpoints.

An operator evicts a lease, waits a moment, and sets it back on the condition that nobody has it
(protocol.md L12). A tool of another making stores progress and leaves the counter alone, as
kcl-rust does: the monotonic guard is there for that (hazard H8).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, ChangeKind, LeaseChange
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.testing.checkers import SourceRecord
from shardfleet.testing.simulation.surroundings import Surroundings
from shardfleet.testing.simulation.tables import LeaseTable

_THINKS_MOST_S = (0.1, 20.0)
_GARBLED_S = (1.0, 10.0, 60.0)


@dataclass(slots=True)
class _Person:
    """Somebody who is no invocation; see ``Suspect``."""

    name: str
    worker_id: str = ""
    execution: tuple[int, int] = (0, 0)
    frozen_ms: int = 0
    faults: Sequence[tuple[int, str]] = field(default_factory=list)
    wall_ms: Callable[[], int] = int


class OtherHands:
    """
    Everybody who writes to the lease table and is neither manager nor worker.

    Attributes:
        rewound: leases that were set back: their shards must stay readable.

    """

    def __init__(
        self,
        around: Surroundings,
        table: LeaseTable,
        is_listed: Callable[[str], bool],
        *,
        only_finished: bool = False,
    ) -> None:
        """
        Begin with nothing touched.

        Args:
            around: what everything shares.
            table: of leases.
            is_listed: tells whether the stream has a shard still.
            only_finished: the operator sets back finished leases only.

        """
        self.rewound: set[str] = set()
        self._around = around
        self._table = table
        self._is_listed = is_listed
        self._chance = around.chance("hands")
        self._only_finished = only_finished
        self._hole: str | None = None
        self._operator = _Person("operator")
        self._tool = _Person("tool")

    async def run(self) -> None:
        """Look at each lease once a second, until cancelled."""
        faults = self._around.faults
        while True:
            await asyncio.sleep(1)
            for key, lease in sorted(self._table.store.leases.items()):
                if faults.strike("malformed_lease", key):
                    self._around.spawn(self._garble(key), f"garble {key}")
                if faults.strike("foreign_checkpoint", key):
                    self._store_progress(key)
                if self._has_sibling(key) and faults.strike("lease_vanishes", key):
                    self._delete_by_mistake(key)
                if not self._has_followers(key) and faults.strike("lease_deleted", key):
                    self._delete_by_mistake(key)
                is_meant = lease.is_finished or not self._only_finished
                if is_meant and self._is_listed(key) and faults.strike("rewind", key):
                    self._around.spawn(self._rewind(key), f"rewind {key}")

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
        lease, done = leases[key], self._done(key)
        if lease.is_finished or not done or done[-1].is_excused:
            return
        reached = _position(done[-1])
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
        """Tell whether this is the lease of an open shard beside one of a sibling."""
        leases, truth = self._table.store.leases, self._around.ledger.shards[key]
        siblings = {
            child for p in truth.parents for child in self._around.ledger.shards[p].children
        }
        return not truth.children and bool(leases.keys() & siblings - {key})

    def _has_followers(self, key: str) -> bool:
        """Tell whether a child has a lease: then nothing shows that this shard was not finished."""
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

    async def _rewind(self, key: str) -> None:
        """Evict the lease, think, and set it back if it is still as it was left."""
        done = self._done(key)
        target = AT_TRIM_HORIZON
        # A fleet that began at the tip is not set back to before it.
        handled = [entry for entry in done if not entry.is_excused]
        if len(handled) < len(done) or self._chance.randrange(2):
            if not handled:
                return
            target = _position(self._chance.choice(handled))
        # Before the first write: retention must not take what is to be read again.
        self.rewound.add(key)
        lease = self._table.store.leases[key]
        evicted = await self._table.apply(lease_changes.evict(lease), self._operator)
        if not isinstance(evicted, Applied):
            return
        await asyncio.sleep(self._chance.uniform(0, self._chance.choice(_THINKS_MOST_S)))
        change = lease_changes.rewind(evicted.lease, target)
        result = await self._table.apply(change, self._operator)
        self._around.log(self._operator.name, "rewinds", key, target, "->", result)

    def _done(self, key: str) -> Sequence[SourceRecord]:
        truth = self._around.ledger.shards[key]
        truth.first_unfinished()
        return truth.entries[: truth.prefix]


def _position(entry: SourceRecord) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(entry.position[0]), entry.position[1])
