"""What no process takes, Lambda runs; nothing is run by both (H3)."""

from msgspec.structs import replace

from shardfleet.domain.slots.offers import LAMBDA, Offer
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.spill import SpillLauncher
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.ports import ExecutionStatus
from shardfleet.engine.state.offers import Offers
from shardfleet.errors import RightMissing
from shardfleet_processes.offers import OfferLauncher
from shardfleet_testkit.memory import MemoryLauncher
from tests.engine.manager_side.fleet_kit import Fleet
from tests.virtual import virtual

FAILOVER_MS, AFTER_MS = 9_000, 10_000
NAME, TEXT = "f-s0001-1-0", '{"version":1}'


class SpilledFleet:
    """A table, the executions of a machine, and whoever takes offers."""

    def __init__(self):
        self.fleet = Fleet(failover_ms=FAILOVER_MS, spill=True, spill_after_ms=AFTER_MS)
        self.clock, self.executions = self.fleet.clock, MemoryLauncher()
        self.offers = self.of(Offers, LAMBDA)
        self.launcher = SpillLauncher(self.offers, self.executions, after_ms=AFTER_MS)

    @property
    def started(self):
        return set(self.executions.executions)

    def of(self, kind, host):
        return kind(self.fleet.store, host=host, clock=self.clock, failover_ms=FAILOVER_MS)

    async def process(self, host="pod"):
        process = self.of(OfferLauncher, host)
        await process.beat(7)
        return process

    async def carrier(self):
        found = await self.fleet.store.read("offer", NAME)
        return found.body.get("host", "")

    def ports(self):
        return replace(self.fleet.ports(), launcher=self.launcher, rooms=self.offers.rooms)


async def takes(process):
    """Let a process take what is offered to it; return whether it has."""
    board = await process.look()
    name = board.to_take(process.host, is_spilled=True)
    return name is not None and await process.take(name, board.offers[name])


@virtual
async def test_what_no_process_takes_is_an_execution_s_after_a_while_and_not_before():
    world = SpilledFleet()
    process = await world.process()
    assert await world.launcher.start(NAME, TEXT)
    await world.clock.sleep_ms(AFTER_MS - 1)
    await process.beat(7)
    assert await world.launcher.start(NAME, TEXT)
    assert (world.started, await world.carrier()) == (set(), "")
    await world.clock.sleep_ms(1)
    assert await world.launcher.start(NAME, TEXT)
    assert (world.started, await world.carrier()) == ({NAME}, LAMBDA)
    assert not await takes(process)


@virtual
async def test_what_a_process_takes_is_no_execution_s_whoever_manages():
    world = SpilledFleet()
    process = await world.process()
    await world.launcher.start(NAME, TEXT)
    assert await takes(process)
    for _ in range(4):
        await world.clock.sleep_ms(FAILOVER_MS // 3)
        await process.beat(7)
        assert await world.launcher.start(NAME, TEXT)
        assert await world.launcher.status(NAME) is ExecutionStatus.RUNNING
    assert not world.started
    assert (await world.offers.rooms()).carried == {"f-s0001"}


@virtual
async def test_a_process_that_carries_a_slot_leaves_the_next_one_to_lambda_however_long():
    world = SpilledFleet()
    process = await world.process()
    await world.launcher.start(NAME, TEXT)
    assert await takes(process)
    await world.launcher.start("f-s0002-1-0", TEXT)
    await world.clock.sleep_ms(10 * FAILOVER_MS)
    await process.beat(7)
    assert not await takes(process)


@virtual
async def test_who_takes_an_offer_first_has_it():
    world = SpilledFleet()
    process = await world.process()
    await world.launcher.start(NAME, TEXT)
    await world.clock.sleep_ms(AFTER_MS)
    take = world.offers.take

    async def after_the_process(*given, **more):
        await process.beat(7)
        assert await takes(process)
        return await take(*given, **more)

    world.offers.take = after_the_process
    assert await world.launcher.start(NAME, TEXT)
    assert (world.started, await world.carrier()) == (set(), "pod")


@virtual
async def test_where_there_is_no_process_nothing_waits():
    world = SpilledFleet()
    assert await world.launcher.start(NAME, TEXT)
    assert (world.started, await world.carrier()) == ({NAME}, LAMBDA)


@virtual
async def test_a_manager_that_dies_before_the_start_has_started_it_for_whoever_comes_next():
    world = SpilledFleet()
    dead = world.of(Offers, LAMBDA)
    await dead.start(NAME, TEXT)
    assert await dead.take(NAME, Offer(name=NAME, text=TEXT), host=LAMBDA)
    assert await world.launcher.start(NAME, TEXT)
    assert world.started == {NAME}


@virtual
async def test_an_execution_that_is_over_is_closed_and_its_name_not_used_again():
    world = SpilledFleet()
    await world.launcher.start(NAME, TEXT)
    assert await world.launcher.status(NAME) is ExecutionStatus.RUNNING
    world.executions.close(NAME)
    assert await world.launcher.status(NAME) is ExecutionStatus.CLOSED
    assert not await world.launcher.start(NAME, TEXT)


@virtual
async def test_an_execution_that_continues_as_new_is_found_though_nobody_offered_it():
    world = SpilledFleet()
    await world.executions.start("f-s0001-1-1", TEXT)
    assert await world.launcher.status("f-s0001-1-1") is ExecutionStatus.RUNNING
    assert await world.launcher.status("f-s0001-1-2") is ExecutionStatus.ABSENT


@virtual
async def test_where_a_process_leads_the_scheduled_manager_tells_and_changes_nothing():
    world = SpilledFleet()
    await LeaseManager(world.fleet.config, world.ports()).turn()
    await world.process()
    await world.fleet.state.take_lock("pod", duration_ms=FAILOVER_MS, longest_ms=60_000)
    before, told = dict(world.fleet.store.documents), len(world.fleet.named("ManagerTurnDone"))
    began_ms = world.clock.monotonic_ms()
    assert await run_manager(world.fleet.config, world.ports(), run_ms=50_000) == 0
    assert world.clock.monotonic_ms() == began_ms
    assert len(world.fleet.named("ManagerTurnDone")) == told + 1
    assert (world.fleet.store.documents, world.fleet.named("ManagerLockedOut")) == (before, [])


@virtual
async def test_a_lock_that_is_refused_once_says_nothing_of_who_leads():
    world = SpilledFleet()
    await world.process()
    await world.fleet.state.take_lock("pod", duration_ms=60_000, longest_ms=60_000)
    ports, read = world.ports(), world.fleet.store.read
    refusals = iter([RightMissing("the lock")])

    async def refused_once(*asked):
        for refusal in refusals:
            raise refusal
        return await read(*asked)

    world.fleet.store.read = refused_once
    assert await run_manager(world.fleet.config, ports, run_ms=50_000) == 0


@virtual
async def test_where_no_process_has_the_lock_the_scheduled_manager_waits_for_it():
    world = SpilledFleet()
    await world.process()
    await world.fleet.state.take_lock("another", duration_ms=5_000, longest_ms=60_000)
    assert await run_manager(world.fleet.config, world.ports(), run_ms=50_000) > 0


@virtual
async def test_a_dead_process_is_waited_for_once_and_forgotten():
    world = SpilledFleet()
    await world.process()
    await world.launcher.start(NAME, TEXT)
    await world.clock.sleep_ms(AFTER_MS)
    assert await world.launcher.start(NAME, TEXT)
    assert world.started == {NAME}
    await world.offers.forget_the_dead(times=1)
    assert await world.fleet.store.list("host") == []
