"""The columns of the source, in order: names and Spark SQL types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TYPES = {
    "data": "binary",
    "partition_key": "string",
    "explicit_hash_key": "string",
    "sequence_number": "string",
    "sub_sequence_number": "bigint",
    "shard_id": "string",
    "approximate_arrival_timestamp": "timestamp",
    "stream": "string",
    "encryption_type": "string",
}
"""
Column to type.

``sequence_number`` is decimal text of up to 56 digits; ``sub_sequence_number`` is the index inside
a KPL aggregate, 0 for a plain record; together they name a record of a shard. ``stream`` is the
stream's name. ``explicit_hash_key`` is null when the producer gave none, ``encryption_type`` and
``approximate_arrival_timestamp`` when the service did not say.
"""

COLUMNS = tuple(TYPES)
"""All columns, in order."""


def schema_of(columns: Sequence[str]) -> StructType:
    """
    Return the schema of some columns, or of all if none is named.

    Not as text, in which ``timestamp`` is what a session's ``spark.sql.timestampType`` says.
    """
    from pyspark.sql import types  # noqa: PLC0415 - who only checks options has no Spark

    of = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
    }
    schema = types.StructType()
    for name in columns or COLUMNS:
        schema.add(name, of[TYPES[name]])
    return schema
