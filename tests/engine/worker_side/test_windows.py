"""
Tumbling windows in the worker: what each call is told, and sums that no death makes wrong.

Long, and one idea: one handler's windows, through everything that can happen to a worker.
"""

import asyncio
import json
import os
import random
import re
from collections import Counter

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import ask_to_drain
from shardfleet.engine.state.kinds import WINDOW
from shardfleet.errors import ConfigurationError, Throttled
from shardfleet.events.delivery import BatchFailed, RecordSkipped, ShardStopped
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import (
    ME,
    OTHER,
    MemoryWindowStates,
    World,
    a_config,
    a_lease,
    at,
    key,
)
from tests.virtual import virtual

WINDOW_MS = 5_000
SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "tumbling_window_ms": WINDOW_MS}
# A seed takes half a minute: a death at each of some hundred steps. `make whole` has four.
DRAWN = range(4) if os.environ.get("SHARDFLEET_TEST_DRAWN") else (1,)
# Where the world has changed: after each of these a death leaves something behind.
EFFECTS = re.compile(r"after (handler.run|leases.apply|state.write)|before state.write")


class Sums:
    """A handler that adds up by key, and puts what a window comes to where a repeat replaces it."""

    def __init__(self, *, slow_ms=0):
        self.results = {}
        self.early = []
        self.calls = []
        self._slow_ms = slow_ms

    async def __call__(self, batch):
        await asyncio.sleep(self._slow_ms / 1000)
        window = batch.window
        self.calls.append((batch.shard_id, window, json.dumps(batch.state), len(batch)))
        if window.is_final:
            assert not len(batch)
            self.results[batch.shard_id, window.start_ms] = dict(batch.state)
            if window.is_terminated_early:
                self.early.append(batch.shard_id)
            return {"state": batch.state}
        for record in batch:
            assert window.start_ms <= record.approximate_arrival_ms < window.end_ms
            batch.state[record.partition_key] = batch.state.get(record.partition_key, 0) + int(
                record.data
            )
        return {"state": batch.state}


def expected(world):
    """Return what plain Python makes of the stream: sums by shard, window and key."""
    sums = {}
    for shard_id, log in world.stream._logs.items():
        for record in log.records:
            start_ms = record.approximate_arrival_ms // WINDOW_MS * WINDOW_MS
            counts = sums.setdefault((shard_id, start_ms), Counter())
            counts[record.partition_key] += int(record.data)
    return {place: dict(counts) for place, counts in sums.items()}


def note(world, number=0):
    return world.state.documents[WINDOW, key(number)].body


async def feed(world, draw, *, records, reshard_at=()):
    """Put records at drawn moments, some of them close together and some windows apart."""
    for n in range(records):
        await world.clock.sleep_ms(draw.choice([0, 10, 300, 900, 2_500, 6_000]))
        if n in reshard_at:
            world.stream.split(draw.choice(world.stream.open_shard_ids))
        shard_id = draw.choice(world.stream.open_shard_ids)
        world.stream.put(str(n).encode(), key=f"k{draw.randrange(3)}", shard_id=shard_id)


def assign_what_is_free(world):
    """Do what the manager does with children whose parent's worker died at its end."""
    for lease_key, lease in world.leases.leases.items():
        if lease.lease_owner is None:
            world.leases.leases[lease_key] = replace(lease, lease_owner=ME)


def a_world(handler, **config):
    world = World(**{**SHORT, "max_batch_records": 4, **config})
    world.handler = MemoryHandler(world.clock, handler)
    return world


@virtual
async def test_each_call_is_given_what_the_one_before_returned_and_the_last_one_has_no_records():
    sums = Sums()
    world = a_world(sums, max_batch_records=2)
    world.put(1, 5, key_of=lambda n: "k")
    start_ms = world.clock.now_ms() // WINDOW_MS * WINDOW_MS
    await world.turn(turn_ms=40_000)
    assert [(len_, state) for _, _, state, len_ in sums.calls] == [
        (2, "{}"),
        (2, '{"k": 3}'),
        (1, '{"k": 10}'),
        (0, '{"k": 15}'),
    ]
    windows = [window for _, window, _, _ in sums.calls]
    assert {(w.start_ms, w.end_ms) for w in windows} == {(start_ms, start_ms + WINDOW_MS)}
    assert [w.is_final for w in windows] == [False, False, False, True]
    assert not any(w.is_terminated_early for w in windows)


@virtual
async def test_a_quiet_shards_window_is_over_ten_seconds_after_its_end_and_no_sooner():
    sums = Sums()
    world = a_world(sums)
    world.put(1)
    end_ms = world.clock.now_ms() // WINDOW_MS * WINDOW_MS + WINDOW_MS
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.run_until(lambda: sums.results)
    assert end_ms + 10_000 <= world.clock.now_ms() <= end_ms + 12_000
    await turn


@virtual
async def test_a_shard_does_not_fall_asleep_before_its_window_is_over():
    sums = Sums()
    world = a_world(
        sums, sleep=True, sleep_after_ms=1_000, tumbling_window_ms=60_000, max_attempts=0
    )
    world.put(1)
    await world.turn(turn_ms=120_000)
    assert sums.results
    assert ("nap", key(0)) in world.state.documents


@virtual
async def test_a_shards_end_closes_its_window_and_its_children_begin_with_none():
    sums = Sums()
    world = a_world(sums)
    world.put(1, 3, key_of=lambda n: "k")
    children = world.stream.split(key(0))
    for child in children:
        world.stream.put(b"10", key="k", shard_id=child)
    finished = []
    world.leases.after = lambda change, result: (
        finished.append(dict(sums.results)) if world.lease().is_finished else None
    )
    await world.turn(turn_ms=60_000)
    assert finished[0] == {(key(0), s): {"k": 6} for (k, s) in sums.results if k == key(0)}
    assert finished[0]
    assert sums.results == expected(world)
    assert {place[0] for place in sums.results} == {key(0), *children}


@pytest.mark.parametrize("seed", DRAWN)
def test_sums_of_windows_are_those_of_the_input_whatever_dies_and_is_resharded(seed):
    async def once(act_at):
        draw = random.Random(seed)
        sums = Sums(slow_ms=draw.choice([0, 400]))
        world = a_world(sums, shards=2, checkpoint_ms=draw.choice([0, 1_000, 7_000]))
        reshards = {draw.randrange(16) for _ in range(2)}
        feeding = asyncio.create_task(feed(world, draw, records=16, reshard_at=reshards))
        steps = Steps(act_at=act_at, only=EFFECTS.match)
        await process(world, steps, turn_ms=draw.choice([25_000, 50_000]))
        await feeding
        for _ in range(3):
            assign_what_is_free(world)
            await world.turn(turn_ms=40_000)
        return world, sums, steps

    world, sums, steps = run_virtual(once(None))
    assert sums.results == expected(world)
    assert len(steps.names) > 40
    for act_at in range(len(steps.names)):
        world, sums, _ = run_virtual(once(act_at))
        assert sums.results == expected(world), f"step {act_at}: {steps.names[act_at]}"
        assert len(world.deaths) == 1


@virtual
async def test_a_death_before_the_state_is_kept_repeats_the_call_with_the_same_state():
    sums = Sums()
    world = a_world(sums, max_batch_records=2, checkpoint_ms=0)
    world.put(1, 6, key_of=lambda n: "k")
    steps = Steps(act_at=1, only=lambda name: name == "after handler.run")
    await process(world, steps, turn_ms=40_000)
    await world.turn(turn_ms=40_000)
    given = [(size, state) for _, _, state, size in sums.calls]
    assert given[:4] == [(2, "{}"), (2, '{"k": 3}'), (2, '{"k": 3}'), (2, '{"k": 10}')]


@virtual
async def test_behind_the_kept_state_nothing_is_repeated_although_the_checkpoint_was_not_written():
    sums = Sums()
    world = a_world(sums, max_batch_records=2, checkpoint_ms=0)
    world.put(1, 4, key_of=lambda n: "k")
    steps = Steps(act_at=0, only=lambda name: name == "before leases.apply checkpoint")
    await process(world, steps, turn_ms=40_000)
    assert world.lease().checkpoint.sequence_number == "TRIM_HORIZON"
    assert json.loads(note(world)["state"]) == {"k": 3}
    await world.turn(turn_ms=40_000)
    given = [(size, state) for _, _, state, size in sums.calls]
    assert given[:2] == [(2, "{}"), (2, '{"k": 3}')]


@virtual
async def test_a_turns_end_keeps_the_state_and_the_next_one_repeats_nothing():
    sums = Sums(slow_ms=900)
    world = a_world(sums, max_batch_records=1, checkpoint_ms=600_000)
    world.put(1, 6, key_of=lambda n: "k")
    await world.turn(turn_ms=12_000)
    assert 1 < len(sums.calls) < 6
    await world.turn(turn_ms=60_000)
    assert [size for _, _, _, size in sums.calls] == [1] * 6 + [0]
    assert list(sums.results.values()) == [{"k": 21}]


@virtual
async def test_a_result_that_was_told_is_checkpointed_at_once():
    sums = Sums()
    world = a_world(sums, checkpoint_ms=600_000)
    world.put(1, 3)
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.run_until(lambda: sums.results)
    await world.clock.sleep_ms(1_000)
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]
    assert note(world)["start_ms"] == -1
    await turn


@pytest.mark.parametrize("refusals", [0, 1, 2])
@virtual
async def test_a_former_owners_late_write_is_not_what_the_next_one_goes_on_with(refusals):
    """Nor where it is not told at once that the lease is lost."""
    sums = Sums()
    world = a_world(sums, max_batch_records=1, checkpoint_ms=0)
    world.put(1, 2, key_of=lambda n: "k")
    once, old, left, apply = [True], world.state.write, [0], world.leases.apply

    async def refused(change):
        if left[0]:
            left[0] -= 1
            raise Throttled("not now")
        return await apply(change)

    world.leases.apply = refused

    async def write(kind, name, body, **asked):
        if kind == WINDOW and once:  # Taken just now, and the other has worked on.
            once.clear()
            left[0] = refusals
            lease = world.lease()
            world.leases.leases[key(0)] = a_lease(
                lease_owner=OTHER, lease_counter=lease.lease_counter + 5
            )
            theirs = {**body, "state": '{"k": 100}'}
            await old(kind, name, theirs, expected_version=None)
        return await old(kind, name, body, **asked)

    world.state.write = write
    await world.turn(turn_ms=20_000)
    assert json.loads(note(world)["state"]) == {"k": 100}
    assert world.lease().checkpoint.sequence_number == "TRIM_HORIZON"


@virtual
async def test_an_owner_whose_state_a_former_one_overwrote_writes_it_again():
    sums = Sums()
    world = a_world(sums, max_batch_records=1, checkpoint_ms=0)
    world.put(1, 3, key_of=lambda n: "k")
    once, old = [True], world.state.write

    async def write(kind, name, body, **asked):
        if kind == WINDOW and once and asked["expected_version"] == 1:
            once.clear()
            late = {**body, "state": '{"k": 100}'}
            await old(kind, name, late, expected_version=1)
        return await old(kind, name, body, **asked)

    world.state.write = write
    await world.turn(turn_ms=40_000)
    assert not once
    assert sums.results == expected(world)
    assert note(world)["start_ms"] == -1
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


@virtual
async def test_while_the_state_cannot_be_kept_the_checkpoint_stays():
    sums = Sums()
    world = a_world(sums, max_batch_records=1, checkpoint_ms=0)
    world.put(1, 3, key_of=lambda n: "k")

    def refuse(call, kind, name):
        if (call, kind) == ("write", WINDOW):
            raise Throttled("no")

    world.state.before = refuse
    await world.turn(turn_ms=14_000)
    assert sums.calls
    assert world.lease().checkpoint.sequence_number == "TRIM_HORIZON"
    world.state.before = lambda call, kind, name: None
    await world.turn(turn_ms=40_000)
    assert sums.results == expected(world)
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


@virtual
async def test_a_stopped_shard_that_is_resumed_forgets_how_far_a_state_was_that_was_not_kept():
    """Or the checkpoint passes records that are in no state."""
    sums = Sums()
    world, failing = a_world(None, max_batch_records=1, max_attempts=1), {b"3"}

    async def handle(batch):
        if {record.data for record in batch} & failing:
            raise ValueError("no")
        return await sums(batch)

    def refuse(call, kind, name):
        if (call, kind) == ("write", WINDOW):
            raise Throttled("no")

    world.handler._script, world.state.before = handle, refuse
    world.put(1, 3, key_of=lambda n: "k")
    turn = asyncio.create_task(world.turn(turn_ms=200_000))
    await world.run_until(lambda: world.told(ShardStopped))
    await world.clock.sleep_ms(30_000)
    world.state.before = lambda call, kind, name: None
    failing.add(b"1")
    del world.state.documents["stop", key(0)]
    await world.run_until(lambda: len(world.told(ShardStopped)) == 2)
    failing.clear()
    del world.state.documents["stop", key(0)]
    await turn
    assert sums.results == expected(world)


@virtual
async def test_a_state_that_is_refused_while_the_shard_is_left_is_kept_a_moment_later():
    world = a_world(Sums())
    world.put(1, 3, key_of=lambda n: "k")
    drained_ms = 0

    def refuse(call, kind, name):
        if (call, kind) == ("write", WINDOW) and (
            not drained_ms or world.clock.monotonic_ms() < drained_ms + 500
        ):
            raise Throttled("no")

    world.state.before = refuse
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.clock.sleep_ms(3_000)
    drained_ms = world.clock.monotonic_ms()
    await world.change_slot(ask_to_drain)
    await turn
    assert json.loads(note(world)["state"]) == {"k": 6}


@virtual
async def test_a_shard_of_which_nothing_was_read_is_left_as_quickly_as_without_windows():
    async def drained_ms(**config):
        world = World(**{**SHORT, **config})
        turn = asyncio.create_task(world.turn(turn_ms=60_000))
        await world.clock.sleep_ms(3_000)
        await world.change_slot(ask_to_drain)
        await turn
        return world.clock.monotonic_ms()

    began_ms = await drained_ms()
    assert await drained_ms(tumbling_window_ms=0) - began_ms == began_ms


@virtual
async def test_a_partial_failure_keeps_the_state_of_what_is_done():
    world, given, fails = a_world(None), [], [True]

    async def handle(batch):
        given.append(([int(r.data) for r in batch], dict(batch.state)))
        done = [r for r in batch if not (fails and r.data == b"3")]
        state = {"n": batch.state.get("n", 0) + sum(int(r.data) for r in done[:2])}
        if len(done) < len(batch):
            fails.clear()
            failed = {"itemIdentifier": batch[2].sequence_number}
            return {"state": state, "batchItemFailures": [failed]}
        return {"state": {"n": batch.state.get("n", 0) + sum(int(r.data) for r in batch)}}

    world.handler._script = handle
    world.put(1, 4)
    await world.turn(turn_ms=40_000)
    assert given == [([1, 2, 3, 4], {}), ([3, 4], {"n": 3}), ([], {"n": 10})]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (None, "the handler returned NoneType; with tumbling windows each call returns"),
        ({}, "the handler returned an object without state"),
        ({"state": None}, "state: NoneType found, an object"),
        ({"state": [1]}, "state: list found, an object"),
        ({"state": {"at": object()}}, r"state: it is no JSON \(TypeError\)"),
        ({"state": {"at": float("nan")}}, r"state: it is no JSON \(ValueError\)"),
        ({"state": {"a": "\ud800"}}, r"state: it is no JSON \(UnicodeEncodeError\)"),
        ({"state": {"a": "x" * 2**20}}, "state: 1048584 bytes of JSON found, at most 1048576"),
        ({"state": {"a": "x" * 400_000}}, "which an item of DynamoDB has no room for; set failed_"),
        ({"state": {}, "failures": []}, "a dict without batchItemFailures"),
    ],
)
@virtual
async def test_a_reply_that_is_none_is_a_failed_call_and_says_what_is_missing(reply, told):
    world = a_world(None, max_attempts=2)

    async def handle(batch):
        return reply

    world.handler._script = handle
    world.put(1)
    await world.turn(turn_ms=20_000)
    (stopped,) = world.told(ShardStopped)
    assert re.search(told, stopped.error)
    assert world.lease().checkpoint.sequence_number == "TRIM_HORIZON"


@virtual
async def test_a_state_that_grows_too_large_ends_its_window_early_and_nothing_is_lost():
    world, results, sizes = a_world(None, max_batch_records=1), [], []

    async def handle(batch):
        if batch.window.is_final:
            results.append((batch.window.is_terminated_early, batch.state["ns"]))
            return {"state": {}}
        sizes.append(len(batch.state.get("pad", "")))
        numbers = [*batch.state.get("ns", []), int(batch[0].data)]
        return {"state": {"ns": numbers, "pad": "x" * (400_000 * len(numbers))}}

    world.handler._script = handle
    world.put(1, 5)
    await world.turn(turn_ms=40_000, window_states=MemoryWindowStates())
    assert results == [(True, [1, 2]), (True, [3, 4]), (False, [5])]
    assert not world.told(BatchFailed)


def test_a_state_above_an_items_room_is_kept_elsewhere_and_deleted_when_it_is_over():
    async def once(act_at):
        world, states, results = a_world(None, max_batch_records=1, checkpoint_ms=0), None, {}
        states = MemoryWindowStates()

        async def handle(batch):
            if batch.window.is_final:
                results[batch.window.start_ms] = batch.state["ns"]
                return {"state": {}}
            numbers = [*batch.state.get("ns", []), int(batch[0].data)]
            return {"state": {"ns": numbers, "pad": "x" * 400_000}}

        world.handler._script = handle
        world.put(1, 4)
        steps = Steps(act_at=act_at, only=EFFECTS.match)
        await process(world, steps, turn_ms=30_000, window_states=states)
        await world.turn(turn_ms=40_000, window_states=states)
        return world, states, results, steps

    world, states, results, steps = run_virtual(once(None))
    assert list(results.values()) == [[1, 2, 3, 4]]
    assert states.kept == {}
    assert states.most == 2
    assert note(world)["start_ms"] == -1
    for act_at in range(len(steps.names)):
        _, states, results, _ = run_virtual(once(act_at))
        assert list(results.values()) == [[1, 2, 3, 4]], steps.names[act_at]
        assert len(states.kept) <= 1  # What a death left that nothing names.


@virtual
async def test_a_failing_last_call_holds_the_shard_and_stops_it_in_the_end():
    world, bad = a_world(None, max_attempts=3), [True]

    async def handle(batch):
        if batch.window.is_final and bad:
            raise ValueError("no")
        return {"state": {"n": len(batch)}}

    world.handler._script = handle
    world.put(1)
    await world.clock.sleep_ms(WINDOW_MS)
    world.put(2)
    turn = asyncio.create_task(world.turn(turn_ms=80_000))
    await world.run_until(lambda: world.told(ShardStopped))
    (stopped,) = world.told(ShardStopped)
    assert stopped.error.startswith("last call of a window: ValueError")
    assert world.numbers == [1]
    bad.clear()
    del world.state.documents["stop", key(0)]
    await turn
    assert world.numbers == [1, 2]
    finals = [c.batch for c in world.handler.calls if c.batch.window.is_final]
    assert [batch.state for batch in finals[-2:]] == [{"n": 1}, {"n": 1}]


@virtual
async def test_a_record_that_is_given_up_is_in_no_state():
    world, results = a_world(None, max_attempts=2, on_exhausted="skip"), []

    async def handle(batch):
        if batch.window.is_final:
            results.append(batch.state)
        if b"3" in [record.data for record in batch]:
            raise ValueError("no")
        total = batch.state.get("n", 0) + sum(int(record.data) for record in batch)
        return {"state": {"n": total}}

    world.handler._script = handle
    world.put(1, 5)
    await world.turn(turn_ms=60_000)
    assert len(world.told(RecordSkipped)) == 1
    assert results == [{"n": 12}]


@virtual
async def test_a_checkpoint_that_somebody_set_has_no_state():
    sums = Sums()
    world = a_world(sums)
    world.put(1, 3, key_of=lambda n: "k")
    await world.turn(turn_ms=9_000)
    lease = world.lease()
    assert json.loads(note(world)["state"]) == {"k": 6}
    world.put(4, key_of=lambda n: "k")
    last = world.stream.sequence_numbers(key(0))[-1]
    world.leases.leases[key(0)] = replace(lease, checkpoint=at(int(last)))
    world.put(5, key_of=lambda n: "k")
    await world.turn(turn_ms=40_000)
    assert list(sums.results.values()) == [{"k": 5}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"parallelism": 2}, "parallelism: 2 found, 1 allowed with tumbling_window_ms"),
        ({"checkpoint": "manual"}, "checkpoint: manual found, auto allowed with tumbling_window"),
        ({"tumbling_window_ms": 1_500}, "tumbling_window_ms: 1500 found, whole seconds allowed"),
        ({"tumbling_window_ms": 901_000}, "tumbling_window_ms: 901000 found, 0 to 900000 allowed"),
    ],
)
def test_what_makes_no_sense_beside_windows_is_refused(given, told):
    with pytest.raises(ConfigurationError, match=told):
        a_config(**{"tumbling_window_ms": 1_000, **given})
