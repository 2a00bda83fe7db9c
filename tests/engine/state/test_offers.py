"""Offers of slots: whose process is dead is seen by one's own clock (H3, H15)."""

import asyncio

from shardfleet.engine.ports import ExecutionStatus
from shardfleet_processes.offers import OfferLauncher
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from tests.virtual import virtual

FAILOVER_MS = 9_000
BEAT_MS = FAILOVER_MS // 3
NAME, TEXT = "f-s0001-1-0", '{"version":1}'


class Processes:
    """A manager and processes over one table; each has a wall clock of its own."""

    def __init__(self):
        self.store = MemoryStateStore()
        self.manager = self.of("manager")

    def of(self, host, *, ahead_ms=0):
        clock = VirtualClock(VirtualClock().now_ms() + ahead_ms)
        return OfferLauncher(self.store, host=host, clock=clock, failover_ms=FAILOVER_MS)

    async def taken_by(self, host):
        await self.manager.start(NAME, TEXT)
        await host.beat(7)
        offer = (await host.look()).offers[NAME]
        assert await host.take(NAME, offer)
        return offer


async def pause(duration_ms):
    await asyncio.sleep(duration_ms / 1_000)


@virtual
async def test_an_offer_lives_as_long_as_its_process_writes_it_whatever_its_clock_says():
    world = Processes()
    host = world.of("pod-1", ahead_ms=-3_600_000)
    await world.taken_by(host)
    for _ in range(10):
        assert await world.manager.status(NAME) is ExecutionStatus.RUNNING
        await pause(BEAT_MS)
        await host.beat(7)


@virtual
async def test_an_offer_of_a_silent_process_is_closed_after_the_failover_time_seen_here():
    world = Processes()
    await world.taken_by(world.of("pod-1", ahead_ms=3_600_000))
    await pause(10 * FAILOVER_MS)
    assert await world.manager.status(NAME) is ExecutionStatus.RUNNING  # Seen for the first time.
    await pause(FAILOVER_MS - 1)
    assert await world.manager.status(NAME) is ExecutionStatus.RUNNING
    await pause(1)
    assert await world.manager.status(NAME) is ExecutionStatus.CLOSED
    assert await world.manager.start(NAME, TEXT) is False


@virtual
async def test_who_has_looked_all_the_time_knows_at_once_of_a_dead_process():
    world = Processes()
    successor = world.of("pod-2")
    await world.taken_by(world.of("pod-1"))
    await successor.look()
    await pause(FAILOVER_MS)
    assert await successor.status(NAME) is ExecutionStatus.CLOSED


@virtual
async def test_an_offer_that_nobody_has_taken_runs_for_as_long_as_it_takes():
    world = Processes()
    await world.manager.start(NAME, TEXT)
    await world.manager.status(NAME)
    await pause(10 * FAILOVER_MS)
    assert await world.manager.status(NAME) is ExecutionStatus.RUNNING


@virtual
async def test_of_two_that_take_an_offer_one_has_it():
    world = Processes()
    hosts = [world.of("pod-1"), world.of("pod-2")]
    await world.manager.start(NAME, TEXT)
    offers = [(await host.look()).offers[NAME] for host in hosts]
    took = await asyncio.gather(*(h.take(NAME, o) for h, o in zip(hosts, offers, strict=True)))
    assert sorted(took) == [False, True]


@virtual
async def test_what_a_process_passes_on_runs_and_another_one_takes_it_and_back_again():
    world = Processes()
    one, other = world.of("pod-1"), world.of("pod-2")
    offer = await world.taken_by(one)
    for giver, taker in [(one, other), (other, one)]:
        await giver.pass_on(NAME, offer)
        assert await world.manager.status(NAME) is ExecutionStatus.RUNNING
        assert await taker.take(NAME, (await taker.look()).offers[NAME])
    assert (await world.manager.look()).offers[NAME].host == "pod-1"


@virtual
async def test_a_new_start_of_a_slot_deletes_what_was_offered_of_it_before_and_nothing_else():
    world = Processes()
    await world.taken_by(world.of("pod-1"))
    await world.manager.start("f-s0002-1-0", TEXT)
    await world.manager.start("f-s0001-2-0", TEXT)
    assert (await world.manager.look()).offers.keys() == {"f-s0001-2-0", "f-s0002-1-0"}


@virtual
async def test_what_a_process_has_had_that_has_left_is_closed():
    world = Processes()
    host = world.of("pod-1")
    await world.taken_by(host)
    await host.leave()
    assert await world.manager.status(NAME) is ExecutionStatus.CLOSED


@virtual
async def test_an_offer_that_cannot_be_read_is_closed():
    world = Processes()
    await world.store.write("offer", NAME, {"text": 7}, expected_version=None)
    assert await world.manager.status(NAME) is ExecutionStatus.CLOSED
    assert await world.manager.start(NAME, TEXT) is False
    assert (await world.manager.look()).offers == {}


@virtual
async def test_processes_are_there_while_they_write_and_are_forgotten_in_the_end():
    world = Processes()
    alive, dead, gone, leaving = (world.of(name) for name in ("a", "d", "g", "l"))
    for each in (alive, dead, gone):
        await each.beat(7)
    await gone.leave()
    await leaving.beat(7, is_leaving=True)
    seen = await alive.look()
    assert (seen.hosts, seen.alive) == ({"a", "d"}, {"a", "d", "l"})
    for _ in range(30):
        await pause(BEAT_MS)
        await alive.beat(7)
        seen = await alive.look()
    assert seen.alive == {"a"}
    await alive.forget_the_dead()
    assert [each.id for each in await world.store.list("host")] == ["a"]
    await alive.look()
    await dead.beat(7)  # It has woken: the first write finds itself deleted.
    await dead.beat(7)
    assert (await alive.look()).hosts == {"a", "d"}


@virtual
async def test_an_offer_that_waits_for_the_failover_time_is_told():
    world = Processes()
    await world.manager.start(NAME, TEXT)
    assert (await world.manager.look()).waiting == frozenset()
    await pause(FAILOVER_MS)
    assert (await world.manager.look()).waiting == {NAME}


@virtual
async def test_a_write_without_an_answer_is_known_again():
    world = Processes()
    host = world.of("pod-1")
    offer = await world.taken_by(host)
    host._versions.clear()  # As if its answer had been lost.
    assert await host.take(NAME, offer)
    await host.finish(NAME, offer)
    assert await world.manager.status(NAME) is ExecutionStatus.CLOSED


@virtual
async def test_the_configuration_is_kept_for_commands_and_written_when_it_changes():
    world = Processes()
    for env in ({"A": "1"}, {"A": "1"}, {"A": "2"}):
        await world.manager.publish(env)
    found = await world.store.read("config", "manager")
    assert (found.version, found.body) == (2, {"env": {"A": "2"}})
