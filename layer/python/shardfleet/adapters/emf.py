"""
The one stream of events, told as metrics (CloudWatch embedded metric format) and as JSON logs.

Metrics have the fleet as their only dimension, because each dimension value is a metric to pay
for; shard ids are metadata of the same line, for Logs Insights. Names are kcl-rust's where it has
the metric (protocol.md §6). Besides, each event of level WARNING or above counts as a metric of
its own, named after the event: ``ManagerTurnFailed`` is ``manager_turn_failed``. What comes with
each call is gathered between two flushes: amounts are added up, and of a shard's lags the
greatest counts.

Both go to standard output, which Lambda carries to CloudWatch without a call or a right of ours.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from threading import Lock
from typing import IO, Any

from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import (
    AmazonCloudWatchEMFProvider,
)

from shardfleet.engine.ports import Clock
from shardfleet.events import Event, LeaseEvent, Level

NAMESPACE = "shardfleet"
FLUSH_MS = 60_000  # hazard H18: at least each minute
LAG = "millis_behind_latest"
VALUES_MOST = 99  # an EMF line holds 100 metrics of 100 values; the library would print at 100
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Names that the standard library's log records have taken.
_TAKEN = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "level"})

# Which fields of which events are metrics, and under which name.
MEASURED: Mapping[str, Mapping[str, str]] = {
    "ManagerTurnDone": {
        "total_leases": "total_leases",
        "total_shards": "total_shards",
        "unclaimed_leases": "unclaimed_leases",
        "expired_leases": "expired_leases",
        "stopped_shards": "stopped_shards",
        "sleeping_leases": "sleeping_leases",
        "millis_behind_latest_max": "millis_behind_latest",
        "leases_of_unknown_lag": "leases_of_unknown_lag",
        "slots_wanted": "slots_wanted",
        "slots_running": "slots_running",
    },
    "TurnEnded": {"held_leases": "worker_leases"},
    "PageRead": {"size_bytes": "bytes", "millis_behind_latest": "millis_behind_latest"},
    "BatchHandled": {"done": "records", "millis_behind_latest": "millis_behind_latest"},
}
# Amounts, as against readings such as a number of leases.
ADDED_UP = frozenset({"bytes", "records"})
# Counted below the level WARNING too: a read that was throttled, or found no answer.
COUNTED = frozenset({"ReadDelayed"})


class EmfEventSink:
    """
    The ``EventSink`` port of the Lambda functions.

    Args:
        fleet: the fleet's name, the dimension of every metric and a field of every log line.
        clock: tells when a minute is over.
        level: the least level that is logged; metrics come from all events.
        stream: where lines go; standard output in Lambda.

    """

    def __init__(
        self,
        fleet: str,
        *,
        clock: Clock,
        level: Level = Level.INFO,
        stream: IO[str] | None = None,
    ) -> None:
        """Open nothing; the first line is written by the first event."""
        self._clock = clock
        self._stream = stream or sys.stdout
        self._lock = Lock()  # stores emit from their threads
        self._flushed_ms = clock.monotonic_ms()
        self._totals: Counter[str] = Counter()
        self._lags_ms: dict[str, int] = {}
        # An own provider and logger, and no service name whatever POWERTOOLS_* says: the user's
        # handler shares the process and its environment, and alarms know this dimension only.
        self._metrics = AmazonCloudWatchEMFProvider(namespace=NAMESPACE, service="")
        self._metrics.add_dimension("fleet", fleet)
        self._log = logging.Logger(NAMESPACE, level)  # noqa: LOG001 - shared with nobody
        self._formatter = LambdaPowertoolsFormatter(service=NAMESPACE, utc=True, location=None)
        self._formatter.append_keys(fleet=fleet)
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(self._formatter)
        self._log.addHandler(handler)

    def about(self, **keys: str) -> None:
        """Put these fields into every log line from now on, e.g. ``request_id``."""
        self._formatter.append_keys(**keys)

    def emit(self, event: Event) -> None:
        """Take one event; never raises, never blocks for longer than a line takes."""
        try:
            with self._lock:
                self._measure(event)
                self._write(event)
                if self._is_due():
                    self._flush()
        except Exception as error:  # noqa: BLE001 - the port: diagnostics must never stop the fleet
            sys.stderr.write(f"shardfleet: event {type(event).__name__} lost: {error!r}\n")

    def flush(self) -> None:
        """Write the metrics gathered since the last flush; called at the end of a turn."""
        with self._lock:
            self._flush()

    def _measure(self, event: Event) -> None:
        name = type(event).__name__
        for field, metric in MEASURED.get(name, {}).items():
            value = getattr(event, field, None)
            if value is None:
                continue
            if metric in ADDED_UP:
                self._totals[metric] += value
            elif metric == LAG and isinstance(event, LeaseEvent):
                key = event.lease_key
                self._lags_ms[key] = max(value, self._lags_ms.get(key, 0))
            else:
                self._metrics.add_metric(metric, _unit(metric), value)
        if event.level >= Level.WARNING or name in COUNTED:
            self._totals[_BOUNDARY.sub("_", name).lower()] += 1

    def _is_due(self) -> bool:
        gathered = self._metrics.metric_set.values()
        longest = max((len(metric["Value"]) for metric in gathered), default=0)
        age_ms = self._clock.monotonic_ms() - self._flushed_ms
        return longest >= VALUES_MOST or age_ms >= FLUSH_MS

    def _write(self, event: Event) -> None:
        values = {f.name: getattr(event, f.name) for f in fields(event)}
        told = {f"{k}_" if k in _TAKEN else k: v for k, v in values.items() if v is not None}
        self._log.log(event.level, type(event).__name__, extra=told)

    def _flush(self) -> None:
        self._flushed_ms = self._clock.monotonic_ms()
        for metric, total in self._totals.items():
            self._metrics.add_metric(metric, _unit(metric), total)
        self._totals.clear()
        lags = sorted(self._lags_ms.items())
        self._lags_ms.clear()
        for begin in range(0, len(lags), VALUES_MOST):
            self._write_metrics()
            part = dict(lags[begin : begin + VALUES_MOST])
            for lag_ms in part.values():
                self._metrics.add_metric(LAG, _unit(LAG), lag_ms)
            self._metrics.add_metadata(f"{LAG}_by_shard", part)
        self._write_metrics()

    def _write_metrics(self) -> None:
        if not self._metrics.metric_set:
            return
        line: Any = self._metrics.serialize_metric_set()
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()
        self._metrics.metric_set.clear()
        self._metrics.metadata_set.clear()


def _unit(metric: str) -> MetricUnit:
    if metric.startswith("millis") or metric.endswith("_ms"):
        return MetricUnit.Milliseconds
    return MetricUnit.Bytes if metric.endswith("bytes") else MetricUnit.Count
