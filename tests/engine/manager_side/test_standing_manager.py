"""The manager in processes: it never rests, and the turn lock lets one of them work (H13)."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import SlotInput
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import Throttled
from shardfleet_processes.offers import OfferLauncher
from shardfleet_processes.standing import StandingManager
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.manager_side.fleet_kit import Fleet, shard
from tests.virtual import virtual

FAILOVER_MS = 9_000
BEAT_MS = FAILOVER_MS // 3


class Process:
    """One that stands for manager, and shows that it lives, until it is killed or told to end."""

    def __init__(self, fleet, name, *, ahead_ms=0):
        self.fleet, self.name, self.halt = fleet, name, Halt()
        clock = VirtualClock(fleet.clock.now_ms() + ahead_ms)
        self.offers = OfferLauncher(
            fleet.store, host=name, clock=clock, failover_ms=fleet.config.failover_ms
        )
        self.ports = replace(
            fleet.ports(),
            clock=clock,
            launcher=self.offers,
            state=FleetState(fleet.store, clock),
            entropy=SeededEntropy(len(name)),
        )
        self.manager = StandingManager(fleet.config, self.ports, self.offers)
        self.tasks = [asyncio.create_task(self.manager.run(self.halt))]
        self.tasks.append(asyncio.create_task(self.beat()))

    async def beat(self):
        while not self.halt.is_set:
            await self.offers.beat(7)
            await self.offers.look()
            await self.halt.wait(BEAT_MS)

    async def kill(self):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@asynccontextmanager
async def processes(*names, ahead=None, **options):
    fleet = Fleet(failover_ms=FAILOVER_MS, max_workers=1_000, **options)
    made = [Process(fleet, name, ahead_ms=(ahead or {}).get(name, 0)) for name in names]
    try:
        yield fleet, made
    finally:
        for each in made:
            await each.kill()


async def leader(fleet):
    found = await fleet.store.read("lock", "manager")
    return found.body["holder"] if found and found.body["until_ms"] else ""


def turns(fleet):
    return len(fleet.named("ManagerTurnDone"))


async def offered(fleet):
    return sorted(json_slot(each.body["text"]) for each in await fleet.store.list("offer"))


def json_slot(text):
    return SlotInput.from_payload(json.loads(text)).slot_id


async def pause(duration_ms):
    await asyncio.sleep(duration_ms / 1_000)


@virtual
async def test_one_of_several_leads_and_takes_turns_for_as_long_as_it_lives():
    async with processes("a", "b") as (fleet, _):
        await pause(200_000)
        assert await leader(fleet) == "a"
        assert 10 <= turns(fleet) <= 12


@virtual
async def test_the_lock_is_held_for_the_failover_time_and_prolonged_each_third_of_it():
    async with processes("a") as (fleet, _):
        for _ in range(20):
            await pause(BEAT_MS)
            lock = await fleet.store.read("lock", "manager")
            left_ms = lock.body["until_ms"] - fleet.clock.now_ms()
            assert FAILOVER_MS - BEAT_MS <= left_ms <= FAILOVER_MS


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
@virtual
async def test_a_dead_leader_is_replaced_when_the_lock_runs_out_whatever_its_clock_said(ahead_ms):
    async with processes("a", "b", ahead={"a": ahead_ms}) as (fleet, (first, _)):
        await pause(30_000)
        await first.kill()
        skew_ms = fleet.config.clock_skew_ms if ahead_ms else 0
        await pause(FAILOVER_MS + BEAT_MS + skew_ms)
        assert await leader(fleet) == "b"


@virtual
async def test_a_leader_that_ends_in_order_is_replaced_at_the_next_look():
    async with processes("a", "b") as (fleet, (first, _)):
        await pause(30_000)
        first.halt.set()
        await pause(BEAT_MS + 1_000)
        assert await leader(fleet) == "b"


@virtual
async def test_there_are_as_many_slots_as_processes_also_when_one_comes():
    async with processes("a", "b") as (fleet, _):
        await pause(5_000)
        assert await offered(fleet) == ["s0001", "s0002"]
        third = Process(fleet, "c")
        await pause(BEAT_MS + 1_000)
        assert await offered(fleet) == ["s0001", "s0002", "s0003"]
        await third.kill()


@virtual
async def test_there_are_no_more_slots_than_leases():
    async with processes("a", "b", "c", shards=[shard(0, 0, 8), shard(1, 8, 16)]) as (fleet, _):
        await pause(60_000)
        assert len(await fleet.leases.scan()) == 2
        assert await offered(fleet) == ["s0001", "s0002"]
        assert fleet.named("ManagerTurnDone")[-1].slots_wanted == 2


@virtual
async def test_a_prompt_brings_a_turn_within_a_second():
    async with processes("a") as (fleet, _):
        await pause(25_000)
        before = turns(fleet)
        await fleet.state.prompt_manager()
        await pause(1_000)
        assert turns(fleet) == before + 1


@virtual
async def test_the_leader_s_configuration_is_there_for_commands():
    async with processes("a", "b") as (fleet, _):
        await pause(5_000)
        found = await fleet.store.read("config", "manager")
        assert found.body["env"] == fleet.config.to_env()


@virtual
async def test_a_table_that_refuses_ends_nobody():
    async with processes("a") as (fleet, (process,)):
        await pause(5_000)
        take, process.ports.state.take_lock = process.ports.state.take_lock, refused
        await pause(20_000)
        process.ports.state.take_lock = take
        assert "Throttled" in fleet.named("ManagerTurnFailed")[-1].error
        await pause(30_000)
        assert await leader(fleet) == "a"
        assert not process.tasks[0].done()


async def refused(*_, **__):
    raise Throttled("busy")


@virtual
async def test_who_was_overtaken_in_the_middle_of_a_turn_makes_no_lease():
    """One frozen for a while would make a lease again that was finished and deleted meanwhile."""
    async with processes("a") as (fleet, _):
        await pause(1)
        list_shards = fleet.stream.list_shards

        async def overtaken(*words, **more):
            found = await list_shards(*words, **more)
            lock = await fleet.store.read("lock", "manager")
            body = {"holder": "b", "until_ms": fleet.clock.now_ms() + 60_000}
            await fleet.store.write("lock", "manager", body, expected_version=lock.version)
            return found

        fleet.stream.list_shards = overtaken
        await pause(50_000)
        assert await fleet.leases.scan() == []
        assert "another process leads" in fleet.named("ManagerStepCut")[-1].reason
        fleet.stream.list_shards = list_shards
        await pause(50_000)
        assert len(await fleet.leases.scan()) == 4


@pytest.mark.parametrize(
    ("ahead_ms", "options", "leads"),
    [
        (3_600_000, {"spill": True}, False),
        (-3_600_000, {"spill": True}, False),
        (FAILOVER_MS, {"spill": True}, True),
        (3_600_000, {}, True),
    ],
)
@virtual
async def test_who_is_not_to_judge_lambdas_heartbeats_does_not_lead(ahead_ms, options, leads):
    async with processes("a", ahead={"a": ahead_ms}, **options) as (fleet, _):
        incarnation = fleet.stream.incarnation

        async def with_its_time():
            return replace(await incarnation(), service_ms=fleet.clock.now_ms())

        fleet.stream.incarnation = with_its_time
        await pause(30_000)
        assert (await leader(fleet) == "a") is leads
        told = [event.error for event in fleet.named("ManagerTurnFailed")]
        assert bool(told) is not leads
        assert all("clock is 3600 s off" in each for each in told)
