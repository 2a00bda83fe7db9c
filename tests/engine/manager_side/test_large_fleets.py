"""What a manager does for many slots and shards, it does some at a time."""

from shardfleet.domain.leases.lease import Lease, LeaseAndWhy
from shardfleet.domain.leases.sync import LeaseSyncPlan
from shardfleet.domain.reasons import EmptyTable
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.engine.retry import CALLS_AT_ONCE
from tests.engine.manager_side.fleet_kit import Fleet
from tests.virtual import virtual


class Gauge:
    """How many calls run at once, at most."""

    def __init__(self, clock, call):
        self.most = self.total = self._running = 0
        self._clock, self._call = clock, call

    async def __call__(self, *arguments, **options):
        self._running += 1
        self.total += 1
        self.most = max(self.most, self._running)
        await self._clock.sleep_ms(20)
        try:
            return await self._call(*arguments, **options)
        finally:
            self._running -= 1


@virtual
async def test_many_slots_are_started_some_at_a_time_and_never_more():
    fleet = Fleet(leases_per_worker=4, min_workers=40, max_workers=40)
    gauge = fleet.launcher.start = Gauge(fleet.clock, fleet.launcher.start)
    await fleet.manager.turn()
    assert gauge.total == 40
    assert gauge.most == CALLS_AT_ONCE


def a_lease_to_create(key, *parents):
    lease = Lease(lease_key=key, checkpoint=AT_TRIM_HORIZON, parent_shard_ids=parents)
    return LeaseAndWhy(lease, EmptyTable())


def test_a_lease_is_never_written_beside_its_parents():
    plan = LeaseSyncPlan(
        create=(
            a_lease_to_create("a"),
            a_lease_to_create("b"),
            a_lease_to_create("c", "elsewhere"),
            a_lease_to_create("d", "a", "b"),
            a_lease_to_create("e", "c"),
            a_lease_to_create("f", "d"),
        )
    )

    parts = [[wanted.lease.lease_key for wanted in part] for part in plan.generations()]

    assert parts == [["a", "b", "c"], ["d", "e"], ["f"]]
    assert not list(LeaseSyncPlan().generations())
