"""Manual checkpoints: what a handler has stays open until it says that it is done."""

import asyncio
import json

import pytest

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.errors import ConfigurationError
from shardfleet.events.delivery import CheckpointAwaited, PositionLost
from shardfleet.events.worker import LeaseAsleep
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.steps_kit import deaths
from tests.engine.worker_side.worker_kit import OTHER, World, a_config, key
from tests.virtual import within

SHORT = {"handler_timeout_ms": 2_000, "turn_margin_ms": 3_000, "checkpoint": "manual"}


def in_world(scenario, script=None, **world):
    async def main():
        return await scenario(World(script=script, **{**SHORT, **world}))

    return run_virtual(main())


def number_of(world, n):
    """Return the checkpoint behind the record that is called so."""
    return world.stream.sequence_numbers(key(0))[n - 1]


def buffering(files, *, when):
    """Return a handler that keeps records until it is told to write them as a file."""

    async def handle(batch):
        records = [*batch.state.get("buffer", ()), *(int(record.data) for record in batch)]
        if when(batch, records):
            files.append(records)
            batch.checkpoint()
            records = []
        batch.state["buffer"] = records

    return handle


@within(in_world)
async def test_what_is_returned_from_is_not_done_and_comes_again_once(world, /):
    world.put(1, 5)
    await world.turn(turn_ms=20_000)
    assert world.lease().checkpoint.is_sentinel
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3, 4, 5] * 2


def test_a_record_of_an_earlier_batch_is_checkpointed_later():
    saved = []

    async def handle(batch):
        saved.extend(batch)
        if len(saved) == 5:
            batch.checkpoint(saved[1])

    async def scenario(world):
        world.put(1, 5)
        await world.turn(turn_ms=20_000)
        assert str(world.lease().checkpoint) == number_of(world, 2)
        await world.turn(turn_ms=20_000)
        assert world.numbers == [1, 2, 3, 4, 5, 3, 4, 5]

    in_world(scenario, handle, max_batch_records=1)


def test_what_no_handler_gets_is_passed_where_everything_before_it_is_checkpointed():
    async def handle(batch):
        if batch:
            batch.checkpoint()

    async def scenario(world):
        world.put(1, 3, key_of=lambda n: "wanted")
        turn = asyncio.create_task(world.turn(turn_ms=20_000))
        await world.run_until(lambda: world.numbers == [1, 2, 3])
        for _ in range(4):
            world.stream.put(b"none of its", shard_id=key(0))
        await turn
        assert str(world.lease().checkpoint) == number_of(world, 7)

    in_world(scenario, handle, filters=json.dumps([{"partitionKey": ["wanted"]}]))


def test_an_earlier_batch_that_was_kept_checkpoints_up_to_its_own_end():
    kept = []

    async def handle(batch):
        kept.append(batch)
        if len(kept) == 3:
            kept[1].checkpoint()

    async def scenario(world):
        world.put(1, 3)
        await world.turn(turn_ms=20_000)
        assert str(world.lease().checkpoint) == number_of(world, 2)

    in_world(scenario, handle, max_batch_records=1)


@within(in_world, max_batch_records=1)
async def test_what_the_handler_has_not_been_given_or_is_of_another_shard_is_refused(world, /):
    world.put(1, 2)
    await world.turn(turn_ms=20_000)
    first, second = (call.batch for call in world.handler.calls if call.batch)
    with pytest.raises(ValueError, match="no such record in this batch"):
        first.checkpoint(second[0])
    other = type(first[0])(
        data=b"",
        partition_key="k",
        sequence_number="1",
        shard_id=key(7),
        approximate_arrival_ms=0,
    )
    with pytest.raises(ValueError, match="no such record in this batch"):
        second.checkpoint(other)


@pytest.mark.parametrize(
    ("bound", "most_at_once"),
    [({"max_open_records": 4}, 4), ({"max_open_bytes": 3}, 3), ({"max_open_age_ms": 3_000}, 20)],
)
def test_at_a_bound_no_more_records_come_and_the_handler_can_flush(bound, most_at_once):
    files = []

    async def scenario(world):
        world.put(1, 9)
        world.put(1, 9)
        await world.turn(turn_ms=60_000)
        assert [n for file in files for n in file] == [*range(1, 10)] * 2
        assert max(map(len, files)) <= most_at_once
        assert str(world.lease().checkpoint) == number_of(world, 18)

    in_world(scenario, buffering(files, when=lambda batch, _: batch.must_flush), **bound)


@within(in_world, max_open_records=4)
async def test_a_handler_that_does_not_checkpoint_gets_no_more_than_the_bound_and_is_told_of(
    world, /
):
    world.put(1, 9)
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3, 4]
    told = world.told(CheckpointAwaited)
    assert [(event.records, event.reason) for event in told] == [(4, "a bound is reached")]
    empty = [call.batch for call in world.handler.calls if not call.batch]
    assert len(empty) > 5
    assert all(batch.must_flush for batch in empty)


@within(in_world)
async def test_while_a_shard_is_idle_a_handler_with_open_records_is_called_to_flush_by_time(
    world, /
):
    files, since = [], []

    def is_old(_, records):
        since.append(world.clock.monotonic_ms())
        return records and since[-1] - since[0] > 5_000

    world.handler._script = buffering(files, when=is_old)
    world.put(1, 3)
    await world.turn(turn_ms=30_000)
    assert files == [[1, 2, 3]]
    assert str(world.lease().checkpoint) == number_of(world, 3)
    # With nothing open there is nothing to call it for.
    assert since[-1] < 10_000


def test_a_failing_call_without_records_loses_nothing_and_is_made_again():
    calls = []

    async def handle(batch):
        if not batch:
            calls.append(batch.attempt)
            if len(calls) < 3:
                raise ValueError("not yet")
            batch.checkpoint()

    async def scenario(world):
        world.put(1, 3)
        await world.turn(turn_ms=30_000)
        assert calls == [1, 2, 3]
        assert world.numbers == [1, 2, 3]
        assert str(world.lease().checkpoint) == number_of(world, 3)

    in_world(scenario, handle)


def test_what_a_failed_call_checkpointed_of_its_own_is_done_and_the_rest_comes_again():
    calls = []

    async def handle(batch):
        calls.append([int(record.data) for record in batch])
        if len(calls) == 1:
            batch.checkpoint(batch[1])
            raise ValueError("no")
        batch.checkpoint()

    async def scenario(world):
        world.put(1, 4)
        await world.turn(turn_ms=20_000)
        assert calls == [[1, 2, 3, 4], [3, 4]]

    in_world(scenario, handle)


def test_a_record_that_its_reply_calls_failed_is_not_checkpointed_by_what_was_said_before():
    async def handle(batch):
        batch.checkpoint()
        return {"batchItemFailures": [{"itemIdentifier": batch[-1].sequence_number}]}

    async def scenario(world):
        world.put(1, 4)
        await world.turn(turn_ms=20_000)
        assert str(world.lease().checkpoint) == number_of(world, 3)

    in_world(scenario, handle)


def test_what_was_said_of_a_record_before_it_failed_does_not_count_once_it_is_handled():
    calls = []

    async def handle(batch):
        calls.append(len(batch))
        if len(calls) == 1:
            batch.checkpoint()
            return {"batchItemFailures": [{"itemIdentifier": batch[-1].sequence_number}]}
        return None

    async def scenario(world):
        world.put(1, 4)
        await world.turn(turn_ms=20_000)
        assert world.numbers == [1, 2, 3, 4]
        assert str(world.lease().checkpoint) == number_of(world, 3)

    in_world(scenario, handle)


@within(in_world, shards=2)
async def test_the_end_of_a_turn_has_time_for_each_shard_s_flush(world, /):
    async def handle(batch):
        if batch.must_flush:
            await world.clock.sleep_ms(1_500)
            batch.checkpoint()

    world.handler._script = handle
    world.put(1, 3)
    world.put(4, 6, number=1)
    await world.turn(turn_ms=20_000)
    for n in (0, 1):
        last = world.stream.sequence_numbers(key(n))[-1]
        assert str(world.lease(n).checkpoint) == last


def test_open_records_that_the_stream_lets_go_of_are_a_loss_that_is_told():
    async def handle(batch):
        if batch:
            batch.checkpoint(batch[0])

    async def scenario(world):
        world.put(1, 3)
        await world.turn(turn_ms=20_000)
        assert str(world.lease().checkpoint) == number_of(world, 1)
        world.stream.trim(key(0))
        await world.turn(turn_ms=20_000)
        assert len(world.told(PositionLost)) == 1

    in_world(scenario, handle)


@within(in_world, sleep=True, sleep_after_ms=3_000)
async def test_a_shard_with_open_records_does_not_fall_asleep(world, /):
    world.put(1, 3)
    await world.turn(turn_ms=20_000)
    assert world.told(LeaseAsleep) == []
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3] * 2


def test_the_end_of_a_turn_lets_the_handler_flush_in_time():
    files = []

    async def scenario(world):
        world.put(1, 5)
        await world.turn(turn_ms=20_000)
        assert files == [[1, 2, 3, 4, 5]]
        assert str(world.lease().checkpoint) == number_of(world, 5)
        await world.turn(turn_ms=20_000)
        assert world.numbers == [1, 2, 3, 4, 5]

    in_world(scenario, buffering(files, when=lambda batch, _: batch.must_flush))


@within(in_world)
async def test_a_shard_that_has_ended_is_finished_only_when_all_is_checkpointed(world, /):
    world.put(1, 3)
    world.stream.split(key(0))
    outcome = await world.turn(turn_ms=20_000)
    assert outcome is TurnOutcome.CONTINUE
    assert not world.lease().is_finished
    (told,) = world.told(CheckpointAwaited)
    assert told.reason == "the shard has ended"

    world.handler._script = buffering([], when=lambda batch, _: batch.must_flush)
    await world.turn(turn_ms=20_000)
    assert world.lease().is_finished


def test_a_death_at_any_step_repeats_only_what_was_not_checkpointed():
    runs = []

    async def prepared():
        files = []
        runs.append(files)
        world = World(
            script=buffering(files, when=lambda batch, _: batch.must_flush),
            **SHORT,
            max_open_records=3,
            checkpoint_ms=0,
        )
        world.put(1, 8)
        return world

    for world, where in deaths(prepared, every=4, steps_least=30):
        files = runs[-1]
        assert {n for file in files for n in file} == set(range(1, 9)), where
        assert all(file == list(range(file[0], file[-1] + 1)) for file in files), where
        assert sum(map(len, files)) - 8 <= 3, where
        assert str(world.lease().checkpoint) == number_of(world, 8), where


def test_the_state_of_a_shard_begins_empty_where_its_open_records_come_again():
    seen = []

    async def handle(batch):
        seen.append((batch.state.setdefault("calls", 0), [int(r.data) for r in batch]))
        batch.state["calls"] += 1

    async def scenario(world):
        world.put(1, 4)
        await world.turn(turn_ms=8_000)
        first = len(seen)
        assert [calls for calls, _ in seen] == [*range(first)]
        await world.turn(turn_ms=8_000)
        assert seen[first] == (0, [1, 2])

    in_world(scenario, handle, max_batch_records=2)


def test_a_handover_lets_the_handler_flush_before_the_next_owner_begins():
    files = []

    async def scenario(world):
        world.put(1, 5)
        await world.open_slot()
        turn = asyncio.create_task(world.turn(turn_ms=60_000), name="turn")
        await world.run_until(lambda: world.numbers)
        begun = lease_changes.initiate_handover(world.lease(), OTHER, as_read=True)
        await world.leases.apply(begun)
        await world.run_until(lambda: world.lease().checkpoint_owner is None)
        assert files == [[1, 2, 3, 4, 5]]
        assert str(world.lease().checkpoint) == number_of(world, 5)
        assert world.lease().lease_owner == OTHER
        await turn

    in_world(scenario, buffering(files, when=lambda batch, _: batch.must_flush))


def test_an_event_has_no_checkpoint():
    with pytest.raises(ConfigurationError, match="handler_contract: event found, native or auto"):
        a_config(checkpoint="manual", handler_contract="event")


@within(in_world, max_batch_records=2)
async def test_a_page_that_brought_a_call_brings_no_empty_one_besides(world, /):
    """What is open is offered anew where nothing else would ask the handler for a checkpoint."""
    world.put(1, 4)
    await world.turn(turn_ms=10_000)
    calls = [len(call.batch) for call in world.handler.calls]
    assert calls[:2] == [2, 2]
    pages = [c for c in world.stream.calls if c.operation == "get_records"]
    assert calls[2:] == [0] * len(calls[2:])
    empty_ms = [call.began_ms for call in world.handler.calls[2:]]
    assert pages[1].at_ms <= empty_ms[0]
