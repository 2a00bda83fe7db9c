"""
Payloads that try to be more than they are: a row or a bad record, and never a wrong value.

Expected of Avro: the specification's "Binary Encoding"; of JSON: RFC 8259.
"""

import io
import json
import os
from decimal import Decimal

import pytest
from fastavro import parse_schema, schemaless_writer

from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.avro_payload import struct_of_avro
from shardfleet_spark.payload.parsing import parse_payload
from tests.fuzz import json_payloads
from tests.fuzz.json_payloads import check_json

pytestmark = pytest.mark.processes


def one_field(kind):
    return {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 1}
# Name: schema of the field, bytes, what is said.
SPOILED = {
    "an int of 2^40": ("int", b"\x80\x80\x80\x80\x80\x40", "beyond an int"),
    "a number of 13 bytes": ("long", b"\x80" * 12 + b"\x01", "more than 64 bits"),
    "a number of 10 bytes and 65 bits": ("long", b"\xff" * 9 + b"\x03", "more than 64 bits"),
    "a boolean of 2": ("boolean", b"\x02", "2 is no boolean"),
    "enum -1": (ENUM, b"\x01", "symbol -1 of an enum of 2"),
    "enum 2": (ENUM, b"\x04", "symbol 2 of an enum of 2"),
    "branch -1": (["null", "int"], b"\x01\x02", "branch -1 of a union of 2"),
    "a length of -1": ("bytes", b"\x01xx", "a length of -1"),
    # Gone back by one, the length would be read again, as the number behind it.
    "a length of -1 that another field could be read from": (
        {
            "type": "record",
            "name": "N",
            "fields": [{"name": "a", "type": "bytes"}, {"name": "b", "type": "int"}],
        },
        b"\x01",
        "a length of -1",
    ),
    "a length of 2^40": ("bytes", b"\x80\x80\x80\x80\x80\x40xx", "ends too early"),
    "no UTF-8": ("string", b"\x02\xff", "utf-8"),
    "2^40 items": (
        {"type": "array", "items": "boolean"},
        b"\x80\x80\x80\x80\x80\x40\x01",
        "ends too early",
    ),
    "a block of another size": (
        {"type": "array", "items": "boolean"},
        b"\x01\x08\x01\x00",
        "another size",
    ),
    "a decimal of 3 digits": (DECIMAL, b"\x04\x00\x64", "more than 2 digits"),
    "a date of the year 10000": (
        {"type": "int", "logicalType": "date"},
        b"\xc2\x82\xe6\x02",
        "1 to 9999",
    ),
    "bytes behind": ("int", b"\x02\x02", "bytes behind the record"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_avro_is_a_bad_record(spark, name):
    kind, data, said = SPOILED[name]
    rows = spark.createDataFrame([(data,)], "data binary")

    (row,) = parse_payload(rows, json.dumps(one_field(kind)), kind="avro").collect()

    assert row["payload"] is None
    assert said in row["bad_record"]
    assert bytes(row["data"]) == data


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ({"type": "int", "logicalType": "time-millis"}, 5, 5),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 5, 5),
        ({"type": "long", "logicalType": "date"}, 5, 5),
        ({"type": "string", "logicalType": "date"}, "x", "x"),
    ],
)
def test_a_logical_type_that_spark_lacks_or_avro_does_not_know_there_is_the_type_below(
    spark, kind, value, expected
):
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(one_field(kind["type"])), {"f": value})
    rows = spark.createDataFrame([(written.getvalue(),)], "data binary")

    (row,) = parse_payload(rows, json.dumps(one_field(kind)), kind="avro").collect()

    assert (row["payload"], row["bad_record"]) == ((expected,), None)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            {"type": "array", "items": {"type": "fixed", "name": "N", "size": 0}},
            r"payload\.f\[\]: items that take no bytes",
        ),
        (
            {"type": "array", "items": {"type": "record", "name": "N", "fields": []}},
            r"payload\.f\[\]: items that take no bytes",
        ),
        ({"type": "array", "items": "null"}, r"payload\.f\[\]: Avro type null"),
        ({"type": "fixed", "name": "N", "size": -1}, r"payload\.f: a fixed of -1 bytes"),
        ({"type": "bytes", "logicalType": "decimal"}, r"payload\.f: a decimal of precision None"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 39},
            r"payload\.f: a decimal of precision 39; 1 to 38 are allowed",
        ),
        (
            {
                "type": "record",
                "name": "N",
                "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}],
            },
            r"payload\.f: field a twice",
        ),
    ],
)
def test_an_avro_schema_whose_payloads_could_not_be_told_or_bounded_is_refused(kind, said):
    with pytest.raises(ConfigurationError, match=said):
        struct_of_avro(json.dumps(one_field(kind)))


# A number without a limit costs Spark minutes to fit into a decimal (1e10000000: a minute), becomes
# Infinity as a double, "Infinity" as a text, and wraps around as seconds of a timestamp.
NUMBERS = "d double, f float, m decimal(10,2), s string, t timestamp, r array<float>"
NUMBERS += ", p map<string,double>"
BEYOND = [
    b'{"m": 1e1000000000}',
    b'{"m": 1e-1000000000}',
    b'{"m": "1E1000000000"}',
    b'{"m": "1e1000000000", "s": "cut off',
    b'{"d": 1e999}',
    b'{"d": -1e400}',
    b'{"d": 17' + b"9" * 307 + b"}",
    b'{"f": 1e40}',
    b'{"r": [1, 4' + b"0" * 38 + b"]}",
    b'{"p": {"k": 1e309}}',
    b'{"s": 1e999}',
    b'{"s": [9e308]}',
    b'{"s": ["Infinity", 1e400]}',
    b'{"t": 9223372036855}',
    b'{"t": -1' + b"0" * 17 + b"}",
]
WITHIN = {
    b'{"d": 1.7976931348623157e308}': ("d", 1.7976931348623157e308),
    b'{"f": 3e38}': ("f", 3.0000000054977558e38),
    b'{"m": 1e7}': ("m", Decimal("10000000.00")),
    b'{"m": "1e-7"}': ("m", Decimal("0.00")),
    b'{"s": "1234e5678", "m": 1}': ("s", "1234e5678"),
    b'{"s": "1e999 is a text"}': ("s", "1e999 is a text"),
    b'{"s": "\\"Infinity\\"", "d": 1e77}': ("s", '"Infinity"'),
    b'{"s": ["-Infinity", 1e307]}': ("s", '["-Infinity",1.0E307]'),
    b'{"s": ' + b"1" * 400 + b"}": ("s", "1" * 400),
    b'{"more": 1e9999, "d": 1}': ("d", 1.0),
}


def test_a_number_that_a_column_cannot_hold_is_a_bad_record_and_costs_nothing(spark):
    rows = spark.createDataFrame([(each,) for each in (*BEYOND, *WITHIN)], "data binary")

    parsed = parse_payload(rows, NUMBERS).collect()

    assert [bytes(row["data"]) for row in parsed if row["payload"] is None] == BEYOND
    assert all(row["bad_record"] for row in parsed[: len(BEYOND)])
    assert [
        (name, row["payload"][name])
        for row, (name, _) in zip(parsed[len(BEYOND) :], WITHIN.values(), strict=True)
    ] == list(WITHIN.values())


def test_csv_numbers_that_a_column_cannot_hold_are_bad_records_too(spark):
    data = [b"1e1000000000,1", b"1,1e999", b"1,2\n3,4", b"1.50,2.5\r\n"]
    rows = spark.createDataFrame([(each,) for each in data], "data binary")

    parsed = parse_payload(rows, "m decimal(10,2), d double", kind="csv").collect()

    assert [row["payload"] and tuple(row["payload"]) for row in parsed] == [
        *(None, None, None),
        (Decimal("1.50"), 2.5),
    ]


# RFC 8259, 8.2: half of a surrogate pair is no character; Spark puts "?" in its place.
HALVES = [b'{"s": "\\ud800"}', b'{"s": "\\\\\\udC00x"}', b'{"s": "\\ude00\\ud83d"}']
# RFC 8259, 6: NaN and Infinity are no numbers, and 7: a text in quotes is none. Duplicate names
# have no agreed meaning (4): the last one counts, as for most readers.
NO_JSON = [b'{"d": NaN}', b'{"d": Infinity}', b'{"s": NaN}', b'{"d": "NaN"}', b'{"f": "+INF"}']
NO_JSON += [b"{'d': 1}", b"{\"s\": 'x'}"]


def test_a_tinyint_is_never_another_number(spark):
    # Jackson takes 128 to 255 for a byte, and Spark what that is with a sign.
    numbers = [-129, -128, 127, 128, 200, 255, 256]
    rows = spark.createDataFrame(
        [(json.dumps({"n": n, "r": [{"m": 1}, {"m": n}]}),) for n in numbers], "data string"
    )

    found = parse_payload(rows, "n tinyint, r array<struct<m: tinyint>>").collect()

    fits = range(-128, 128)
    assert [
        row["payload"] and (row["payload"]["n"], row["payload"]["r"][1]["m"]) for row in found
    ] == [(n, n) if n in fits else None for n in numbers]


def test_halves_of_characters_and_what_is_no_json_are_bad_records(spark):
    deep = b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    fine = {
        b'{"s": "\\ud83d\\uDE00"}': ("s", "\U0001f600"),
        b'{"s": "\\\\ud800"}': ("s", "\\ud800"),
        b'{"d": 1, "d": 2}': ("d", 2.0),
    }
    bad = [*HALVES, *NO_JSON, deep]
    rows = spark.createDataFrame([(each,) for each in (*bad, *fine)], "data binary")

    parsed = parse_payload(rows, NUMBERS).collect()

    assert [bytes(row["data"]) for row in parsed if row["payload"] is None] == bad
    assert [
        (name, row["payload"][name])
        for row, (name, _) in zip(parsed[len(bad) :], fine.values(), strict=True)
    ] == list(fine.values())


def test_the_readers_options_allow_what_json_does_not(spark):
    rows = spark.createDataFrame([(b'{"d": Infinity}',)], "data binary")

    (row,) = parse_payload(rows, NUMBERS, options={"allowNonNumericNumbers": "true"}).collect()

    assert row["payload"]["d"] == float("inf")


SPOILED_JSON = '{"d": canary-jane-doe-4711'
COLUMNS_MOST = 20_480  # Spark's documentation of CSV files: maxColumns.
QUOTED = '"canary-jane-doe-4711"' + "," * (COLUMNS_MOST - 1)


@pytest.mark.parametrize(
    ("kind", "data", "options"),
    [
        ("json", SPOILED_JSON, {"Mode": "FAILFAST", "ColumnNameOfCorruptRecord": "d"}),
        ("json", SPOILED_JSON, {"MODE": "FAILFAST"}),
        ("csv", "canary-jane-doe-4711", {"mODE": "FAILFAST"}),
        ("csv", QUOTED + ",", {}),
        ("csv", "canary-jane-doe-4711\t\t\t", {"maxColumns": "3", "Sep": "\\t"}),
        ("csv", "canary-jane-doe-4711||||||", {"maxcolumns": "3", "delimiter": "||"}),
        ("csv", "canary-jane-doe-4711", {"maxCharsPerColumn": "5"}),
    ],
)
def test_no_option_and_no_payload_makes_a_bad_record_an_error_that_quotes_it(
    spark, kind, data, options
):
    rows = spark.createDataFrame([(data,)], "data string")

    (row,) = parse_payload(rows, "d double", kind=kind, options=options).collect()

    assert (row["payload"], row["data"]) == (None, data)
    assert row["bad_record"]


def test_csv_of_as_many_columns_as_spark_reads_is_read(spark):
    rows = spark.createDataFrame([("x,1,2",)], "data string")
    options = {"maxColumns": "3"}

    (row,) = parse_payload(rows, "s string, a int, b int", kind="csv", options=options).collect()

    assert (row["bad_record"], row["payload"]) == (None, ("x", 1, 2))


INPUTS = int(os.environ.get("SHARDFLEET_TEST_FUZZ_INPUTS", "4000"))  # `make fuzz` wants more.
AT_ONCE = min(INPUTS, 20_000)


def test_json_that_others_write_gives_the_judges_values_or_a_bad_record(spark, seed):
    rows = sum(check_json(spark, f"{seed} {part}", AT_ONCE) for part in range(INPUTS // AT_ONCE))

    assert INPUTS / 4 < rows < INPUTS


def test_a_payload_that_costs_too_much_is_seen(spark, monkeypatch):
    monkeypatch.setattr(json_payloads, "RATIO_MOST", 0)

    with pytest.raises(AssertionError, match="times as much as plain ones"):
        check_json(spark, "any", 20)
