"""
Merging by key: of each key a table keeps the newest row that it was given.

The newest row has the greatest sequence number, then sub-sequence number, then `payload_index` if
there is one. A row replaces one of the table only if it is newer, so a micro-batch that is merged
again changes nothing, and an older row that comes late changes nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NUMBER, _SUB, _INDEX = "sequence_number", "sub_sequence_number", "payload_index"
_ROWS, _NEW, _OLD = "shardfleet_rows", "new", "old"


def check_merge(columns: Sequence[str], keys: Sequence[str]) -> None:
    """
    Refuse rows that cannot be merged.

    Raises:
        ConfigurationError: a key is none of the columns, or nothing tells which row is newer.

    """
    missing = [name for name in (*keys, _NUMBER, _SUB) if name not in columns]
    if missing:
        raise ConfigurationError(
            f"merge key {','.join(keys)}: the rows have no column {', '.join(missing)}; the "
            f"columns of the key are needed, and {_NUMBER} and {_SUB}, which tell the newest "
            f"row; there are {', '.join(columns)}"
        )


def newest_rows(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return of each key its newest row."""
    order = sf.expr(_order("", rows.columns))
    whole = sf.struct(*(sf.col(quoted(name)) for name in rows.columns))
    found = rows.groupBy(*(sf.col(quoted(name)) for name in keys)).agg(
        sf.max_by(whole, order).alias(_NEW)
    )
    return found.select(f"{_NEW}.*")


def merge(rows: DataFrame, table: str, keys: Sequence[str]) -> None:
    """
    Merge rows into a table that has all of their columns, in one commit.

    Args:
        rows: what is new.
        table: its name in SQL.
        keys: columns that tell rows apart; null is a value like others.

    """
    # A merge reads its rows twice: once they are found, they are kept.
    newest = newest_rows(rows, keys).persist()
    try:
        newest.createOrReplaceTempView(_ROWS)
        newest.sparkSession.sql(merge_statement(table, rows.columns, keys))
    finally:
        newest.unpersist()


def merge_statement(table: str, columns: Sequence[str], keys: Sequence[str]) -> str:
    """Return the statement that merges the rows."""
    same = " AND ".join(f"{_OLD}.{quoted(key)} <=> {_NEW}.{quoted(key)}" for key in keys)
    is_newer = f"{_order(_NEW, columns)} > {_order(_OLD, columns)}"
    names = [quoted(name) for name in columns]
    changes = ", ".join(f"{_OLD}.{name} = {_NEW}.{name}" for name in names)
    values = ", ".join(f"{_NEW}.{name}" for name in names)
    return (  # Every name in it is quoted.
        f"MERGE INTO {table} AS {_OLD} USING {_ROWS} AS {_NEW} ON {same} "  # noqa: S608
        f"WHEN MATCHED AND {is_newer} THEN UPDATE SET {changes} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )


def _order(side: str, columns: Sequence[str]) -> str:
    """Return what orders rows: numbers of up to 56 digits by length, then as text."""
    at = f"{side}." if side else ""
    parts = [f"length({at}{_NUMBER})", f"{at}{_NUMBER}", f"{at}{_SUB}"]
    if _INDEX in columns:
        parts.append(f"{at}{_INDEX}")
    return f"struct({', '.join(parts)})"


def quoted(name: str) -> str:
    """Return a name as SQL takes any."""
    return f"`{name.replace('`', '``')}`"
