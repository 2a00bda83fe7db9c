"""One Kinesis record in, its user records out; what is no valid aggregate stays one record."""

import subprocess
import sys

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet.kpl.deaggregate import ExpansionLimits, UserRecord, Verdict
from shardfleet.kpl.hash_keys import MAX_HASH_KEY, hash_of_partition_key
from shardfleet.kpl.packing import OutgoingRecord, varint
from shardfleet.producer.aggregate import aggregate
from tests.kpl.bombs import Work

KEY_K = bytes.fromhex("0a 01 6b")  # partition key table: "k"
DATA_X = bytes.fromhex("1a 05 08 00 1a 01 78")  # a record: key 0, data "x"
THREE = [OutgoingRecord("a", b"1"), OutgoingRecord("b", b"2"), OutgoingRecord("c", b"3")]


def is_raw(found, data):
    return found.records == (UserRecord("outer", None, data, 0),) and not found.aggregated


@pytest.mark.parametrize(
    "data",
    [b"", b"plain", b"\xf3\x89\x9a", b"\xf3\x89\x9a\xc2" + bytes(16), b"x\xf3\x89\x9a\xc2" * 9],
    ids=["empty", "text", "short magic", "magic and 16 bytes", "magic further on"],
)
def test_a_record_without_magic_and_body_is_plain(data, read):
    found = read(data)
    assert is_raw(found, data)
    assert (found.verdict, found.last_sub_sequence, found.dropped) == (Verdict.PLAIN, 0, 0)


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("0a 09 6b", Verdict.BAD_ENCODING),  # a key of 9 bytes in a body of 3
        ("0a 01 6b 1a 03 1a 01 78", Verdict.BAD_ENCODING),  # a record without a key index
        ("0a 01 6b 1a 02 08 00", Verdict.BAD_ENCODING),  # a record without data
        ("0a 01 6b 1a 05 08 01 1a 01 78", Verdict.BAD_INDEX),  # key 1 of 1
        ("12 01 35 0a 01 6b 1a 07 08 00 10 01 1a 01 78", Verdict.BAD_INDEX),  # hash key 1 of 1
        (f"0a 01 6b 1a 0e 08 {'ff' * 9}01 1a 01 78", Verdict.BAD_INDEX),  # key 2**64 - 1
        # The same of its hash key, alone and beside a record without one.
        (f"0a 01 6b 12 01 30 1a 10 08 00 10 {'ff' * 9}01 1a 01 78", Verdict.BAD_INDEX),
        (
            f"0a 01 6b 12 01 30 1a 10 08 00 10 {'ff' * 9}01 1a 01 78 1a 05 08 00 1a 01 78",
            Verdict.BAD_INDEX,
        ),
        ("0a 01 6b 1a 04 08 00 1a 00 1a 02 08 00", Verdict.BAD_ENCODING),  # empty data, then none
        ("0a 01 6b", Verdict.EMPTY),  # a table and no records
        ("28 01", Verdict.EMPTY),  # nothing but an unknown field
    ],
)
def test_a_malformed_aggregate_is_delivered_as_the_raw_record_it_is(body, verdict, framed, read):
    data = framed(bytes.fromhex(body))
    found = read(data)
    assert is_raw(found, data)
    assert (found.verdict, found.last_sub_sequence, found.dropped) == (verdict, 0, 0)


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ("0a 01 ff", "\ufffd"),
        ("0a 03 61 ff 62", "a\ufffdb"),
        ("0a 05 61 ed a0 80 62", "a\ufffdb"),  # a surrogate
        ("0a 02 ed bf", "\ufffd"),  # the beginning of one
        ("0a 01 6b 0a 01 ff", "k"),  # the bad one belongs to no record
        ("0a 01 6b 12 01 ff", "k"),
    ],
)
def test_a_key_that_is_no_utf_8_is_read_as_java_reads_it(tables, key, framed, read):
    # Java: String(byte[], Charset) "always replaces malformed-input sequences with this charset's
    # default replacement string", which is U+FFFD.
    data = framed(bytes.fromhex(tables) + DATA_X)
    assert read(data).records == [UserRecord(key, None, b"x", 0)]


def test_an_index_of_another_wire_type_is_a_field_that_nobody_knows(framed, read):
    # As packed numbers it would be cut short; protobuf packs no field that is not repeated.
    for body in (
        "0a 01 6b 12 01 30 1a 08 08 00 12 01 b0 1a 01 78",
        "1a 08 08 00 1a 01 78 12 01 b0 0a 01 6b 12 01 30",
    ):
        assert read(framed(bytes.fromhex(body))).records == [UserRecord("k", None, b"x", 0)]


def test_a_fault_in_the_last_record_does_not_lose_the_ones_before_it(framed, read):
    # Java keeps the first record and neither the second nor the raw one (protocol.md 5.3, 7).
    data = framed(KEY_K + DATA_X + bytes.fromhex("1a 05 08 07 1a 01 79"))
    assert is_raw(read(data), data)


def test_a_wrong_digest_makes_the_record_raw(read):
    data = aggregate(THREE)
    damaged = data[:-1] + bytes((data[-1] ^ 1,))
    found = read(damaged)
    assert is_raw(found, damaged)
    assert found.verdict is Verdict.BAD_DIGEST


def test_a_record_without_explicit_hash_key_is_not_given_the_first_of_the_table(read):
    records = [OutgoingRecord("a", b"1", "42"), OutgoingRecord("b", b"2")]
    assert [r.explicit_hash_key for r in read(aggregate(records)).records] == ["42", None]


def test_the_index_of_a_hash_key_without_a_table_is_not_looked_at(framed, read):
    body = bytes.fromhex("0a 01 6b 1a 07 08 00 10 00 1a 01 78")
    assert read(framed(body)).records == [UserRecord("k", None, b"x", 0)]


@pytest.mark.parametrize(
    "record",
    [
        "1a 0d 08 00 1a 01 78 22 06 0a 01 74 12 01 76",  # tag "t" = "v"
        "1a 07 08 00 1a 01 78 22 00",  # a tag without a key, which Java takes for damage
    ],
)
def test_tags_are_ignored(record, framed, read):
    tagged = bytes.fromhex(record)
    assert read(framed(KEY_K + tagged)).records == [UserRecord("k", None, b"x", 0)]


def test_unknown_fields_are_ignored(framed, read):
    outside = bytes.fromhex("28 01 32 01 7a")  # fields 5 and 6 of the aggregate
    inside = bytes.fromhex("1a 08 08 00 1a 01 78 32 01 7a")  # field 6 of a record
    found = read(framed(outside + KEY_K + inside))
    assert found.records == [UserRecord("k", None, b"x", 0)]


def test_tables_may_stand_behind_the_records(framed, read):
    assert read(framed(DATA_X + KEY_K)).records == [UserRecord("k", None, b"x", 0)]


def test_an_aggregate_inside_an_aggregate_is_not_opened(read):
    inner = aggregate(THREE)
    assert [r.data for r in read(aggregate([OutgoingRecord("k", inner)])).records] == [inner]


def test_keys_of_any_script_survive(read):
    keys = ["schlüssel", "ключ", "鍵🔑", "e\u0301", "\x00"]
    found = read(aggregate([OutgoingRecord(key, b"x") for key in keys]))
    assert [r.partition_key for r in found.records] == keys


def test_policy_deliver_drops_nothing_whatever_the_range(read):
    found = read(aggregate(THREE), hash_range=(0, 0), policy="deliver")
    assert [r.data for r in found.records] == [b"1", b"2", b"3"]
    assert (found.verdict, found.dropped) == (Verdict.EXPANDED, 0)


@pytest.mark.parametrize("foreign", ["a", "b", "c"])
def test_policy_kpl_discards_and_counts_the_whole_aggregate(foreign, read):
    position = hash_of_partition_key(foreign)
    records = [r._replace(explicit_hash_key="5") if r[0] != foreign else r for r in THREE]
    found = read(aggregate(records), hash_range=(0, position - 1), policy="kpl")
    assert found.records == ()
    assert (found.verdict, found.dropped, found.last_sub_sequence) == (Verdict.MISROUTED, 3, 2)
    assert found.aggregated


@pytest.mark.parametrize("foreign", ["a", "b", "c"])
def test_policy_in_range_discards_and_counts_what_belongs_elsewhere_alone(foreign, read):
    position = hash_of_partition_key(foreign)
    records = [r._replace(explicit_hash_key="5") if r[0] != foreign else r for r in THREE]
    found = read(aggregate(records), hash_range=(0, position - 1), policy="in-range")
    places = [at for at, record in enumerate(records) if record[0] != foreign]
    assert [(r.partition_key, r.sub_sequence_number) for r in found.records] == [
        (records[at][0], at) for at in places
    ]
    assert (found.verdict, found.last_sub_sequence, found.dropped) == (Verdict.MISROUTED, 2, 1)
    assert read(aggregate(records), hash_range=(0, 4), policy="in-range").dropped == 3
    assert len(read(aggregate(records), hash_range=None, policy="in-range").records) == 3


def test_many_bad_keys_that_no_record_uses_cost_nothing(framed, read):
    data = framed(KEY_K + b"\x0a\x01\xff" * 50_000 + DATA_X)
    with Work() as work:
        assert read(data).records == [UserRecord("k", None, b"x", 0)]
    assert work.decoded <= 2


def test_a_large_body_is_not_parsed_for_more_fields_than_records_may_have(framed, read):
    limits = ExpansionLimits(max_sub_records=1_000)
    assert read(framed(KEY_K + DATA_X + b"\x28\x00" * 600_000)).verdict is Verdict.TOO_MANY_RECORDS
    odd = b"\x29" + bytes(8) + b"\x2d" + bytes(4) + b"\x33\x34" + b"\xa2\x06\x01z"
    data = b"\x08\x00\x1a" + varint(1_100_000) + bytes(1_100_000)
    record = b"\x1a" + varint(len(data)) + data
    found = read(framed(KEY_K + odd + record), limits=limits)
    assert [len(user.data) for user in found.records] == [1_100_000]
    cut = framed(KEY_K + record[:-1])
    assert read(cut, limits=limits).verdict is Verdict.BAD_ENCODING


def test_policy_kpl_includes_both_ends_of_the_range(read):
    low, _, high = sorted(hash_of_partition_key(r.partition_key) for r in THREE)
    data = aggregate(THREE)
    assert read(data, hash_range=(low, high), policy="kpl").dropped == 0
    assert read(data, hash_range=(low + 1, high), policy="kpl").dropped == 3
    assert read(data, hash_range=(low, high - 1), policy="kpl").dropped == 3


def test_policy_kpl_goes_by_the_explicit_hash_key(read):
    data = aggregate([OutgoingRecord("a", b"1", "7")])
    assert read(data, hash_range=(7, 7), policy="kpl").dropped == 0
    position = hash_of_partition_key("a")
    assert read(data, hash_range=(position, position), policy="kpl").dropped == 1


def test_policy_kpl_drops_nothing_while_the_range_is_unknown(read):
    assert len(read(aggregate(THREE), hash_range=None, policy="kpl").records) == 3


@pytest.mark.parametrize("text", ["x", "-1", "", str(MAX_HASH_KEY + 1)])
def test_policy_kpl_does_not_discard_for_an_explicit_hash_key_that_is_none(text, framed, read):
    table = bytes((0x12, len(text))) + text.encode()
    data = framed(KEY_K + table + bytes.fromhex("1a 07 08 00 10 00 1a 01 78"))
    found = read(data, hash_range=(0, 0), policy="kpl")
    assert found.records == [UserRecord("k", text, b"x", 0)]


def test_policy_kpl_never_discards_a_plain_record(read):
    assert is_raw(read(b"plain", hash_range=(0, 0), policy="kpl"), b"plain")


def test_more_user_records_than_allowed_are_delivered_raw(read):
    data = aggregate(THREE)
    found = read(data, limits=ExpansionLimits(max_sub_records=2))
    assert is_raw(found, data)
    assert found.verdict is Verdict.TOO_MANY_RECORDS
    assert len(read(data, limits=ExpansionLimits(max_sub_records=3)).records) == 3


def test_more_expanded_bytes_than_allowed_are_delivered_raw(read):
    # One key of 3 * 2 bytes, written once but counted for each of the 50 records; 2 bytes of
    # data each; one explicit hash key of 2 bytes.
    records = [OutgoingRecord("äöü", b"xy") for _ in range(49)]
    data = aggregate([*records, OutgoingRecord("äöü", b"xy", "77")])
    exact = 50 * (6 + 2) + 2
    assert len(read(data, limits=ExpansionLimits(max_expanded_bytes=exact)).records) == 50
    found = read(data, limits=ExpansionLimits(max_expanded_bytes=exact - 1))
    assert is_raw(found, data)
    assert found.verdict is Verdict.TOO_MANY_BYTES


@pytest.mark.parametrize("field", ["0a", "12"], ids=["partition key", "explicit hash key"])
def test_one_long_key_shared_by_many_records_counts_for_each_of_them(field, framed, read):
    # The 1,600 bytes of a shared key, 400 characters of 4 bytes, are written once.
    table = bytes.fromhex(f"{field} c0 0c") + "🔑".encode() * 400
    other = KEY_K if field == "12" else bytes.fromhex("12 01 6b")
    data = framed(table + other + bytes.fromhex("1a 06 08 00 10 00 1a 00") * 50)
    exact = 50 * (1600 + 1)
    assert len(read(data, limits=ExpansionLimits(max_expanded_bytes=exact)).records) == 50
    found = read(data, limits=ExpansionLimits(max_expanded_bytes=exact - 1))
    assert found.verdict is Verdict.TOO_MANY_BYTES


def test_the_default_limits_take_the_densest_ordinary_record(framed, read):
    count = (1024 * 1024 - 20 - 3) // 6
    data = framed(KEY_K + bytes.fromhex("1a 04 08 00 1a 00") * count)
    assert len(read(data).records) == count


@pytest.mark.parametrize("name", ["max_sub_records", "max_expanded_bytes"])
def test_limits_below_one_are_refused_by_name(name):
    with pytest.raises(ConfigurationError, match=f"{name} = 0"):
        ExpansionLimits(**{name: 0})


def test_protobuf_is_loaded_by_the_first_aggregate_only():
    program = f"""
import sys
from shardfleet.kpl import deaggregate

def read(data):
    deaggregate.deaggregate(data, partition_key="k", limits=deaggregate.ExpansionLimits(),
                            hash_range=None, policy="deliver")
    return "google.protobuf" in sys.modules

print(read(b"plain"), read(bytes.fromhex("{aggregate(THREE).hex()}")))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "False True\n", done.stderr
