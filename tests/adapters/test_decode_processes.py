"""Processes that decode: they find what the worker would, and their deaths lose nothing."""

import asyncio
import os
import signal
import time
import uuid

import pytest

from shardfleet.adapters.decode import processes as decode_processes
from shardfleet.adapters.decode.processes import DEATHS_MOST, DecodeProcesses
from shardfleet.adapters.decode.server import Served
from shardfleet.adapters.kinesis.page_messages import Asked
from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.config import FleetConfig
from shardfleet.domain.reading.cursor import ReadFrom, ReadPace
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import (
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.engine.retry import Halt, Patience
from shardfleet.engine.shard.deaggregation import Deaggregator
from shardfleet.engine.shard.reader import ReadPorts, ShardReader
from shardfleet.errors import IteratorExpired, Throttled
from shardfleet.events.delivery import AggregatesNotExpanded, ReadDelayed
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_testkit.memory import MemoryEvents
from tests.adapters.kinesis_server import REGION, Stream, kinesis_server

pytestmark = pytest.mark.processes
SHARD = "shardId-000000000000"
KIB = 1024


@pytest.fixture(scope="module")
def endpoint():
    with kinesis_server() as endpoint:
        yield endpoint


@pytest.fixture
def stream(endpoint, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, value)
    return Stream(endpoint, f"stream-{uuid.uuid4().hex[:8]}").create(shards=1)


@pytest.fixture
def processes():
    made = []

    def make(stream, *, count=2, lanes=4, misrouted="deliver"):
        served = Served(
            stream_arn=stream.arn,
            region=REGION,
            wire=True,
            misrouted=misrouted,
            aggregate_records_most=100_000,
            aggregate_bytes_most=1 << 26,
        )
        made.append(DecodeProcesses(count, lanes=lanes, served=served))
        return made[-1]

    yield make
    for each in made:
        each.close()


def config(**more):
    names = {"fleet": "f", "stream_arn": "-", "lease_table": "l", "state_table": "s"}
    return FleetConfig(**names, busy_read_ms=0, retry_first_ms=1, retry_most_ms=20, **more)


def until_ready(processes, asked):
    """Ask until a process answers."""
    deadline = time.monotonic() + 60
    while (page := processes.page(asked)) is None:
        assert time.monotonic() < deadline, "no process became ready"
        time.sleep(0.05)
    return page


def users(page, *, hash_range=None, **settings):
    """Return what a worker makes of a page, and what it tells about it."""
    events = MemoryEvents()
    deaggregator = Deaggregator(SHARD, hash_range, config=config(**settings), sink=events)
    found = asyncio.run(deaggregator.expand(page.records, None))
    told = [(event.verdict, event.count, event.records_dropped) for event in events.events]
    return list(found.records), found.end, told


AGGREGATES = [
    aggregate([OutgoingRecord(f"user-{n}", b"x" * n) for n in range(40)]),
    aggregate([OutgoingRecord(f"user-{n % 3}", b"repeated") for n in range(9)]),
    aggregate(
        [OutgoingRecord("a", b"1", "42"), OutgoingRecord("ключ", b""), OutgoingRecord("a", b"2")]
    ),
    aggregate([OutgoingRecord("a", b"1")])[:-1] + b"\x00",  # damaged: delivered as it is
    b"plain",
    b"",
]


@pytest.mark.parametrize("policy", ["deliver", "in-range", "kpl"])
def test_a_page_of_a_process_is_the_page_that_the_worker_would_read(stream, processes, policy):
    stream.put(*(OutgoingRecord(data=data, partition_key="k") for data in AGGREGATES))
    iterator = stream.iterator(SHARD)
    here = stream.page(iterator, SHARD)
    there = until_ready(processes(stream, misrouted=policy), Asked(iterator, SHARD, 100))

    assert any(record.users for record in there.records)
    assert there.millis_behind_latest == here.millis_behind_latest
    assert there.size_bytes == sum(len(r.data) + len(r.partition_key) for r in here.records)
    for bounds in (None, HashKeyRange(0, 2**127), HashKeyRange(0, 2**128 - 1)):
        settings = {"hash_range": bounds, "misrouted": policy}
        assert users(there, **settings) == users(here, **settings)


def test_the_end_of_a_shard_comes_with_its_children(stream, processes):
    stream.put(OutgoingRecord(data=b"last", partition_key="k"))
    stream.admin.split_shard(
        StreamARN=stream.arn, ShardToSplit=SHARD, NewStartingHashKey=str(2**127)
    )
    pages = stream.read(SHARD)
    iterator = stream.iterator(SHARD)
    there = until_ready(processes(stream), Asked(iterator, SHARD, 100))
    assert (there.resume_token, list(there.child_shards)) == (None, list(pages[-1].child_shards))
    assert len(there.child_shards) == 2


def test_an_error_of_the_service_is_the_one_that_the_worker_would_get(stream, processes):
    stream.put(OutgoingRecord(data=b"one", partition_key="k"))
    decoders = processes(stream)
    until_ready(decoders, Asked(stream.iterator(SHARD), SHARD, 100))
    with pytest.raises(IteratorExpired, match="GetRecords on shardId-000000000000"):
        decoders.page(Asked("nonsense", SHARD, 100))
    assert decoders.page(Asked(stream.iterator(SHARD), SHARD, 100)) is not None


def shard_reader(stream, decoders, events, **settings):
    given = config(**settings)
    reader = KinesisPolling(
        stream.arn,
        records=stream.clients.stream_records,
        control=stream.clients.stream_control,
        pool=stream.pool,
        wire=stream.clients.wire_to(stream.arn),
        decoders=decoders,
    )
    clock = SystemClock()
    start = Position(StreamIncarnation(stream.arn, 0), SHARD, PointKind.TRIM_HORIZON)
    patience = Patience.of(given, clock=clock, entropy=SystemEntropy())
    ports = ReadPorts(source=reader, clock=clock, events=events, patience=patience)
    pace = ReadPace(
        records_most=given.records_per_read,
        call_ms=given.busy_read_ms,
        bytes_per_s=given.read_bytes_per_s,
        idle_most_ms=given.idle_read_ms,
        back_off_ms=patience.back_off_ms,
    )
    return ShardReader(SHARD, ReadFrom.position(start), pace=pace, ports=ports)


async def payloads(page, events):
    """Return the data of a page's user records."""
    expander = Deaggregator(SHARD, None, config=config(), sink=events)
    return [record.data for record in (await expander.expand(page.records, None)).records]


def test_killed_processes_lose_nothing_repeat_nothing_and_change_no_order(stream, processes):
    sent = []
    for n in range(60):
        records = [
            OutgoingRecord(f"user-{n}-{m}", b"%d-%d-" % (n, m) + b"x" * KIB) for m in range(90)
        ]
        sent += [record.data for record in records]
        stream.put(OutgoingRecord(data=aggregate(records, max_bytes=1 << 20), partition_key="k"))
    decoders, events = processes(stream, lanes=2), MemoryEvents()
    until_ready(decoders, Asked(stream.iterator(SHARD), SHARD, 1))
    got, killed = [], set()

    async def consume():
        reader = shard_reader(
            stream, decoders, events, records_per_read=2, read_bytes_per_s=1 << 40
        )
        pages = 0
        while len(got) < len(sent):
            page = await reader.next_page(Halt())
            got.extend(await payloads(page, events))
            pages += 1
            if pages % 5 == 0 and len(killed) < 6:
                # Once one is at work, and then while it is idle, or is about to answer.
                first = Asked(stream.iterator(SHARD), SHARD, 1)
                await asyncio.to_thread(until_ready, decoders, first)
                asking = asyncio.create_task(reader.next_page(Halt()))
                await asyncio.sleep(0.002 * len(killed))
                for pid in decoders.pids[:1]:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
                page = await asking
                got.extend(await payloads(page, events))

    asyncio.run(asyncio.wait_for(consume(), 120))
    assert got == sent
    assert len(killed) >= 3
    assert any(isinstance(event, ReadDelayed) for event in events.events)


def test_after_a_few_deaths_the_worker_decodes_alone(stream, processes, monkeypatch):
    stream.put(OutgoingRecord(data=b"x" * 100 * KIB, partition_key="k"))
    monkeypatch.setattr(decode_processes.sys, "executable", "/bin/false")
    decoders = processes(stream, count=1, lanes=1)
    asked, deaths = Asked(stream.iterator(SHARD), SHARD, 100), 0
    deadline = time.monotonic() + 60
    while deaths < DEATHS_MOST:
        assert time.monotonic() < deadline
        try:
            assert decoders.page(asked) is None
        except Throttled:
            deaths += 1
    assert decoders.page(asked) is None
    assert decoders.pids == []

    events = MemoryEvents()

    async def read():
        reader = shard_reader(stream, decoders, events)
        return await payloads(await reader.next_page(Halt()), events)

    (data,) = asyncio.run(read())
    assert data == b"x" * 100 * KIB


def test_a_process_that_hangs_is_given_up(stream, processes, monkeypatch):
    monkeypatch.setattr(decode_processes, "_ANSWER_S", 0.5)
    stream.put(OutgoingRecord(data=b"one", partition_key="k"))
    decoders = processes(stream, count=1, lanes=1)
    asked = Asked(stream.iterator(SHARD), SHARD, 100)
    until_ready(decoders, asked)
    (pid,) = decoders.pids
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)  # Else it may answer before it stops.
    with pytest.raises(Throttled, match="did not answer"):
        decoders.page(asked)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert until_ready(decoders, asked).records[0].data == b"one"


def test_idle_shards_are_asked_by_the_worker_itself(stream):
    class Nobody:
        def page(self, asked):
            raise AssertionError("a shard with nothing needs no process")

    async def read():
        reader = shard_reader(stream, Nobody(), MemoryEvents())
        for _ in range(3):
            await reader.next_page(Halt())

    asyncio.run(read())


def test_a_process_ends_with_the_worker(stream, processes):
    stream.put(OutgoingRecord(data=b"one", partition_key="k"))
    decoders = processes(stream)
    until_ready(decoders, Asked(stream.iterator(SHARD), SHARD, 100))
    running = [process.running for process in decoders._processes]
    for process in decoders._processes:
        for lane in (*process.free, *process.starting):
            lane.connection.close()
    assert [each.wait(timeout=20) for each in running] == [0, 0]


def test_what_is_told_about_discarded_aggregates_is_the_same():
    # The events of users() above are AggregatesNotExpanded: a renamed field would compare nothing.
    assert {"verdict", "count", "records_dropped"} <= set(AggregatesNotExpanded.__slots__)
