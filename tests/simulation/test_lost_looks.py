"""A manager that dies in its look costs no other minute (docs/guarantees.md): a worker calls it."""

import asyncio

import pytest

from shardfleet.config import FleetConfig
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import SimulationLoop
from shardfleet_testkit.simulation.calm_fleet import MANAGER_EVERY_S, CalmFleet

CONFIG = FleetConfig(
    fleet="sim",
    stream_arn=MEMORY_STREAM_ARN,
    lease_table="leases",
    state_table="state",
    leases_per_worker=1,
    max_workers=8,
)


class MortalManager:
    """A fleet that is looked at each minute, by managers that may die."""

    def __init__(self, *, shards):
        self.fleet = CalmFleet(CONFIG, seed=1, shards=shards)
        self.spawn = self.fleet.around.spawn
        self.spawn(self._schedule(), "schedule")

    async def _schedule(self):
        while True:
            self.fleet.call_manager()
            await asyncio.sleep(MANAGER_EVERY_S)

    async def kill(self, count, *, within_s):
        """Kill so many managers, each so long after its beginning."""
        killed = set()
        while len(killed) < count:
            await asyncio.sleep(0.005)
            for actor in self.fleet.functions.alive:
                if not actor.worker_id and actor.name not in killed:
                    killed.add(actor.name)
                    await asyncio.sleep(within_s)
                    actor.suffered("killed")
                    actor.kill()

    def owners(self):
        leases = self.fleet.leases.store.leases.values()
        return {le.lease_key: le.effective_owner for le in leases if not le.is_finished}

    async def has_owners(self, *, count):
        """Wait for them; return how long that took, in seconds; violations are none."""

        def all_owned():
            return len(self.owners()) == count and None not in self.owners().values()

        lasted_s = await self.fleet.until(all_owned, patience_s=400)
        assert not self.fleet.around.violations
        return lasted_s


def run(scenario):
    return run_virtual(scenario, loop_factory=SimulationLoop)


@pytest.mark.parametrize("within_s", [0.01, 0.3])
@pytest.mark.parametrize(("killed", "most_s"), [(0, 5), (1, 60), (2, 120)])
@pytest.mark.parametrize("after_s", [1, 30])
def test_children_without_room_wait_no_longer_than_the_page_says(killed, most_s, within_s, after_s):
    async def main():
        played = MortalManager(shards=1)
        await played.has_owners(count=1)
        await asyncio.sleep(120 + after_s)
        (parent,) = played.owners()
        played.spawn(played.kill(killed, within_s=within_s), "killer")
        played.fleet.stream.split(parent)
        await played.fleet.until(lambda: len(played.owners()) == 2, patience_s=60)
        try:
            return await played.has_owners(count=2)
        finally:
            played.fleet.kill()

    assert run(main()) <= most_s


@pytest.mark.parametrize(("killed", "most_s"), [(0, 90), (1, 110)])
def test_a_slot_that_is_lost_with_a_look_waits_for_no_other_scheduled_one(killed, most_s):
    async def main():
        played = MortalManager(shards=2)
        await played.has_owners(count=2)
        await asyncio.sleep(121)
        slot_id = min(played.owners().values()).removeprefix("sim-")
        worker = played.fleet.functions.latest[slot_id]
        played.fleet.machine.abort(slot_id)
        worker.suffered("killed")
        worker.kill()
        played.spawn(played.kill(killed, within_s=0.1), "killer")

        def is_replaced():
            return played.fleet.functions.latest[slot_id] is not worker

        try:
            return await played.fleet.until(is_replaced, patience_s=400)
        finally:
            played.fleet.kill()

    assert run(main()) <= most_s
