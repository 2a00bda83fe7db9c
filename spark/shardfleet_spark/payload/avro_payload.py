"""
Avro payloads: one binary record each, without a container's header, in the writer's schema.

fastavro reads the schema; the bytes are read here, in the tasks, by the rules of the Avro
specification's "Binary Encoding". fastavro's own reader makes values of numbers beyond 32 or 64
bits and of negative indices, and millions of items of five bytes; Spark's `from_avro` needs a
package that is not part of its distribution, and fails the batch or says nothing about a bad
record. A payload costs at most so many steps as it has bytes, times the size of the schema.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SHOWN = 200
# Written out: a schema of 2 KB may name a type twice in a type that is named twice, and so on.
_TYPES_MOST = 10_000
_DIGITS_MOST = 38  # Of a decimal of Spark's.
_NUMBER_BYTES_MOST = 10  # Of 64 bits, 7 a byte.
# The years 1 to 9999: what Spark documents for dates and timestamps, and Python can hold.
_DAYS = range(-719_162, 2_932_897)
_MICROS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)

_Read = Callable[[bytes, int], tuple[Any, int]]
"""
From bytes and a place in them to what Arrow takes, and the place behind it.

Raises IndexError or struct.error where the bytes end, ValueError where they are no such value.
"""

_ReadAlone = Callable[[bytes | None], tuple[Any, str | None]]


@dataclass(frozen=True, slots=True)
class _Kind:
    """
    A type of the schema: the column's type, the same for Arrow, and the least bytes it takes.

    `types` counts it and what is in it, written out.

    """

    spark: DataType
    arrow: pa.DataType
    read: _Read
    bytes_least: int
    types: int = 1


def parse_avro(df: DataFrame, schema: str, *, column: str) -> DataFrame:
    """
    Add ``payload`` and ``bad_record``; see :func:`shardfleet_spark.payload.parsing.parse_payload`.

    Raises:
        ConfigurationError: fastavro is not installed, or the schema is no record that Spark can
            hold.

    """
    fields = struct_of_avro(schema)
    wanted = StructType(
        [*df.schema.fields, StructField("bad_record", StringType()), StructField("payload", fields)]
    )

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        one, kind = avro_reader(schema)  # Functions do not travel to the tasks; the text does.
        for batch in batches:
            payloads = batch.column(column).cast(pa.binary()).to_pylist()
            results = [one(payload) for payload in payloads]
            yield pa.RecordBatch.from_arrays(
                [
                    *batch.columns,
                    pa.array([problem for _, problem in results], pa.string()),
                    pa.array([value for value, _ in results], kind),
                ],
                names=[*batch.schema.names, "bad_record", "payload"],
            )

    return df.mapInArrow(read, wanted)


class NoAvroRecord(ConfigurationError):
    """The text is no Avro schema of a record; the error may quote it."""


def struct_of_avro(schema: str) -> StructType:
    """
    Return the Spark type of an Avro record.

    Raises:
        ConfigurationError: it is no Avro schema, no record, or has a type that Spark cannot hold,
            or lists of what takes no bytes, of which a few bytes could announce billions, or more
            types, written out, than any record needs.

    """
    found = _record_of(schema).spark
    assert isinstance(found, StructType)
    return found


def avro_reader(schema: str) -> tuple[_ReadAlone, pa.DataType]:
    """
    Return the function from a payload to its value and what is wrong with it, one of them None.

    With it comes the Arrow type, which takes each value that the function gives.

    Raises:
        ConfigurationError: as :func:`struct_of_avro`.

    """
    kind = _record_of(schema)

    def read(payload: bytes | None) -> tuple[Any, str | None]:
        if payload is None:
            return None, "there is no data"
        try:
            value, end = kind.read(payload, 0)
        except (IndexError, struct.error):
            return None, "no Avro of the schema: it ends too early"
        except ValueError as error:
            return None, f"no Avro of the schema: {error}"
        if end < len(payload):
            return None, "no Avro of the schema: there are bytes behind the record"
        return value, None

    return read, kind.arrow


def _record_of(schema: str) -> _Kind:
    try:
        from fastavro.schema import SchemaParseException, parse_schema  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Avro payloads need fastavro: pip install 'shardfleet[spark]'"
        ) from error
    try:
        parsed = parse_schema(read_json(schema))
        found = _kind_of(parsed, "payload", named={})
    except RecursionError as error:
        raise NoAvroRecord("payload schema: it is nested too deep to be read") from error
    except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException) as error:
        raise NoAvroRecord(
            f"payload schema {schema[:_SHOWN]!r} is no Avro schema: {error}"
        ) from error
    if not isinstance(found.spark, StructType):
        raise NoAvroRecord(
            f"payload schema {schema[:_SHOWN]!r}: an Avro record is needed at the top"
        )
    return found


# --- what takes no other type in itself


def _long(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follow
            break
        shift += 7
        if shift == 7 * _NUMBER_BYTES_MOST:
            raise ValueError("a number of more than 64 bits")
    if number >> 64:
        raise ValueError("a number of more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def _within(allowed: range, name: str, *, times: int = 1) -> _Read:
    def read(data: bytes, at: int) -> tuple[int, int]:
        number, at = _long(data, at)
        if number * times not in allowed:
            raise ValueError(f"{number} is beyond {name}")
        return number * times, at

    return read


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise ValueError(f"{data[at]} is no boolean: 0 and 1 are")
    return data[at] == 1, at + 1


def _unpacked(layout: struct.Struct) -> _Read:
    def read(data: bytes, at: int) -> tuple[float, int]:
        return layout.unpack_from(data, at)[0], at + layout.size

    return read


def _cut(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if size < 0:
        raise ValueError(f"a length of {size}")
    if end > len(data):
        raise IndexError
    return data[at:end], end


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    return _cut(data, at, size)


def _text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    return found.decode(), at


def _uuid(data: bytes, at: int) -> tuple[str, int]:
    found, at = _text(data, at)
    return str(UUID(found)), at


def _decimal(read_bytes: _Read, precision: int, scale: int) -> _Read:
    exact = Context(prec=precision)

    def read(data: bytes, at: int) -> tuple[Decimal, int]:
        found, at = read_bytes(data, at)
        unscaled = int.from_bytes(found, "big", signed=True)
        if abs(unscaled) >= 10**precision:
            raise ValueError(f"a decimal of more than {precision} digits")
        return exact.scaleb(Decimal(unscaled), -scale), at

    return read


_INT = _Kind(IntegerType(), pa.int32(), _within(range(-(2**31), 2**31), "an int"), 1)
_BYTES = _Kind(BinaryType(), pa.binary(), _bytes, 1)
_UTC = pa.timestamp("us", tz="UTC")
_PLAIN: Mapping[str, _Kind] = {
    "boolean": _Kind(BooleanType(), pa.bool_(), _boolean, 1),
    "int": _INT,
    "long": _Kind(LongType(), pa.int64(), _long, 1),
    "float": _Kind(FloatType(), pa.float32(), _unpacked(struct.Struct("<f")), 4),
    "double": _Kind(DoubleType(), pa.float64(), _unpacked(struct.Struct("<d")), 8),
    "bytes": _BYTES,
    "string": _Kind(StringType(), pa.string(), _text, 1),
}
# By the specification a logical type on another type than its own is passed over.
_LOGICAL: Mapping[tuple[str, str], _Kind] = {
    ("int", "date"): _Kind(DateType(), pa.date32(), _within(_DAYS, "the years 1 to 9999"), 1),
    ("long", "timestamp-millis"): _Kind(
        TimestampType(), _UTC, _within(_MICROS, "the years 1 to 9999", times=1_000), 1
    ),
    ("long", "timestamp-micros"): _Kind(
        TimestampType(), _UTC, _within(_MICROS, "the years 1 to 9999"), 1
    ),
    ("string", "uuid"): _Kind(StringType(), pa.string(), _uuid, 1),
}


# --- the schema


def _kind_of(schema: Any, path: str, *, named: dict[str, _Kind]) -> _Kind:
    if isinstance(schema, list):
        return _union_of(schema, path, named=named)
    if isinstance(schema, str):
        found = named.get(schema) or _PLAIN.get(schema)
        if found is None:
            raise ConfigurationError(f"{path}: Avro type {schema} has no column type in Spark")
        return found
    found = _complex_of(schema, path, named=named)
    if schema.get("logicalType") == "decimal" and isinstance(found.spark, BinaryType):
        found = _decimal_of(schema, found, path)
    if "name" in schema:
        named[schema["name"]] = found  # A later field may name it instead of repeating it.
    return found


def _complex_of(schema: Mapping[str, Any], path: str, *, named: dict[str, _Kind]) -> _Kind:
    match schema["type"]:
        case "array":
            return _array_of(_kind_of(schema["items"], f"{path}[]", named=named), path)
        case "map":
            return _map_of(_kind_of(schema["values"], f"{path}{{}}", named=named))
        case "record":
            return _fields_of(schema["fields"], path, named=named)
        case "enum":
            return _enum_of(schema["symbols"])
        case "fixed":
            return _fixed_of(schema["size"], path)
        case base:
            logical = _LOGICAL.get((base, schema.get("logicalType", "")))
            return logical or _kind_of(base, path, named=named)


def _union_of(branches: Sequence[Any], path: str, *, named: dict[str, _Kind]) -> _Kind:
    some = [each for each in branches if each != "null"]
    if len(some) != 1:
        raise ConfigurationError(
            f"{path}: a union of {len(some)} types has no column type in Spark; one type and "
            "null are allowed"
        )
    kind = _kind_of(some[0], path, named=named)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise ValueError(f"branch {index} of a union of {len(branches)}")
        return (None, at) if branches[index] == "null" else kind.read(data, at)

    return _Kind(kind.spark, kind.arrow, read, 1, kind.types)


def _fields_of(fields: Sequence[Mapping[str, Any]], path: str, *, named: dict[str, _Kind]) -> _Kind:
    kinds: dict[str, _Kind] = {}
    for field in fields:
        name = field["name"]
        if name in kinds:
            raise ConfigurationError(f"{path}: field {name} twice; an Avro record has it once")
        kinds[name] = _kind_of(field["type"], f"{path}.{name}", named=named)
    types = 1 + sum(kind.types for kind in kinds.values())
    if types > _TYPES_MOST:
        raise ConfigurationError(f"{path}: more than {_TYPES_MOST} types, written out")
    reads = [(name, kind.read) for name, kind in kinds.items()]

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        row = {}
        for name, each in reads:
            row[name], at = each(data, at)
        return row, at

    return _Kind(
        StructType([StructField(name, kind.spark) for name, kind in kinds.items()]),
        pa.struct([(name, kind.arrow) for name, kind in kinds.items()]),
        read,
        sum(kind.bytes_least for kind in kinds.values()),
        types,
    )


def _blocks(data: bytes, at: int, item: _Read) -> tuple[list[Any], int]:
    """Read what arrays and maps have in common: blocks of items, the last one empty."""
    items: list[Any] = []
    while True:
        count, at = _long(data, at)
        if count == 0:
            return items, at
        end = None
        if count < 0:  # The block's size in bytes follows.
            size, at = _long(data, at)
            count, end = -count, at + size
        for _ in range(count):  # Each takes a byte at least: the data ends in time.
            each, at = item(data, at)
            items.append(each)
        if end not in (None, at):
            raise ValueError("a block of another size than it says")


def _array_of(item: _Kind, path: str) -> _Kind:
    if not item.bytes_least:
        raise ConfigurationError(
            f"{path}[]: items that take no bytes; one payload could announce billions of them"
        )
    return _Kind(
        ArrayType(item.spark),
        pa.list_(item.arrow),
        lambda data, at: _blocks(data, at, item.read),
        1,
        item.types,
    )


def _map_of(value: _Kind) -> _Kind:
    def entry(data: bytes, at: int) -> tuple[tuple[str, Any], int]:
        key, at = _text(data, at)
        found, at = value.read(data, at)
        return (key, found), at

    def read(data: bytes, at: int) -> tuple[list[tuple[str, Any]], int]:
        entries, at = _blocks(data, at, entry)
        return list(dict(entries).items()), at  # Of a key that is there twice the last one counts.

    spark, arrow = MapType(StringType(), value.spark), pa.map_(pa.string(), value.arrow)
    return _Kind(spark, arrow, read, 1, value.types)


def _enum_of(symbols: Sequence[str]) -> _Kind:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = _long(data, at)
        if not 0 <= index < len(symbols):
            raise ValueError(f"symbol {index} of an enum of {len(symbols)}")
        return symbols[index], at

    return _Kind(StringType(), pa.string(), read, 1)


def _fixed_of(size: Any, path: str) -> _Kind:
    if not isinstance(size, int) or size < 0:
        raise ConfigurationError(f"{path}: a fixed of {size!r} bytes; 0 and more are allowed")
    return _Kind(BinaryType(), pa.binary(), lambda data, at: _cut(data, at, size), size)


def _decimal_of(schema: Mapping[str, Any], stored: _Kind, path: str) -> _Kind:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not 1 <= precision <= _DIGITS_MOST:
        raise ConfigurationError(
            f"{path}: a decimal of precision {precision!r}; 1 to {_DIGITS_MOST} are allowed"
        )
    return _Kind(
        DecimalType(precision, scale),
        pa.decimal128(precision, scale),
        _decimal(stored.read, precision, scale),
        stored.bytes_least,
    )
