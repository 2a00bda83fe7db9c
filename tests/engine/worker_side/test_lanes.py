"""
Lanes of one shard: side by side, each key in order, and a checkpoint that passes nothing.

It is one idea: whatever happens to lanes is a scenario of one shard.
"""

import asyncio
import random

import pytest

from shardfleet.domain.delivery.lanes import lane_of
from shardfleet.domain.delivery.progress import stands_for
from shardfleet.errors import ConfigurationError, Throttled
from shardfleet.events.delivery import ConsumerFailed, ShardStopped
from shardfleet.events.worker import TurnFailed
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import TURN_MS, World, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}
CALL_MS = 50


def apart(count):
    """Return a partition key for each lane."""
    keys = {lane_of(f"k{n}", count): f"k{n}" for n in range(1_000)}
    return [keys[lane] for lane in range(count)]


def dying_world(dies, **config):
    """Return a world whose process dies where the handler is given what ``dies`` says."""
    world, steps = World(overlaps=True, **config, **SHORT), []

    async def handle(batch):
        await asyncio.sleep(0.01)
        if dies(batch):
            await asyncio.sleep(1)  # What is done meanwhile is stored.
            steps[-1].died.set()
            await asyncio.Event().wait()

    async def live(turn_ms=100_000):
        steps.append(Steps(only=lambda name: False))
        steps[-1].names.append("in the handler")
        await process(world, steps[-1], turn_ms=turn_ms)

    world.handler._script = handle
    return world, live


def refuse_notes(call, kind, name):
    """Have the fleet state refuse the notes of lanes."""
    del name
    if kind == "lanes" and call == "write":
        raise Throttled("no")


class Watched:
    """A handler's script that takes its time, and sees whether keys overlap."""

    def __init__(self, world, *, call_ms=CALL_MS):
        self.world = world
        self.call_ms = call_ms
        self.at_work = set()
        self.records = []
        world.handler._script = self

    async def __call__(self, batch):
        keys = {record.partition_key for record in batch}
        assert not keys & self.at_work, "two calls have records of one key"
        self.at_work |= keys
        try:
            await asyncio.sleep(self.call_ms / 1000)
            self.records += batch
        finally:
            self.at_work -= keys

    def check_order(self):
        """Each key's records came in order, whatever was in between."""
        for wanted in {record.partition_key for record in self.records}:
            numbers = [int(r.data) for r in self.records if r.partition_key == wanted]
            assert numbers == sorted(numbers)


async def time_to_handle(parallelism, *, count, overlaps, keys=2_000):
    world = World(
        parallelism=parallelism, max_batch_records=1, overlaps=overlaps, failover_ms=10_000
    )
    watched = Watched(world)
    for n in range(count):
        world.stream.put(str(n).encode(), key=f"key-{n % keys}", shard_id=key(0))
    began_ms = world.clock.monotonic_ms()
    turn = asyncio.create_task(world.turn(turn_ms=2_000_000))
    await world.run_until(lambda: len(watched.records) == count)
    lasted_ms = world.clock.monotonic_ms() - began_ms
    last = world.stream.sequence_numbers(key(0))[-1]
    await world.run_until(lambda: world.lease().checkpoint.sequence_number == last)
    turn.cancel()
    watched.check_order()
    assert sorted(int(r.data) for r in watched.records) == list(range(count))
    return lasted_ms, world.handler.running_most


@pytest.mark.parametrize("overlaps", [True, False], ids=["async", "threads"])
def test_sixteen_lanes_handle_more_than_twelve_times_as_much_and_every_key_in_order(overlaps):
    one_ms, at_once = run_virtual(time_to_handle(1, count=2_000, overlaps=overlaps))
    assert at_once == 1
    lanes_ms, at_once = run_virtual(time_to_handle(16, count=2_000, overlaps=overlaps))
    assert at_once == 16
    assert one_ms >= 12 * lanes_ms


@virtual
async def test_threads_are_no_more_than_the_parallelism_whatever_the_shards():
    world = World(shards=3, parallelism=4, max_batch_records=1, overlaps=False, **SHORT)
    watched = Watched(world)
    for shard in range(3):
        for n in range(60):
            world.stream.put(str(n).encode(), key=f"{shard}/{n}", shard_id=key(shard))
    await world.turn(turn_ms=40_000)
    assert len(watched.records) == 180
    assert world.handler.running_most == 4


@virtual
async def test_shards_take_turns_although_one_has_many_lanes():
    world = World(shards=2, parallelism=2, max_batch_records=1, overlaps=False)
    watched = Watched(world, call_ms=500)
    for n in range(40):
        world.stream.put(str(n).encode(), key=f"k{n}", shard_id=key(0))
    for n in range(40):
        world.stream.put(str(n).encode(), key=f"k{n}", shard_id=key(1))
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: len(watched.records) >= 20)
    served = [record.shard_id for record in watched.records[:20]]
    assert 8 <= served.count(key(0)) <= 12
    await turn


@virtual
async def test_a_failing_lane_holds_the_checkpoint_and_the_others_go_on_as_far_as_there_is_room():
    keys = apart(4)
    world = World(
        parallelism=4,
        max_batch_records=2,
        max_open_records=20,
        max_attempts=0,
        overlaps=True,
        **SHORT,
    )
    mended = asyncio.Event()

    async def fail(batch):
        if b"1" in [r.data for r in batch] and not mended.is_set():
            raise ValueError("not yet")

    world.handler._script = fail
    for n in range(60):
        world.stream.put(str(n).encode(), key=keys[n % 4], shard_id=key(0))
    turn = asyncio.create_task(world.turn())
    await world.clock.sleep_ms(20_000)
    numbers = world.stream.sequence_numbers(key(0))
    assert world.lease().checkpoint.sequence_number == numbers[0]
    done = set(world.numbers)
    # Nothing of the failing lane, and of the others no more than may be open.
    assert not {n for n in done if n % 4 == 1}
    assert done == {n for n in range(max(done) + 1) if n % 4 != 1}
    assert sum(n % 4 == 1 for n in range(max(done) + 1)) <= 20 < len(done)
    mended.set()
    await turn
    assert sorted(world.numbers) == list(range(60))
    assert world.lease().checkpoint.sequence_number == numbers[-1]


@virtual
async def test_a_crash_repeats_only_what_was_not_done():
    keys, hangs = apart(4), [True]
    world, live = dying_world(
        lambda batch: batch[0].data == b"43" and hangs[0],
        parallelism=4,
        max_batch_records=1,
        checkpoint_ms=0,
    )
    handle = world.handler._script

    async def one_lane_is_slow(batch):
        if batch[0].partition_key == keys[0] and hangs[0]:
            await asyncio.sleep(4)
        await handle(batch)

    world.handler._script = one_lane_is_slow
    for n in range(80):
        world.stream.put(str(n).encode(), key=keys[n % 4], shard_id=key(0))
    await live()
    before = list(world.numbers)
    assert len(before) > 25
    # Nothing is done without a gap, but for what the slow lane had.
    assert world.lease().checkpoint.sequence_number == "TRIM_HORIZON"
    hangs[0] = False
    await live(60_000)
    assert sorted(world.numbers) == list(range(80))
    assert world.numbers[: len(before)] == before
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


@virtual
async def test_the_end_of_a_turn_lets_running_calls_end_and_the_next_one_repeats_nothing():
    world = World(parallelism=4, max_batch_records=2, overlaps=True, **SHORT)
    watched = Watched(world, call_ms=700)
    for n in range(60):
        world.stream.put(str(n).encode(), key=f"k{n % 13}", shard_id=key(0))
    await world.turn(turn_ms=11_000)
    assert 0 < len(watched.records) < 60
    assert not watched.at_work
    while len(watched.records) < 60:
        await world.turn(turn_ms=11_000)
    assert sorted(int(r.data) for r in watched.records) == list(range(60))
    watched.check_order()
    note = world.state.documents["lanes", key(0)].body
    assert note["ahead"] == {}


@virtual
async def test_a_note_that_is_refused_costs_repeats_and_nothing_else():
    world = World(parallelism=4, max_batch_records=1, overlaps=True, **SHORT)
    Watched(world)
    world.state.before = refuse_notes
    for n in range(60):
        world.stream.put(str(n).encode(), key=f"k{n % 13}", shard_id=key(0))
    await world.turn(turn_ms=20_000)
    assert sorted(set(world.numbers)) == list(range(60))
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


@pytest.mark.parametrize("is_refused", [False, True], ids=["noted", "refused"])
@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_a_shard_that_fails_and_is_begun_again_keeps_a_note_for_each_checkpoint(
    seed, is_refused
):
    """
    A note from before anything was taken again left out what was to be stored (seed 717).

    And where the fleet state refused every note, what this process has done came again (seed 822).
    """
    draw = random.Random(seed)
    world = World(
        parallelism=4,
        max_batch_records=1,
        records_per_read=8,
        checkpoint_ms=draw.choice([500, 1_000]),
        overlaps=True,
        **SHORT,
    )
    page = world.stream.page

    async def ill(*asked, **options):
        if len(world.told(ConsumerFailed)) < 3 and draw.random() < 0.4:
            raise RuntimeError
        return await page(*asked, **options)

    async def uneven(batch):
        await asyncio.sleep(draw.choice([0.01, 0.3, 2.0]))

    def look(change, result):
        document = world.state.documents.get(("lanes", key(0)))
        if change.operation != "checkpoint" or document is None:
            return
        stored, body = world.lease().checkpoint, document.body
        if body["ahead"]:
            names = {name: body[name] for name in ("since", "through", "between")}
            assert stands_for(stored, **names)

    world.stream.page, world.handler._script, world.leases.after = ill, uneven, look
    if is_refused:
        world.state.before = refuse_notes
    for n in range(60):
        world.stream.put(str(n).encode(), key=f"k{n % 13}", shard_id=key(0))
    await world.turn(turn_ms=200_000)
    assert len(world.told(ConsumerFailed)) == 3
    assert sorted(world.numbers) == list(range(60)), "nothing died, so nothing is repeated"


@virtual
async def test_a_stop_leaves_the_other_lanes_where_they_are_and_a_resume_repeats_nothing():
    keys = apart(2)
    world = World(parallelism=2, max_batch_records=1, max_attempts=2, overlaps=True, **SHORT)
    mended = asyncio.Event()

    async def fail(batch):
        await asyncio.sleep(0.1)
        if b"4" in [r.data for r in batch] and not mended.is_set():
            raise ValueError("no")

    world.handler._script = fail
    for n in range(400):
        world.stream.put(str(n).encode(), key=keys[n % 2], shard_id=key(0))
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.told(ShardStopped))
    before = len(world.numbers)
    await world.clock.sleep_ms(6_000)
    stopped = list(world.numbers)
    assert len(stopped) <= before + 1
    assert {n for n in stopped if n % 2 == 0} == {0, 2}
    numbers = world.stream.sequence_numbers(key(0))
    assert world.lease().checkpoint.sequence_number == numbers[3]
    mended.set()
    del world.state.documents["stop", key(0)]
    await turn
    assert sorted(world.numbers) == list(range(400))


@virtual
async def test_a_lane_that_stops_at_the_end_of_the_shard_keeps_it_from_ending_until_it_is_resumed():
    world = World(parallelism=2, max_batch_records=1, max_attempts=1, overlaps=True, **SHORT)
    mended = asyncio.Event()

    async def fail(batch):
        await asyncio.sleep(2)
        if b"3" in [r.data for r in batch] and not mended.is_set():
            raise ValueError("no")

    world.handler._script = fail
    for n in range(4):
        world.stream.put(str(n).encode(), key=apart(2)[n % 2], shard_id=key(0))
    world.stream.split(key(0))
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.told(ShardStopped), within_ms=20_000)
    await world.clock.sleep_ms(5_000)
    assert not world.lease().is_finished
    mended.set()
    del world.state.documents["stop", key(0)]
    await world.run_until(lambda: world.lease().is_finished, within_ms=60_000)
    turn.cancel()
    assert sorted(world.numbers) == [0, 1, 2, 3]


@virtual
async def test_a_shard_ends_when_every_lane_is_done():
    world = World(parallelism=4, max_batch_records=1, overlaps=True, **SHORT)
    watched = Watched(world, call_ms=1_000)
    for n in range(12):
        world.stream.put(str(n).encode(), key=f"k{n}", shard_id=key(0))
    world.stream.split(key(0))
    ended = []
    world.leases.after = lambda change, result: (
        ended.append(len(watched.records)) if world.lease().is_finished else None
    )
    await world.turn(turn_ms=40_000)
    assert ended
    assert ended[0] == 12


@virtual
async def test_inner_keys_of_an_aggregate_are_handled_side_by_side():
    keys = apart(4)
    world = World(parallelism=4, max_batch_records=1, overlaps=True, **SHORT)
    watched = Watched(world, call_ms=500)
    inside = [OutgoingRecord(keys[n % 4], str(n).encode()) for n in range(20)]
    world.stream.put(aggregate(inside), shard_id=key(0))
    turn = asyncio.create_task(world.turn(turn_ms=TURN_MS))
    await world.run_until(lambda: len(watched.records) == 20)
    assert world.handler.running_most == 4
    watched.check_order()
    await turn
    assert world.lease().checkpoint.sub_sequence_number == 19


def test_manual_checkpoints_and_lanes_are_refused_together():
    with pytest.raises(ConfigurationError, match="parallelism: 4 found, 1 allowed with checkpoint"):
        World(parallelism=4, checkpoint="manual")


@virtual
async def test_a_lane_that_outlives_its_time_out_ends_the_process_although_others_run_on():
    keys = apart(2)
    world = World(parallelism=2, max_batch_records=1, overlaps=True, **SHORT)

    async def hang(batch):
        await asyncio.sleep(60 if batch[0].partition_key == keys[0] else 4.9)

    world.handler._script = hang
    for n in range(6):
        world.stream.put(str(n).encode(), key=keys[n % 2], shard_id=key(0))
    began_ms = world.clock.monotonic_ms()
    await world.turn_that_may_die()
    assert world.deaths
    assert [told.error for told in world.told(TurnFailed)] == list(map(str, world.deaths))
    assert world.clock.monotonic_ms() - began_ms < 12_000


def test_what_the_other_lanes_have_done_is_noted_before_a_process_ends_that_one_of_them_hangs():
    """The lease may be given back till then, and was without it (seed 462)."""

    async def scenario():
        keys = apart(2)
        config = {"parallelism": 2, "max_batch_records": 1, "checkpoint_ms": 60_000}
        world = World(overlaps=True, **config, **SHORT)

        async def hang(batch):
            await asyncio.sleep({b"2": 60, b"5": 4.95}.get(batch[0].data, 0.1))

        world.handler._script = hang
        for n in range(6):
            world.stream.put(str(n).encode(), key=keys[n % 2], shard_id=key(0))
        await world.turn_that_may_die()
        assert world.deaths
        note = world.state.documents["lanes", key(0)].body
        numbers = world.stream.sequence_numbers(key(0))
        assert note["through"] == f"{numbers[1]}:0"
        assert note["ahead"] == {"2": {"1": f"{numbers[3]}:0"}}

    run_virtual(scenario())


@virtual
async def test_after_a_death_there_is_one_lane_until_it_is_known_what_killed():
    keys = apart(4)
    world, live = dying_world(
        lambda batch: b"17" in [record.data for record in batch],
        parallelism=4,
        max_batch_records=3,
        on_exhausted="sqs",
        failed_queue_url="q",
        max_crashes=2,
    )
    for n in range(40):
        world.stream.put(str(n).encode(), key=keys[n % 4], shard_id=key(0))
    for _ in range(8):
        await live()
    kept = [record.data for failed in world.dead_letters.kept for record in failed.records]
    assert kept == [b"17"]
    assert set(world.numbers) == set(range(40)) - {17}
    assert len(world.numbers) <= 2 * 39


@virtual
async def test_no_shard_is_begun_again_while_a_call_of_a_lane_runs_after_another_one_failed():
    """Or two calls have records of one key at a time: the second one reads what the first has."""
    keys = apart(2)
    config = {"parallelism": 2, "max_batch_records": 1, "max_attempts": 1}
    world = World(overlaps=True, **config, failover_ms=1_000, **SHORT)
    at_work, mended = set(), asyncio.Event()

    async def handle(batch):
        wanted = batch[0].partition_key
        assert wanted not in at_work, "two calls have records of one key"
        at_work.add(wanted)
        await asyncio.sleep(0.1 if wanted == keys[0] else 4.5)
        at_work.discard(wanted)
        if batch[0].data == b"0" and not mended.is_set():
            raise ValueError("no")

    world.handler._script = handle
    for n in range(4):
        world.stream.put(str(n).encode(), key=keys[n % 2], shard_id=key(0))
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.run_until(lambda: world.told(ShardStopped))
    mended.set()
    del world.state.documents["stop", key(0)]
    await turn
    assert sorted(world.numbers) == [0, 1, 2, 3]
    assert not world.told(ConsumerFailed)


@virtual
async def test_a_death_between_a_note_and_its_checkpoint_repeats_nothing_of_what_was_noted():
    """The note names the checkpoint that is there, not the one that was to come."""
    keys = apart(2)
    config = {"parallelism": 2, "max_batch_records": 1, "checkpoint_ms": 1_000}
    world = World(overlaps=True, **config, **SHORT)

    async def handle(batch):
        await asyncio.sleep(1.5 if batch[0].partition_key == keys[1] else 0.1)

    world.handler._script = handle
    for n in range(20):
        world.stream.put(str(n).encode(), key=keys[n % 2], shard_id=key(0))
    only = "before leases.apply checkpoint"
    steps = Steps(act_at=2, only=lambda name: name == only)
    await process(world, steps, turn_ms=60_000)
    body = world.state.documents["lanes", key(0)].body
    stored = world.lease().checkpoint
    assert (body["since"], body["ahead"] != {}) == (f"{stored}:0", True)
    assert body["since"] != body["through"]
    (place,) = (int(text.partition(":")[0]) for text in body["ahead"]["2"].values())
    numbers = world.stream.sequence_numbers(key(0))
    done = {n for n in range(0, 20, 2) if int(numbers[n]) <= place}
    before = len(world.numbers)
    await world.turn(turn_ms=60_000)
    assert set(world.numbers) == set(range(20))
    assert not done & set(world.numbers[before:])
