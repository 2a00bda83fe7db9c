"""
How leases are given out by the KCL 3: by one worker that has the lock (protocol.md §2.2, §3.2-3.5).

It gives them to workers that show a fresh row of metrics, and to no others: what nobody has or what
expired at once, and what it moves between two such workers by a handover. How busy a lease keeps
its worker is drawn, so that it finds something to even out however long it leads. What an owner
without a row has and renews is left where it is.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Lease
from shardfleet.engine.ports import Kcl3Store, LeaseStore
from shardfleet_testkit.memory import MemoryKcl3Store
from shardfleet_testkit.simulation.java_taker import FAILOVER_MS, LeaseAges
from shardfleet_testkit.simulation.surroundings import Surroundings

LEAD_S = 20.0
# Of its runs each third evens out; of one in a hurry more.
_EVENS_OUT_EVERY = 3
# gracefulLeaseHandoffTimeoutMillis, and a failover time (§3.2 step 2).
_HANDOVER_MOST_MS = 30_000 + FAILOVER_MS
_MOVES_MOST = 2
# By how much a lease keeps its worker busy.
_BUSY = (0.5, 2.0)
_LOCK_MS = 120_000


@dataclass(slots=True)
class LeaderLock:
    """
    The lock item; who has it writes it anew each 30 s.

    Attributes:
        owner: worker id; empty: nobody has had it yet.
        version: another one with each write.

    """

    owner: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class Kcl3World:
    """What the workers of a KCL 3 share beside the leases."""

    rows: MemoryKcl3Store = field(default_factory=MemoryKcl3Store)
    lock: LeaderLock = field(default_factory=LeaderLock)


def kcl3_world(around: Surroundings, *, leads: bool | None) -> Kcl3World | None:
    """Return it for peers of a KCL 3, None for those of a KCL 2; drawn if ``leads`` is None."""
    if leads is None:
        leads = around.chance("kcl").choice((True, False))
    return Kcl3World() if leads else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kcl3Access:
    """
    How a worker of a KCL 3 reaches what they keep beside the leases.

    Attributes:
        rows: of metrics.
        lock: of the leader.
        hurry: how many times as often as the KCL it leads.

    """

    rows: Kcl3Store
    lock: LeaderLock
    hurry: float = 1.0


@dataclass(frozen=True, slots=True)
class Clocks:
    """Two clocks of one worker: since the run began, and since 1970; milliseconds."""

    now_ms: Callable[[], int]
    epoch_ms: Callable[[], int]


class KclLeader:
    """One worker's part in it: most of the time another one leads."""

    def __init__(
        self,
        worker_id: str,
        kcl3: Kcl3Access,
        *,
        leases: LeaseStore,
        clocks: Clocks,
        chance: random.Random,
    ) -> None:
        """Begin as one of many."""
        self._me = worker_id
        self._lock = kcl3.lock
        self._leases = leases
        self._rows = kcl3.rows
        self._clocks = clocks
        self._chance = chance
        self._seen = (-1, 0)
        self._evens_out_every = max(1, round(_EVENS_OUT_EVERY / kcl3.hurry))
        self._forget()

    def _forget(self) -> None:
        """Whoever takes over has seen nothing yet."""
        self._ages = LeaseAges(self._clocks.now_ms)
        # lease -> its two owners in a handover, and when this leader first saw them so
        self._pending: dict[str, tuple[str | None, str | None, int]] = {}
        self._runs = 0

    async def hold_lock(self) -> None:
        """Write the lock anew, or take it when it has stood still for as long as it lasts."""
        lock, now_ms = self._lock, self._clocks.now_ms()
        if self._seen[0] != lock.version:
            self._seen = (lock.version, now_ms)
        is_over = now_ms - self._seen[1] > _LOCK_MS
        if lock.owner == self._me or not lock.owner or is_over:
            if lock.owner != self._me:
                self._forget()
            lock.owner, lock.version = self._me, lock.version + 1

    async def lead(self) -> None:
        """
        Give out what is to be given out, as the leader.

        Raises:
            Throttled, OutcomeUnknown: the next run goes on.

        """
        if self._lock.owner != self._me:
            return
        leases = await self._leases.scan()
        found = await self._rows.found(())
        epoch_ms = self._clocks.epoch_ms()
        active = {row.worker_id for row in found.rows if row.is_fresh(epoch_ms)}
        self._ages.see(leases)
        self._see_pending(leases)
        lost = [lease for lease in leases if self._is_lost(lease)]
        lost.sort(key=self._ages.still_ms, reverse=True)
        load = Counter(lease.effective_owner for lease in leases if lease not in lost)
        for lease in lost:
            await self._assign(lease, active, load)
        for lease in leases:
            if lease not in lost and self._is_late(lease):
                await self._leases.apply(lease_changes.assign(lease, lease.lease_owner or self._me))
        evens_out = self._runs % self._evens_out_every == 0
        self._runs += 1
        if evens_out:
            await self._even_out([lease for lease in leases if lease not in lost], active)

    def _see_pending(self, leases: Sequence[Lease]) -> None:
        before, self._pending = self._pending, {}
        for lease in leases:
            if lease.checkpoint_owner is None:
                continue
            owners = lease.lease_owner, lease.checkpoint_owner
            known = before.get(lease.lease_key)
            is_known = known is not None and known[:2] == owners
            since_ms = known[2] if known is not None and is_known else self._clocks.now_ms()
            self._pending[lease.lease_key] = (*owners, since_ms)

    def _is_lost(self, lease: Lease) -> bool:
        return lease.effective_owner is None or self._ages.still_ms(lease) > FAILOVER_MS

    def _is_late(self, lease: Lease) -> bool:
        """Return whether a handover has taken too long."""
        pending = self._pending.get(lease.lease_key)
        return pending is not None and self._clocks.now_ms() - pending[2] > _HANDOVER_MOST_MS

    async def _assign(
        self, lease: Lease, active: AbstractSet[str], load: Counter[str | None]
    ) -> None:
        """Give a lease that nobody has to who has the fewest; its owner may be that one."""
        if not active:
            return
        order = sorted(active)
        self._chance.shuffle(order)
        worker = min(order, key=lambda each: load[each])
        load[worker] += 1
        if worker != lease.effective_owner or lease.checkpoint_owner is not None:
            await self._leases.apply(lease_changes.assign(lease, worker))

    async def _even_out(self, leases: Sequence[Lease], active: AbstractSet[str]) -> None:
        """Move a few leases: by handovers, and what is finished at once, for nobody reads it."""
        held = Counter(lease.effective_owner for lease in leases)
        busy = {who: held[who] * self._chance.uniform(*_BUSY) for who in sorted(active)}
        if not busy:
            return
        donor, worker = max(busy, key=busy.__getitem__), min(busy, key=busy.__getitem__)
        if donor == worker:
            return
        movable = [le for le in leases if (le.lease_owner, le.checkpoint_owner) == (donor, None)]
        wanted = min(self._chance.randint(1, _MOVES_MOST), len(movable))
        for lease in self._chance.sample(movable, wanted):
            move = lease_changes.assign if lease.is_finished else lease_changes.initiate_handover
            await self._leases.apply(move(lease, worker))
