"""The producer over its real adapter and our Kinesis engine's server."""

import uuid

import pytest

from shardfleet.adapters.system import SystemClock, SystemEntropy
from shardfleet.errors import StreamGone
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.blocking import BlockingProducer
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings
from tests.adapters.kinesis_server import Stream, kinesis_server

RECORDS, KEYS = 2_000, 60


@pytest.fixture(scope="module")
def endpoint():
    with kinesis_server() as endpoint:
        yield endpoint


@pytest.fixture
def stream(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return Stream(endpoint, f"producing-{uuid.uuid4().hex[:8]}").create(4)


def numbered():
    return [OutgoingRecord(f"key-{n % KEYS}", str(n).encode()) for n in range(RECORDS)]


def read(stream):
    return {key: [int(each) for each in data] for key, data in stream.users().items()}


def producer_of(stream):
    def make():
        return Producer(
            stream.writer,
            clock=SystemClock(),
            entropy=SystemEntropy(),
            settings=ProducerSettings(linger_ms=20),
        )

    return BlockingProducer(make)


@pytest.mark.parametrize(("aggregate", "refusals"), [(False, 20), (True, 3)])
def test_all_records_arrive_in_order_though_a_shard_refuses_some(stream, aggregate, refusals):
    stream.inject("ThrottleWrites", ShardId="shardId-000000000002", Count=refusals)

    with producer_of(stream) as producer:
        receipts = producer.send(numbered(), aggregate=aggregate)
        producer.put(OutgoingRecord("key-0", b"2000"))

    assert len(receipts) == RECORDS
    assert producer.counts.refused == refusals
    expected = {f"key-{key}": list(range(key, RECORDS, KEYS)) for key in range(KEYS)}
    expected["key-0"].append(2000)
    assert read(stream) == expected


def test_a_reply_that_is_lost_repeats_but_reorders_nothing(stream):
    stream.inject("LostReply", Operation="PutRecords", Count=1)

    with producer_of(stream) as producer:
        producer.send(numbered()[:200])

    assert producer.counts.unanswered == 1
    first = {key: list(dict.fromkeys(numbers)) for key, numbers in read(stream).items()}
    assert first == {f"key-{key}": list(range(key, 200, KEYS)) for key in range(KEYS)}


def test_a_split_moves_a_keys_records_to_the_child_behind_those_in_the_parent(stream):
    with producer_of(stream) as producer:
        producer.send(numbered(), aggregate=True)
        parent = stream.shards()[0]
        middle = (parent.hash_key_range.start + parent.hash_key_range.end) // 2
        stream.admin.split_shard(
            StreamName=stream.name, ShardToSplit=parent.shard_id, NewStartingHashKey=str(middle)
        )
        more = [OutgoingRecord(f"key-{n % KEYS}", str(n).encode()) for n in range(RECORDS, 4_000)]
        receipts = producer.send(more, aggregate=True)

    assert parent.shard_id not in {receipt.shard_id for receipt in receipts}
    assert producer.counts.listings >= 2
    first = {key: list(dict.fromkeys(numbers)) for key, numbers in read(stream).items()}
    assert {key: sorted(numbers) for key, numbers in first.items()} == first
    assert sum(map(len, first.values())) == 4_000


def test_a_stream_that_does_not_exist_is_named(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with (
        pytest.raises(StreamGone, match="no-such-stream"),
        producer_of(Stream(endpoint, "no-such-stream")) as producer,
    ):
        producer.send(numbered())
