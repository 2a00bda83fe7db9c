"""The driver's half over a stream in memory, on virtual time: losses, conforming, limits."""

import random
from dataclasses import replace

import pytest

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber, PointKind, Position
from shardfleet.errors import (
    IteratorExpired,
    ShardGone,
    StreamReplaced,
    Throttled,
)
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_spark.offsets.plan_token import Emission, Quota, Stand, token_from_json
from shardfleet_spark.options.starting import Start
from shardfleet_spark.plan.driver import DriverSettings, SourceDriver
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.plan.probing import ProbePace
from shardfleet_spark.read.arrow import Rows, batches_of
from shardfleet_spark.read.fetching import fetch
from shardfleet_spark.read.sealing import read_sealed
from shardfleet_spark.read.shard_pages import DataLost, FetchPorts, ReadPolicy, ShardRange
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory_stream import MemoryStream
from tests.spark.memory_seals import MemorySealStore
from tests.spark.simulated_spark import SeededEntropy
from tests.virtual import within

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Query:
    """One query: a stream, a driver, and batches run by hand."""

    def __init__(self, *, shards=1, start="TRIM_HORIZON", store=True, limits=None, **policy):
        self.processes = 0
        self.clock = VirtualClock()
        self.stream = MemoryStream(self.clock, shards=shards)
        self.store = MemorySealStore() if store else None
        self.policy = ReadPolicy(**{"poll_interval_ms": 200, **policy})
        self.settings = DriverSettings(
            start=Start(start),
            limits=limits or BatchLimits(partitions=1),
            emission=Emission(),
            pace=ProbePace(interval_ms=1_000, per_second=100),
            plans_retained=20,
        )
        self.restart()

    def restart(self):
        """Let the driver's process begin anew."""
        self.ports = self.fresh_ports()
        self.driver = SourceDriver(self.settings, self.ports, self.store)

    def fresh_ports(self):
        """Return what a new process has: no two draw the same ids."""
        self.processes += 1
        return FetchPorts(
            stream=self.stream,
            source=self.stream,
            clock=self.clock,
            entropy=SeededEntropy(random.Random(self.processes)),
            policy=self.policy,
        )

    async def batch(self, start):
        """Plan and read one batch; return its end offset and its records' data."""
        end = await self.driver.latest(start)
        return end, await self.read(start, end)

    async def read(self, start, end):
        data = []
        for planned in await self.driver.partitions(start, end):
            for each in await read_sealed(planned.range, self.store, self.ports, writer={}):
                data += [record.data for record in each.records]
        return data

    def calls(self, operation):
        return [call for call in self.stream.calls if call.operation == operation]


def in_query(scenario, **settings):
    async def main():
        return await scenario(Query(**settings))

    return run_virtual(main())


# --- what is lost is told


def read_from(query, shard_range):
    quota = Quota(total_bytes=1 << 20, fetch_ms=1_000)
    return fetch([shard_range], quota, query.ports, writer={})


def at_record(query, number, *, sub=0, tip=0):
    shard_id = query.stream.open_shard_ids[0]
    incarnation = query.stream._incarnation
    done = ExtendedSequenceNumber(number, sub)
    position = Position(incarnation, shard_id, PointKind.SEQUENCE, done=done)
    return ShardRange(shard_id, Stand(position, tip_ms=tip))


@pytest.mark.parametrize("keep", [0, 2])
@within(in_query)
async def test_a_position_that_was_trimmed_stops_the_query_or_is_told(query, /, keep):
    numbers = [query.stream.put(b"%d" % n) for n in range(5)]
    query.stream.trim(query.stream.open_shard_ids[0], keep=keep)
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        await read_from(query, at_record(query, numbers[1]))
    query.policy = replace(query.policy, fail_on_data_loss=False)
    query.restart()
    found = await read_from(query, at_record(query, numbers[1]))
    assert found.seal.shards[0].count == keep
    assert "records behind it may be lost" in found.seal.shards[0].lost


@within(in_query)
async def test_an_idle_shard_whose_last_record_expired_within_a_day_of_its_tip_lost_nothing(
    query, /
):
    number = query.stream.put(b"old")
    await query.clock.sleep_ms(DAY_MS + HOUR_MS)
    now_ms = query.clock.now_ms()
    found = await read_from(query, at_record(query, number, tip=now_ms - 2 * HOUR_MS))
    assert found.seal.shards[0].lost == ""
    with pytest.raises(DataLost):
        await read_from(query, at_record(query, number, tip=now_ms - DAY_MS))


@within(in_query)
async def test_a_shard_that_expired_unread_stops_the_query_or_ends_there(query, /):
    reading = at_record(query, query.stream.put(b"x"))
    query.stream.split(reading.shard_id)
    await query.clock.sleep_ms(DAY_MS + HOUR_MS)
    query.stream.forget_shard(reading.shard_id)
    with pytest.raises(DataLost, match="expired before it was read to its end"):
        await read_from(query, reading)
    query.policy = replace(query.policy, fail_on_data_loss=False)
    query.restart()
    found = await read_from(query, reading)
    assert found.seal.shards[0].ended


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("fails", [True, False])
@within(in_query)
async def test_a_missing_shard_that_is_not_proved_to_be_over_is_left_to_a_later_batch(
    query, /, listed, fails
):
    """Hazard H12: neither "not found" nor a listing proves what cannot have expired yet."""

    def gone(call):
        if call.operation == "shard_iterator":
            raise ShardGone("no such shard")

    query.policy = replace(query.policy, fail_on_data_loss=fails)
    query.restart()
    number = query.stream.put(b"x")
    query.stream.put(b"unread")
    reading = at_record(query, number, tip=query.clock.now_ms())
    whole = query.stream._logs[reading.shard_id]
    if listed:
        query.stream.fault = gone
    else:
        query.stream.split(reading.shard_id)
        query.stream.forget_shard(reading.shard_id)
    (shard,) = (await read_from(query, reading)).seal.shards
    assert (shard.ended, shard.lost, shard.is_cut, shard.count) == (False, "", True, 0)
    query.stream.fault, query.stream._logs[reading.shard_id] = lambda _call: None, whole
    (shard,) = (await read_from(query, reading)).seal.shards
    assert (shard.lost, shard.count) == ("", 1)


@pytest.mark.parametrize("operation", ["shard_iterator", "get_records"])
@pytest.mark.parametrize("fails", [True, False])
@within(in_query)
async def test_a_shard_that_is_not_found_for_once_neither_stops_the_query_nor_ends(
    query, /, operation, fails
):
    left = [2]

    def gone(call):
        if call.operation == operation and left[0]:
            left[0] -= 1
            raise ShardGone("no such shard")

    query.policy = replace(query.policy, fail_on_data_loss=fails)
    number = query.stream.put(b"x")
    query.stream.put(b"y")
    query.stream.fault = gone
    found = await read_from(query, at_record(query, number))
    assert not found.seal.shards[0].ended
    assert found.seal.shards[0].lost == ""
    assert found.seal.shards[0].count == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_stream_that_was_created_again_stops_the_query_or_is_read_anew(fails):
    async def scenario(query):
        query.stream.put(b"old")
        end, _ = await query.batch(await query.driver.initial())
        await query.clock.sleep_ms(60_000)
        query.stream.create_again()
        query.stream.put(b"new")
        if fails:
            with pytest.raises(StreamReplaced, match="deleted and created again"):
                await query.driver.latest(end)
            return
        end, data = await query.batch(end)
        assert data == [b"new"]
        assert "created again" in str(end["stats"]["lost"])

    in_query(scenario, fail_on_data_loss=fails)


@within(in_query)
async def test_purged_seals_stop_the_query_but_a_batch_that_was_never_run_does_not(query, /):
    query.stream.put(b"1")
    end = await query.driver.latest(await query.driver.initial())
    query.restart()
    again = await query.driver.latest(end)  # Never run: the same records are planned again.
    assert await query.read(end, again) == [b"1"]
    query.store.stored.clear()
    query.restart()
    with pytest.raises(DataLost, match="seals of plan"):
        await query.driver.latest(again)


@pytest.mark.parametrize("is_gone", [True, False])
@within(in_query, shards=2, limits=BatchLimits(partitions=2))
async def test_a_missing_seal_of_an_earlier_run_is_told_for_its_rows_may_come_twice(
    query, /, is_gone
):
    """Whether its rows were never asked for or its seal is lost, the store cannot tell."""
    keys = ["0", "1", "2", "3", "4", "5"]
    for key in keys:
        query.stream.put(key.encode(), key=key)
    start = await query.driver.initial()
    end = await query.driver.latest(start)
    parts = await query.driver.partitions(start, end)
    assert len(parts) == 2
    for part in parts if is_gone else parts[:1]:
        await read_sealed(part.range, query.store, query.ports, writer={})
    if is_gone:
        del query.store.stored[parts[1].range.parts[0].key]
    query.restart()

    again = await query.driver.latest(end)

    (told,) = query.driver.report()["lost"]
    assert "has no seal of 1 of its 2 parts" in told
    query.stream.put(b"wakes", key="0")
    late = await read_sealed(parts[1].range, query.store, query.ports, writer={})
    assert [each.records for each in late] == [()]
    assert len(await query.read(end, again)) > 0


@within(in_query, shards=2, limits=BatchLimits(partitions=2))
async def test_rows_that_nobody_asks_for_end_a_run_that_is_to_read_all_and_are_told(query, /):
    for number in range(20):
        query.stream.put(b"%d" % number, key=str(number))
    start, batches = await query.driver.initial(), 0
    query.driver.prepare_available_now()
    while (end := await query.driver.latest(start)) != start and batches < 5:
        start, batches = end, batches + 1
    assert batches == 1
    (told,) = query.driver.report()["lost"]
    assert "nobody asked for any row of plan 1" in told
    assert "2 shards" in told


@within(in_query)
async def test_sealed_records_that_expired_before_a_replay_stop_it(query, /):
    for number in range(5):
        query.stream.put(b"%d" % number)
    start = await query.driver.initial()
    end, data = await query.batch(start)
    assert len(data) == 5
    query.stream.trim(query.stream.open_shard_ids[0], keep=3)
    query.restart()
    with pytest.raises(DataLost, match=r"of the 5 records .* the stream has 3"):
        await query.read(start, end)


# --- patience


@within(in_query, shards=2)
async def test_a_throttled_shard_does_not_hold_the_others(query, /):
    query.stream.put(b"a", shard_id=query.stream.open_shard_ids[0])
    query.stream.put(b"b", shard_id=query.stream.open_shard_ids[1])

    def refuse(call):
        is_second = call.shard_id == query.stream.open_shard_ids[1]
        if call.operation == "get_records" and is_second and query.clock.now_ms() < until_ms:
            raise Throttled("slow down")

    until_ms = query.clock.now_ms() + 30_000
    start = await query.driver.initial()
    query.stream.fault = refuse
    end, data = await query.batch(start)
    assert data == [b"a"]
    assert query.clock.now_ms() < until_ms - 20_000
    while b"b" not in data:
        end, more = await query.batch(end)
        data += more
        await query.clock.sleep_ms(500)
    assert data == [b"a", b"b"]


@pytest.mark.parametrize(("attempts", "ends"), [(3, True), (0, False)])
def test_an_outage_is_waited_out_unless_attempts_are_limited(attempts, ends):
    async def scenario(query):
        number = query.stream.put(b"0")
        query.stream.put(b"1")
        until_ms = query.clock.now_ms() + HOUR_MS

        def refuse(call):
            if query.clock.now_ms() < until_ms:
                raise Throttled("nothing works")

        query.stream.fault = refuse
        if ends:
            with pytest.raises(Throttled):
                await read_from(query, at_record(query, number))
            assert len(query.stream.calls) == attempts
            return
        found = await read_from(query, at_record(query, number))
        assert found.seal.shards[0].count == 1
        # Pauses double up to 3 s, half of each is random: 1,200 to 2,400 in an hour.
        assert 1_200 <= found.seal.throttles <= 2_500

    in_query(scenario, retry_attempts=attempts)


@within(in_query, records_per_read=7)
async def test_an_expired_iterator_is_renewed_behind_the_last_page(query, /):
    for number in range(20):
        query.stream.put(b"%d" % number)
    expired = [True, False, True]

    def expire(call):
        if call.operation == "get_records" and expired and expired.pop():
            raise IteratorExpired("too old")

    start = await query.driver.initial()
    end = await query.driver.latest(start)
    query.stream.fault = expire
    assert await query.read(start, end) == [b"%d" % number for number in range(20)]


# --- limits


@pytest.mark.parametrize("store", [True, False])
def test_available_now_reads_what_was_there_and_stops(store):
    async def scenario(query):
        for number in range(50):
            query.stream.put(b"%d" % number, key=str(number))
        start, batches = await query.driver.initial(), 0
        query.driver.prepare_available_now()
        while True:
            end = await query.driver.latest(start)
            if end == start:
                break
            if store:
                await query.read(start, end)
            query.stream.put(b"later", key="later")
            start, batches = end, batches + 1
            assert batches < 40
        read = [each for each in token_from_json(start).stands.values() if each.position.done]
        assert batches > 3
        assert read

    limits = BatchLimits(records_per_shard=5)
    in_query(scenario, shards=2, store=store, limits=limits)


@within(in_query, limits=BatchLimits())
async def test_old_seals_are_deleted_and_the_newest_plans_stay(query, /):
    start = await query.driver.initial()
    for number in range(35):
        query.stream.put(b"%d" % number)
        end, _ = await query.batch(start)
        await query.driver.commit(end)
        start = end
        await query.clock.sleep_ms(1_000)
    plans = sorted({key.plan[:10] for key in query.store.stored})
    assert plans[0] == "0000000010"
    assert plans[-1] == "0000000035"


@within(in_query)
async def test_a_start_inside_an_aggregate_gives_the_rest_of_it(query, /):
    records = [OutgoingRecord(f"k{n}", b"%d" % n) for n in range(5)]
    number = query.stream.put(aggregate(records), key="k0")
    query.stream.put(b"5", key="k5")
    begin = at_record(query, number, sub=2)
    found = await read_from(query, begin)
    rows = Rows(shard_id="s", stream="c", done=begin.stand.position.done, columns=("data",))
    data = [
        value
        for batch in batches_of((some, rows) for some in found.records.values())
        for value in batch["data"].to_pylist()
    ]
    assert data == [b"3", b"4", b"5"]
    assert found.seal.shards[0].count == 2
    nothing = await read_from(query, at_record(query, number, sub=4))
    assert nothing.seal.shards[0].count == 1
