"""A micro-batch as a table's commit names it, and what writes a query's micro-batches so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from shardfleet_spark.host.session import begun_ms, query_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Commit:
    """
    A micro-batch of a query.

    Attributes:
        query: the query's id, the same as long as its checkpoint is.
        number: of the micro-batch.
        begun_ms: when it was begun, epoch milliseconds; 0: it is not known, or of no account,
            because an earlier one of this run is done.

    """

    query: str
    number: int
    begun_ms: int


class Table(Protocol):
    """
    A table, as one run of a query sees it: a run begins each micro-batch once.

    Rows of a `Commit` that the table has already are not written again.
    """

    def check(self, spark: SparkSession) -> None:
        """
        Refuse a session that cannot write to it, before a query starts.

        Raises:
            ConfigurationError: says what to set.

        """
        ...

    def append(self, rows: DataFrame, commit: Commit | None) -> None:
        """Append rows in one commit; None: whether the table has them is not looked up."""
        ...

    def merge(self, rows: DataFrame, keys: Sequence[str], commit: Commit | None) -> None:
        """Keep of each key its newest row, in one commit (see the module `merging`)."""
        ...


def batch_writer(
    table: Table, keys: Sequence[str], checkpoint: str
) -> Callable[[DataFrame, int], None]:
    """Return what writes a query's micro-batches: by key if there are keys, else appended."""
    query = ""

    def write(batch: DataFrame, number: int) -> None:
        nonlocal query
        began = 0
        if not query:
            query = query_id(batch.sparkSession, checkpoint)
            began = begun_ms(batch.sparkSession, checkpoint, number)
        put(table, batch, Commit(query, number, began), keys=keys)

    return write


def put(table: Table, rows: DataFrame, commit: Commit | None, *, keys: Sequence[str]) -> None:
    """Write rows, by key if there are keys."""
    if keys:
        table.merge(rows, keys, commit)
    else:
        table.append(rows, commit)
