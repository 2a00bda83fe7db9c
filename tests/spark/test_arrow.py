"""From stream records to Arrow: columns, types, aggregates, sizes of batches."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from msgspec import structs

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import StreamRecord
from shardfleet_spark.options.columns import COLUMNS, schema_of
from shardfleet_spark.read import arrow
from shardfleet_spark.read.arrow import (
    BYTES_PER_BATCH,
    ROWS_PER_BATCH,
    Rows,
    arrow_schema,
    batches_of,
)
from tests.kpl.bombs import BEYOND, LOOKS_MOST, SHAPES, WITHIN, Work, bomb

WHOLE = (0, 2**128 - 1)


def record(number, data, *, key="k", **fields):
    return StreamRecord(
        data=data,
        partition_key=key,
        sequence_number=str(number),
        approximate_arrival_ms=1_700_000_000_123,
        **fields,
    )


def packed(number, *data, hash_key=None):
    users = [OutgoingRecord(f"u{n}", each, hash_key) for n, each in enumerate(data)]
    return record(number, aggregate(users), key="u0")


def rows_of(records, **settings):
    rows = Rows(**{"shard_id": "shardId-7", "stream": "clicks", **settings})
    return [row for batch in batches_of([(records, rows)]) for row in batch.to_pylist()]


def test_all_columns_of_a_plain_record_and_of_an_aggregated_one():
    plain, user = rows_of([record(1, b"x", encryption_type="KMS"), packed(2, b"y", hash_key="12")])

    shared = {"shard_id": "shardId-7", "stream": "clicks"}
    arrival = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert plain == {
        **shared,
        "data": b"x",
        "partition_key": "k",
        "explicit_hash_key": None,
        "sequence_number": "1",
        "sub_sequence_number": 0,
        "approximate_arrival_timestamp": arrival,
        "encryption_type": "KMS",
    }
    assert user == plain | {
        "data": b"y",
        "partition_key": "u0",
        "explicit_hash_key": "12",
        "sequence_number": "2",
        "encryption_type": None,
    }


def test_an_arrival_that_kinesis_did_not_tell_is_null_and_not_1970():
    undated = [
        structs.replace(each, approximate_arrival_ms=0)
        for each in (record(1, b"x"), packed(2, b"y"))
    ]
    assert [row["approximate_arrival_timestamp"] for row in rows_of(undated)] == [None, None]


def test_every_column_that_spark_is_told_of_has_its_arrow_type():
    assert schema_of(("data", "shard_id")).simpleString() == "struct<data:binary,shard_id:string>"
    assert arrow_schema(()).names == list(COLUMNS)
    assert arrow_schema(("data", "sub_sequence_number", "approximate_arrival_timestamp")).types == [
        pa.binary(),
        pa.int64(),
        pa.timestamp("us", tz="UTC"),
    ]


@pytest.mark.parametrize("columns", [(), ("shard_id", "data", "sequence_number")])
def test_aggregates_taken_apart_all_at_once_give_the_same_rows(monkeypatch, columns):
    small = [packed(n, *(b"%d" % user for user in range(n % 90))) for n in range(1, 90)]
    odd = [record(900, b"plain"), packed(901, b"x", hash_key="7"), packed(902, b"y" * 600_000)]
    records = small + odd + [packed(n, b"z" * 3_000, b"") for n in range(903, 1_200)]
    done = ExtendedSequenceNumber("1", 0)

    quick = [rows_of(each, columns=columns) for each in (records, small)]
    resumed = rows_of(records, done=done, columns=columns)
    monkeypatch.setattr("shardfleet_spark.read.arrow.user_columns", None)

    assert quick == [rows_of(each, columns=columns) for each in (records, small)]
    assert resumed == rows_of(records, done=done, columns=columns)


@pytest.mark.parametrize("columns", [(), ("stream", "data", "sub_sequence_number")])
def test_plain_records_taken_all_at_once_give_the_same_rows(columns):
    framed = packed(2, b"a", b"b")
    few = [record(n, b"%d" % n, key=f"k{n}", encryption_type="KMS") for n in range(3, 9)]
    rows = Rows(shard_id="s", stream="c", columns=columns)
    whole = replace(rows, deaggregate=False)

    for records, how in ((few, rows), ([framed, *few], whole)):
        (quick,) = batches_of([(records, how)])
        (slow,) = arrow._row_by_row(records, how)
        assert quick.equals(slow)
        assert quick.schema == slow.schema


def test_columns_are_chosen_in_the_order_asked_for():
    assert rows_of([record(1, b"x")], columns=("shard_id", "data")) == [
        {"shard_id": "shardId-7", "data": b"x"}
    ]


def test_a_start_inside_an_aggregate_leaves_out_what_is_done():
    done = ExtendedSequenceNumber("2", 1)

    rows = rows_of([packed(2, b"a", b"b", b"c", b"d"), packed(3, b"e", b"f")], done=done)

    assert [(row["data"], row["sub_sequence_number"]) for row in rows] == [
        (b"c", 2),
        (b"d", 3),
        (b"e", 0),
        (b"f", 1),
    ]


def test_without_deaggregation_an_aggregate_is_one_row():
    whole = packed(2, b"a", b"b")

    assert [row["data"] for row in rows_of([whole], deaggregate=False)] == [whole.data]


@pytest.mark.parametrize(("misrouted", "count"), [("deliver", 2), ("in-range", 1), ("kpl", 0)])
def test_an_aggregate_of_other_shards_keys_is_delivered_or_dropped_as_asked(misrouted, count):
    mixed = [OutgoingRecord("a", b"a"), OutgoingRecord("b", b"b", "1")]
    found = rows_of([record(2, aggregate(mixed))], misrouted=misrouted, hash_range=(0, 1))

    assert len(found) == count
    assert len(rows_of([packed(2, b"a", b"b")], misrouted=misrouted, hash_range=WHOLE)) == 2


def test_batches_are_bounded_by_rows_and_by_bytes():
    rows = Rows(shard_id="s", stream="c")
    many = [record(n, b"x") for n in range(2 * ROWS_PER_BATCH + 1)]
    small = list(batches_of([(many, rows)]))
    large = list(batches_of([([record(n, b"x" * 1_000_000) for n in range(11)], rows)]))

    assert [batch.num_rows for batch in small] == [ROWS_PER_BATCH, ROWS_PER_BATCH, 1]
    # Four times 1,000,000 are within 4 MiB; a record that is larger alone is a batch.
    assert [batch.num_rows for batch in large] == [4, 4, 3]
    alone = [record(n, b"x" * size) for n, size in enumerate((1, BYTES_PER_BATCH + 1, 1, 1))]
    assert [batch.num_rows for batch in batches_of([(alone, rows)])] == [1, 1, 2]
    assert list(batches_of([([], rows)])) == []


def test_shards_that_have_little_share_a_batch_and_aggregates_stand_between():
    def shard(name, *records):
        return list(records), Rows(shard_id=name, stream="c")

    shards = [
        shard("a", record(1, b"a1"), record(2, b"a2", key="other")),
        shard("b"),
        shard("c", record(3, b"c3", encryption_type="KMS")),
        shard("d", record(4, b"d4"), packed(5, b"d5", b"d6"), record(7, b"d7")),
        shard("e", record(8, b"e8")),
    ]
    found = list(batches_of(shards))
    alone = [
        row
        for records, rows in shards
        for row in rows_of(records, shard_id=rows.shard_id, stream="c")
    ]

    # An aggregate's batch has the plain records of its chunk in it.
    assert [batch.num_rows for batch in found] == [3, 4, 1]
    assert [row for batch in found for row in batch.to_pylist()] == alone
    assert [row["shard_id"] for row in alone] == [*"aacdddde"]


def test_shards_share_a_batch_up_to_its_rows_and_bytes():
    rows = Rows(shard_id="s", stream="c")
    half, large = ROWS_PER_BATCH // 2, b"x" * (BYTES_PER_BATCH // 4)
    many = [([record(n, b"x") for n in range(half)], rows)] * 3
    big = [([record(1, large), record(2, large)], rows)] * 3

    assert [batch.num_rows for batch in batches_of(many)] == [2 * half, half]
    assert [batch.num_rows for batch in batches_of(big)] == [4, 2]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("misrouted", ["deliver", "kpl"])
@pytest.mark.parametrize(("uses", "rows"), [(BEYOND, 1), (WITHIN, WITHIN)])
def test_long_keys_that_records_share_are_looked_at_once(shape, misrouted, uses, rows):
    data = bomb(shape, uses)
    settings = Rows(shard_id="s", stream="c", misrouted=misrouted, hash_range=WHOLE)

    with Work() as work:
        found = list(batches_of([([record(1, data)], settings)]))

    assert sum(batch.num_rows for batch in found) == rows
    assert work.characters <= LOOKS_MOST * len(data)


def test_a_batch_grows_by_its_rows_and_not_by_the_records_they_came_in():
    data, limit = bomb("ascii key", 1_900), 64 * 1024 * 1024
    assert ROWS_PER_BATCH > 1_900

    rows = Rows(shard_id="s", stream="c")
    found = list(batches_of([([record(number, data) for number in range(5)], rows)]))

    assert sum(batch.num_rows for batch in found) == 5 * 1_900
    assert max(batch.nbytes for batch in found) <= limit
