"""Where a task is: of which query and batch, which partition and attempt."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import TaskContext


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """
    A task's place.

    Attributes:
        query: id of the streaming query, the same after a restart; empty outside of one.
        batch: number of the micro-batch; -1 outside of a streaming query.
        partition: index of the task's partition.
        attempt: how often this task was tried before.

    """

    query: str
    batch: int
    partition: int
    attempt: int

    @property
    def name(self) -> str:
        """Return query, batch and partition as the beginning of ids and names of files."""
        batch = "" if self.batch < 0 else f"{self.batch}:"
        return f"{self.query}:{batch}{self.partition}"


def task_place(*, run_id: str = "") -> TaskPlace:
    """
    Return where this task is.

    The names of the properties are Spark's own convention (the same in 4.0 to 4.3).

    Args:
        run_id: stands for the query outside of a streaming query.

    """
    context = TaskContext.get()
    if context is None:
        return TaskPlace(query=run_id, batch=-1, partition=0, attempt=0)
    batch = context.getLocalProperty("streaming.sql.batchId")
    return TaskPlace(
        query=context.getLocalProperty("sql.streaming.queryId") or run_id,
        batch=-1 if batch is None else int(batch),
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
    )
