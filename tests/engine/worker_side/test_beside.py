"""
What stands beside a checkpoint, from one worker of ours to the next: it goes on to count.

What makes it stale is in ``tests/engine/operating/test_setbacks.py``.
"""

import asyncio

import pytest

from shardfleet.domain.delivery.lanes import lane_of
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import ask_to_drain
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.engine.state.beside import generation_of, raise_generation
from shardfleet.engine.state.documents import Documents, UnreadableDocument
from shardfleet.engine.state.kinds import GENERATION
from shardfleet.events.delivery import CrashCharged, PositionLost, PositionOutlived
from shardfleet_ops.operate.documents import DocumentWard, MendingFacts
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import ME, OTHER, World, a_lease, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "failover_ms": 3_000}
LANES = {lane_of(f"k{n}", 2): f"k{n}" for n in range(50)}
HOUR_MS = 3_600_000


class Windows:
    """A handler whose window has everything that came, in order."""

    def __init__(self):
        self.config = {
            "tumbling_window_ms": 900_000,
            "checkpoint_ms": 1_000,
            "max_batch_records": 2,
        }
        self.windows = []

    async def __call__(self, batch):
        await asyncio.sleep(0.9)
        numbers = [*batch.state.get("ns", []), *(int(record.data) for record in batch)]
        self.windows.append(numbers)
        return {"state": {"ns": numbers}}


class SlowLane:
    """A handler for which every second key is slow."""

    def __init__(self):
        self.config = {"parallelism": 2, "checkpoint_ms": 1_000, "max_batch_records": 1}

    async def __call__(self, batch):
        await asyncio.sleep(1.5 * (int(batch[0].data) % 2))


def a_world(handler, **config):
    world = World(**SHORT, **{**handler.config, **config})
    world.handler = MemoryHandler(world.clock, handler, overlaps=True)
    for n in range(20):
        world.stream.put(str(n).encode(), key=LANES[n % 2], shard_id=key(0))
    return world


async def goes_on(world):
    await world.turn(turn_ms=14_000)
    return ME


async def dies(world):
    """It is between a note and the checkpoint that the note was made for."""
    steps = Steps(act_at=2, only=lambda name: name == "before leases.apply checkpoint")
    await process(world, steps, turn_ms=30_000)
    assert world.deaths
    return ME


async def is_drained(world):
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.clock.sleep_ms(3_000)
    await world.change_slot(ask_to_drain)
    await turn
    assert world.lease().lease_owner is None
    await world.leases.apply(lease_changes.assign(world.lease(), OTHER))
    return OTHER


async def hands_over(world):
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.clock.sleep_ms(3_000)
    handing = lease_changes.initiate_handover(world.lease(), OTHER, as_read=True)
    await world.leases.apply(handing)
    await world.run_until(lambda: world.lease().checkpoint_owner is None)
    await world.change_slot(ask_to_drain)
    await turn
    return OTHER


async def is_lost(world):
    """Its slot goes with it, and the manager gives its lease to another one."""
    await dies(world)
    await world.leases.apply(lease_changes.assign(world.lease(), OTHER, expired=True))
    return OTHER


async def is_lost_with_its_heir(world):
    """Neither the next slot that gets its lease, nor a Java worker after it, stores anything."""
    owner = await is_lost(world)
    await world.leases.apply(lease_changes.take(world.lease(), "java"))
    await world.leases.apply(lease_changes.assign(world.lease(), ME, expired=True))
    await world.leases.apply(lease_changes.assign(world.lease(), owner, expired=True))
    return owner


WAYS = [goes_on, dies, is_drained, hands_over, is_lost]


async def finish(world, owner):
    """Let whoever has the lease work on; the way there cost renewals, as an import does."""
    slot = await world.open_slot(owner.removeprefix("fleet-")) if owner == OTHER else None
    for _ in range(3):
        lease = world.lease()
        await world.leases.apply(lease_changes.renew(lease))
        await world.turn(slot, turn_ms=60_000)


@pytest.mark.parametrize("way", [*WAYS, is_lost_with_its_heir], ids=lambda way: way.__name__)
def test_a_window_has_all_that_came_whoever_of_ours_goes_on(way):
    async def scenario():
        windows = Windows()
        world = a_world(windows)
        owner = await way(world)
        assert 0 < len(world.numbers) < 20
        await finish(world, owner)
        return windows.windows[-1]

    assert run_virtual(scenario()) == list(range(20))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_what_lanes_have_done_ahead_does_not_come_again_whoever_of_ours_goes_on(way):
    async def scenario():
        world = a_world(SlowLane())
        owner = await way(world)
        noted = world.state.documents["lanes", key(0)].body["ahead"]
        assert noted
        (place,) = (int(text.partition(":")[0]) for text in noted["2"].values())
        numbers = world.stream.sequence_numbers(key(0))
        done = {n for n in range(0, 20, 2) if int(numbers[n]) <= place}
        before = len(world.numbers)
        await finish(world, owner)
        assert set(world.numbers) == set(range(20))
        return done & set(world.numbers[before:])

    assert run_virtual(scenario()) == set()


@pytest.mark.parametrize("way", ["drained", "lost"])
@virtual
async def test_an_idle_shard_that_another_of_ours_takes_up_days_later_has_lost_nothing(way):
    world = World(**SHORT)
    world.put(1, 3)
    await world.turn(turn_ms=30_000)
    lease = world.lease()
    if way == "drained":
        await world.leases.apply(lease_changes.evict(lease))
    await world.clock.sleep_ms(72 * HOUR_MS)
    await world.leases.apply(lease_changes.assign(world.lease(), OTHER))
    await world.turn(await world.open_slot("s0002"), turn_ms=30_000)
    assert not world.told(PositionLost)
    assert len(world.told(PositionOutlived)) == 1


# --- documents of the release before


def of_the_release_before(world, kind):
    """Take away what that one did not write."""
    document = world.state.documents[kind, key(0)]
    body = {n: v for n, v in document.body.items() if n not in ("stamp", "between")}
    world.state._store(kind, key(0), body, version=document.version + 1)


@pytest.mark.parametrize("is_set_back", [False, True])
@virtual
async def test_a_window_of_the_release_before_goes_on_until_its_lease_is_set_back(is_set_back):
    """Nothing repeats a state: what was in it would be lost from its sum."""
    windows = Windows()
    world = a_world(windows)
    await goes_on(world)
    done = len(world.numbers)
    of_the_release_before(world, "window")
    if is_set_back:
        await raise_generation(world.state, key(0), now_ms=1)
    await finish(world, ME)
    assert windows.windows[-1] == list(range(done if is_set_back else 0, 20))


@pytest.mark.parametrize("is_set_back", [False, True])
@virtual
async def test_a_tip_mark_of_the_release_before_counts_until_its_lease_is_set_back(is_set_back):
    world = World(**SHORT, on_trimmed="jump")
    world.put(1, 3)
    await world.turn(turn_ms=30_000)
    of_the_release_before(world, "tip")
    if is_set_back:
        await raise_generation(world.state, key(0), now_ms=1)
    world.stream.trim(key(0))
    await world.turn(turn_ms=30_000)
    assert bool(world.told(PositionLost)) == is_set_back


@virtual
async def test_lanes_of_the_release_before_come_again():
    """In doubt it repeats, and never loses."""
    world = a_world(SlowLane())
    await goes_on(world)
    of_the_release_before(world, "lanes")
    stands = int(world.lease().checkpoint.sequence_number)
    numbers = world.stream.sequence_numbers(key(0))
    ahead = {n for n in world.numbers if int(numbers[n]) > stands}
    before = len(world.numbers)
    assert ahead
    await finish(world, ME)
    assert ahead <= set(world.numbers[before:])
    assert set(world.numbers) == set(range(20))


@virtual
async def test_a_crash_note_of_the_release_before_charges_nobody():
    world, steps = World(**SHORT, max_batch_records=1), []
    world.put(1, 3)

    async def kill(batch):
        if steps:
            steps[-1].died.set()
            await asyncio.Event().wait()

    world.handler = MemoryHandler(world.clock, kill)
    for _ in range(2):
        steps.append(Steps(only=lambda name: False))
        steps[-1].names.append("in the handler")
        await process(world, steps[-1], turn_ms=30_000)
    of_the_release_before(world, "note")
    steps.clear()
    await world.turn(turn_ms=30_000)
    assert world.numbers == [1, 2, 3]
    assert not world.told(CrashCharged)


# --- what it costs


def test_it_costs_one_read_for_each_shard_that_is_begun_and_no_write():
    async def scenario():
        calls = []
        leases = [a_lease(n, checkpoint=AT_TRIM_HORIZON) for n in range(3)]
        world = World(**SHORT, shards=3, leases=leases)
        world.state.before = lambda call, kind, name: calls.append((call, kind, name))
        for number in range(3):
            world.put(10 * number, 10 * number + 5, number=number)
        await world.turn(turn_ms=60_000)
        return [call for call in calls if call[1] == GENERATION]

    assert run_virtual(scenario()) == [("read", GENERATION, key(n)) for n in range(3)]


# --- a generation that cannot be read


@pytest.mark.parametrize("way", ["mend", "drop"])
def test_a_generation_that_somebody_wrote_over_is_never_the_first_one_again(way):
    """Or what was noted before the first setting-back would count once more."""

    async def scenario():
        world = World()
        await raise_generation(world.state, key(0), now_ms=1)
        world.state._store(GENERATION, key(0), {"at_ms": "nonsense"}, version=2)
        ward = DocumentWard(Documents.of(world.state))
        document = UnreadableDocument(GENERATION, key(0), 2, "nonsense")
        facts = MendingFacts(config=world.config, stream=None, now_ms=7, person="ann")
        assert await (ward.drop(document) if way == "drop" else ward.mend(document, facts))
        return await generation_of(world.state, key(0))

    assert run_virtual(scenario()).number == 3
