"""
Payloads into columns: JSON, CSV or Avro, with a column that says what is wrong with a bad one.

    parsed = parse_payload(df, "origin string, delay int", kind="json")
    good = parsed.where("bad_record is null").select("partition_key", "payload.*")

A payload that does not fit never fails the batch: its ``payload`` is null, ``bad_record`` says
why, and ``data`` is still there. A field that the schema has and a JSON payload has not is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, StringType, StructType

from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KINDS = ("json", "csv", "avro")
PAYLOAD, BAD = "payload", "bad_record"

_CORRUPT = "_shardfleet_corrupt"
_SHOWN = 200


def parse_payload(
    df: DataFrame,
    schema: str | StructType,
    *,
    kind: str = "json",
    column: str = "data",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """
    Add the columns ``payload`` (a struct of the schema) and ``bad_record`` (text, null if fine).

    Args:
        df: has the column.
        schema: of the payload: DDL (``"origin string, delay int"``) or a ``StructType``; for Avro
            the writer's schema in Avro's own JSON.
        kind: ``json`` (one object and nothing behind it), ``csv`` (one row) or ``avro`` (one binary
            record, without a container file's header).
        column: with the payload, binary or text.
        options: of Spark's JSON or CSV reader, for example ``{"timestampFormat": "yyyy/MM/dd"}``.

    Raises:
        ConfigurationError: the kind is unknown, or the schema is none.

    """
    if kind not in KINDS:
        raise ConfigurationError(f"payload kind {kind!r}: {', '.join(KINDS)} are known")
    if kind == "avro":
        from shardfleet_spark.payload.avro_payload import parse_avro  # noqa: PLC0415 - needs fastavro

        return parse_avro(df, schema if isinstance(schema, str) else schema.json(), column=column)
    wanted = struct_of(schema)
    with_corrupt = StructType([*wanted.fields]).add(_CORRUPT, StringType())
    settings = {
        **(options or {}),
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _CORRUPT,
    }
    text = sf.col(column).cast("string")
    read = sf.from_json if kind == "json" else _from_csv
    parsed = df.withColumn(_CORRUPT, read(text, with_corrupt, settings))
    problem = _problem(kind, text, parsed=sf.col(_CORRUPT), options=options or {})
    fields = [sf.col(_CORRUPT).getField(field.name).alias(field.name) for field in wanted.fields]
    return (
        parsed.withColumn(BAD, problem)
        .withColumn(PAYLOAD, sf.when(sf.col(BAD).isNull(), sf.struct(*fields)))
        .drop(_CORRUPT)
    )


def struct_of(schema: str | StructType) -> StructType:
    """
    Return a schema given as DDL or as it is.

    Raises:
        ConfigurationError: it is no DDL of a table.

    """
    if isinstance(schema, StructType):
        return schema
    try:
        found = DataType.fromDDL(schema)
    except ParseException as error:
        raise ConfigurationError(
            f"payload schema {schema[:_SHOWN]!r} is no list of columns and types such as "
            f"'origin string, delay int': {str(error).strip().splitlines()[0]}"
        ) from error
    if not isinstance(found, StructType):
        raise ConfigurationError(
            f"payload schema {schema[:_SHOWN]!r}: columns and types are needed, such as "
            "'origin string, delay int'"
        )
    return found


def _from_csv(text: Column, schema: StructType, options: Mapping[str, str]) -> Column:
    return sf.from_csv(text, schema.toDDL(), dict(options))


def _problem(kind: str, text: Column, *, parsed: Column, options: Mapping[str, str]) -> Column:
    shown = sf.substring(text, 1, _SHOWN)
    misfit = sf.concat(sf.lit(f"no {kind.upper()} of the schema: "), shown)
    found = (
        sf.when(text.isNull(), sf.lit("there is no data"))
        .when(~sf.is_valid_utf8(text), sf.lit("the data is no UTF-8"))
        .when(parsed.isNull() | parsed.getField(_CORRUPT).isNotNull(), misfit)
    )
    if kind == "json":
        alone = _is_one_json_value(text, options)
        found = found.when(~alone, sf.concat(sf.lit("not one JSON value alone: "), shown))
    return found.otherwise(sf.lit(None).cast("string"))


def _is_one_json_value(text: Column, options: Mapping[str, str]) -> Column:
    """
    Tell whether a text is one JSON value: Spark reads the first one, and passes over the rest.

    It is, if it and a mark are the two elements of an array. No text can have the mark, its own
    digest, in it to close the array early. The line break ends a comment, where options allow it.
    """
    mark = sf.md5(text)
    array = sf.concat(sf.lit("["), text, sf.lit('\n,"'), mark, sf.lit('"]'))
    settings = {**options, "mode": "PERMISSIVE"}
    found = sf.from_json(array, ArrayType(StringType()), settings)
    return sf.coalesce((sf.size(found) == 2) & (sf.get(found, sf.lit(1)) == mark), sf.lit(False))  # noqa: FBT003, PLR2004
