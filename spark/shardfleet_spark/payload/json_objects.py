"""
Records of several JSON objects, back to back or each on a line of its own: a row for each.

A row has its object alone as data, not the record's: a megabyte of small objects would else be
a hundred thousand megabytes. A record that holds anything but whole objects, with white space
around them, stays one row, with what is wrong: which of its objects are sound, nobody can tell.
Where an object ends is told by RFC 8259; whether it fits the schema is asked later.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INDEX = "payload_index"
UNSPLIT = "_shardfleet_unsplit"

_SPACE = " \t\n\r"
_SPACES = re.compile(f"[{_SPACE}]*")
# Only the ends are wanted: a number of a million digits would take long, or be refused.
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)
_ROWS_MOST = 10_000  # Of an Arrow batch: each repeats its record's other columns.
_SHOWN = 200


def split_objects(df: DataFrame, *, column: str) -> DataFrame:
    """
    Give each JSON object of a record a row of its own.

    Args:
        df: has the column.
        column: with the record's data, binary or text; then with the object's.

    Returns:
        The table with ``payload_index``, the object's place in its record from 0, and a column
        that says why a record stays as it is (null: it is an object).

    Raises:
        ConfigurationError: there is no such column, or it is of another type.

    """
    if column not in df.columns:
        raise ConfigurationError(
            f"payload column {column}: the table has {', '.join(df.columns)}; name one of them"
        )
    kind = df.schema[column].dataType
    if not isinstance(kind, BinaryType | StringType):
        raise ConfigurationError(
            f"payload column {column} is of type {kind.simpleString()}: binary and string are "
            "allowed"
        )
    added = [StructField(INDEX, IntegerType()), StructField(UNSPLIT, StringType())]

    def split(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from _split(batch, column)

    return df.mapInArrow(split, StructType([*df.schema.fields, *added]))


def ends_of_objects(text: str) -> array[int]:
    """
    Return where the JSON objects of a text end, each with the white space behind it.

    Raises:
        ValueError: there is none, or something else than whole objects; says where.

    """
    ends = array("q")
    at = _behind_spaces(text, 0)
    while at < len(text):
        try:
            if text[at] != "{":
                raise ValueError
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            shown = text[at : at + _SHOWN]
            raise ValueError(
                f"no JSON object at character {at}, behind {len(ends)}: {shown}"
            ) from None
        at = _behind_spaces(text, end)
        ends.append(at)
    if not ends:
        raise ValueError("there is no JSON object")
    return ends


def _behind_spaces(text: str, at: int) -> int:
    found = _SPACES.match(text, at)
    assert found is not None
    return found.end()


def _split(batch: pa.RecordBatch, column: str) -> Iterator[pa.RecordBatch]:
    objects = _objects(batch.column(column).cast(pa.binary()).to_pylist())
    kind = batch.schema.field(column).type
    while chunk := list(islice(objects, _ROWS_MOST)):
        records, places, data, problems = zip(*chunk, strict=True)
        taken = pa.array(records, pa.int64())
        columns = [
            pa.array(data, pa.binary()).cast(kind)
            if name == column  # Taken like the others it would be each record once per object.
            else batch.column(name).take(taken)
            for name in batch.schema.names
        ]
        columns += [pa.array(places, pa.int32()), pa.array(problems, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names, INDEX, UNSPLIT])


def _objects(
    records: Iterable[bytes | None],
) -> Iterator[tuple[int, int, bytes | None, str | None]]:
    """Yield record, place in it, data and what is wrong, for each row that there will be."""
    for number, record in enumerate(records):
        if record is None:
            yield number, 0, None, "there is no data"
            continue
        try:
            text = record.decode()
            ends = ends_of_objects(text)
        except UnicodeDecodeError:
            yield number, 0, record, "the data is no UTF-8"
        except ValueError as error:
            yield number, 0, record, str(error)
        else:
            start = 0
            for place, end in enumerate(ends):
                yield number, place, text[start:end].strip(_SPACE).encode(), None
                start = end
