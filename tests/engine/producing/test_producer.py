"""The producer over a stream that reshards, throttles and loses replies."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.errors import InvalidRecord, Throttled
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer import lanes
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ENTRIES_MOST, ProducerSettings
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.memory_stream import MemoryStream
from tests.virtual import virtual

SETTINGS = ProducerSettings(aggregate_bytes=4_000, aggregate_records=20, give_up_ms=60_000)


def producer_of(stream, settings=SETTINGS):
    return Producer(stream, clock=VirtualClock(), entropy=SeededEntropy(1), settings=settings)


def numbered(keys):
    return [OutgoingRecord(key, str(number).encode()) for number, key in enumerate(keys)]


@virtual
async def send(stream, records, *, aggregate=False, settings=SETTINGS):
    producer = producer_of(stream, settings)
    return producer, await producer.send(records, aggregate=aggregate)


def first_deliveries(stream):
    """Per key, the numbers as a consumer with Java's rule first delivers them."""
    seen, per_key = set(), {}
    for _, _, _, record in stream.in_range_records():
        number = int(record.data)
        if number not in seen:
            seen.add(number)
            per_key.setdefault(record.partition_key, []).append(number)
    return per_key


def test_a_request_holds_a_key_only_once():
    stream = MemoryStream(2)

    send(stream, numbered(["a", "b", "a", "c", "a"]))

    for request in stream.requests:
        keys = [entry.partition_key for entry in request]
        assert len(keys) == len(set(keys))
    assert first_deliveries(stream) == {"a": [0, 2, 4], "b": [1], "c": [3]}


def test_an_aggregate_holds_many_records_of_a_key_and_of_one_shard_only():
    stream = MemoryStream(4)
    keys = [f"k{number % 7}" for number in range(200)]

    _, receipts = send(stream, numbered(keys), aggregate=True)

    assert len(stream.stored) < 30
    assert sum(receipt.aggregated for receipt in receipts) > 190
    assert sum(len(numbers) for numbers in first_deliveries(stream).values()) == 200


def test_a_receipt_says_where_the_record_is_read():
    stream = MemoryStream(3)
    records = numbered([f"k{number % 11}" for number in range(60)])

    _, receipts = send(stream, records, aggregate=True)

    read = {
        int(record.data): (shard, sequence, sub)
        for shard, sequence, sub, record in stream.in_range_records()
    }
    assert [tuple(receipt)[:3] for receipt in receipts] == [read[n] for n in range(60)]


@pytest.mark.parametrize("remembered", [7, 16, 25])
def test_keys_that_are_forgotten_go_to_the_same_shards(monkeypatch, remembered):
    monkeypatch.setattr(lanes, "_KEYS_REMEMBERED", remembered)
    stream, chance = MemoryStream(5), random.Random(remembered)
    records = numbered([f"k{chance.randrange(30)}" for _ in range(600)])

    async def main():
        producer = producer_of(stream)
        for start in range(0, 600, 20):
            if start % 200 == 0:
                stream.split(start)
            await producer.send(records[start : start + 20], aggregate=True)
        return producer

    known = run_virtual(main())._courier.lanes

    assert sum(1 for _ in stream.in_range_records()) >= 600
    assert len(first_deliveries(stream)) == 30
    assert len(known._lane_of_key) <= remembered
    assert len(known._lane_of_older_key) <= remembered


def test_an_aggregate_that_a_split_misroutes_is_sent_again_before_what_follows():
    stream = MemoryStream(1, before_put=lambda number: number == 1 and stream.split(0))
    records = numbered([f"k{number % 9}" for number in range(45)])

    producer, receipts = send(stream, records, aggregate=True)

    assert producer.counts.misrouted == 1
    assert {receipt.shard_id for receipt in receipts} == {
        "shardId-000000000001",
        "shardId-000000000002",
    }
    assert first_deliveries(stream) == {f"k{key}": list(range(key, 45, 9)) for key in range(9)}


def test_an_aggregate_that_a_merge_moves_whole_is_not_sent_again():
    stream = MemoryStream(2, before_put=lambda number: number == 1 and stream.merge(0))

    producer, _ = send(stream, numbered([f"k{n % 5}" for n in range(20)]), aggregate=True)

    assert producer.counts.misrouted == 0
    assert sum(len(numbers) for numbers in first_deliveries(stream).values()) == 20


def test_a_refused_entry_goes_before_later_records_of_its_key():
    stream = MemoryStream(1)
    stream.refuse = lambda position: position == 0 and len(stream.requests) < 4

    producer, _ = send(stream, numbered(["a", "b", "a", "b"]))

    assert producer.counts.refused == 3
    assert first_deliveries(stream) == {"a": [0, 2], "b": [1, 3]}


def test_a_lost_reply_repeats_records_but_loses_and_reorders_none():
    stream = MemoryStream(2, before_put=lambda number: "lose the reply" if number == 1 else None)

    producer, _ = send(stream, numbered(["a", "b", "a"]))

    assert producer.counts.unanswered == 1
    assert len(stream.stored) == 5
    assert first_deliveries(stream) == {"a": [0, 2], "b": [1]}


def test_a_record_too_large_for_an_aggregate_goes_by_itself():
    stream = MemoryStream(1)
    large = OutgoingRecord("big", b"3".rjust(10_000))

    _, receipts = send(
        stream, [*numbered(["a", "b", "a"]), large, OutgoingRecord("a", b"4")], aggregate=True
    )

    assert [receipt.aggregated for receipt in receipts] == [True, True, True, False, False]
    assert first_deliveries(stream)["a"] == [0, 2, 4]


def test_a_single_record_is_not_wrapped_into_an_aggregate():
    stream = MemoryStream(1)

    send(stream, numbered(["a"]), aggregate=True)

    assert stream.stored[0][2].data == b"0"


def test_a_request_stays_within_the_quota_of_entries():
    stream = MemoryStream(1)

    send(stream, numbered([f"k{number}" for number in range(ENTRIES_MOST + 1)]))

    assert [len(request) for request in stream.requests] == [ENTRIES_MOST, 1]


def test_a_hopeless_stream_is_given_up_with_the_number_of_records_left():
    stream = MemoryStream(1, before_put=lambda _: "throttle")

    with pytest.raises(
        Throttled, match=r"2 records are still refused after 60000 ms. the whole request"
    ):
        send(stream, numbered(["a", "b"]))


def test_a_key_that_kinesis_refuses_stops_the_call_before_anything_is_sent():
    stream = MemoryStream(1)

    with pytest.raises(InvalidRecord, match="257 characters"):
        send(stream, numbered(["a", "k" * 257]))
    assert stream.requests == []


@given(trouble=st.integers(0, 2**32), count=st.integers(1, 200), calls=st.integers(1, 12))
def test_whatever_happens_every_key_keeps_its_order_and_nothing_is_lost(trouble, count, calls):
    random_source = random.Random(trouble)
    keys = [random_source.randrange(13) for _ in range(count)]

    def before_put(number):
        happens = random_source.random() if number < 60 else 1
        if happens < 0.3:
            stream.split(random_source.randrange(100))
        elif happens < 0.5:
            stream.merge(random_source.randrange(100))
        elif happens < 0.6:
            return "throttle"
        elif happens < 0.7:
            return "lose the reply"
        stream.fail_listing = random_source.random() < 0.1 and number < 60
        refused = {random_source.randrange(20) for _ in range(2)} if number < 60 else set()
        stream.refuse = refused.__contains__
        return None

    stream = MemoryStream(3, before_put=before_put)
    records = numbered([f"key-{key}" for key in keys])

    async def main():
        producer = producer_of(stream)
        for part in range(calls):
            chunk = records[part * count // calls : (part + 1) * count // calls]
            await producer.send(chunk, aggregate=random_source.random() < 0.7)

    run_virtual(main())

    expected = {}
    for number, key in enumerate(keys):
        expected.setdefault(f"key-{key}", []).append(number)
    assert first_deliveries(stream) == expected
