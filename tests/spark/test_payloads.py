"""
Payloads that try to be more than they are: a row or a bad record, and never a wrong value.

Expected of Avro: the specification's "Binary Encoding"; of JSON: RFC 8259.
"""

import io
import json

import pytest
from fastavro import parse_schema, schemaless_writer

from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.avro_payload import struct_of_avro
from shardfleet_spark.payload.parsing import parse_payload

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
