"""
A query's figures as metrics, under the names that a fleet's metrics have: one set of alarms.

Each batch is told once: its lag, and what it read. While nothing comes, the lag of a stream that
is read to its tip is told again, so that silence means trouble (hazard H18). Where they go is an
option: to CloudWatch by a call a minute, or as lines in the embedded metric format on standard
error, for drivers whose output goes to CloudWatch Logs.

The names are repeated here because a cluster has not all packages of a Lambda function; a test
compares them with :mod:`shardfleet.adapters.telemetry.metrics`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, Protocol

from shardfleet.engine.ports import Clock
from shardfleet_spark.offsets.lineage import CommittedStanding

NAMESPACE = "shardfleet"
LAG = "millis_behind_latest"
MILLISECONDS, BYTES, COUNT = "Milliseconds", "Bytes", "Count"
# Figure of a plan: the metric and its unit.
METRICS: Mapping[str, tuple[str, str]] = {
    LAG: (LAG, MILLISECONDS),
    "lagging_shards": ("lagging_shards", COUNT),
    "shards_of_unknown_lag": ("shards_of_unknown_lag", COUNT),
    "shards": ("total_shards", COUNT),
    "stream_records": ("stream_records", COUNT),
    "bytes": ("bytes", BYTES),
    "calls": ("read_calls", COUNT),
    "throttles": ("throttles", COUNT),
}
_TOLD_EVERY_MS = 60_000
# A line of EMF has 100 values of a metric, or is dropped whole; PutMetricData takes 150. What is
# taken at once may be two: the batch's, and that of the tip.
_VALUES_MOST = 99
_TIP_SERVES_MS = 300_000


class FigureSink(Protocol):
    """Where metrics go."""

    def put(self, values: Mapping[str, list[float]], *, at_ms: int) -> None:
        """Take the values of some metrics; may raise anything."""


class EmfFigures:
    """
    Lines in CloudWatch's embedded metric format.

    Args:
        fleet: the dimension.
        stream: where lines go; standard error, as standard output is Spark's own.

    """

    def __init__(self, fleet: str, *, stream: IO[str] | None = None) -> None:
        """Write nothing yet."""
        self._fleet = fleet
        self._stream = stream or sys.stderr

    def put(self, values: Mapping[str, list[float]], *, at_ms: int) -> None:
        """Write one line."""
        directive = {
            "Namespace": NAMESPACE,
            "Dimensions": [["fleet"]],
            "Metrics": [{"Name": name, "Unit": unit_of(name)} for name in values],
        }
        line = {
            "_aws": {"Timestamp": at_ms, "CloudWatchMetrics": [directive]},
            "fleet": self._fleet,
            **values,
        }
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


class CloudWatchFigures:
    """
    PutMetricData.

    Args:
        client: of CloudWatch.
        fleet: the dimension.

    """

    def __init__(self, client: Any, fleet: str) -> None:
        """Call nothing yet."""
        self._client = client
        self._dimensions = [{"Name": "fleet", "Value": fleet}]

    def put(self, values: Mapping[str, list[float]], *, at_ms: int) -> None:
        """Make one call."""
        self._client.put_metric_data(
            Namespace=NAMESPACE,
            MetricData=[
                {
                    "MetricName": name,
                    "Dimensions": self._dimensions,
                    "Timestamp": at_ms / 1000,
                    "Unit": unit_of(name),
                    "Values": found,
                }
                for name, found in values.items()
            ],
        )


class Figures:
    """
    Gathers figures, and tells them once a minute.

    Attributes:
        clock: tells when a minute is over.
        trouble: why the last telling failed, for a person; empty if it did not.

    """

    def __init__(self, sink: FigureSink, clock: Clock) -> None:
        """Know nothing yet; the first telling is due with the first batch."""
        self._sink = sink
        self.clock = clock
        self._plan: Any = None
        self._values: dict[str, list[float]] = {}
        self._told_ms: int | None = None
        self.trouble = ""

    def take(self, stats: Mapping[str, Any], *, at_tip: bool) -> None:
        """
        Take the figures of the last executed plan; the same plan's are taken once.

        Args:
            stats: see :meth:`shardfleet_spark.plan.driver.SourceDriver.report`; before the first
                plan was executed, lags alone.
            at_tip: whether everything is known to be read now.

        """
        if "plan" in stats and stats["plan"] != self._plan:
            self._plan = stats["plan"]
            for figure, (metric, _) in METRICS.items():
                if stats[figure] is not None:
                    self._values.setdefault(metric, []).append(float(stats[figure]))
        if at_tip and self._is_due():
            self._values.setdefault(LAG, []).append(0.0)
        full = any(len(values) >= _VALUES_MOST for values in self._values.values())
        if full or self._is_due():
            self.flush()

    def flush(self) -> None:
        """Publish the figures gathered; on a failure they are dropped, and the failure is noted."""
        values, self._values = self._values, {}
        self._told_ms = self.clock.monotonic_ms()
        if not values:
            return
        try:
            self._sink.put(values, at_ms=self.clock.now_ms())
        except Exception as error:  # noqa: BLE001 - figures must never stop a query
            self.trouble = f"{type(error).__name__}: {error}"
        else:
            self.trouble = ""

    def _is_due(self) -> bool:
        told_ms = self._told_ms
        return told_ms is None or self.clock.monotonic_ms() - told_ms >= _TOLD_EVERY_MS


def is_at_tip(standing: CommittedStanding, *, now_ms: int) -> bool:
    """Return whether every shard was read to its tip a moment ago; idle ones are asked in turn."""
    stands = (standing.family.stands[shard_id] for shard_id in standing.family.live)
    return all(now_ms - stand.tip_ms < _TIP_SERVES_MS for stand in stands)


def unit_of(metric: str) -> str:
    """Return the unit of a metric."""
    return next(unit for name, unit in METRICS.values() if name == metric)


def figures_to(text: str, clock: Clock, *, cloudwatch: Callable[[], Any]) -> Figures:
    """
    Return what option ``metrics`` names.

    Args:
        text: ``emf:<fleet>`` or ``cloudwatch:<fleet>``.
        clock: tells when a minute is over.
        cloudwatch: makes a client.

    """
    kind, _, fleet = text.partition(":")
    return Figures(
        EmfFigures(fleet) if kind == "emf" else CloudWatchFigures(cloudwatch(), fleet), clock
    )
