"""How a worker of the KCL 2 comes by leases: it takes them, greedily, and steals (§1.8)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.engine.ports import LeaseStore

FAILOVER_MS = 10_000
TAKE_S = 20.05
# What stood still for so long is taken by whoever sees it first, however much it has.
_LONG_MS = 3 * FAILOVER_MS
_STOLEN_AT_ONCE = 1
_LONG_AGO_MS = -(10**9)


class LeaseAges:
    """How long the counter of each lease has stood still, as one worker has seen it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Begin with nothing seen."""
        self._now_ms = now_ms
        # lease -> its counter, and when it was seen to move; long ago if it never had an owner
        self._moved: dict[str, tuple[int, int]] = {}

    def see(self, leases: Sequence[Lease]) -> None:
        """Take note of a scan; what is not in it is forgotten."""
        before, self._moved = self._moved, {}
        for lease in leases:
            known = before.get(lease.lease_key)
            if known is None or known[0] != lease.lease_counter:
                is_free = known is None and lease.effective_owner is None
                known = lease.lease_counter, _LONG_AGO_MS if is_free else self._now_ms()
            self._moved[lease.lease_key] = known

    def still_ms(self, lease: Lease) -> int:
        """Return how long a lease that was seen has stood still."""
        return self._now_ms() - self._moved[lease.lease_key][1]


class LeaseTaker:
    """One worker's taker."""

    def __init__(
        self,
        worker_id: str,
        leases: LeaseStore,
        *,
        now_ms: Callable[[], int],
        chance: random.Random,
    ) -> None:
        """Begin with nothing seen."""
        self._worker_id = worker_id
        self._leases = leases
        self._chance = chance
        self._ages = LeaseAges(now_ms)

    async def take(self, held: Collection[str]) -> Sequence[Lease]:
        """
        Take what this worker is to have more.

        Args:
            held: keys of the leases that it has.

        Returns:
            What it has taken.

        Raises:
            Throttled, OutcomeUnknown: the next run goes on.

        """
        leases = await self._leases.scan()
        self._ages.see(leases)
        taken = []
        for lease in self._wanted(leases):
            if lease.lease_key in held:
                continue
            change = lease_changes.take(lease, self._worker_id)
            # The KCL 2 knows no handover, and leaves what it does not know.
            result = await self._leases.apply(replace(change, removes=()))
            if isinstance(result, Applied):
                taken.append(result.lease)
        return taken

    def _wanted(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        still_ms = self._ages.still_ms
        free = [le for le in leases if le.lease_owner is None or still_ms(le) > FAILOVER_MS]
        self._chance.shuffle(free)
        if long := [lease for lease in free if still_ms(lease) > _LONG_MS]:
            return long
        busy = [lease for lease in leases if lease not in free]
        load = Counter(lease.lease_owner for lease in busy)
        mine = load[self._worker_id]
        workers = len(load.keys() | {self._worker_id})
        target = max(1, -(-len(leases) // workers))
        need = target - mine
        if need <= 0 or free:
            return free[: max(0, need)]
        return self._to_steal(busy, load, need=need, target=target)

    def _to_steal(
        self, busy: Sequence[Lease], load: Counter[str | None], *, need: int, target: int
    ) -> Sequence[Lease]:
        others = [who for who in load if who != self._worker_id]
        if not others:
            return ()
        donor = max(others, key=lambda who: (load[who], str(who)))
        if load[donor] < target:
            return ()
        number = min(need, load[donor] - target) or int(need > 1)
        its = [lease for lease in busy if lease.lease_owner == donor]
        return self._chance.sample(its, min(number, _STOLEN_AT_ONCE))
