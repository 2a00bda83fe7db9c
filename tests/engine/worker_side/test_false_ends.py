"""What looks like the end of a shard and is not, and what must not come after it."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.errors import OutcomeUnknown, ShardGone
from shardfleet.events.delivery import FalseShardEnd
from shardfleet.events.worker import ShardEnded, TurnFailed
from tests.engine.worker_side.worker_kit import (
    ME,
    OTHER,
    World,
    key,
    lose_answers,
    refuse,
)
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "parent_poll_ms": 500}


def a_world(**world):
    return World(**{**SHORT, **world})


# --- false ends: protocol.md §4.5, §8 row 4


def _without_children(page, child):
    return replace(page, resume_token=None, child_shards=())


def _with_an_iterator(page, child):
    return replace(page, child_shards=[child])


def _of_a_stranger(page, child):
    stranger = replace(child, parent_shard_ids=("shardId-000000000099",))
    return replace(page, resume_token=None, child_shards=[stranger, stranger])


def _half_a_merge(page, child):
    return replace(page, resume_token=None, child_shards=[child])


@pytest.mark.parametrize(
    "lie", [_without_children, _with_an_iterator, _of_a_stranger, _half_a_merge]
)
@virtual
async def test_a_contradictory_end_is_thrown_away_and_the_same_iterator_is_asked_again(lie):
    world = a_world()
    child = ChildShard(
        shard_id=key(1),
        parent_shard_ids=(key(0),),
        hash_key_range=world.stream.shard(key(0)).hash_key_range,
    )
    lies = [3]

    def alter(shard_id, page):
        if lies[0] and page.records:
            lies[0] -= 1
            return lie(page, child)
        return page

    world.stream.alter = alter
    world.put(1, 5)
    await world.turn(turn_ms=30_000)
    assert world.numbers == [1, 2, 3, 4, 5]
    assert len(world.told(FalseShardEnd)) == 3
    assert world.lease().lease_owner == ME
    assert not world.told(ShardEnded)
    assert list(world.leases.leases) == [key(0)]


# --- shards and streams that are gone: hazard H12


@virtual
async def test_a_shard_that_is_still_listed_does_not_end_because_one_call_says_it_is_gone():
    world = a_world()
    left = [4]

    def fault(call):
        if call.shard_id is not None and left[0]:
            left[0] -= 1
            raise ShardGone("not found")

    world.stream.fault = fault
    world.put(1, 5)
    await world.turn(turn_ms=30_000)
    assert world.numbers == [1, 2, 3, 4, 5]
    assert not world.lease().is_finished


@virtual
async def test_a_deleted_stream_ends_no_shard_and_fails_the_turn():
    world = a_world()

    async def deleting():
        await world.clock.sleep_ms(10_000)
        world.stream.delete()

    task = asyncio.create_task(deleting())
    world.put(1, 5)
    assert await world.turn(turn_ms=60_000) is TurnOutcome.FAILED
    await task
    assert not world.lease().is_finished
    assert "StreamGone" in world.told(TurnFailed)[0].error


@pytest.mark.parametrize("when", ["between turns", "within a turn"])
@virtual
async def test_a_stream_created_again_ends_no_shard_and_fails_the_turn(when):
    world = a_world()

    async def recreating():
        await world.clock.sleep_ms(10_000)
        world.stream.delete()
        await world.clock.sleep_ms(1)
        world.stream.create_again(shards=1)
        world.stream.forget_shard(key(0))

    world.put(1, 5)
    if when == "between turns":
        await world.turn(turn_ms=30_000)
        await recreating()
    else:
        task = asyncio.create_task(recreating())
    handled = world.numbers
    assert await world.turn(turn_ms=60_000) is TurnOutcome.FAILED
    if when == "within a turn":
        await task
        handled = [1, 2, 3, 4, 5]
    assert world.numbers == handled
    assert not world.lease().is_finished
    assert "StreamReplaced" in world.told(TurnFailed)[0].error


# --- what a late writer must not do: §8 row 9


@pytest.mark.parametrize("records", [0, 3])
@virtual
async def test_an_owner_that_stood_still_does_not_bring_finished_children_back_to_life(records):
    """Paused before its first child; meanwhile the family is finished and deleted."""
    world = a_world()
    for n in range(records):
        world.put(n)
    world.stream.split(key(0))
    paused = []

    def fault(call):
        # The listing of the other parents, or the page that tells the end, whichever is last.
        if call.operation == "get_records" and not paused:
            paused.append(call)
            asyncio.get_running_loop().stall(60)
            world.leases.leases[key(0)] = replace(
                world.lease(0), lease_owner=OTHER, lease_counter=50, checkpoint=AT_SHARD_END
            )

    world.stream.fault = fault
    await world.turn(turn_ms=200_000)
    assert paused
    assert list(world.leases.leases) == [key(0)]
    assert world.handler.calls == []


@virtual
async def test_creating_a_lease_that_exists_changes_nothing_of_it():
    world = a_world()
    world.put(1)
    world.stream.split(key(0))
    mine = Lease(
        lease_key=key(1),
        checkpoint=replace(AT_TRIM_HORIZON, sequence_number="77"),
        lease_owner=OTHER,
        lease_counter=40,
        parent_shard_ids=(key(0),),
    )
    world.leases.leases[key(1)] = mine
    world.leases.after = lose_answers(1, operation="create")
    world.leases.before = refuse(1, OutcomeUnknown, operation="create")
    await world.turn(turn_ms=30_000)
    assert world.leases.leases[key(1)] == mine
    assert lease_changes.create(mine).conditions
    assert world.lease(0).is_finished
