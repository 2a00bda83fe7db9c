"""A graceful handover between two workers: who works until when, and how soon the other begins."""

import asyncio
from functools import partial
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import (
    SlotState,
    TurnOutcome,
    announce_assignment,
    intend_start,
)
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.events.delivery import AggregatesNotExpanded
from shardfleet.events.worker import HandoverNoticed, HandoverUnclaimed, LeaseReleased
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import MemoryEvents
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import ME, OTHER, World, a_lease, key
from tests.virtual import virtual


def in_world(scenario, **world):
    """Run a scenario in a fresh world in virtual time."""

    async def main():
        return await scenario(World(**world))

    return run_virtual(main())


async def hand_over(world, *, after_ms=0, number=0):
    """Begin a handover of a shard to the other worker, as the manager does."""
    await world.clock.sleep_ms(after_ms)
    if ("slot", "s0002") in world.state.documents:
        await world.change_slot(lambda s: announce_assignment(s, [key(number)]) or s, "s0002")
    made = lease_changes.initiate_handover(world.lease(number), OTHER, as_read=True)
    await world.leases.apply(made)
    return world.clock.monotonic_ms()


@virtual
async def test_the_next_owner_begins_within_a_second_of_the_end_and_nothing_is_repeated():
    world = World(max_batch_records=10, idle_end_ms=60_000)
    old, new = await world.open_slot(), await world.open_slot("s0002")

    async def slow(batch):
        await world.clock.sleep_ms(700)

    theirs = MemoryHandler(world.clock, slow)
    world.handler = MemoryHandler(world.clock, slow)
    world.put(1, 300)
    turns = [
        asyncio.create_task(world.turn(old)),
        asyncio.create_task(world.turn(new, handler=theirs)),
    ]
    await hand_over(world, after_ms=5_000)
    await asyncio.gather(*turns)

    (released,) = [e for e in world.told(LeaseReleased) if e.worker_id == ME]
    assert released.next_owner == OTHER
    both = [*world.numbers, *(int(data) for data in theirs.payloads)]
    assert both == list(range(1, 301))
    pause_ms = theirs.calls[0].began_ms - world.handler.calls[-1].ended_ms
    assert 0 <= pause_ms <= 1_000
    assert world.lease().owner_switches_since_checkpoint == 0


@pytest.mark.parametrize("after_ms", [5_000, 5_700, 6_400, 7_100, 7_800])
def test_a_next_owner_that_reads_already_begins_within_a_second_whenever_it_looks(after_ms):
    """It looks each renewal time, 3.3 s: an old owner that left sooner left a gap as long."""

    async def scenario(world):
        old, new = await world.open_slot(), await world.open_slot("s0002")
        world.put(1, 500), world.put(1_001, 1_500, number=1)

        async def slow(batch):
            await world.clock.sleep_ms(200)

        theirs = MemoryHandler(world.clock, slow)
        world.handler = MemoryHandler(world.clock, slow)
        turns = [
            asyncio.create_task(world.turn(old)),
            asyncio.create_task(world.turn(new, handler=theirs)),
        ]
        await hand_over(world, after_ms=after_ms)
        await asyncio.gather(*turns)

        taken = [call for call in theirs.calls if int(call.batch[0].data) < 1_000]
        assert world.numbers + [int(r.data) for c in taken for r in c.batch] == [*range(1, 501)]
        assert taken[0].began_ms - world.handler.calls[-1].ended_ms <= 1_000

    leases = [a_lease(0), a_lease(1, lease_owner=OTHER)]
    in_world(scenario, shards=2, leases=leases, max_batch_records=5, idle_end_ms=60_000)


@virtual
@pytest.mark.parametrize("begins_again", [False, True])
async def test_a_next_owner_that_died_is_waited_for_and_the_shard_is_read_meanwhile(begins_again):
    """For 10 s nobody knows that it is dead: who was let go of for it stood still as long."""
    world = World(max_batch_records=5, idle_end_ms=120_000)
    old, dead = await world.open_slot(), await world.open_slot("s0002")
    before = asyncio.all_tasks()
    task = asyncio.create_task(world.turn(dead))
    await world.clock.sleep_ms(1_000)
    task.cancel()
    await world.kill(before)

    async def slow(batch):
        await world.clock.sleep_ms(200)

    theirs = MemoryHandler(world.clock, slow)
    world.handler = MemoryHandler(world.clock, slow)
    world.put(1, 1_000)
    turns = [asyncio.create_task(world.turn(old))]
    begun_ms = await hand_over(world, after_ms=5_000)
    if begins_again:
        await world.clock.sleep_ms(4_000)
        turns.append(asyncio.create_task(world.turn(dead, handler=theirs)))
    await world.run_until(lambda: world.lease().checkpoint_owner is None)
    ended_ms = world.clock.monotonic_ms()
    assert world.lease().lease_owner == (OTHER if begins_again else ME)
    # Noticed within a renewal time; then it is silent for the failover time, or not.
    assert ended_ms - begun_ms <= (1 if begins_again else 3) * world.config.renew_ms + 4_500
    await asyncio.gather(*turns)

    assert [*world.numbers, *(int(data) for data in theirs.payloads)] == [*range(1, 1_001)]
    calls = sorted([*world.handler.calls, *theirs.calls], key=lambda call: call.began_ms)
    assert max(b.began_ms - a.ended_ms for a, b in pairwise(calls)) <= 1_000
    assert [e.next_owner for e in world.told(HandoverUnclaimed)] == [OTHER] * (not begins_again)


@virtual
async def test_a_handover_does_not_wait_for_the_import_of_user_code():
    """KCL #1743: the old owner renews, and no consumer is there to let go."""
    world = World(idle_end_ms=60_000)
    world.handler = MemoryHandler(world.clock, load_ms=60_000)
    turn = asyncio.create_task(world.turn())
    begun_ms = await hand_over(world, after_ms=5_000)
    await world.run_until(lambda: world.lease().checkpoint_owner is None)

    assert world.lease().lease_owner == OTHER
    assert world.clock.monotonic_ms() - begun_ms <= world.config.renew_ms + 500
    await turn


@virtual
async def test_a_handover_does_not_wait_for_a_page_of_records_that_take_long_to_be_taken_apart():
    """Seed 222: forty aggregates that came to nothing held one up for 19 s."""
    world = World(idle_end_ms=60_000)

    class Slow(MemoryEvents):
        def emit(self, event):
            super().emit(event)
            if isinstance(event, AggregatesNotExpanded):
                asyncio.get_running_loop().stall(1.0)

    for _ in range(40):
        world.stream.put(b"\xf3\x89\x9a\xc2" + bytes(400_000), shard_id=key(0))
    turn = asyncio.create_task(world.turn(events=Slow()))
    begun_ms = await hand_over(world, after_ms=5_000)
    await world.run_until(lambda: world.lease().checkpoint_owner is None)

    # Until it is noticed, and until the next owner has looked.
    assert world.clock.monotonic_ms() - begun_ms <= 2 * world.config.renew_ms + 2_000
    await turn


def test_a_child_that_waits_for_its_parent_is_handed_over_at_once():
    async def scenario(world):
        turn = asyncio.create_task(world.turn())
        begun_ms = await hand_over(world, after_ms=5_000, number=1)
        await world.run_until(lambda: world.lease(1).checkpoint_owner is None)

        assert world.clock.monotonic_ms() - begun_ms <= world.config.renew_ms + 500
        await turn

    waiting = a_lease(1, parent_shard_ids=(key(0),))
    in_world(scenario, shards=2, leases=[a_lease(0), waiting])


@virtual
async def test_a_handover_that_the_last_renewal_of_a_turn_meets_is_ended_there():
    world = World(max_turn_ms=60_000)
    world.put(1, 10)

    def begin_late(change):
        is_last = change.operation == "renew" and world.clock.monotonic_ms() >= 59_900
        if is_last and world.lease().checkpoint_owner is None and not moved:
            moved.append(change)
            begun = lease_changes.initiate_handover(world.lease(), OTHER)
            lease = lease_changes.apply_change(begun, world.lease()).lease
            world.leases.leases[key(0)] = lease

    moved = []
    world.leases.before = begin_late
    await world.turn()

    assert moved
    assert len(world.told(HandoverNoticed)) == 1
    assert (world.lease().lease_owner, world.lease().checkpoint_owner) == (OTHER, None)


@virtual
async def test_a_lease_taken_in_the_last_moment_and_handed_over_is_found_by_the_next_turn():
    """Neither the heartbeats nor the index know of it: it is in the index under its next owner."""
    world = World(max_turn_ms=4_000)
    world.put(1, 3)
    world.stream.split(key(0))
    beats = []
    write = world.state.write

    async def no_beat_after_the_children(kind, name, body, **options):
        lags = body.get("lags_ms", {})
        beats.append(sorted(lags))
        return await write(kind, name, body, **options)

    world.state.write = no_beat_after_the_children
    await world.turn()
    held = [k for k, le in world.leases.leases.items() if le.lease_owner == ME]
    unfinished = [k for k in held if not world.leases.leases[k].is_finished]

    assert beats[-1] == sorted(unfinished)
    for k in unfinished:
        begun = lease_changes.initiate_handover(world.leases.leases[k], OTHER)
        await world.leases.apply(begun)
    began_ms = world.clock.monotonic_ms()
    turn = asyncio.create_task(world.turn())
    await world.run_until(
        lambda: all(world.leases.leases[k].checkpoint_owner is None for k in unfinished)
    )
    assert world.clock.monotonic_ms() - began_ms <= 500
    await turn


def in_order_with_repeats(numbers, last):
    """Tell whether everything came in order, where what follows a repeat goes on without a gap."""
    return {*numbers} == {*range(1, last + 1)} and all(
        after <= before + 1 for before, after in pairwise(numbers)
    )


async def beat_on(world):
    """Give the other slot's signs of life, as one does that waits for what it is handed."""
    while True:
        await world.clock.sleep_ms(world.config.renew_ms)
        now_ms = world.clock.now_ms()
        await world.change_slot(partial(replace, heartbeat_ms=now_ms), "s0002")


def dying_old_owner(act_at):
    """Let the old owner die at one step of a handover, and begin its next turn at once."""

    async def scenario(world):
        old, new = await world.open_slot(), await world.open_slot("s0002")
        beating = asyncio.create_task(beat_on(world))

        async def slow(batch):
            await world.clock.sleep_ms(200)

        world.handler = MemoryHandler(world.clock, slow)
        world.put(1, 200)
        moving = asyncio.create_task(hand_over(world, after_ms=1_000))
        steps = Steps(act_at=act_at, only=lambda _: 1_000 <= world.clock.monotonic_ms() < 4_200)
        await process(world, steps, given=old)
        await moving
        if world.deaths:
            await world.turn(old)
        beating.cancel()
        assert (world.lease().lease_owner, world.lease().checkpoint_owner) == (OTHER, None)
        done_by_old = len(world.numbers)
        await world.turn(new)

        assert in_order_with_repeats(world.numbers, 200)
        assert len(world.numbers) - 200 <= (10 if world.deaths else 0)
        assert 0 < done_by_old < 200
        return len(steps.names), bool(world.deaths)

    options = {"max_turn_ms": 20_000, "failover_ms": 3_000, "checkpoint_ms": 0}
    return in_world(scenario, max_batch_records=10, **options)


def test_an_old_owner_may_die_at_any_step_of_a_handover():
    """What was done is repeated at most; the lease moves at once, not after the failover time."""
    total, died = dying_old_owner(None)
    assert not died
    assert total > 10

    for act_at in range(total):
        assert dying_old_owner(act_at)[1]


def dying_next_owner(act_at):
    """Let the next owner die at one step of taking over, and begin its next turn at once."""

    async def scenario(world):
        await world.open_slot("s0002")
        world.put(1, 30)
        steps = Steps(act_at=act_at, only=lambda _: world.clock.monotonic_ms() < 3_000)
        await process(world, steps, given=world.slot("s0002").slot_input())
        died = bool(world.deaths)
        if died:
            await world.turn(world.slot("s0002").slot_input())

        assert (world.lease().lease_owner, world.lease().checkpoint_owner) == (OTHER, None)
        assert in_order_with_repeats(world.numbers, 30)
        return len(steps.names), died

    handed = a_lease(lease_owner=OTHER)
    return in_world(scenario, leases=[handed], max_batch_records=10, max_turn_ms=20_000)


def test_a_next_owner_may_die_at_any_step_of_taking_over():
    total, died = dying_next_owner(None)
    assert not died
    assert total > 10

    for act_at in range(total):
        assert dying_next_owner(act_at)[1]


@virtual
async def test_an_announced_handover_is_looked_for_as_long_as_it_may_take():
    """Not a failover time only: the old owner's batch may take longer (H2)."""
    world = World(idle_end_ms=5_000, max_turn_ms=60_000)
    new = await world.open_slot("s0002")
    await world.change_slot(
        lambda s: announce_assignment(
            replace(s, state=SlotState.RUNNING, heartbeat_ms=1), [key(0)]
        ),
        "s0002",
    )
    moving = a_lease(lease_owner=OTHER, checkpoint_owner=ME)
    world.leases.leases[key(0)] = moving

    async def end_it():
        await world.clock.sleep_ms(30_000)
        served.append(world.slot("s0002").served_seq)
        await world.leases.apply(lease_changes.assign(world.lease(), OTHER))

    served = []
    ending = asyncio.create_task(end_it())
    await world.turn(new)
    await ending

    assert served == [0]
    assert world.slot("s0002").served_seq == 1


@virtual
async def test_a_slot_that_is_started_again_finds_what_it_was_handed():
    world = World()
    await world.open_slot("s0002")
    started = intend_start(
        world.slot("s0002"), slot_id="s0002", worker_id=OTHER, name_prefix="fleet", now_ms=1
    )
    await world.change_slot(lambda _: started, "s0002")
    world.leases.leases[key(0)] = a_lease(lease_owner=OTHER)
    world.put(1, 3)
    await world.turn(started.slot_input())

    assert world.numbers == [1, 2, 3]


@virtual
async def test_what_is_announced_to_a_slot_that_gives_up_already_is_looked_for_as_long():
    """Whoever announced it did not know: the wish to drain was not written yet (H2)."""
    world = World(idle_end_ms=600_000)
    given = await world.open_slot()
    deadline_ms = world.clock.monotonic_ms() + 200_000
    turn = WorkerTurn(given, config=world.config, ports=world.ports(), deadline_ms=deadline_ms)
    running = asyncio.create_task(turn.run())
    await world.clock.sleep_ms(5_000)
    await world.change_slot(lambda s: announce_assignment(s, [key(7)]))
    turn.hand_over()
    await world.clock.sleep_ms(9_000)
    await world.change_slot(lambda s: announce_assignment(s, [key(8)]))
    announced_ms = world.clock.monotonic_ms()

    assert await running is TurnOutcome.DRAINED
    assert world.clock.monotonic_ms() - announced_ms >= world.config.failover_ms
