"""
A worker that reads where the stream forgets: each gap is told, and none is told that is none.

Kinesis: records are gone when the retention period is over, and an iterator that points at them
goes on, without a word, at the oldest record that is left (GetRecords, AT_SEQUENCE_NUMBER).
"""

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace

from shardfleet.domain.reading.pages import StartKind
from shardfleet.errors import IteratorExpired, OutcomeUnknown, PositionTrimmed, Throttled
from shardfleet.events.delivery import FalseShardEnd, PositionLost, ShardStopped
from shardfleet.events.worker import TurnFailed
from shardfleet_testkit.memory_stream import MemoryStream
from tests.engine.worker_side.worker_kit import Crash, World, a_lease, at, key
from tests.virtual import virtual

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SLOW = {"handler_timeout_ms": 100_000, "turn_margin_ms": 3_000, "records_per_read": 2}


def a_world(**world):
    return World(**{**SLOW, **world})


async def ten_seconds_apart(world, last, *, age_ms):
    """Put records from 1 on; wait until the first is so old. Returns the sequence numbers."""
    for n in range(1, last + 1):
        world.put(n)
        await world.clock.sleep_ms(10_000)
    numbers = world.stream.sequence_numbers(key(0))
    await world.clock.sleep_ms(age_ms - last * 10_000)
    return numbers


def slow_at(world, **pauses_ms):
    """Let the handler take its time over some records, the first time."""

    async def slow(batch):
        for record in batch:
            await world.clock.sleep_ms(pauses_ms.pop(f"n{record.data.decode()}", 0))

    world.handler._script = slow


def calls(world, operation):
    return [call for call in world.stream.calls if call.operation == operation]


def proofs(world):
    """Return the iterators that were asked for to see whether a record is still there."""
    kind = StartKind.AT_SEQUENCE_NUMBER
    return [call.start for call in calls(world, "shard_iterator")[1:] if call.start.kind is kind]


async def at_the_horizon(world, last=10):
    """Stand at record 1 when it has 5 s left, and each further one 10 s more."""
    numbers = await ten_seconds_apart(world, last, age_ms=DAY_MS - 5_000)
    world.leases.leases[key(0)] = a_lease(checkpoint=at(numbers[0]))
    return numbers


@virtual
async def test_what_expires_between_two_pages_stops_the_shard_and_is_told():
    world = a_world()
    numbers = await at_the_horizon(world)
    slow_at(world, n2=80_000)  # Then 9 is the oldest.
    await world.turn(turn_ms=400_000)
    assert world.numbers == [2]
    (lost,) = world.told(PositionLost)
    assert (lost.policy, lost.done) == ("stop", str(at(numbers[1])))
    assert len(world.told(ShardStopped)) == 1
    stop = world.state.documents["stop", key(0)].body
    assert f"record {numbers[1]} is older than what the stream retains" in stop["error"]
    assert world.lease().checkpoint == at(numbers[1])


@pytest.mark.parametrize("after_ms", [30_000, 30 * HOUR_MS])
@virtual
async def test_once_resumed_it_goes_on_at_the_oldest_record_and_nothing_comes_twice(after_ms):
    """A person has decided on that loss, however long it took."""
    world = a_world()
    await at_the_horizon(world)
    slow_at(world, n2=80_000)
    await world.turn(turn_ms=200_000)
    assert world.numbers == [2]
    if after_ms > HOUR_MS:
        await world.clock.sleep_ms(after_ms)
        world.put(11, 12)
    del world.state.documents["stop", key(0)]
    await world.turn(turn_ms=200_000)
    assert world.numbers == ([2, 11, 12] if after_ms > HOUR_MS else [2, *world.numbers[1:]])
    assert world.numbers == sorted(set(world.numbers))
    assert len(world.told(PositionLost)) == 1
    assert len(world.told(ShardStopped)) == 1


@virtual
async def test_a_death_before_the_stop_is_on_record_does_not_pass_over_the_loss():
    world = a_world()
    await at_the_horizon(world)
    slow_at(world, n2=80_000)

    def dies(call, kind, _name):
        if (call, kind) == ("write", "stop"):
            raise Crash

    world.state.before = dies
    await world.turn_that_may_die(turn_ms=400_000)
    (failed,) = world.told(TurnFailed)
    assert failed.error.startswith("Crash")
    world.state.before = lambda call, kind, name: None
    await world.turn(turn_ms=400_000)
    assert set(world.numbers) == {2}
    assert len(world.told(ShardStopped)) == 1


@virtual
async def test_what_expires_between_two_pages_is_told_where_reading_jumps():
    world = a_world(on_trimmed="jump")
    numbers = await at_the_horizon(world)
    slow_at(world, n2=80_000)
    await world.turn(turn_ms=400_000)
    assert world.numbers == [2, 9, 10]
    (lost,) = world.told(PositionLost)
    assert (lost.policy, lost.done) == ("jump", str(at(numbers[1])))
    assert world.lease().checkpoint == at(numbers[-1])


@virtual
async def test_each_further_loss_of_a_worker_that_stays_at_the_horizon_is_told():
    world = a_world(on_trimmed="jump")
    numbers = await at_the_horizon(world, last=30)
    slow_at(world, n2=80_000, n10=80_000)
    await world.turn(turn_ms=600_000)
    gaps = [n for n in range(3, 31) if n not in world.numbers]
    assert gaps == [3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16]
    assert world.numbers == sorted(set(world.numbers))
    told = [event.done for event in world.told(PositionLost)]
    assert told == [str(at(numbers[1])), str(at(numbers[9]))]


@virtual
async def test_a_tail_that_expires_unread_is_not_taken_for_the_tip():
    world = a_world()
    await ten_seconds_apart(world, 4, age_ms=DAY_MS - 5_000)
    slow_at(world, n2=80_000)
    await world.turn(turn_ms=400_000)
    assert world.numbers == [1, 2]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_what_expires_while_a_refused_read_is_repeated_is_told():
    world = a_world()
    await at_the_horizon(world)
    began = []

    def refuse(call):
        if call.operation == "get_records":
            began.append(call.at_ms)
            if len(began) > 1 and call.at_ms < began[0] + 80_000:
                raise Throttled("slow down")

    world.stream.fault = refuse
    await world.turn(turn_ms=400_000)
    assert world.numbers == [2]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_what_expires_while_an_iterator_is_renewed_is_told():
    world = a_world()
    await at_the_horizon(world)
    slow_at(world, n2=80_000)
    task = asyncio.create_task(world.clock.sleep_ms(30_000))
    task.add_done_callback(lambda _: world.stream.expire_iterators())
    await world.turn(turn_ms=400_000)
    await task
    assert world.numbers == [2]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_an_empty_answer_that_tells_of_little_lag_proves_nothing():
    """Hazard H6: more is to come, and what comes next has skipped what was trimmed."""
    world = a_world()
    await at_the_horizon(world)
    slow_at(world, n2=80_000)
    real, asked = world.stream.get_records, []

    async def sparse(iterator, *, shard_id, limit):
        asked.append(iterator)
        page = await real(iterator, shard_id=shard_id, limit=limit)
        if len(asked) == 2:
            return replace(page, records=(), resume_token=iterator, millis_behind_latest=1_000)
        return page

    world.stream.get_records = sparse
    await world.turn(turn_ms=400_000)
    assert world.numbers == [2]
    assert len(world.told(PositionLost)) == 1


def remember_reads(world, *, alter=lambda limit, page: page):
    """Note how many records each read asked for, and what it brought; proofs ask for one."""
    reads, real = [], world.stream.get_records

    async def remembering(iterator, *, shard_id, limit):
        page = alter(limit, await real(iterator, shard_id=shard_id, limit=limit))
        reads.append((limit, [record.data for record in page.records]))
        return page

    world.stream.get_records = remembering
    return reads


def days_behind(world):
    world.stream = MemoryStream(world.clock, retention_ms=7 * DAY_MS)


@virtual
async def test_a_worker_days_behind_on_a_longer_retention_proves_each_page_by_one_record():
    world = a_world()
    days_behind(world)
    numbers = await ten_seconds_apart(world, 10, age_ms=3 * DAY_MS)
    world.leases.leases[key(0)] = a_lease(checkpoint=at(numbers[0]))
    reads = remember_reads(world)
    await world.turn(turn_ms=200_000)
    assert world.numbers == list(range(2, 11))
    assert not world.told(PositionLost)
    pages = [data for limit, data in reads if limit == 2 and data]
    assert pages == [[b"%d" % n, b"%d" % (n + 1)] for n in range(1, 11, 2)]
    assert [data for limit, data in reads if limit == 1] == [[b"2"], [b"4"], [b"6"], [b"8"]]
    assert [start.sequence_number for start in proofs(world)] == numbers[1:9:2]
    # At the tip nothing is in doubt any more.
    assert len(reads) > len(pages) + len(proofs(world))


@virtual
async def test_a_proof_that_is_refused_expires_or_says_nothing_is_repeated_for_the_same_page():
    world = a_world()
    days_behind(world)
    await ten_seconds_apart(world, 10, age_ms=3 * DAY_MS)
    asked, unclear = [0], [3]
    errors = iter([Throttled, IteratorExpired, OutcomeUnknown, Throttled])

    def fault(call):
        asked[0] += call.operation == "get_records"
        is_proof = bool(proofs(world))
        if is_proof and asked[0] > 2 and (error := next(errors, None)):
            raise error("not now")

    def alter(limit, page):
        if limit == 1 and unclear[0]:
            unclear[0] -= 1
            if unclear[0]:  # Hazard H6: empty, with lag; from the position on.
                moved = dataclasses.replace(
                    world.stream._iterators[seen[-1]], made_ms=10**9 + unclear[0]
                )
                again = world.stream._issue(moved)
                followed.append(again)
                return replace(page, records=(), resume_token=again, millis_behind_latest=9_000)
            return replace(page, records=(), resume_token=None)  # No children: no end.
        return page

    seen, followed, reads = [], [], remember_reads(world, alter=alter)
    remembering = world.stream.get_records

    async def seeing(iterator, *, shard_id, limit):
        seen.append(iterator)
        return await remembering(iterator, shard_id=shard_id, limit=limit)

    world.stream.get_records = seeing
    world.stream.fault = fault
    await world.turn(turn_ms=200_000)
    assert world.numbers == list(range(1, 11))
    assert next(errors, None) is None
    assert unclear == [0]
    assert set(followed) <= set(seen)
    assert len(world.told(FalseShardEnd)) == 1
    assert not world.told(PositionLost)
    brought = [data for limit, page in reads if limit == 2 for data in page]
    assert brought == [b"%d" % n for n in range(1, 11)], "no page is read twice"


@virtual
async def test_a_proof_that_the_service_refuses_for_its_number_is_a_loss():
    world = a_world(on_trimmed="jump")
    days_behind(world)
    await ten_seconds_apart(world, 4, age_ms=3 * DAY_MS)

    def fault(call):
        if call.start and call.start.kind is StartKind.AT_SEQUENCE_NUMBER:
            raise PositionTrimmed("out of range")

    world.stream.fault = fault
    await world.turn(turn_ms=200_000)
    assert world.numbers == [1, 2, 3, 4]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_a_renewed_iterator_that_the_service_refuses_for_its_number_is_told_once():
    world = a_world(on_trimmed="jump")
    world.put(1, 4)

    def fault(call):
        if call.start and call.start.kind is StartKind.AFTER_SEQUENCE_NUMBER:
            raise PositionTrimmed("out of range")

    async def trimmed(batch):
        if any(record.data == b"2" for record in batch):
            world.stream.trim(key(0), keep=1)
            world.stream.expire_iterators()

    world.stream.fault = fault
    world.handler._script = trimmed
    await world.turn(turn_ms=200_000)
    assert world.numbers == [1, 2, 4]
    assert len(world.told(PositionLost)) == 1


@virtual
async def test_nothing_more_is_asked_while_a_worker_is_well_within_the_shortest_retention():
    world = a_world()
    numbers = await ten_seconds_apart(world, 10, age_ms=20 * HOUR_MS)
    world.leases.leases[key(0)] = a_lease(checkpoint=at(numbers[0]))
    reads = remember_reads(world)
    await world.turn(turn_ms=200_000)
    assert world.numbers == list(range(2, 11))
    assert len(calls(world, "shard_iterator")) == 1
    assert [limit for limit, data in reads if data] == [2] * 5


@virtual
async def test_a_shard_that_catches_up_is_proved_until_it_is_10_minutes_within_the_retention():
    world = a_world()
    # 1 to 4 arrived within 20 s, 5 to 10 twenty minutes later.
    await ten_seconds_apart(world, 4, age_ms=20 * 60_000)
    world.put(5, 10)
    await world.clock.sleep_ms(DAY_MS - 25 * 60_000)
    reads = remember_reads(world)
    await world.turn(turn_ms=200_000)
    assert world.numbers == list(range(1, 11))
    assert [data for limit, data in reads if limit == 1] == [[b"2"]]
    assert not world.told(PositionLost)
