"""
Payloads into columns: JSON, CSV or Avro, with a column that says what is wrong with a bad one.

    parsed = parse_payload(df, "origin string, delay int", kind="json")
    good = parsed.where("bad_record is null").select("partition_key", "payload.*")

A payload that does not fit never fails the batch: its ``payload`` is null, ``bad_record`` says
why, and ``data`` is still there. A field that the schema has and a JSON payload has not is null.
A CSV text with as many separators as ``maxColumns`` (20,480), quoted or not, is bad. The options
``mode``, ``columnNameOfCorruptRecord`` and ``maxCharsPerColumn`` have no effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.errors import ParseException
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.json_objects import UNSPLIT, split_objects
from shardfleet_spark.payload.kinds import KINDS, NDJSON, REGISTERED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAYLOAD, BAD = "payload", "bad_record"

_CORRUPT = "_shardfleet_corrupt"
# By RFC 8259 NaN, Infinity and "Infinity" in quotes are no numbers (6), and only what is in double
# quotes is a text (7); an option may allow them again. Names in small letters: Spark reads any.
_STRICT = {"allownonnumericnumbers": "false", "allowsinglequotes": "false"}
# A longer column than somebody allows would fail the batch, with the record in the error's text.
_FIXED = {"mode": "PERMISSIVE", "columnnameofcorruptrecord": _CORRUPT, "maxcharspercolumn": "-1"}
_CSV_COLUMNS_MOST = 20_480  # Spark's default of maxColumns; one more fails the batch likewise.
# In a schema's JSON: the types whose texts are read before they become values.
_NO_TEXT = re.compile(r'(?<=ype":)"(?:decimal\([^"]*\)|timestamp(?:_ntz)?|byte)"')
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
            the writer's schema in Avro's own JSON, or its id where there is a registry.
        kind: ``json`` (one object as RFC 8259 has it, nothing behind it), ``ndjson`` (objects
            behind each other, with line breaks or without: a row for each, see
            :mod:`shardfleet_spark.payload.json_objects`), ``csv`` (one row, nothing behind it) or
            ``avro`` (one binary record, without a container file's header), ``avro-confluent`` or
            ``avro-glue`` (the same in a registry's frame, see
            :mod:`shardfleet_spark.payload.registered`).
        column: with the payload, binary or text.
        options: of Spark's JSON or CSV reader, for example ``{"timestampFormat": "yyyy/MM/dd"}``,
            or of the registry.

    Raises:
        ConfigurationError: the kind is unknown, the schema is none, or a column or an option is
            none that ``ndjson`` can do with.

    """
    if kind not in KINDS:
        raise ConfigurationError(f"payload kind {kind!r}: {', '.join(KINDS)} are known")
    if kind == "avro":
        from shardfleet_spark.payload.avro_payload import parse_avro  # noqa: PLC0415 - needs fastavro

        return parse_avro(df, schema if isinstance(schema, str) else schema.json(), column=column)
    if kind in REGISTERED:
        from shardfleet_spark.payload.registered import parse_registered  # noqa: PLC0415 - as above

        text = schema if isinstance(schema, str) else schema.json()
        return parse_registered(df, text, kind=kind, column=column, options=options or {})
    wanted = struct_of(schema)
    if kind == NDJSON:
        return _parse_objects(df, wanted, column=column, options=options or {})
    return _parse_text(df, wanted, kind=kind, column=column, options=options or {})


def _parse_text(
    df: DataFrame, wanted: StructType, *, kind: str, column: str, options: Mapping[str, str]
) -> DataFrame:
    with_corrupt = StructType([*wanted.fields]).add(_CORRUPT, StringType())
    settings = _settings(kind, options)
    text = sf.col(column).cast("string")

    def read(schema: StructType, only: Column) -> Column:
        chosen = sf.when(only, text)  # What is not read is null, which costs nothing.
        if kind == "json":
            return sf.from_json(chosen, schema, settings)
        fits = sf.when(~_has_too_many_columns(text, settings), chosen)
        return sf.from_csv(fits, schema.toDDL(), settings)

    parsed = df.withColumn(_CORRUPT, read(with_corrupt, ~_beyond(text, wanted, read)))
    problem = _problem(kind, text, parsed=sf.col(_CORRUPT), options=settings)
    fields = [sf.col(_CORRUPT).getField(field.name).alias(field.name) for field in wanted.fields]
    return (
        parsed.withColumn(BAD, problem)
        .withColumn(PAYLOAD, sf.when(sf.col(BAD).isNull(), sf.struct(*fields)))
        .drop(_CORRUPT)
    )


def _parse_objects(
    df: DataFrame, wanted: StructType, *, column: str, options: Mapping[str, str]
) -> DataFrame:
    for name, value in options.items():
        if name.lower().startswith("allow") and value.lower() != "false":
            raise ConfigurationError(
                f"payload option {name}: {NDJSON} tells by RFC 8259 where an object ends, and "
                "nothing else is allowed; leave it out, or use kind json with one object a record"
            )
    objects = split_objects(df, column=column)
    parsed = _parse_text(objects, wanted, kind="json", column=column, options=options)
    unsplit = sf.col(UNSPLIT)
    return (
        parsed.withColumn(BAD, sf.coalesce(unsplit, sf.col(BAD)))
        .withColumn(PAYLOAD, sf.when(unsplit.isNull(), sf.col(PAYLOAD)))
        .drop(UNSPLIT)
    )


def _settings(kind: str, options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    return {**(_STRICT if kind == "json" else {}), **given, **_FIXED}


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


def _beyond(
    text: Column, wanted: StructType, read: Callable[[StructType, Column], Column]
) -> Column:
    """
    Return whether a text has a number that its column cannot hold, and Spark does not refuse.

    Such a number becomes Infinity, wraps around as seconds or as a byte, or takes minutes to be
    fitted into a decimal. A text with a long number is read once before, with decimals, times and
    bytes as text, which takes any number at once; the others cannot have one.
    """
    as_text = _NO_TEXT.sub('"string"', wanted.json())
    # No float of fewer digits is infinite, no time of fewer seconds and no byte wraps around.
    digits = 3 if '"byte"' in wanted.json() else 13 if '"timestamp' in wanted.json() else 38
    suspect = text.rlike(rf"[eE][+-]?[0-9]{{2}}|[0-9.]{{{digits}}}")
    with_corrupt = StructType.fromJson(json.loads(as_text)).add(_CORRUPT, StringType())
    found = read(with_corrupt, suspect)
    unread = found.isNull() | found.getField(_CORRUPT).isNotNull()
    return suspect & (unread | _anywhere(found, wanted, text))


def _anywhere(value: Column, kind: DataType, text: Column) -> Column:
    """Return whether a value, or one in it, is beyond what its column can hold; never null."""
    match kind:
        case StructType():
            fields = [_anywhere(value.getField(each.name), each.dataType, text) for each in kind]
            found = reduce(or_, fields, sf.lit(False))  # noqa: FBT003
        case ArrayType():
            found = sf.exists(value, lambda each: _anywhere(each, kind.elementType, text))
        case MapType():
            found = _anywhere(sf.map_values(value), ArrayType(kind.valueType), text)
        case FloatType() | DoubleType():
            found = sf.abs(value) == float("inf")
        case ByteType():
            found = value.try_cast("int") >= 2**7  # Jackson takes 255 for a byte, Spark for -1.
        case DecimalType():
            found = value.rlike(r'[eE][+-]?0*+[0-9]{4}|"-?Infinity"')
        case TimestampType() | TimestampNTZType():
            found = value.rlike(r"^-?[0-9]{13}")
        case StringType():
            # What Spark writes for a number without a limit, or a text that was there.
            found = value.rlike(r'"-?Infinity"') & _has_infinite_digits(text)
        case _:
            found = sf.lit(False)  # noqa: FBT003
    return sf.coalesce(found, sf.lit(False))  # noqa: FBT003


def _has_infinite_digits(text: Column) -> Column:
    """Return whether what looks like a number, even in a text, is without a limit as a double."""
    digits = sf.regexp_extract_all(text, sf.lit(r"[0-9][0-9.eE+-]*+"), sf.lit(0))
    return sf.exists(digits, lambda each: each.try_cast("double") == float("inf"))


def _has_too_many_columns(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether a CSV text may have more columns than Spark reads: the quoted ones count."""
    separator = options.get("sep") or options.get("delimiter") or ","
    if separator.startswith("\\"):
        separator = separator.encode().decode("unicode_escape")
    without = sf.replace(text, sf.lit(separator), sf.lit(""))
    count = (sf.length(text) - sf.length(without)) / len(separator)
    most = int(options.get("maxcolumns", _CSV_COLUMNS_MOST))
    return (sf.length(text) >= most) & (count >= most)


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
        found = found.when(
            _has_half_a_character(text), sf.concat(sf.lit("half of a surrogate pair: "), shown)
        )
    else:
        found = found.when(
            _has_rows_behind(text, options), sf.concat(sf.lit("not one CSV row alone: "), shown)
        )
    return found.otherwise(sf.lit(None).cast("string"))


def _is_one_json_value(text: Column, options: Mapping[str, str]) -> Column:
    """
    Return whether a text is one JSON value: Spark reads the first one and ignores the rest.

    It is, if it and a mark are the two elements of an array. No text can have the mark, its own
    digest, in it to close the array early. The line break ends a comment, where options allow it.
    """
    mark = sf.md5(text)
    array = sf.concat(sf.lit("["), text, sf.lit('\n,"'), mark, sf.lit('"]'))
    settings = {**options, "mode": "PERMISSIVE"}
    found = sf.from_json(array, ArrayType(StringType()), settings)
    return sf.coalesce((sf.size(found) == 2) & (sf.get(found, sf.lit(1)) == mark), sf.lit(False))  # noqa: FBT003, PLR2004


def _has_half_a_character(text: Column) -> Column:
    """Return whether a JSON text escapes half of a surrogate pair, which Spark replaces by "?"."""
    escapes = sf.regexp_replace(text, r"\\\\", " ")  # What is left of \u begins an escape.
    pair = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    halves = sf.regexp_replace(escapes, pair, " ").rlike(r"\\u[dD][89a-fA-F]")
    return sf.when(text.contains("\\u"), halves).otherwise(sf.lit(False))  # noqa: FBT003


def _has_rows_behind(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether a CSV text goes on behind its first row, which is all that Spark reads."""
    quote = re.escape(options.get("quote") or '"')
    plain = sf.regexp_replace(text, r"\\.", "")
    bare = sf.regexp_replace(plain, f"{quote}[^{quote}]*+{quote}", "x")
    return bare.rlike(r"\S\s*[\r\n]\s*\S")
