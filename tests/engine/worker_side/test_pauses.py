"""A worker that stands still, or dies, at every step (§8 rows 13 and 25; hazards H15, H17)."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.errors import Throttled
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import ME, OTHER, World, at, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "checkpoint_ms": 1_000}


def stand_still(seconds):
    """Let time pass while nothing of this process can run."""
    asyncio.get_running_loop().stall(seconds)


async def producing(world, count, *, shards=1, each_ms=200):
    for n in range(count):
        world.put(n, number=n % shards)
        await world.clock.sleep_ms(each_ms)


def is_step(name):
    # A call of the handler that passed the gate just before the pause cannot be called back.
    return name != "before handler.run"


# --- somebody else took the lease meanwhile: §8 row 13


def taken_over(world, paused_ms):
    """Return what happens during the pause: 15 s pass, OTHER takes shard 0 and goes on."""

    def happen(name):
        stand_still(15)
        lease = world.lease(0)
        world.leases.leases[key(0)] = replace(
            lease,
            lease_owner=OTHER,
            lease_counter=lease.lease_counter + 3,
            checkpoint=at(10**6),
        )
        paused_ms.append(world.clock.monotonic_ms())

    return happen


def test_an_owner_that_stood_still_at_any_step_writes_nothing_after_another_took_the_lease():
    async def once(act_at):
        # The stall must not reach the end of the invocation, which would cut everything off.
        world = World(**SHORT, shards=2, max_turn_ms=16_000)
        paused_ms = []
        steps = Steps(
            act_at=act_at, happen=taken_over(world, paused_ms), is_deadly=False, only=is_step
        )
        feed = asyncio.create_task(producing(world, 40, shards=2))
        await process(world, steps, turn_ms=60_000)
        await feed
        return world, steps, paused_ms

    _, steps, _ = run_virtual(once(None))
    count = len(steps.names)
    assert count > 150
    for act_at in range(0, count, 2):
        world, steps, paused_ms = run_virtual(once(act_at))
        where = f"step {act_at}: {steps.names[act_at]}"
        assert world.lease(0).lease_owner == OTHER, where
        assert world.lease(0).checkpoint == at(10**6), where
        late = [
            call
            for call in world.handler.calls
            if call.batch.shard_id == key(0) and call.began_ms >= paused_ms[0]
        ]
        assert late == [], where
        # The other shard, which nobody took, is still ours.
        assert world.lease(1).lease_owner == ME, where


async def stalled(act_at, *, seconds):
    """Run a turn of 20 s that stalls at a step; return steps, the stall, and each call's begin."""
    world = World(**SHORT)
    stalls, began = [], []

    def happen(name):
        stand_still(seconds)
        stalls.append((world.clock.monotonic_ms(), len(world.leases.changes)))

    steps = Steps(act_at=act_at, happen=happen, is_deadly=False, only=is_step)
    real = world.handler.run

    async def run(batch):
        began.append((world.clock.monotonic_ms(), len(world.leases.changes)))
        return await real(batch)

    world.handler.run = run
    feed = asyncio.create_task(producing(world, 60))
    await process(world, steps, turn_ms=20_000)
    await feed
    return steps, stalls, began


def test_after_a_stall_nothing_is_delivered_until_the_lease_is_renewed():
    """H17: a stall of 4 s with a failover time of 10 s."""
    steps, _, _ = run_virtual(stalled(None, seconds=4))
    compared = 0
    for act_at in range(0, len(steps.names), 2):
        steps, stalls, began = run_virtual(stalled(act_at, seconds=4))
        ((stalled_ms, changes),) = stalls
        late = [writes for at_ms, writes in began if at_ms >= stalled_ms]
        if late:
            compared += 1
            assert late[0] > changes, f"step {act_at}: {steps.names[act_at]}"
    assert compared > 20


def test_no_call_begins_without_its_time_out_left_though_the_worker_stood_still():
    """H10: the stall is too short for the lease to matter, but the invocation's end came near."""
    steps, _, _ = run_virtual(stalled(None, seconds=3))
    for act_at in range(len(steps.names) // 2, len(steps.names)):
        steps, _, began = run_virtual(stalled(act_at, seconds=3))
        # 20 s, of which 3 s are kept back, and 5 s are the time-out.
        last_ms = max(at_ms for at_ms, _ in began)
        assert last_ms <= 12_000, f"step {act_at}: {steps.names[act_at]}"


@virtual
async def test_a_shard_that_waited_for_its_turn_longer_than_its_lease_lasted_is_not_delivered():
    """H17: confirmed when it began to wait is not confirmed when its turn comes."""
    world = World(shards=2, handler_timeout_ms=30_000, turn_margin_ms=3_000)

    async def slow(batch):
        await world.clock.sleep_ms(15_000)

    def no_answer_for_shard_1(lease_key):
        if lease_key == key(1) and world.clock.monotonic_ms() > 1_000:
            raise Throttled("busy")

    async def another_worker():
        await world.clock.sleep_ms(12_000)
        lease = world.lease(1)
        counter = lease.lease_counter + 1
        taken = replace(lease, lease_owner=OTHER, lease_counter=counter)
        world.leases.leases[key(1)] = taken

    world.handler._script = slow
    world.leases.before = lambda change: no_answer_for_shard_1(change.lease_key)
    world.leases.reading = no_answer_for_shard_1
    world.put(1, number=0)
    await world.clock.sleep_ms(1)
    world.put(2, number=1)
    task = asyncio.create_task(another_worker())
    await world.turn(turn_ms=60_000)
    await task
    assert world.numbers == [1]
    assert len(world.handler.calls) == 1


@virtual
async def test_a_lease_is_kept_over_a_stall_when_nobody_took_it():
    world = World(**SHORT)
    steps = Steps(act_at=60, happen=lambda name: stand_still(30), is_deadly=False)
    feed = asyncio.create_task(producing(world, 60))
    await process(world, steps, turn_ms=80_000)
    await feed
    assert len(steps.names) > 60
    assert world.numbers == list(range(60))
    assert world.lease().lease_owner == ME


# --- the process dies: §8 rows 2 and 25


def test_a_death_at_any_step_loses_nothing_and_the_next_turn_goes_on():
    async def once(act_at):
        world = World(**SHORT, shards=2)
        steps = Steps(act_at=act_at)
        feed = asyncio.create_task(producing(world, 40, shards=2, each_ms=100))
        await process(world, steps, turn_ms=14_000)
        await feed
        outcome = await world.turn(turn_ms=30_000)
        return world, steps, outcome

    _, steps, _ = run_virtual(once(None))
    count = len(steps.names)
    assert count > 150
    for act_at in range(1, count, 3):
        world, steps, outcome = run_virtual(once(act_at))
        where = f"step {act_at}: {steps.names[act_at]}"
        assert outcome is TurnOutcome.CONTINUE, where
        assert set(world.numbers) == set(range(40)), where
        for shard in range(2):
            mine = [n for n in world.numbers if n % 2 == shard]
            firsts = [mine.index(n) for n in range(shard, 40, 2)]
            assert firsts == sorted(firsts), where
            last = world.stream.sequence_numbers(key(shard))[-1]
            assert str(world.lease(shard).checkpoint) == last, where


@pytest.mark.parametrize("turn_ms", [8_100, 9_000, 10_000, 11_003, 12_500, 14_999, 17_777])
@virtual
async def test_an_invocation_may_end_at_any_moment(turn_ms):
    """§8 row 25: leases renewed last, progress stored, nothing running, whatever was going on."""
    world = World(**SHORT, shards=3, max_batch_records=3)

    async def slow(batch):
        await world.clock.sleep_ms(700)

    world.handler._script = slow
    feed = asyncio.create_task(producing(world, 90, shards=3, each_ms=50))
    outcomes = []
    while len(world.numbers) < 90:
        before = asyncio.all_tasks()
        began_ms = world.clock.monotonic_ms()
        outcomes.append(await world.turn(turn_ms=turn_ms))
        await asyncio.sleep(0)
        assert asyncio.all_tasks() <= before
        assert world.clock.monotonic_ms() <= began_ms + turn_ms
        for shard in range(3):
            mine = [n for n in world.numbers if n % 3 == shard]
            stored = str(world.lease(shard).checkpoint)
            done = world.stream.sequence_numbers(key(shard))[: len(mine)]
            assert [stored] == (done[-1:] or ["TRIM_HORIZON"])
    await feed
    assert set(outcomes) == {TurnOutcome.CONTINUE}
    assert sorted(world.numbers) == list(range(90))


# --- the same every time


SCRIPT = """
import asyncio
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import World

async def main():
    world = World(shards=5, handler_timeout_ms=5_000, turn_margin_ms=3_000, overlaps=True)
    async def slow(batch):
        await world.clock.sleep_ms(130)
        if batch[0].data == b"7" and batch.attempt < 3:
            raise ValueError("seven")
    world.handler._script = slow
    async def feed():
        for n in range(100):
            world.put(n, number=n % 5)
            await world.clock.sleep_ms(70)
        world.stream.split("shardId-000000000002")
        world.stream.merge("shardId-000000000000", "shardId-000000000001")
    task = asyncio.create_task(feed())
    await world.turn(turn_ms=40_000)
    await task
    for event in world.events.events:
        print(event)
    for change, result in world.leases.changes:
        print(change.operation, change.lease_key, result)

run_virtual(main())
"""


def test_the_same_seed_gives_the_same_log_whatever_the_hash_seed():
    """H17: no order of a set or of finished tasks decides anything."""
    root = Path(__file__).resolve().parents[3]
    logs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert logs[0] == logs[1]
    assert logs[0].count("ShardEnded") == 3
