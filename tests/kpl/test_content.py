"""The columns of an aggregate say what a look at each of its records says, however odd it is."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.kpl.deaggregate import ExpansionLimits, UserRecord, Verdict
from shardfleet.kpl.messages_pb2 import AggregatedRecord
from shardfleet.kpl.packing import varint

TABLES = bytes.fromhex("0a 01 6b 0a 01 6c 12 01 35 12 01 36")  # keys "k", "l"; hash keys "5", "6"


def bytes_field(tag, data):
    return bytes((tag,)) + varint(len(data)) + data


key_indexes = st.integers(0, 2).map(lambda index: b"\x08" + varint(index))
hash_indexes = st.integers(0, 2).map(lambda index: b"\x10" + varint(index))
payloads = st.binary(max_size=4).map(lambda data: bytes_field(0x1A, data))
# Key indexes as a list, which a parser of columns takes for as many; a tag; an unknown field.
oddities = ("0a 02 00 01", "22 00", "32 01 7a", "1a 00")
odd = st.sampled_from([bytes.fromhex(each) for each in oddities])
# One of each in any order, mostly; or anything, also twice or not at all.
usual = st.tuples(key_indexes, payloads).flatmap(st.permutations)
hashed = st.tuples(key_indexes, payloads, hash_indexes).flatmap(st.permutations)
anything = st.lists(key_indexes | payloads | hash_indexes | odd, max_size=4)
bodies = st.lists(usual | hashed | anything, min_size=1, max_size=5).map(
    lambda records: b"".join(bytes_field(0x1A, b"".join(fields)) for fields in records)
)


def looked_at_one_by_one(body):
    """Return the records by the protobuf library alone, None if it is no valid aggregate."""
    try:
        message = AggregatedRecord.FromString(body)
    except DecodeError:
        return None
    keys, hash_keys = message.partition_key_table, message.explicit_hash_key_table
    found = []
    for index, record in enumerate(message.records):
        complete = record.HasField("partition_key_index") and record.HasField("data")
        if not complete or record.partition_key_index >= len(keys):
            return None
        place = record.explicit_hash_key_index if record.HasField("explicit_hash_key_index") else -1
        if hash_keys and place >= len(hash_keys):
            return None
        hash_key = hash_keys[place] if hash_keys and place >= 0 else None
        found.append(UserRecord(keys[record.partition_key_index], hash_key, record.data, index))
    return found


@given(bodies, st.sampled_from([TABLES, TABLES[:6]]))
def test_columns_are_what_a_look_at_each_record_finds(framed, read, records, tables):
    expected = looked_at_one_by_one(tables + records)
    found = read(framed(tables + records))
    if expected is None:
        assert not found.aggregated
    else:
        assert (found.verdict, list(found.records)) == (Verdict.EXPANDED, expected)


@pytest.mark.parametrize(
    "records",
    [
        "1a 04 08 00 08 01 1a 06 1a 01 78 1a 01 79",  # both keys in one, both data in the other
        "1a 02 08 00 1a 08 08 01 1a 01 78 1a 01 79",  # no data, then two
        "1a 03 1a 01 78 1a 07 08 00 08 01 1a 01 79",  # no key, then two
    ],
)
def test_as_many_values_as_records_are_not_enough(records, framed, read):
    found = read(framed(TABLES + bytes.fromhex(records)))
    assert found.verdict is Verdict.BAD_ENCODING


def test_a_field_that_stands_twice_counts_as_its_last(framed, read):
    record = bytes.fromhex("1a 0a 08 00 1a 01 78 08 01 1a 01 79")
    assert read(framed(TABLES + record)).records == [UserRecord("l", None, b"y", 0)]


def test_hash_keys_of_some_records_stay_with_theirs(framed, read):
    records = bytes.fromhex("1a 05 08 00 1a 01 78 1a 07 08 01 10 01 1a 01 79")
    twice = bytes.fromhex("1a 05 08 00 1a 01 78 1a 09 08 01 10 00 10 01 1a 01 79")
    for body in (records, twice):
        found = read(framed(TABLES + body)).records
        assert [record.explicit_hash_key for record in found] == [None, "6"]


@pytest.mark.parametrize(
    ("keys", "verdict"), [(2, Verdict.EXPANDED), (3, Verdict.TOO_MANY_RECORDS)]
)
def test_a_large_body_may_have_three_fields_for_each_record_that_is_allowed(
    framed, read, keys, verdict
):
    large = bytes_field(0x1A, b"\x08\x00" + bytes_field(0x1A, b"x" * (1 << 20)))
    body = b"".join(bytes_field(0x0A, b"k%d" % n) for n in range(keys)) + large
    found = read(framed(body), limits=ExpansionLimits(max_sub_records=1))
    assert found.verdict is verdict
