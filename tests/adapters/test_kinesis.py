"""Reader and writer of a stream, against the project's own Kinesis engine."""

import asyncio
import time
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardfleet.adapters.clients.aws_clients import AwsClients, region_of
from shardfleet.adapters.kinesis.decode import epoch_ms
from shardfleet.adapters.kinesis.polling import _instant
from shardfleet.adapters.system import SystemClock
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reading.cursor import Ask, Moment, ReadFrom, ReadLimits, ShardCursor
from shardfleet.domain.reading.pacing import PollPace
from shardfleet.domain.reading.pages import RecordsPage, StartingPosition, StartKind
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.engine.ports import ListingFilter
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.errors import (
    ConfigurationError,
    ForeignPosition,
    InvalidRecord,
    IteratorExpired,
    OutcomeUnknown,
    PositionTrimmed,
    ShardGone,
    StreamGone,
    Throttled,
)
from shardfleet.kpl.packing import OutgoingRecord
from tests.adapters.kinesis_server import HORIZON, REGION, Stream, kinesis_server, run
from tests.adapters.loopback import HANG_UP, Service, doubted, error, serving
from tests.adapters.tables import LIMITS
from tests.testing.shard_source_contract import PROMISES

pytestmark = pytest.mark.processes
SHARD_0, SHARD_1, SHARD_2 = (f"shardId-{n:012d}" for n in range(3))
HALF = 2**127
LOW, HIGH = str(1), str(HALF + 1)  # hash keys of the lower and the upper half


def entry(data, hash_key=LOW, key="key"):
    return OutgoingRecord(data=data, partition_key=key, explicit_hash_key=hash_key)


@pytest.fixture(scope="module")
def endpoint():
    with kinesis_server() as endpoint:
        yield endpoint


@pytest.fixture(params=["wire", "boto3"])
def calls(request):
    """Both ways of reading and writing pass the same tests."""
    return request.param


@pytest.fixture
def stream(endpoint, monkeypatch, calls):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return Stream(endpoint, f"orders-{uuid.uuid4().hex[:8]}", calls).create(2)


@pytest.fixture
def absent(endpoint, monkeypatch, calls):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return Stream(endpoint, "no-such-stream", calls)


def test_records_are_read_as_they_were_written_in_order(stream):
    before_ms = time.time_ns() // 1_000_000
    outcomes = stream.put(*(entry(b"\x00\xff%d" % n, key=f"k{n}") for n in range(5)))
    after_ms = time.time_ns() // 1_000_000
    records = [record for page in stream.read(SHARD_0, limit=2) for record in page.records]
    assert [(r.data, r.partition_key) for r in records] == [
        (b"\x00\xff%d" % n, f"k{n}") for n in range(5)
    ]
    assert [r.sequence_number for r in records] == [o.sequence_number for o in outcomes]
    assert all(before_ms <= r.approximate_arrival_ms <= after_ms for r in records)


class Bench:
    """A shard of the engine's, for the promises of a source."""

    shard = SHARD_0
    ref = ShardRef("arn", SHARD_0)

    def __init__(self, stream):
        self.stream = stream
        self.begun_ms = run(stream.reader.incarnation()).created_ms

    @property
    def source(self):
        at_once = PollPace(call_ms=0, bytes_per_s=1 << 30, idle_most_ms=0)
        return PolledSource(self.stream.reader, SystemClock(), pace=at_once)

    async def put(self, data):
        (outcome,) = await self.stream.writer.put_records([entry(data)])
        return outcome.sequence_number

    async def close_shard(self):
        merged = {"ShardToMerge": SHARD_0, "AdjacentShardToMerge": SHARD_1}
        self.stream.admin.merge_shards(StreamName=self.stream.name, **merged)
        return [SHARD_2]

    async def begin_anew(self):
        self.stream.at(self.stream.arn)

    async def pause(self):
        await asyncio.sleep(0)


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_source_of_polled_pages_keeps(promise, stream):
    run(promise(Bench(stream)))


def test_an_iterator_whose_first_read_was_refused_is_not_asked_for_again(stream):
    stream.put(entry(b"a"))
    stream.inject("ThrottleReads", ShardId=SHARD_0, Count=2)

    async def read():
        for _ in range(2):
            with pytest.raises(Throttled):
                await stream.reader.page(SHARD_0, HORIZON, resume_token=None, limit=10)
        return await stream.reader.page(SHARD_0, HORIZON, resume_token=None, limit=10)

    assert [record.data for record in run(read()).records] == [b"a"]
    assert [name for name, _ in stream.sent].count("GetShardIterator") == 1


def test_each_entry_of_a_put_has_its_outcome_in_order(stream):
    outcomes = stream.put(entry(b"a", LOW), entry(b"b", HIGH), entry(b"c", LOW))
    assert [o.shard_id for o in outcomes] == [SHARD_0, SHARD_1, SHARD_0]
    assert all(o.error_code is None and o.sequence_number for o in outcomes)


def test_a_throttled_entry_has_its_error_code_and_the_others_are_written(stream):
    stream.inject("ThrottleWrites", ShardId=SHARD_0, DurationMs=600_000)
    low, high = stream.put(entry(b"a", LOW), entry(b"b", HIGH))
    assert (low.error_code, low.sequence_number) == ("ProvisionedThroughputExceededException", None)
    assert high.shard_id == SHARD_1


def test_the_stream_says_how_large_a_record_may_be(stream):
    assert run(stream.writer.record_bytes_most()) == 2**20

    stream.admin.update_max_record_size(StreamARN=stream.arn, MaxRecordSizeInKiB=10_240)
    stream.admin.get_waiter("stream_exists").wait(
        StreamARN=stream.arn, WaiterConfig={"Delay": 1, "MaxAttempts": 30}
    )

    assert run(stream.writer.record_bytes_most()) == 10 * 2**20


def test_reading_follows_the_limit_and_ends_with_the_lag_at_zero(stream):
    stream.put(*(entry(b"%d" % n) for n in range(5)))
    pages = stream.read(SHARD_0, limit=2)
    assert [len(page.records) for page in pages] == [2, 2, 1, 0]
    assert pages[-1].millis_behind_latest == 0
    assert pages[-1].resume_token


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (StartKind.AT_SEQUENCE_NUMBER, [b"1", b"2"]),
        (StartKind.AFTER_SEQUENCE_NUMBER, [b"2"]),
    ],
)
def test_an_iterator_begins_at_or_after_a_record(stream, kind, expected):
    outcomes = stream.put(*(entry(b"%d" % n) for n in range(3)))
    start = StartingPosition(kind, sequence_number=outcomes[1].sequence_number)
    assert [r.data for page in stream.read(SHARD_0, start) for r in page.records] == expected


def test_an_iterator_begins_at_an_instant_to_the_millisecond(stream):
    stream.put(entry(b"early"))
    time.sleep(0.005)  # Two arrival times are wanted; no matter how far apart.
    stream.put(entry(b"late"))
    (late,) = (r for page in stream.read(SHARD_0) for r in page.records if r.data == b"late")
    start = StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=late.approximate_arrival_ms)
    assert [r.data for page in stream.read(SHARD_0, start) for r in page.records] == [b"late"]


def test_shards_are_listed_with_ranges_and_numbers(stream):
    low, high = stream.shards()
    assert (low.shard_id, high.shard_id) == (SHARD_0, SHARD_1)
    assert low.hash_key_range == HashKeyRange(0, HALF - 1)
    assert high.hash_key_range == HashKeyRange(HALF, 2**128 - 1)
    assert low.is_open
    assert low.starting_sequence_number.isdigit()
    assert low.parent_shard_ids == ()


def test_a_merge_is_listed_with_both_parents_and_ends_their_reading_with_the_child(stream):
    stream.put(entry(b"last", LOW))
    stream.admin.merge_shards(
        StreamName=stream.name, ShardToMerge=SHARD_0, AdjacentShardToMerge=SHARD_1
    )
    child = next(s for s in stream.shards() if s.shard_id == SHARD_2)
    assert child.parent_shard_ids == (SHARD_0, SHARD_1)
    assert not stream.shards()[0].is_open
    last = stream.read(SHARD_0)[-1]
    assert last.resume_token is None
    (named,) = last.child_shards
    assert named.shard_id == SHARD_2
    assert named.parent_shard_ids == (SHARD_0, SHARD_1)
    assert named.hash_key_range == HashKeyRange(0, 2**128 - 1)


def test_listing_filters_are_those_of_the_service(stream):
    stream.admin.merge_shards(
        StreamName=stream.name, ShardToMerge=SHARD_0, AdjacentShardToMerge=SHARD_1
    )
    created_ms = run(stream.reader.incarnation()).created_ms
    listed = {
        listing: [s.shard_id for s in run(stream.reader.list_shards(listing, instant_ms=at))]
        for listing, at in (
            (ListingFilter.NONE, None),
            (ListingFilter.AT_LATEST, None),
            (ListingFilter.AT_TRIM_HORIZON, None),
            (ListingFilter.AT_TIMESTAMP, created_ms),
        )
    }
    assert listed == {
        ListingFilter.NONE: [SHARD_0, SHARD_1, SHARD_2],
        ListingFilter.AT_LATEST: [SHARD_2],
        ListingFilter.AT_TRIM_HORIZON: [SHARD_0, SHARD_1],
        ListingFilter.AT_TIMESTAMP: [SHARD_0, SHARD_1],
    }


@pytest.mark.parametrize("listing", [ListingFilter.NONE, ListingFilter.AT_LATEST])
def test_a_listing_reads_all_pages(endpoint, monkeypatch, listing):
    """
    protocol.md §8 row 8: leases were missing when only the first page was read.

    A page never has more than 1,000, and the token stands alone (API reference): the KCL's
    listings with a filter failed on AWS when it did not (amazon-kinesis-client #788).
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    stream = Stream(endpoint, f"many-{uuid.uuid4().hex[:8]}").create(2_001)
    shards = run(stream.reader.list_shards(listing))
    assert [s.shard_id for s in shards] == [f"shardId-{n:012d}" for n in range(2_001)]
    assert [name for name, _ in stream.sent] == ["ListShards"] * 3
    first, *later = [parameters for _, parameters in stream.sent]
    assert (first["StreamARN"], first["MaxResults"]) == (stream.arn, 1_000)
    assert [set(each) for each in later] == [{"NextToken", "MaxResults"}] * 2


def test_a_listing_whose_token_expired_begins_with_the_first_page_again(endpoint, monkeypatch):
    """A token lives 300 s (API reference): a sandbox may be frozen longer between two pages."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    stream = Stream(endpoint, f"many-{uuid.uuid4().hex[:8]}").create(1_001)

    def expire(params, **_):
        if "NextToken" in params and not expired:
            expired.append(params["NextToken"])
            stream.inject(
                "Failure", Operation="ListShards", Code="ExpiredNextTokenException", Count=1
            )

    expired = []
    stream.admin.meta.events.register("provide-client-params.kinesis.ListShards", expire)
    with pytest.raises(Throttled, match="ExpiredNextTokenException"):
        run(stream.reader.list_shards())
    assert len(run(stream.reader.list_shards())) == 1_001
    assert ["NextToken" in parameters for _, parameters in stream.sent] == [False, True] * 2


def test_every_request_names_the_stream_by_its_arn(stream):
    """A stream of another account is reached by its ARN alone."""
    stream.put(entry(b"a"))
    stream.read(SHARD_0)
    run(stream.reader.incarnation())
    run(stream.reader.list_shards(ListingFilter.AT_LATEST))
    run(stream.writer.list_shards())
    assert {name for name, _ in stream.sent} == {
        "PutRecords",
        "GetShardIterator",
        "GetRecords",
        "DescribeStreamSummary",
        "ListShards",
    }
    assert {parameters.get("StreamARN") for _, parameters in stream.sent} == {stream.arn}
    assert not [name for name, parameters in stream.sent if "StreamName" in parameters]


def test_the_incarnation_is_the_arn_and_the_time_of_creation(stream):
    incarnation = run(stream.reader.incarnation())
    assert incarnation.stream_arn == stream.arn
    stream.admin.delete_stream(StreamName=stream.name)
    time.sleep(0.005)  # Two creation times are wanted; no matter how far apart.
    stream.create(1)
    assert run(stream.reader.incarnation()).created_ms > incarnation.created_ms


# --- what goes wrong


def test_an_expired_iterator_says_so(stream):
    stream.inject("ExpiredIterators", Count=1)
    with pytest.raises(IteratorExpired, match=SHARD_0):
        stream.read(SHARD_0)
    assert stream.read(SHARD_0)


def test_an_iterator_that_the_service_refuses_counts_as_expired(stream):
    with pytest.raises(IteratorExpired):
        stream.page("AAAA", SHARD_0)


def test_a_throttled_read_is_not_repeated_by_the_sdk(stream):
    """Each repeat would count against the shard's 5 calls/s (protocol.md §8 row 8a)."""
    iterator = stream.iterator(SHARD_0)
    stream.inject("ThrottleReads", DurationMs=600_000)
    before = stream.attempts
    with pytest.raises(Throttled, match="ProvisionedThroughputExceededException"):
        stream.page(iterator, SHARD_0)
    assert stream.attempts == before + 1


def test_a_failing_service_is_asked_again_later(stream):
    iterator = stream.iterator(SHARD_0)
    stream.inject("Failure", Operation="GetRecords", Count=1)
    with pytest.raises(Throttled):
        stream.page(iterator, SHARD_0)
    assert stream.page(iterator, SHARD_0).records == []


def test_an_unknown_shard_is_gone_and_not_the_stream(stream):
    with pytest.raises(ShardGone, match="shardId-000000000099"):
        stream.iterator("shardId-000000000099")


def test_an_unknown_stream_is_gone(absent):
    with pytest.raises(StreamGone, match="no-such-stream"):
        run(absent.reader.incarnation())
    with pytest.raises(StreamGone):
        run(absent.reader.list_shards())
    with pytest.raises(StreamGone):
        absent.put(entry(b"a"))


def at_number(number):
    return StartingPosition(StartKind.AT_SEQUENCE_NUMBER, str(number))


def test_a_number_of_another_shard_or_of_another_stream_is_nobody_s_loss(stream):
    (other,) = stream.put(entry(b"x", HIGH))
    with pytest.raises(ForeignPosition, match=f"It encodes {SHARD_1}, .* in a call to {SHARD_0}"):
        stream.iterator(SHARD_0, at_number(other.sequence_number))
    start = int(stream.shards()[0].starting_sequence_number)
    with pytest.raises(ForeignPosition, match="did not come from this stream"):
        stream.iterator(SHARD_0, at_number(start - (1 << 150)))


def test_a_number_that_is_refused_for_another_reason_counts_as_too_old(monkeypatch):
    """Of harlow/kinesis-consumer#175 the words are not known."""
    answer = error("InvalidArgumentException", message="The number has expired.")
    with serving(Service(answer)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(PositionTrimmed, match="has expired"):
            Stream(endpoint, "s").iterator(SHARD_0, at_number(1))


def at_second(second):
    return Moment(2 * 10**12 + second * 1_000, second * 1_000)


def driven(stream, machine, *, seconds):
    """Drive a cursor, a second for each answer; return what it tells, and after how many."""
    for second in range(seconds):
        ask = machine.next()
        if not isinstance(ask, Ask):
            return ask, second
        machine.asked(at_second(second))
        call = stream.reader.page(
            SHARD_0, ask.start, resume_token=ask.resume_token, limit=ask.limit
        )
        machine.answered(run(call), at_second(second))
        if isinstance(page := machine.next(), RecordsPage) and not page.says_nothing:
            return page, second
        machine._told = None if isinstance(page, Ask | RecordsPage) else page
    return None, seconds


def cursor_at(stream, number):
    limits = ReadLimits(back_off_ms=lambda _: 100)
    known = {"witness": str(number), "complete_before_ms": 0}
    origin = ReadFrom(start=at_number(number), **known)
    return ShardCursor(SHARD_0, origin, limits=limits, now=at_second(0))


def test_an_old_number_that_brings_nothing_begins_anew_at_the_oldest_record_within_a_minute(stream):
    """K15."""
    (old,) = stream.put(entry(b"old"))
    stream.trim(SHARD_0)
    stream.put(entry(b"young"))
    stream.inject("SilentPositions", Count=1)
    machine = cursor_at(stream, old.sequence_number)
    lost, seconds = driven(stream, machine, seconds=60)
    assert isinstance(lost, PositionTrimmed)
    machine.accept_gap()
    page, _ = driven(stream, machine, seconds=60 - seconds)
    assert [record.data for record in page.records] == [b"young"]


def test_a_number_that_no_record_has_is_read_from_and_one_that_is_trimmed_is_a_gap(stream):
    """K13, K35, K16."""
    first, second = stream.put(entry(b"1"), entry(b"2"))
    between = int(second.sequence_number) - 1
    page, _ = driven(stream, cursor_at(stream, between), seconds=9)
    assert [record.data for record in page.records] == [b"2"]
    stream.trim(SHARD_0)
    lost, _ = driven(stream, cursor_at(stream, first.sequence_number), seconds=9)
    assert isinstance(lost, PositionTrimmed)
    assert lost.nothing_left


def test_an_instant_in_the_future_is_a_matter_of_configuration(stream):
    start = StartingPosition(StartKind.AT_TIMESTAMP, instant_ms=4_000_000_000_000)
    with doubted(ConfigurationError, match="2096"):
        stream.iterator(SHARD_0, start)


def test_a_stream_is_described_with_the_time_by_the_service_s_clock(monkeypatch):
    """The ``Date`` of the answer (RFC 9110), which botocore's retries go by as well."""
    summary = {
        "StreamName": "orders",
        "StreamARN": "arn:aws:kinesis:eu-central-1:000000000000:stream/orders",
        "StreamStatus": "ACTIVE",
        "RetentionPeriodHours": 24,
        "StreamCreationTimestamp": 1_600_000_000,
        "EnhancedMonitoring": [],
        "OpenShardCount": 1,
    }
    with serving(Service((200, {"StreamDescriptionSummary": summary}))) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        before_s = int(time.time())
        found = run(Stream(endpoint, "orders").reader.incarnation())
        after_s = int(time.time())
    assert before_s <= found.service_ms / 1000 <= after_s
    assert found.retention_ms == 86_400_000


def test_an_unanswered_put_is_unknown_because_a_repeat_would_write_twice(stream):
    stream.inject("LostReply", Operation="PutRecords", Count=1)
    with pytest.raises(OutcomeUnknown):
        stream.put(entry(b"once"))
    assert [r.data for page in stream.read(SHARD_0) for r in page.records] == [b"once"]


def test_a_request_that_the_service_refuses_as_it_is_is_invalid(stream):
    with pytest.raises(InvalidRecord):
        stream.put(*(entry(b"x") for _ in range(501)))


@pytest.mark.parametrize("answer", [HANG_UP, error("LimitExceededException")], ids=str)
def test_a_listing_is_repeated_by_the_sdk_and_then_put_off(monkeypatch, answer):
    service = Service(answer)
    with serving(service) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        stream = Stream(endpoint, "orders")
        with pytest.raises(Throttled, match="ListShards"):
            stream.shards()
    assert service.requests == ["ListShards"] * 3


def test_the_stream_of_another_region_is_asked_there(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    region = region_of("arn:aws:kinesis:ap-south-1:111122223333:stream/orders")
    clients = AwsClients(LIMITS, stream_region=region)
    assert clients.stream_records.meta.region_name == "ap-south-1"
    assert clients.stream_control.meta.region_name == "ap-south-1"
    assert clients.table_writes.meta.region_name != "ap-south-1"
    assert region != REGION


@given(st.integers(0, 4_102_444_800_000))
@example(543_726_592_527)  # a millisecond less when seconds are multiplied and cut off
def test_an_instant_survives_the_way_through_a_datetime_and_the_sdks_float(instant_ms):
    assert epoch_ms(_instant(instant_ms)) == instant_ms
    assert epoch_ms(datetime.fromtimestamp(instant_ms / 1000, tz=UTC)) == instant_ms
