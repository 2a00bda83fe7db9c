"""
Avro payloads: one binary record each, without a container's header, in the writer's schema.

fastavro reads them, in the tasks; Spark's own `from_avro` needs a package that is not part of its
distribution, and fails the batch or says nothing about a bad record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLAIN: Mapping[str, DataType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Mapping[str, DataType] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}
_ARROW: Mapping[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    BinaryType: pa.binary(),
    StringType: pa.string(),
    DateType: pa.date32(),
    TimestampType: pa.timestamp("us", tz="UTC"),
}
_SHOWN = 200


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
    return df.mapInArrow(_reader(schema, fields, column=column), wanted)


def struct_of_avro(schema: str) -> StructType:
    """
    Return the Spark type of an Avro record.

    Raises:
        ConfigurationError: it is no Avro schema, no record, or has a type that Spark cannot hold.

    """
    try:
        from fastavro.schema import SchemaParseException, parse_schema  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "Avro payloads need fastavro: pip install 'shardfleet[spark]'"
        ) from error
    try:
        parsed = parse_schema(json.loads(schema))
    except (ValueError, KeyError, TypeError, AttributeError, SchemaParseException) as error:
        raise ConfigurationError(
            f"payload schema {schema[:_SHOWN]!r} is no Avro schema: {error}"
        ) from error
    found = _type_of(parsed, "payload", named={})
    if not isinstance(found, StructType):
        raise ConfigurationError(
            f"payload schema {schema[:_SHOWN]!r}: an Avro record is needed at the top"
        )
    return found


def _type_of(schema: Any, path: str, *, named: dict[str, DataType]) -> DataType:
    if isinstance(schema, list):
        some = [each for each in schema if each != "null"]
        if len(some) != 1:
            raise ConfigurationError(
                f"{path}: a union of {len(some)} types has no column type in Spark; one type and "
                "null are allowed"
            )
        return _type_of(some[0], path, named=named)
    if isinstance(schema, str):
        found = named.get(schema) or _PLAIN.get(schema)
        if found is None:
            raise ConfigurationError(f"{path}: Avro type {schema} has no column type in Spark")
        return found
    logical = schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    return _complex_type_of(schema, path, named=named)


def _complex_type_of(
    schema: Mapping[str, Any], path: str, *, named: dict[str, DataType]
) -> DataType:
    kind = schema["type"]
    if kind == "array":
        return ArrayType(_type_of(schema["items"], f"{path}[]", named=named))
    if kind == "map":
        return MapType(StringType(), _type_of(schema["values"], f"{path}{{}}", named=named))
    if kind != "record":
        found = _type_of(kind, path, named=named)
    else:
        found = StructType(
            [
                StructField(
                    field["name"], _type_of(field["type"], f"{path}.{field['name']}", named=named)
                )
                for field in schema["fields"]
            ]
        )
    if "name" in schema:
        named[schema["name"]] = found  # A later field may name it instead of repeating it.
    return found


def _reader(
    schema: str, fields: StructType, *, column: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that reads a task's payloads."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415

        parsed = parse_schema(json.loads(schema))
        kind = _arrow_of(fields)

        def one(data: bytes | None) -> tuple[Any, str | None]:
            if data is None:
                return None, "there is no data"
            source = io.BytesIO(data)
            try:
                value = schemaless_reader(source, parsed, None)
            except Exception as error:  # noqa: BLE001 - whatever the bytes make the reader raise
                return None, f"no Avro of the schema: {type(error).__name__}: {error}"
            if source.read(1):
                return None, "no Avro of the schema: there are bytes behind the record"
            return value, None

        for batch in batches:
            results = [one(data) for data in batch.column(column).to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [
                    *batch.columns,
                    pa.array([problem for _, problem in results], pa.string()),
                    pa.array([_plain(value) for value, _ in results], kind),
                ],
                names=[*batch.schema.names, "bad_record", "payload"],
            )

    return read


def _arrow_of(found: DataType) -> pa.DataType:
    """Return the Arrow type of a column type; pyspark's own has another signature each year."""
    match found:
        case StructType():
            return pa.struct([(field.name, _arrow_of(field.dataType)) for field in found.fields])
        case ArrayType():
            return pa.list_(_arrow_of(found.elementType))
        case MapType():
            return pa.map_(pa.string(), _arrow_of(found.valueType))
        case DecimalType():
            return pa.decimal128(found.precision, found.scale)
        case _:
            return _ARROW[type(found)]


def _plain(value: Any) -> Any:
    """Replace what Arrow does not take: UUIDs by their text."""
    match value:
        case UUID():
            return str(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list():
            return [_plain(each) for each in value]
        case _:
            return value
