"""The end of a shard: children first, parents before children, and nothing ends that has not."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.stream.sequence import (
    AT_SHARD_END,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.errors import Throttled
from shardfleet.events.delivery import ConsumerFailed
from shardfleet.events.worker import ParentsAwaited, ShardEnded
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import (
    ME,
    OTHER,
    World,
    a_lease,
    at,
    key,
    lose_answers,
    refuse,
)
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "parent_poll_ms": 500}


def a_world(**world):
    return World(**{**SHORT, **world})


def in_world(scenario, **world):
    async def main():
        return await scenario(World(**{**SHORT, **world}))

    return run_virtual(main())


def prompts(world):
    document = world.state.documents.get(("prompt", "manager"))
    return 0 if document is None else document.version


# --- the sequence: protocol.md §4.6


@virtual
async def test_children_are_created_then_named_then_the_parent_ends_then_the_manager_is_prompted():
    world = a_world()
    world.put(1, 10)
    world.stream.split(key(0))
    world.put(11, 15, number=1)
    await world.turn(turn_ms=30_000)

    writes = [(change.operation, change.lease_key) for change, _ in world.leases.changes]
    order = [
        ("create", key(1)),
        ("create", key(2)),
        ("set_children", key(0)),
        ("checkpoint", key(0)),
        ("take", key(1)),
        ("take", key(2)),
    ]
    places = [len(writes) - 1 - writes[::-1].index(write) for write in order[:4]]
    places += [writes.index(write) for write in order[4:]]
    assert places == sorted(places)
    assert world.lease(0).checkpoint == AT_SHARD_END
    assert world.lease(0).child_shard_ids == (key(1), key(2))
    for n in (1, 2):
        shard = world.stream.shard(key(n))
        assert world.lease(n).parent_shard_ids == (key(0),)
        assert world.lease(n).hash_key_range == shard.hash_key_range
    created = [c.sets for c, _ in world.leases.changes if c.operation == "create"]
    assert {sets["checkpoint"] for sets in created} == {AT_TRIM_HORIZON}
    assert prompts(world) == 1
    assert world.numbers == list(range(1, 16))


def test_children_begin_at_trim_horizon_also_when_the_fleet_began_at_latest():
    """§8 row 7: a child at LATEST would skip what came before its first read."""

    async def scenario(world):
        async def reshard():
            await world.clock.sleep_ms(10_000)
            world.put(1, 5)
            world.stream.split(key(0))
            world.put(6, 9, number=1)
            world.put(10, 12, number=2)

        task = asyncio.create_task(reshard())
        await world.turn(turn_ms=40_000)
        await task
        assert sorted(world.numbers) == list(range(1, 13))

    latest = replace(AT_TRIM_HORIZON, sequence_number="LATEST")
    in_world(scenario, leases=[a_lease(checkpoint=latest)], initial_position="LATEST")


def test_a_child_of_a_shard_without_a_record_since_the_instant_begins_at_the_instant_too():
    """kcl-rust lets it inherit AT_TIMESTAMP; at TRIM_HORIZON older records would be delivered."""
    instant_ms = 1_700_000_060_000  # The clock begins a minute earlier.

    async def scenario(world):
        world.put(1, 5)
        world.stream.split(key(0))
        world.put(6, 9, number=1)
        await world.clock.sleep_ms(120_000)
        world.put(10, 12, number=1)
        await world.turn(turn_ms=40_000)
        assert world.lease(0).checkpoint == AT_SHARD_END
        assert world.numbers == [10, 11, 12]

    begins = ExtendedSequenceNumber("AT_TIMESTAMP")
    options = {"initial_position": "AT_TIMESTAMP", "initial_timestamp_ms": instant_ms}
    in_world(scenario, leases=[a_lease(checkpoint=begins)], **options)


@virtual
async def test_a_shard_that_a_tool_ends_before_its_first_read_is_not_read_from_its_beginning():
    """H8: a tool of another making stores SHARD_END and leaves the counter alone."""
    world = a_world(leases=[a_lease(checkpoint=at(3))])
    world.put(1, 5)
    world.stream.split(key(0))
    world.put(6, 9, number=1)
    for n in (1, 2):
        world.leases.leases[key(n)] = a_lease(n, lease_owner=None, parent_shard_ids=(key(0),))

    def ends(change):
        if change.operation == "renew" and not world.lease(0).is_finished:
            world.leases.leases[key(0)] = replace(
                world.lease(0), checkpoint=AT_SHARD_END, child_shard_ids=(key(1), key(2))
            )

    world.leases.before = ends
    await world.turn(turn_ms=30_000)
    assert world.numbers == [6, 7, 8, 9]
    assert [world.lease(n).lease_owner for n in (1, 2)] == [ME, ME]
    assert [event.lease_key for event in world.told(ShardEnded)] == [key(0)]


@pytest.mark.parametrize("room", [2, 1])
@virtual
async def test_children_are_taken_over_as_far_as_there_is_room(room):
    world = a_world(leases_per_worker=room)
    world.stream.split(key(0))
    await world.turn(turn_ms=30_000)
    owners = [world.lease(n).lease_owner for n in (1, 2)]
    assert owners == [ME, ME if room == 2 else None]


@virtual
async def test_a_child_that_somebody_else_has_is_left_alone():
    world = a_world()
    world.stream.split(key(0))
    world.leases.leases[key(1)] = a_lease(
        1, lease_owner=OTHER, parent_shard_ids=(key(0),), lease_counter=3
    )
    await world.turn(turn_ms=30_000)
    assert world.lease(1).lease_owner == OTHER
    assert world.lease(1).lease_counter == 3
    assert world.lease(2).lease_owner == ME


@virtual
async def test_an_empty_closed_shard_ends_too():
    world = a_world()
    world.stream.split(key(0))
    await world.turn(turn_ms=30_000)
    assert world.lease(0).is_finished
    assert world.handler.calls == []


@virtual
async def test_a_shard_does_not_end_before_its_last_record_is_handled():
    world = a_world(max_attempts=0, max_batch_records=1)

    async def fails_on_last(batch):
        if any(record.data == b"5" for record in batch):
            raise ValueError("not this one")

    world.handler._script = fails_on_last
    world.put(1, 5)
    world.stream.split(key(0))
    await world.turn(turn_ms=30_000)
    assert not world.lease(0).is_finished
    assert key(1) not in world.leases.leases


@virtual
async def test_a_handler_that_checkpoints_itself_never_withholds_the_end_of_a_shard():
    """H12: every delivered batch succeeded, so its children need not wait for ever."""
    world = a_world()

    async def declares_only_the_first(batch):
        batch.checkpoint(batch[0])

    world.handler._script = declares_only_the_first
    world.put(1, 5)
    world.stream.split(key(0))
    await world.turn(turn_ms=30_000)
    assert world.lease(0).is_finished
    assert world.numbers == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "operation", ["create", "set_children", "checkpoint", "take"], ids=lambda name: name
)
@virtual
async def test_refused_writes_and_lost_answers_at_the_end_of_a_shard_do_no_harm(operation):
    world = a_world()
    world.put(1, 5)
    world.stream.split(key(0))
    world.put(6, 7, number=1)
    world.leases.before = refuse(2, operation=operation)
    world.leases.after = lose_answers(2, operation=operation)
    await world.turn(turn_ms=60_000)
    assert world.lease(0).is_finished
    assert world.lease(0).child_shard_ids == (key(1), key(2))
    assert [world.lease(n).lease_owner for n in (1, 2)] == [ME, ME]
    assert sorted(set(world.numbers)) == list(range(1, 8))


@virtual
async def test_a_child_whose_taking_was_not_answered_is_adopted_though_it_is_refused_once():
    world = a_world()
    begun_ms = {}

    async def note(batch):
        begun_ms.setdefault(batch.shard_id, world.clock.monotonic_ms())

    refuse_once = refuse(1, operation="renew")
    world.handler = MemoryHandler(world.clock, note)
    world.leases.before = lambda change: change.lease_key == key(1) and refuse_once(change)
    world.leases.after = lose_answers(1, operation="take")
    world.put(1)
    world.stream.split(key(0))
    world.put(2, number=1)
    await world.turn(turn_ms=60_000)

    assert begun_ms[key(1)] - begun_ms[key(0)] < 2_000
    assert [c.operation for c, _ in world.leases.changes if c.lease_key == key(1)][:2] == [
        "create",
        "take",
    ]


@virtual
async def test_a_child_that_is_refused_before_a_stall_is_not_brought_back_to_life_after_it():
    """§8 row 9: meanwhile another worker ended the shard, and its children are done and deleted."""
    world = a_world()
    refused = []

    def others_go_on():
        theirs = replace(world.lease(0), lease_owner=OTHER, lease_counter=99)
        world.leases.leases[key(0)] = replace(theirs, checkpoint=AT_SHARD_END)
        asyncio.get_running_loop().stall(40)

    def refuse_once(change):
        if change.operation == "create" and not refused:
            refused.append(change)
            asyncio.get_running_loop().call_later(0.001, others_go_on)
            raise Throttled

    world.put(1, 5)
    world.stream.split(key(0))
    world.leases.before = refuse_once
    await world.turn(turn_ms=120_000)
    assert refused
    assert world.leases.leases.keys() == {key(0)}


# --- a crash at every step: protocol.md §8 row 5


async def _split_and_end(steps):
    """One process ends a shard and dies at a step; another one goes on."""
    world = World(**SHORT)
    world.put(1, 3)
    low, high = world.stream.split(key(0))
    world.put(4, 5, number=1)
    world.put(6, 7, number=2)
    real = world.leases.apply

    async def checked(change):
        result = await real(change)
        if world.lease(0).is_finished:
            assert {low, high} <= world.leases.leases.keys(), "SHARD_END before the children"
            assert world.lease(0).child_shard_ids == (low, high)
        return result

    world.leases.apply = checked
    await process(world, steps, turn_ms=20_000)
    seen = len(steps.names)
    for lease in list(world.leases.leases.values()):
        # Children that a finished parent left without an owner are the manager's to assign.
        if lease.lease_owner is None and world.lease(0).is_finished:
            await world.leases.apply(lease_changes.assign(lease, ME))
    await world.turn(turn_ms=20_000)
    return world, seen


def test_a_crash_at_any_step_of_the_end_of_a_shard_leaves_no_hole():
    """Before and after each single call, reads included; the next process ends the shard."""
    _, count = run_virtual(_split_and_end(Steps()))
    assert count > 60
    for step in range(count):
        steps = Steps(act_at=step)
        world, _ = run_virtual(_split_and_end(steps))
        where = f"step {step}: {steps.names[-1]}"
        assert len(world.deaths) == 1, where
        assert all(world.lease(n).lease_owner == ME for n in (1, 2)), where
        assert world.lease(0).is_finished, where
        first_of = [world.numbers.index(n) for n in range(1, 8)]
        assert max(first_of[:3]) < min(first_of[3:]), where


# --- merges: protocol.md §4.6 step 2, §4.7, §8 row 6


@pytest.mark.parametrize("slow", [0, 1], ids=["the first is slow", "the second is slow"])
@virtual
async def test_a_child_waits_for_both_parents_of_a_merge(slow):
    world = a_world(shards=2)

    async def one_is_slow(batch):
        if batch.shard_id == key(slow):
            await world.clock.sleep_ms(4_000)

    world.handler._script = one_is_slow
    world.put(1, 5, number=0)
    world.put(6, 9, number=1)
    child = world.stream.merge(key(0), key(1))
    world.stream.put(b"10", key="k", shard_id=child)
    await world.turn(turn_ms=60_000)
    assert world.numbers[-1] == 10
    assert sorted(world.numbers) == list(range(1, 11))
    assert world.leases.leases[child].lease_owner == ME
    assert world.leases.leases[child].parent_shard_ids == (key(0), key(1))


def test_a_child_assigned_early_is_not_read_before_its_parents_are_done():
    """Parents of another worker: polled, and told once."""

    async def scenario(world):
        world.put(1, 3)
        world.stream.split(key(0))
        world.put(4, 5, number=1)
        handled = []

        async def other_worker():
            await world.clock.sleep_ms(20_000)
            handled.extend(world.numbers)
            finished = replace(world.lease(0), checkpoint=AT_SHARD_END)
            world.leases.leases[key(0)] = finished

        task = asyncio.create_task(other_worker())
        await world.turn(turn_ms=60_000)
        await task
        assert handled == []
        assert world.numbers == [4, 5]
        assert len(world.told(ParentsAwaited)) == 1

    parent = a_lease(0, lease_owner=OTHER)
    child = a_lease(1, parent_shard_ids=(key(0),))
    in_world(scenario, leases=[parent, child])


@virtual
async def test_a_missing_parent_lease_blocks_nobody():
    """Protocol.md §4.7, #150."""
    world = a_world(leases=[a_lease(1, parent_shard_ids=(key(0),))])
    world.stream.split(key(0))
    world.put(1, 2, number=1)
    await world.turn(turn_ms=30_000)
    assert world.numbers == [1, 2]


@virtual
async def test_a_child_is_not_taken_while_another_worker_has_an_unfinished_parent():
    world = a_world(shards=2, leases=[a_lease(0), a_lease(1, lease_owner=OTHER)])
    world.put(1, 3, number=0)
    child = world.stream.merge(key(0), key(1))
    await world.turn(turn_ms=30_000)
    assert world.lease(0).is_finished
    assert world.leases.leases[child].lease_owner is None


@virtual
async def test_a_merge_whose_other_parent_has_no_lease_waits_and_prompts_the_manager():
    world = a_world(shards=2, leases=[a_lease(0)])
    world.put(1, 3, number=0)
    world.put(4, 6, number=1)
    child = world.stream.merge(key(0), key(1))
    created = []

    async def manager():
        await world.run_until(lambda: prompts(world) >= 3)
        created.append(child in world.leases.leases)
        world.leases.leases[key(1)] = a_lease(1, lease_counter=0)

    task = asyncio.create_task(manager())
    await world.turn(turn_ms=60_000)
    await task
    assert (created, world.told(ConsumerFailed)) == ([False], [])
    assert world.lease(0).is_finished
    assert world.lease(1).is_finished
    assert world.leases.leases[child].lease_owner == ME
    assert sorted(world.numbers) == list(range(1, 7))


@virtual
async def test_a_merge_whose_other_parent_left_the_stream_does_not_wait():
    """§8 row 6: one parent's lease already deleted, its shard expired."""
    world = a_world(shards=2, leases=[a_lease(0)])
    world.put(1, 3, number=0)
    child = world.stream.merge(key(0), key(1))
    world.stream.forget_shard(key(1))
    await world.turn(turn_ms=30_000)
    assert world.lease(0).is_finished
    assert world.leases.leases[child].lease_owner == ME


@virtual
async def test_a_listing_from_before_the_merge_does_not_tell_that_the_other_parent_left():
    """Found by simulation: a child of a split that was merged within seconds has no lease yet."""
    world = a_world(shards=2, leases=[a_lease(0)])
    world.put(1, 3, number=0)
    world.put(4, 6, number=1)
    listing = world.stream.list_shards
    before = [shard for shard in await listing() if shard.shard_id == key(0)]
    child = world.stream.merge(key(0), key(1))
    stale = [3]

    async def list_shards(*args, **options):
        now = await listing(*args, **options)
        stale[0] -= 1
        return before if stale[0] >= 0 else now

    world.stream.list_shards = list_shards

    async def manager():
        await world.run_until(lambda: prompts(world) >= 5)
        assert child not in world.leases.leases
        world.leases.leases[key(1)] = a_lease(1, lease_counter=0)

    task = asyncio.create_task(manager())
    await world.turn(turn_ms=60_000)
    await task
    assert stale[0] < 0
    assert world.leases.leases[child].lease_owner == ME
    assert sorted(world.numbers) == list(range(1, 7))


@virtual
async def test_a_merge_whose_child_has_a_lease_does_not_wait_for_the_other_parents():
    world = a_world(shards=2, leases=[a_lease(0)])
    child = world.stream.merge(key(0), key(1))
    world.leases.leases[child] = a_lease(2, lease_owner=OTHER, parent_shard_ids=(key(0), key(1)))
    await world.turn(turn_ms=30_000)
    assert world.lease(0).is_finished


@virtual
async def test_a_child_whose_lease_somebody_deletes_at_once_is_not_taken_and_nothing_fails():
    world = a_world()
    world.stream.split(key(0))

    def deleted(change, result):
        if change.operation == "create":
            world.leases.leases.pop(change.lease_key, None)

    world.leases.after = deleted
    await world.turn(turn_ms=30_000)
    assert world.lease(0).is_finished
    assert not world.told(ConsumerFailed)
