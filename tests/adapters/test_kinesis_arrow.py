"""Arrow columns of aggregates: the rows of the ordinary deaggregation, or none at all."""

import hashlib
import random

import pytest

pytest.importorskip("pyarrow")

from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet.kpl.messages_pb2 import AggregatedRecord
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import StreamRecord
from shardfleet_spark.aws.arrow import user_columns

LIMITS = ExpansionLimits()


def stream_record(data):
    return StreamRecord(
        data=data, partition_key="outer", sequence_number="1", approximate_arrival_ms=5
    )


def rows_of(columns):
    return list(
        zip(
            columns.partition_key.to_pylist(),
            columns.data.to_pylist(),
            columns.sub_sequence_number.to_pylist(),
            strict=True,
        )
    )


def expected(records, limits=LIMITS):
    rows = []
    for record in records:
        found = deaggregate(
            record.data,
            partition_key=record.partition_key,
            limits=limits,
            hash_range=None,
            policy="deliver",
        )
        rows += [(u.partition_key, u.data, u.sub_sequence_number) for u in found.records]
    return rows


def an_aggregate(chance, users, size=100):
    keys = [f"ключ-{n}" for n in range(chance.choice([1, 5, 127, 128, 129, 300, 17_000]))]
    return aggregate(
        [
            OutgoingRecord(chance.choice(keys), chance.randbytes(chance.randrange(2 * size)))
            for _ in range(users)
        ]
    )


def framed(body):
    return b"\xf3\x89\x9a\xc2" + body + hashlib.md5(body, usedforsecurity=False).digest()


@pytest.mark.parametrize("number", range(30))
def test_the_columns_are_the_rows_of_the_ordinary_deaggregation(number, seed):
    chance = random.Random(f"{seed}-{number}")
    sizes = [chance.choice([1, 2, 100, 500]) for _ in range(chance.randrange(1, 5))]
    records = [stream_record(an_aggregate(chance, users)) for users in sizes]
    columns = user_columns(records)
    assert columns is not None
    assert rows_of(columns) == expected(records)
    assert columns.counts == sizes


@pytest.mark.parametrize("number", range(10))
def test_columns_of_large_records_are_the_rows_of_the_ordinary_deaggregation(number, seed):
    chance = random.Random(f"{seed}-large-{number}")
    sizes = [chance.choice([1, 2, 30]) for _ in range(chance.randrange(1, 5))]
    records = [stream_record(an_aggregate(chance, users, size=3_000)) for users in sizes]
    columns = user_columns(records)
    assert columns is not None
    assert rows_of(columns) == expected(records)
    assert columns.counts == sizes


def test_lengths_of_one_two_and_three_bytes_are_read(seed):
    chance = random.Random(seed)
    data = [chance.randbytes(size) for size in (0, 1, 127, 128, 16_383, 16_384, 20_000)]
    small = [OutgoingRecord("k", b"x") for _ in range(100)]
    records = [stream_record(aggregate([*(OutgoingRecord("k", d) for d in data), *small]))]
    assert rows_of(user_columns(records)) == expected(records)


PLAIN = aggregate([OutgoingRecord("k", b"x" * 50)] * 3)
TAGGED = AggregatedRecord(partition_key_table=["k"])
TAGGED.records.add(partition_key_index=0, data=b"x").tags.add(key="t")
BEHIND = AggregatedRecord(partition_key_table=["k"])
BEHIND.records.add(partition_key_index=1, data=b"x")
LACKING = AggregatedRecord(partition_key_table=["k"])
LACKING.records.add(partition_key_index=0)


@pytest.mark.parametrize(
    "data",
    [
        b"a plain record",
        PLAIN[:-1] + bytes([PLAIN[-1] ^ 1]),
        framed(b"\x0a\x09k"),
        framed(b"\x0a\x01k"),
        framed(b"\x0a\x01\xff\x1a\x05\x08\x00\x1a\x01x"),
        framed(b"\x0a\x01k\x1a\x05\x1a\x01x\x08\x00"),
        framed(b"\x0a\x01k\x1a\x02\x08\x00"),
        framed(b"\x0a\x01k\x1a\x00"),
        framed(TAGGED.SerializePartialToString()),
        framed(BEHIND.SerializePartialToString()),
        framed(LACKING.SerializePartialToString()),
        aggregate([OutgoingRecord("k", b"x", "5")]),
        aggregate([OutgoingRecord("k", b"x" * 5_000)]),
    ],
)
def test_what_is_not_plainly_shaped_is_left_to_the_ordinary_deaggregation(data):
    assert user_columns([stream_record(PLAIN), stream_record(data)]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"a plain record",
        PLAIN[:-1] + bytes([PLAIN[-1] ^ 1]),
        framed(b"\x0a\x01k"),
        framed(BEHIND.SerializePartialToString()),
        framed(LACKING.SerializePartialToString()),
        aggregate([OutgoingRecord("k", b"x", "5")]),
    ],
)
def test_what_cannot_be_expanded_among_large_records_is_left_to_the_ordinary_deaggregation(data):
    large = stream_record(aggregate([OutgoingRecord("k", b"x" * 5_000)]))
    assert user_columns([large, stream_record(data)]) is None
    assert user_columns([large, large]).counts == [1, 1]
    assert user_columns([large], ExpansionLimits(max_expanded_bytes=5_000)) is None


def test_nothing_is_left_to_the_ordinary_deaggregation_too():
    assert user_columns([]) is None


def test_an_aggregate_over_a_limit_is_left_to_the_ordinary_deaggregation():
    record = stream_record(PLAIN)
    assert user_columns([record], ExpansionLimits(max_sub_records=2)) is None
    assert user_columns([record], ExpansionLimits(max_expanded_bytes=100)) is None
    assert user_columns([record], ExpansionLimits(max_sub_records=3)) is not None


@pytest.mark.parametrize("number", range(300))
def test_damage_that_the_digest_does_not_show_gives_the_ordinary_rows_or_none(number, seed):
    chance = random.Random(f"{seed}-{number}")
    body = bytearray(an_aggregate(chance, chance.choice([1, 3, 20]))[4:-16])
    for _ in range(chance.choice([1, 2])):
        body[chance.randrange(len(body))] = chance.choice([0, 8, 16, 26, 127, 128, 255])
    records = [stream_record(framed(bytes(body)))]
    columns = user_columns(records)
    assert columns is None or rows_of(columns) == expected(records)
