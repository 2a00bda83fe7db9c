"""The bytes themselves: read by hand, and written by another implementation."""

import json
from pathlib import Path

import pytest

from shardfleet.kpl.deaggregate import UserRecord, Verdict
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate

VECTORS = json.loads((Path(__file__).parent / "vectors/aws_kinesis_agg.json").read_text("utf-8"))

# Two records, written down from the protobuf encoding rules. The digest is md5sum's.
BY_HAND = bytes.fromhex(
    "f3899ac2"  # magic number
    "0a 05 616c706861"  # field 1, 5 bytes: partition key 0 is "alpha"
    "0a 04 62657461"  # field 1, 4 bytes: partition key 1 is "beta"
    "12 01 37"  # field 2, 1 byte: explicit hash key 0 is "7"
    "1a 05"  # field 3, 5 bytes: a record
    "08 00"  # .. its field 1: partition key 0
    "1a 01 41"  # .. its field 3, 1 byte: "A" (no field 2: no explicit hash key)
    "1a 07"  # field 3, 7 bytes: a record
    "08 01"  # .. its field 1: partition key 1
    "10 00"  # .. its field 2: explicit hash key 0
    "1a 01 42"  # .. its field 3, 1 byte: "B"
    "e87859fd50e4204cc8c232708c436879"  # MD5 of everything after the magic number
)


def test_an_aggregate_written_down_byte_by_byte_is_read(read):
    found = read(BY_HAND)
    assert found.records == [
        UserRecord("alpha", None, b"A", 0),
        UserRecord("beta", "7", b"B", 1),
    ]
    assert (found.verdict, found.last_sub_sequence, found.dropped) == (Verdict.EXPANDED, 1, 0)
    assert found.aggregated


def test_our_writer_produces_exactly_those_bytes():
    records = [OutgoingRecord("alpha", b"A"), OutgoingRecord("beta", b"B", "7")]
    assert aggregate(records).hex() == BY_HAND.hex()


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["comment"])
def test_another_implementations_aggregates_are_read(case, read):
    found = read(bytes.fromhex(case["aggregate_hex"]))
    assert found.verdict is Verdict.EXPANDED
    assert [(r.partition_key, r.explicit_hash_key, r.data) for r in found.records] == [
        (r["partition_key"], r["explicit_hash_key"], bytes.fromhex(r["data_hex"]))
        for r in case["records"]
    ]
    assert [r.sub_sequence_number for r in found.records] == list(range(len(case["records"])))


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["comment"])
def test_our_writer_produces_another_implementations_bytes(case):
    records = [
        OutgoingRecord(r["partition_key"], bytes.fromhex(r["data_hex"]), r["explicit_hash_key"])
        for r in case["records"]
    ]
    assert aggregate(records).hex() == case["aggregate_hex"]
