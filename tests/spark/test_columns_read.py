"""Records that are columns are read, sealed and handed out as the same records one by one are."""

import random

import pyarrow as pa
import pytest

from shardfleet.domain.stream.sequence import (
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import StreamRecord
from shardfleet_spark.aws.columns import RecordColumns
from shardfleet_spark.offsets.plan_token import Stand
from shardfleet_spark.offsets.seals import ShardSeal, digest_of
from shardfleet_spark.read.arrow import ROWS_PER_BATCH, Rows, batches_of
from shardfleet_spark.read.records import joined, last_arrival_ms, sequence_numbers_of, size_of
from shardfleet_spark.read.sealing import is_complete, within_seal
from shardfleet_spark.read.shard_pages import not_done

FIRST = 10**55
ARN = "arn:aws:kinesis:eu-central-1:000000000000:stream/orders"
USERS = aggregate([OutgoingRecord("a", b"one"), OutgoingRecord("b", b"two")])


def records_of(chance, number, *, framed=()):
    return [
        StreamRecord(
            data=USERS if index in framed else chance.randbytes(chance.choice([0, 9, 5_000])),
            partition_key=chance.choice(["k", "é€"]),
            sequence_number=str(FIRST + index),
            approximate_arrival_ms=chance.choice([0, 1_800_000_000_000 + chance.randrange(10**6)]),
            encryption_type=chance.choice([None, "KMS"]),
        )
        for index in range(number)
    ]


def columns_of(records):
    members = ("data", "partition_key", "sequence_number", "approximate_arrival_ms")
    types = (pa.binary(), pa.string(), pa.string(), pa.int64(), pa.string())
    names = (*members, "encryption_type")
    arrays = [
        pa.array([getattr(each, name) for each in records], kind)
        for name, kind in zip(names, types, strict=True)
    ]
    return RecordColumns(pa.RecordBatch.from_arrays(arrays, names=list(names)))


def table_of(shards):
    batches = list(batches_of(shards))
    assert all(each.num_rows <= ROWS_PER_BATCH for each in batches)
    return pa.Table.from_batches(batches).combine_chunks()


def rows(number, done=None, **settings):
    return Rows(shard_id=f"shardId-{number:012}", stream="orders", done=done, **settings)


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_are_the_same(seed):
    chance = random.Random(seed)
    shards = []
    for number in range(chance.choice([1, 2, 9])):
        count = chance.choice([0, 1, 70, 600, 2 * ROWS_PER_BATCH + 1])
        framed = chance.sample(range(count), min(count, 2)) if chance.random() < 0.3 else ()
        last = ExtendedSequenceNumber(str(FIRST + 3), 0) if chance.random() < 0.2 else None
        records = records_of(chance, count, framed=framed)
        deaggregate = chance.random() < 0.8
        shards.append((not_done_of(records, last), rows(number, last, deaggregate=deaggregate)))
    if not any(records for records, _ in shards):
        shards.append((records_of(chance, 5), rows(99)))
    some = [
        (columns_of(records) if records and chance.random() < 0.7 else records, each)
        for records, each in shards
    ]
    assert table_of(some) == table_of(shards)


def not_done_of(records, last):
    return records if last is None else [e for e in records if int(e.sequence_number) > FIRST + 3]


@pytest.mark.parametrize("number", [0, 2, 700])
def test_what_is_done_is_left_out(number):
    records = records_of(random.Random(number), 700)
    done = ExtendedSequenceNumber(str(FIRST + number - 1), 0) if number else None
    kind = PointKind.SEQUENCE if number else PointKind.TRIM_HORIZON
    incarnation = StreamIncarnation(ARN, 1)
    stand = Stand(Position(incarnation, "shardId-000000000000", kind, done=done))
    left = not_done(stand, columns_of(records))
    assert isinstance(left, RecordColumns)
    assert left == not_done(stand, records) == records[number:]


def test_of_a_seal_they_are_as_much():
    records = records_of(random.Random(1), 700)
    found = columns_of(records)
    sealed = ShardSeal(
        shard_id="shardId-000000000000",
        first=str(FIRST + 3),
        last=str(FIRST + 600),
        count=598,
        digest=digest_of(each.sequence_number for each in records[3:601]),
    )
    assert not is_complete(sealed, found)
    kept = within_seal(sealed, found)
    assert kept == records[3:601]
    assert is_complete(sealed, kept)
    for some in (found[3:601], found[3:], found[:601], records):
        assert within_seal(sealed, some) == kept
    assert is_complete(sealed, found[3:601])
    assert not is_complete(sealed, found[2:600])


def test_what_arrow_does_not_join_into_one_is_joined_record_by_record():
    """It joins nothing into none, and more than 2 GiB into several."""
    empty = columns_of([])
    assert joined([empty, empty]) == []


@pytest.mark.parametrize("kinds", ["", "r", "c", "cc", "rc", "cr", "crc"])
def test_pieces_are_joined_in_order(kinds):
    chance = random.Random(kinds)
    pieces = [records_of(chance, 70) for _ in kinds]
    some = [columns_of(p) if k == "c" else p for p, k in zip(pieces, kinds, strict=True)]
    whole = [record for piece in pieces for record in piece]
    found = joined(some)
    assert isinstance(found, RecordColumns) == (kinds in ("c", "cc"))
    assert list(found) == whole
    assert size_of(found) == size_of(whole)
    assert [*sequence_numbers_of(found)] == [each.sequence_number for each in whole]
    if whole:
        assert last_arrival_ms(found) == last_arrival_ms(whole)
