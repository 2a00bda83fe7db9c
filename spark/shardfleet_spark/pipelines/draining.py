"""
Trigger.AvailableNow to its end, on Spark 4.0 and 4.1 too.

Those versions plan a source written in Python once in a run (``SupportsTriggerAvailableNow`` came
to Python with 4.2), so a run ends after one batch, however much is left. Here the query is started
again on its checkpoint, always for the same moment (option ``availableNowTarget``), until a run
has no batch: then the source has said that everything which had arrived by that moment is read.
A watermark that the last of these batches moved has closed no window yet: newer versions have one
more batch for that in the same run, here a run for a later moment has it.

    from shardfleet_spark.pipelines.draining import drain

    def start(target_ms):
        read = spark.readStream.format("shardfleet").option("availableNowTarget", target_ms)…
        return read.load().writeStream….trigger(availableNow=True).start()

    drain(start, version=spark.version, clock_ms=…)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from shardfleet.errors import ShardfleetError
from shardfleet_spark.host.compat import FIRST_OF_MANY_BATCHES, release_of
from shardfleet_spark.pipelines.patience import start_patiently

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOG = logging.getLogger(__name__)

RUNS_MOST = 100_000
"""A bound on the runs. Even at one record per run and shard, it is reached after days."""


class NotDrained(ShardfleetError):
    """A query was started as often as is allowed, and there is more."""


def drain(
    start: Callable[[int], StreamingQuery],
    *,
    version: str,
    clock_ms: Callable[[], int],
    max_runs: int = RUNS_MOST,
    goes_on: Callable[[], bool] = lambda: False,
) -> list[Mapping[str, Any]]:
    """
    Run a query with Trigger.AvailableNow until all that there is at this moment is read.

    Args:
        start: starts the query, always on the same checkpoint; it is given what the source's
            option ``availableNowTarget`` has to be.
        version: of Spark. Where it drains a source in one run, it is started once, with 0.
        clock_ms: tells the moment, epoch milliseconds.
        max_runs: a bound.
        goes_on: see :func:`run_to_end`.

    Returns:
        Spark's progress of every micro-batch.

    Raises:
        NotDrained: there is more after so many runs; the checkpoint says how far it came.
        pyspark.errors.StreamingQueryException: the query failed.

    """
    if release_of(version) >= FIRST_OF_MANY_BATCHES:
        return run_to_end(lambda: start(0), goes_on=goes_on)
    found: list[Mapping[str, Any]] = []
    target_ms = clock_ms()
    for runs in range(1, max_runs + 1):
        reports = run_to_end(lambda: start(target_ms), goes_on=goes_on)
        found += reports
        if not any(_moved(each) for each in reports):
            if any(_keeps_windows(each) for each in found):
                found += run_to_end(lambda: start(clock_ms()), goes_on=goes_on)
            LOG.info("read to the end in %d runs of one batch each (Spark %s)", runs - 1, version)
            return found
        LOG.info("run %d: %d rows; there may be more", runs, rows_of(reports))
    raise NotDrained(
        f"after {max_runs} runs there is more to read: run it again on the same checkpoint, with "
        "higher limits of a batch (maxRecordsPerBatch, maxBytesPerPartition, maxFetchTime), or on "
        "Spark 4.2 or newer, which reads everything in one run"
    )


def reports_of(query: StreamingQuery) -> list[Mapping[str, Any]]:
    """Return the progress that a query tells; the sum of its rows is not in Connect's JSON."""
    return [
        {**json.loads(each.json), "numInputRows": each.numInputRows}
        for each in query.recentProgress
    ]


def rows_of(reports: list[Mapping[str, Any]]) -> int:
    """Return how many rows were read."""
    return sum(int(each["numInputRows"]) for each in reports)


def run_to_end(
    start: Callable[[], StreamingQuery], *, goes_on: Callable[[], bool] = lambda: False
) -> list[Mapping[str, Any]]:
    """
    Run a query until it ends; return Spark's progress of every micro-batch.

    Args:
        start: starts it.
        goes_on: whether a query that failed is to be started again, because it then would not.

    Raises:
        pyspark.errors.StreamingQueryException: the query failed.

    """
    found: list[Mapping[str, Any]] = []
    while True:
        query = start_patiently(start)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if not goes_on():
                raise
            LOG.warning("the query is started again: %s", error)
            found += reports_of(query)
        else:
            return found + reports_of(query)


def _keeps_windows(report: Mapping[str, Any]) -> bool:
    """Return whether a batch left something to be closed by its watermark."""
    return bool(report.get("stateOperators")) and "watermark" in report.get("eventTime", {})


def _moved(report: Mapping[str, Any]) -> bool:
    """Return whether a batch was planned: one without rows may be, and more may come behind it."""
    return any(each["startOffset"] != each["endOffset"] for each in report["sources"])
