"""
Rows for a sink: made from any table, checked, and laid so that one task owns a shard.

    from shardfleet_spark.sink.by_shard import as_records, by_shard

    rows = as_records(counts, data=to_json(struct("*")), partition_key="origin")
    by_shard(rows, {"stream": "counts"}).write.format("shardfleet")…

A task that owns its shards keeps their pace by itself, holds back nobody else's rows when one of
them is throttled, and fills aggregates best. The rows are checked before the shuffle, so that a
row which Kinesis would refuse fails the batch (or is diverted) before anything of it is sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from shardfleet.domain.stream.shards import Shard
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet_spark.host.session import tasks_at_once
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.sink.diverted_rows import write_diverted
from shardfleet_spark.sink.row_checks import (
    DATA,
    HASH_KEY,
    PARTITION_KEY,
    RECORD_ID,
    BadRow,
    check_columns,
)
from shardfleet_spark.sink.sink import check_batches, stop_at_bad
from shardfleet_spark.sink.sink_session import open_shards
from shardfleet_spark.sink.task_place import task_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TASK = "shardfleet_task"
_KEYS_REMEMBERED = 65_536
_32_BITS = 0xFFFFFFFF
_SEED = 42


def as_records(
    df: DataFrame,
    *,
    data: str | Column,
    partition_key: str | Column,
    explicit_hash_key: str | Column | None = None,
    record_id: str | Column | None = None,
) -> DataFrame:
    """
    Select what a sink takes.

    Args:
        df: any table.
        data: column or expression: binary, or text that becomes UTF-8.
        partition_key: column or expression; made text.
        explicit_hash_key: column or expression; made text; null: the partition key decides.
        record_id: column or expression; made text; for the option ``recordId`` = ``column``.

    """
    wanted = {
        DATA: _column(data),
        PARTITION_KEY: _column(partition_key).cast("string"),
        HASH_KEY: None if explicit_hash_key is None else _column(explicit_hash_key).cast("string"),
        RECORD_ID: None if record_id is None else _column(record_id).cast("string"),
    }
    return df.select(*(column.alias(name) for name, column in wanted.items() if column is not None))


def by_shard(df: DataFrame, options: Mapping[str, str], *, tasks: int | None = None) -> DataFrame:
    """
    Check rows, and move those of one shard into one partition.

    The shards are listed now: of a streaming query once, in ``foreachBatch`` for each batch. After
    a reshard the split keeps an order per key all the same, because it is one of hash keys; merged
    shards may then have two tasks.

    Rows that had an order in their partition keep it: Spark's shuffle moves the rows of one map
    task in their order. Ids of the option ``recordId`` = ``position`` are given before the shuffle,
    whose order is not the same in a repetition; use what is returned with ``recordId`` =
    ``column`` then.

    Args:
        df: a sink's columns (see :func:`as_records`).
        options: the sink's; at least ``stream``.
        tasks: partitions at most (default: as many as the session has cores); a task has whole
            shards.

    Raises:
        ConfigurationError: an option or a column is wrong, or there is no such stream.

    """
    read = read_options(SinkOptions, options)
    check_columns(df.schema, record_id=read.record_id)
    shards = open_shards(read)
    tasks = tasks or tasks_at_once(df.sparkSession)
    starts = task_ranges(shards, tasks)
    numbered = read.record_id == "position"
    fields = list(df.schema.fields)
    if numbered:
        fields.append(StructField(RECORD_ID, StringType()))
    fields.append(StructField(_TASK, IntegerType()))
    placed = df.mapInArrow(_placer(read, starts), StructType(fields))
    return into_partitions(placed, _TASK, count=len(starts)).drop(_TASK)


def into_partitions(df: DataFrame, column: str, *, count: int) -> DataFrame:
    """
    Move each row into the partition whose number a column has.

    Args:
        df: a table.
        column: of type int, 0 to ``count`` - 1.
        count: of partitions.

    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(count, sf.col(column))
    # Spark 4.0 has only the hash of a column: each number is replaced by one that is hashed to it.
    stand_ins = sf.array(*map(sf.lit, numbers_hashed_to_each(count)))
    return df.repartition(count, sf.get(stand_ins, sf.col(column)))


def task_ranges(shards: Sequence[Shard], tasks: int) -> list[int]:
    """
    Divide the open shards among tasks, neighbours together, as evenly as numbers allow.

    Args:
        shards: in the order of their hash keys.
        tasks: at most so many.

    Returns:
        The first hash key of each task's first shard; the first one is 0.

    """
    tasks = max(1, min(tasks, len(shards)))
    firsts = [shards[task * len(shards) // tasks] for task in range(tasks)] if shards else []
    return [0, *(shard.hash_key_range.start for shard in firsts[1:])]


def numbers_hashed_to_each(count: int) -> list[int]:
    """Return for each partition the least number that Spark's ``repartition`` puts there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(spark_hash(number) % count, number)
        number += 1
    return [found[partition] for partition in range(count)]


def spark_hash(number: int) -> int:
    """Return Spark's ``hash`` of an int: MurmurHash3 of 32 bits, seed 42, as signed."""
    mixed = number * 0xCC9E2D51 & _32_BITS
    mixed = _rotated(mixed, 15) * 0x1B873593 & _32_BITS
    mixed = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _32_BITS
    mixed ^= 4  # The length of an int.
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _32_BITS
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _32_BITS
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & _32_BITS


def _placer(
    options: SinkOptions, starts: Sequence[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that checks rows and adds the number of their task."""

    def place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        @lru_cache(_KEYS_REMEMBERED)
        def task_of(key: str, hash_key: str | None) -> int:
            return bisect_right(starts, effective_hash(key, hash_key)) - 1

        where = task_place(run_id=options.run_id)
        bad: list[BadRow] = []
        row = 0
        for good, found in check_batches(iter(batches), options):
            bad += found
            stop_at_bad(bad, options)
            keys = good.column(PARTITION_KEY).to_pylist()
            hash_keys = (
                good.column(HASH_KEY).to_pylist()
                if HASH_KEY in good.schema.names
                else [None] * len(keys)
            )
            columns = list(good.columns)
            names = list(good.schema.names)
            if options.record_id == "position":
                ids = [f"{where.name}:{row + each}" for each in range(len(keys))]
                columns.append(pa.array(ids, pa.string()))
                names.append(RECORD_ID)
            row += len(keys)
            columns.append(pa.array(map(task_of, keys, hash_keys), pa.int32()))
            yield pa.RecordBatch.from_arrays(columns, names=[*names, _TASK])
        if bad:
            write_diverted(options.divert_to, where, bad, stage="check")

    return place


def _column(found: str | Column) -> Column:
    return sf.col(found) if isinstance(found, str) else found
