"""
Failures of the handler: held to their shard, never passed, given up only exactly.

It is one idea: what one shard's delivery does with every answer of one handler.
"""

import asyncio
import itertools

import pytest
from msgspec import structs
from msgspec.structs import replace

from shardfleet.domain.delivery.policies import POLICIES, Destination, PolicyTerms
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.dispatch import Dispatcher, cut_batch
from shardfleet.engine.shard.progress import Progress
from shardfleet.errors import ConfigurationError, Throttled
from shardfleet.events.delivery import (
    BatchFailed,
    ConsumerFailed,
    RecordNotKept,
    RecordSkipped,
    ShardStopped,
)
from shardfleet.records import Batch, Record
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.worker_kit import ME, World, a_config, at, key
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}


def a_world(**world):
    return World(**{**SHORT, **world})


def in_world(scenario, **world):
    async def main():
        return await scenario(World(**{**SHORT, **world}))

    return run_virtual(main())


def poison(*numbers, times=10**9, partial=False):
    """Return a handler that fails on these records, some times or always."""
    left = dict.fromkeys((str(n).encode() for n in numbers), times)

    async def script(batch):
        for record in batch:
            if left.get(record.data, 0) > 0:
                left[record.data] -= 1
                raise ValueError(f"cannot handle {record.data.decode()}")
            if partial:
                batch.checkpoint(record)

    return script


def sequence_of(world, number, shard=0):
    """Return the position of a record named by its number."""
    records = world.stream._logs[key(shard)].records
    return at(next(r.sequence_number for r in records if r.data == str(number).encode()))


# --- never past a failed record: §8 row 1


@pytest.mark.parametrize("partial", [False, True], ids=["whole batch", "partial"])
@pytest.mark.parametrize("bad", range(1, 13))
@virtual
async def test_no_checkpoint_ever_passes_a_record_that_fails(bad, partial):
    world = a_world(max_batch_records=5)
    world.handler._script = poison(bad, partial=partial)
    world.put(1, 12)
    real = world.leases.apply

    async def checked(change):
        result = await real(change)
        stored = world.lease().checkpoint
        assert stored.is_sentinel or stored < sequence_of(world, bad)
        return result

    world.leases.apply = checked
    await world.turn(turn_ms=60_000)
    assert bad not in world.numbers
    # With a limit on attempts everything before the record is done, one at a time at last.
    assert world.numbers[-1:] == ([bad - 1] if bad > 1 else [])
    assert set(world.numbers) == set(range(1, bad))


@pytest.mark.parametrize("partial", [False, True], ids=["whole batch", "partial"])
@virtual
async def test_a_record_that_fails_for_a_while_is_handled_in_the_end_and_in_order(partial):
    world = a_world()
    world.handler._script = poison(4, times=3, partial=partial)
    world.put(1, 10)
    await world.turn(turn_ms=60_000)
    firsts = [world.numbers.index(n) for n in range(1, 11)]
    assert firsts == sorted(firsts)
    assert world.lease().checkpoint == sequence_of(world, 10)
    assert not world.told(ShardStopped)
    # What was declared done is not repeated.
    assert not partial or world.numbers == list(range(1, 11))


@virtual
async def test_an_error_behind_the_last_record_that_is_done_has_nothing_to_be_tried_again():
    world = a_world()

    async def script(batch):
        return HandlerResult(done_count=len(batch), error="after the last one")

    world.handler._script = script
    world.put(1, 10)
    await world.turn(turn_ms=20_000)
    assert world.numbers == list(range(1, 11))
    assert world.lease().checkpoint == sequence_of(world, 10)
    assert not world.told(ConsumerFailed)
    assert not world.told(BatchFailed)


@virtual
async def test_progress_is_stored_in_its_time_although_nothing_more_comes():
    """And not with the next renewal, which may be long in coming."""
    world = a_world(checkpoint_ms=5_000, failover_ms=90_000)
    world.put(1)
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    await world.run_until(lambda: world.lease().checkpoint == sequence_of(world, 1))
    world.put(2)
    await world.run_until(lambda: world.numbers == [1, 2])
    await world.clock.sleep_ms(6_000)
    assert world.lease().checkpoint == sequence_of(world, 2)
    await turn


@pytest.mark.parametrize("partial", [False, True], ids=["whole batch", "partial"])
@pytest.mark.parametrize("records", [(2, 4), (1, 2, 3), (4, 9), (1, 10)])
@virtual
async def test_each_of_several_records_that_fail_for_a_while_has_its_own_attempts(records, partial):
    """No record is given up for what its neighbours did."""
    world = a_world(max_attempts=3)
    world.handler._script = poison(*records, times=2, partial=partial)
    world.put(1, 10)
    await world.turn(turn_ms=150_000)
    assert not world.told(ShardStopped)
    assert set(world.numbers) == set(range(1, 11))
    assert world.lease().checkpoint == sequence_of(world, 10)


def test_a_record_that_joins_a_batch_that_is_repeated_has_all_its_attempts():
    """Found by the simulation: the call before it came counted as one of its failures."""
    in_call = []

    async def script(batch):
        numbers = [int(record.data) for record in batch]
        in_call.append(numbers)
        if numbers[0] == 1:
            batch.checkpoint(batch[2])
            raise ValueError("cannot handle 4")
        if 8 in numbers:
            raise ValueError("cannot handle 8")

    async def scenario(world):
        world.handler._script = script
        world.put(1, 10)
        await world.turn(turn_ms=60_000)
        (failed,) = world.dead_letters.kept
        assert [int(record.data) for record in failed.records] == [8]
        assert failed.attempts == 3 == sum(8 in numbers for numbers in in_call)
        assert in_call[:2] == [[1, 2, 3, 4, 5], [4, 5]]

    policy = {"on_exhausted": "sqs", "failed_queue_url": "q", "max_attempts": 3}
    in_world(scenario, max_batch_records=5, **policy)


@virtual
async def test_retries_back_off_exponentially_and_number_their_attempts():
    world = a_world(max_attempts=0)
    world.handler._script = poison(1, times=6)
    world.put(1)
    await world.turn(turn_ms=60_000)
    calls = world.handler.calls
    assert [call.batch.attempt for call in calls] == [1, 2, 3, 4, 5, 6, 7]
    gaps = [b.began_ms - a.ended_ms for a, b in itertools.pairwise(calls)]
    for gap, ceiling in zip(gaps, (200, 400, 800, 1_600, 3_200, 5_000), strict=True):
        assert ceiling / 2 <= gap <= ceiling


@virtual
async def test_a_handler_that_declared_everything_done_before_it_failed_is_not_repeated():
    world = a_world()

    async def fails_at_the_end(batch):
        batch.checkpoint(batch[-1])
        raise ValueError("after the last record")

    world.handler._script = fails_at_the_end
    world.put(1, 5)
    await world.turn(turn_ms=30_000)
    assert len(world.handler.calls) == 1
    assert world.lease().checkpoint == sequence_of(world, 5)


# --- after max_attempts


@pytest.mark.parametrize("partial", [False, True], ids=["whole batch", "partial"])
@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
@virtual
async def test_a_shard_stops_at_exactly_the_record_that_fails(attempts, partial):
    world = a_world(shards=2, max_attempts=attempts)
    world.handler._script = poison(7, partial=partial)
    world.put(1, 10)
    world.put(11, 15, number=1)
    await world.turn(turn_ms=60_000)
    stop = world.state.documents["stop", key(0)].body
    assert stop["position"] == str(sequence_of(world, 7))
    assert "cannot handle 7" in stop["error"]
    assert stop["worker_id"] == ME
    # One attempt more where a record must be tried alone to be known.
    assert stop["attempts"] == max(attempts, 2)
    assert world.lease(0).checkpoint == sequence_of(world, 6)
    assert len(world.told(ShardStopped)) == 1
    # The others go on, and the stopped shard's lease is kept.
    assert set(world.numbers) == {*range(1, 7), *range(11, 16)}
    assert world.lease(0).lease_owner == ME
    last_ms = max(call.began_ms for call in world.handler.calls)
    assert last_ms < 30_000


@virtual
async def test_a_record_alone_in_its_batch_gets_exactly_max_attempts():
    world = a_world(max_attempts=3)
    world.handler._script = poison(1)
    world.put(1)
    await world.turn(turn_ms=60_000)
    assert len(world.handler.calls) == 3
    assert world.state.documents["stop", key(0)].body["attempts"] == 3


@virtual
async def test_a_stopped_shard_stays_stopped_in_the_next_turn_and_goes_on_when_resumed():
    world = a_world(max_attempts=2)
    world.handler._script = poison(3)
    world.put(1, 5)
    await world.turn(turn_ms=40_000)
    calls = len(world.handler.calls)
    await world.turn(turn_ms=40_000)
    assert len(world.handler.calls) == calls

    async def person():
        await world.clock.sleep_ms(5_000)
        world.handler._script = None
        del world.state.documents["stop", key(0)]

    task = asyncio.create_task(person())
    await world.turn(turn_ms=60_000)
    await task
    assert sorted(set(world.numbers)) == [1, 2, 3, 4, 5]
    assert world.lease().checkpoint == sequence_of(world, 5)


@pytest.mark.parametrize("bad", [(1,), (7,), (10,), (2, 3), (1, 5, 10)])
@virtual
async def test_only_the_records_that_fail_are_kept_elsewhere_and_skipped(bad):
    world = a_world(max_attempts=3, on_exhausted="sqs", failed_queue_url="q")
    world.handler._script = poison(*bad)
    world.put(1, 10)
    await world.turn(turn_ms=150_000)
    kept = [record for failed in world.dead_letters.kept for record in failed.records]
    assert [int(record.data) for record in kept] == list(bad)
    assert [event.kept_at for event in world.told(RecordSkipped)] == [
        f"kept-{n + 1}" for n in range(len(bad))
    ]
    assert set(world.numbers) == set(range(1, 11)) - set(bad)
    assert world.lease().checkpoint == sequence_of(world, 10)
    failed = world.dead_letters.kept[0]
    assert (failed.attempts, failed.worker_id) == (3, ME)
    assert f"cannot handle {bad[0]}" in failed.error


@virtual
async def test_a_record_is_not_skipped_before_it_is_kept_elsewhere():
    world = a_world(max_attempts=2, on_exhausted="sqs", failed_queue_url="q")
    world.handler._script = poison(2)
    world.dead_letters.refusals = 4
    real = world.leases.apply

    async def checked(change):
        result = await real(change)
        if not world.dead_letters.kept:
            stored = world.lease().checkpoint
            assert stored.is_sentinel or stored < sequence_of(world, 2)
        return result

    world.leases.apply = checked
    world.put(1, 3)
    await world.turn(turn_ms=90_000)
    assert len(world.told(RecordNotKept)) == 4
    assert len(world.dead_letters.kept) == 1
    assert world.numbers[-1] == 3


# --- a policy is a row


@pytest.mark.parametrize(
    ("most", "policy", "reason"),
    [
        (5, "stop", "5 attempts failed, 5 allowed: the shard is stopped"),
        (2, "sqs", "2 attempts failed, 2 allowed: the record is kept in sqs and skipped"),
        (1, "s3", "1 attempts failed, 1 allowed: the record is kept in s3 and skipped"),
    ],
)
def test_the_last_failure_says_what_the_policy_does(most, policy, reason):
    async def scenario(world):
        world.handler._script = poison(1)
        world.put(1)
        await world.turn(turn_ms=60_000)
        *others, last = [event.reason for event in world.told(BatchFailed)]
        assert last == reason
        assert others == [f"attempt {n} of {most} failed" for n in range(1, most)]

    kept_in = {"failed_queue_url": "q", "failed_bucket": "b"}
    in_world(scenario, max_attempts=most, on_exhausted=policy, **kept_in)


@virtual
async def test_a_policy_that_drops_what_fails_takes_one_row(monkeypatch):
    monkeypatch.setitem(POLICIES, "drop", PolicyTerms("the record is dropped"))
    world = a_world(max_attempts=3, on_exhausted="drop")
    world.handler._script = poison(2, 7)
    world.put(1, 10)
    await world.turn(turn_ms=60_000)
    assert set(world.numbers) == set(range(1, 11)) - {2, 7}
    assert world.lease().checkpoint == sequence_of(world, 10)
    assert [event.kept_at for event in world.told(RecordSkipped)] == ["", ""]
    assert not world.dead_letters.kept
    reasons = [event.reason for event in world.told(BatchFailed)]
    assert "3 attempts failed, 3 allowed: the record is dropped" in reasons


@virtual
async def test_a_policy_that_keeps_what_fails_and_stops_there_takes_one_row(monkeypatch):
    row = PolicyTerms("kept, and the shard is stopped", Destination.BUCKET, stops=True)
    monkeypatch.setitem(POLICIES, "keep and stop", row)
    with pytest.raises(ConfigurationError, match="failed_bucket: needed for on_exhausted keep and"):
        a_config(on_exhausted="keep and stop")
    found = "stop, skip, sqs, s3, sns, keep and stop allowed"
    with pytest.raises(ConfigurationError, match=found):
        a_config(on_exhausted="park")
    world = a_world(max_attempts=3, on_exhausted="keep and stop", failed_bucket="b")
    world.handler._script = poison(3)
    world.put(1, 5)
    await world.turn(turn_ms=60_000)
    (failed,) = world.dead_letters.kept
    assert [int(record.data) for record in failed.records] == [3]
    assert world.state.documents["stop", key(0)].body["attempts"] == 3
    assert world.lease().checkpoint == sequence_of(world, 2)
    assert not world.told(RecordSkipped)


def test_a_stop_that_cannot_be_written_is_tried_until_it_is_and_nothing_is_delivered_meanwhile():
    async def scenario(world):
        world.handler._script = poison(1)
        left = [5]

        def before(call, kind, name):
            if (call, kind) == ("write", "stop") and left[0]:
                left[0] -= 1
                raise Throttled("full")

        world.state.before = before
        world.put(1, 3)
        await world.turn(turn_ms=60_000)
        assert left == [0]
        assert world.state.documents["stop", key(0)].body["attempts"] == 1
        assert world.numbers == []

    in_world(scenario, max_attempts=1, max_batch_records=1)


# --- wrappings


@virtual
async def test_from_the_decoder_to_the_handler_a_record_is_in_three_wrappings(monkeypatch):
    """What is handed over is what was taken out of the page, neither copied nor wrapped again."""
    taken, handed, wrappings = [], [], []
    deliver, call, waiting = Progress.take, Dispatcher.call, UserRecords.waiting

    async def delivered(self, records):
        wrappings.append(type(records))
        await deliver(self, records)

    async def called(self, held, records, **options):
        handed.extend(records)
        return await call(self, held, records, **options)

    async def waited(self, count):
        records = await waiting(self, count)
        taken.extend(record for record in records if not any(record is t for t in taken))
        return records

    monkeypatch.setattr(Progress, "take", delivered)
    monkeypatch.setattr(Dispatcher, "call", called)
    monkeypatch.setattr(UserRecords, "waiting", waited)
    world = a_world(max_batch_records=2)
    world.put(1, 5)
    await world.turn(turn_ms=30_000)
    batches = [call.batch for call in world.handler.calls]
    assert {*wrappings} == {UserRecords}
    assert {type(batch) for batch in batches} == {Batch}
    same = zip(taken, handed, [r for batch in batches for r in batch], strict=True)
    assert all(a is b is c for a, b, c in same)


# --- batches and turns of shards: hazard H17


def a_record(number, size=1):
    return Record(
        data=b"x" * size,
        partition_key="k",
        sequence_number=str(number),
        shard_id=key(0),
        approximate_arrival_ms=0,
    )


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1, 1, 1, 1], [3, 1]),
        ([5, 5, 5], [2, 1]),
        ([11, 1, 1], [1, 2]),
        ([1, 11, 1], [1, 1, 1]),
        ([10, 0, 1], [2, 1]),
    ],
)
def test_a_batch_keeps_to_both_limits_and_one_larger_record_goes_alone(sizes, expected):
    records = [a_record(n, size) for n, size in enumerate(sizes)]
    found, begin = [], 0
    while begin < len(records):
        batch = cut_batch(records[begin:], records_most=3, bytes_most=10)
        found.append(len(batch))
        begin += len(batch)
    assert found == expected


@virtual
async def test_synchronous_calls_never_overlap_and_coroutines_of_different_shards_do():
    world = a_world(shards=4, max_batch_records=2)

    async def slow(batch):
        await world.clock.sleep_ms(500)

    for overlaps, most in ((False, 1), (True, 4)):
        world.handler = MemoryHandler(world.clock, slow, overlaps=overlaps)
        for shard in range(4):
            world.put(10 * shard, 10 * shard + 4, number=shard)
        await world.turn(turn_ms=40_000)
        assert world.handler.running_most == most
        by_shard = {}
        for call in world.handler.calls:
            by_shard.setdefault(call.batch.shard_id, []).append((call.began_ms, call.ended_ms))
        for spans in by_shard.values():
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


@virtual
async def test_a_shard_far_behind_takes_turns_with_a_fresh_one():
    """H17: oldest first alone would starve a fresh shard until the others have caught up."""
    world = a_world(shards=3, max_batch_records=2)

    async def slow(batch):
        await world.clock.sleep_ms(1_000)

    world.handler._script = slow
    world.put(1, 200, number=0)
    await world.clock.sleep_ms(60_000)
    for n in range(201, 241):
        world.put(n, number=1 + n % 2)
    await world.turn(turn_ms=60_000)
    order = [call.batch.shard_id for call in world.handler.calls][:30]
    assert order == [key(0), key(1), key(2)] * 10


@virtual
async def test_within_a_round_the_shard_with_the_oldest_record_goes_first():
    world = a_world(shards=3, max_batch_records=2)

    async def slow(batch):
        await world.clock.sleep_ms(1_000)

    world.handler._script = slow
    for shard in (2, 0, 1):
        world.put(10 * shard, 10 * shard + 3, number=shard)
        await world.clock.sleep_ms(1_000)
    await world.turn(turn_ms=60_000)
    # Whoever asks first goes at once; from then on the age of the oldest record decides.
    second_round = [call.batch.shard_id for call in world.handler.calls][3:6]
    assert second_round == [key(2), key(0), key(1)]


@virtual
async def test_a_shard_of_whose_records_nobody_says_when_they_arrived_is_not_the_oldest():
    world = a_world(shards=3, max_batch_records=2)

    async def slow(batch):
        await world.clock.sleep_ms(1_000)

    def undated(shard_id, page):
        if shard_id != key(1):
            return page
        return replace(
            page, records=[structs.replace(r, approximate_arrival_ms=0) for r in page.records]
        )

    world.handler._script = slow
    world.stream.alter = undated
    for shard in (2, 0, 1):
        world.put(10 * shard, 10 * shard + 3, number=shard)
        await world.clock.sleep_ms(1_000)
    await world.turn(turn_ms=60_000)
    second_round = [call.batch.shard_id for call in world.handler.calls][3:6]
    assert second_round == [key(2), key(0), key(1)]


@virtual
async def test_a_batch_of_which_nobody_says_how_far_behind_it_is_is_not_at_the_tip():
    world = a_world(shards=2)
    world.stream.alter = lambda shard_id, page: (
        replace(page, millis_behind_latest=None) if shard_id == key(1) else page
    )
    for shard in (0, 1):
        world.put(10 * shard, 10 * shard + 3, number=shard)
    await world.turn(turn_ms=10_000)
    told = {call.batch.shard_id: call.batch.millis_behind_latest for call in world.handler.calls}
    assert told == {key(0): 0, key(1): None}


@virtual
async def test_a_failing_shard_gives_its_turn_to_the_others_while_it_backs_off():
    world = a_world(shards=2, max_attempts=0)
    world.handler._script = poison(1)

    async def feed():
        for n in range(10, 60):
            world.put(n, number=1)
            await world.clock.sleep_ms(200)

    world.put(1)
    task = asyncio.create_task(feed())
    await world.turn(turn_ms=40_000)
    await task
    assert world.numbers == list(range(10, 60))
    assert len(world.told(BatchFailed)) >= 5
    handled = [c for c in world.handler.calls if c.batch.shard_id == key(1)]
    waits = [c.began_ms - (c.batch[0].approximate_arrival_ms - 1_700_000_000_000) for c in handled]
    assert max(waits) <= 1_200


@virtual
async def test_a_hanging_coroutine_of_one_shard_does_not_delay_renewals_or_the_others():
    world = a_world(shards=2, handler_timeout_ms=60_000)

    async def hangs(batch):
        if batch.shard_id == key(0):
            await world.clock.sleep_ms(55_000)

    world.handler = MemoryHandler(world.clock, hangs, overlaps=True)
    world.put(1)
    world.put(2, 9, number=1)
    counters = []

    async def watching():
        for _ in range(50):
            await world.clock.sleep_ms(1_000)
            counters.append(world.lease(0).lease_counter)

    task = asyncio.create_task(watching())
    await world.turn(turn_ms=150_000)
    await task
    assert sorted(world.numbers) == list(range(1, 10))
    assert max(counters.count(c) for c in set(counters)) <= 4
