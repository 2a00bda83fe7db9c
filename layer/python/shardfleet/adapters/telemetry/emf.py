"""
The one stream of events, told as metrics (CloudWatch embedded metric format) and as JSON logs.

Metrics have the fleet as their only dimension, because each dimension value is a metric to pay
for; shard ids are metadata of the same line, for Logs Insights. More than ten metrics, and those
per shard, are an option.
What comes with each call is gathered between two flushes (see ``metrics``); a manager's turn is
told at once. Both go to standard output, which Lambda carries to CloudWatch without a call or a
right of ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from threading import Lock
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from shardfleet.adapters.telemetry import metrics
from shardfleet.adapters.telemetry.metrics import LAG, NAMESPACE, metric_line
from shardfleet.engine.ports import Clock
from shardfleet.events.base import Event, LeaseEvent, Level

if TYPE_CHECKING:
    from shardfleet.adapters.telemetry.otlp import OtlpMetrics

FLUSH_MS = 60_000  # hazard H18: at least each minute
VALUES_MOST = 99  # an EMF line holds 100 metrics of 100 values
_VALUE_MOST = 2**360  # MetricDatum: nothing beyond, no infinity, no NaN (which compares as false)
# Of a line's own, in the form of Powertools' logger; an event's field of such a name is marked.
_TAKEN = frozenset({"level", "message", "timestamp", "service"})
# By name, as all metrics are: a worker is not to load what only the manager tells.
_AT_ONCE = frozenset({"ManagerTurnDone", "ManagerTurnFailed"})
# Logged when it says something else than the last one, but for what is never the same.
_LOGGED_ANEW = "ManagerTurnDone"
_NEVER_SAME = ("duration_ms", "millis_behind_latest_max", "millis_behind_latest_min")


class Telling(Struct, frozen=True, kw_only=True):
    """
    How much is told.

    Attributes:
        level: the least level that is logged; metrics come from all events.
        flush_ms: longest time between two flushes.
        all_metrics: all are written, not the ten alone.
        shard_metrics: metrics with the dimensions fleet and shard, besides the fleet's.
        has_emf: metrics are written as lines, of which CloudWatch makes metrics.

    """

    level: Level = Level.INFO
    flush_ms: int = FLUSH_MS
    all_metrics: bool = False
    shard_metrics: bool = False
    has_emf: bool = True


class EmfEventSink:
    """
    The ``EventSink`` port of the Lambda functions.

    Args:
        fleet: the fleet's name, the dimension of every metric and a field of every log line.
        clock: tells when a minute is over.
        telling: how much is told.
        otlp: where the metrics go besides; None: nowhere.
        stream: where lines go; standard output in Lambda.

    """

    def __init__(
        self,
        fleet: str,
        *,
        clock: Clock,
        telling: Telling | None = None,
        otlp: OtlpMetrics | None = None,
        stream: IO[str] | None = None,
    ) -> None:
        """Open nothing; the first line is written by the first event."""
        self._clock = clock
        self._telling = telling or Telling()
        self._otlp = otlp
        self._stream = _Counted(stream or sys.stdout)
        self._names: set[str] = set()
        self._lock = Lock()  # stores emit from their threads
        self._flushed_ms = clock.monotonic_ms()
        self._totals: Counter[str] = Counter()
        self._longest = 0  # values of one metric since then
        self._by_shard: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._readings: defaultdict[str, list[float]] = defaultdict(list)
        self._turn: Event | None = None
        self._fleet = {"fleet": fleet}
        self._about = {"service": NAMESPACE, **self._fleet}

    @property
    def told_bytes(self) -> int:
        """Return how many bytes of log lines were written so far."""
        return self._stream.bytes_written

    @property
    def metric_names(self) -> frozenset[str]:
        """Return what CloudWatch bills as metrics: names, those of a shard with its id."""
        with self._lock:
            return frozenset(self._names)

    def about(self, **keys: str) -> None:
        """Put these fields into every log line from now on, e.g. ``request_id``."""
        self._about = {**self._about, **keys}

    def emit(self, event: Event) -> None:
        """Take one event; never raises, never blocks for longer than a line takes."""
        try:
            with self._lock:
                self._measure(event)
                self._write(event)
                if type(event).__name__ in _AT_ONCE or self._is_due():
                    self._flush()
        except Exception as error:  # noqa: BLE001 - the port: diagnostics must never stop the fleet
            sys.stderr.write(f"shardfleet: event {type(event).__name__} lost: {error!r}\n")

    def flush(self) -> None:
        """Write the metrics gathered since the last flush; called at the end of a turn."""
        with self._lock:
            self._flush()
        if self._otlp is not None:
            self._otlp.finish()

    def _measure(self, event: Event) -> None:
        kind, totals = type(event).__name__, self._totals
        for field, metric, kept in _measured(kind):
            value = getattr(event, field, None)
            if value is None or not 0 <= value <= _VALUE_MOST:
                continue
            if kept is _Kept.READINGS:
                readings = self._readings[metric]
                readings.append(value)
                self._longest = max(self._longest, len(readings))
            elif kept is _Kept.SUM:
                totals[metric] += value
            elif isinstance(event, LeaseEvent):
                of_shard = self._by_shard[metric]
                before = of_shard[event.lease_key]
                together = before + value if kept is _Kept.SHARD_SUM else max(before, value)
                of_shard[event.lease_key] = together
        for metric in metrics.ZEROES.get(kind, ()):
            totals[metric] += 0
        for metric in metrics.counts_of(event):
            totals[metric] += 1

    def _is_due(self) -> bool:
        age_ms = self._clock.monotonic_ms() - self._flushed_ms
        return self._longest >= VALUES_MOST or age_ms >= self._telling.flush_ms

    def _write(self, event: Event) -> None:
        if event.level < self._telling.level or self._is_known(event):
            return
        now_ms = self._clock.now_ms()
        second = datetime.fromtimestamp(now_ms // 1000, UTC)
        told = {
            "level": event.level.name,
            "message": type(event).__name__,
            "timestamp": f"{second:%Y-%m-%d %H:%M:%S},{now_ms % 1000:03}+0000",
            **self._about,
            **{
                f"{name}_" if name in _TAKEN else name: value
                for name, value in asdict(event).items()
                if value is not None
            },
        }
        if trace := os.environ.get("_X_AMZN_TRACE_ID"):  # set by Lambda, for each invocation
            told["xray_trace_id"] = trace.partition(";")[0].removeprefix("Root=")
        line = json.dumps(told, default=str, ensure_ascii=False, separators=(",", ":"))
        self._stream.write(line + "\n")

    def _is_known(self, event: Event) -> bool:
        """Return whether the line of this turn would be that of the last one; remember it."""
        if type(event).__name__ != _LOGGED_ANEW:
            return False
        before, self._turn = self._turn, replace(event, **dict.fromkeys(_NEVER_SAME, 0))
        return before == self._turn

    def _flush(self) -> None:
        self._flushed_ms = self._clock.monotonic_ms()
        self._longest = 0
        readings, self._readings = self._readings, defaultdict(list)
        for metric, total in self._totals.items():
            readings[metric].append(total)
        self._totals.clear()
        readings |= metrics.made_of(readings)
        self._write_metrics(readings)
        gathered, self._by_shard = self._by_shard, defaultdict(Counter)
        shards = sorted({shard for values in gathered.values() for shard in values})
        for begin in range(0, len(shards), VALUES_MOST):
            self._write_shards(gathered, shards[begin : begin + VALUES_MOST])
        if self._telling.shard_metrics:
            for shard in shards:
                own = {metric: [of[shard]] for metric, of in gathered.items() if shard in of}
                self._write_metrics(own, shard=shard)
        if self._otlp is not None:
            self._otlp.send()

    def _write_shards(self, gathered: Mapping[str, Mapping[str, int]], shards: list[str]) -> None:
        values: dict[str, list[int]] = {}
        metadata: dict[str, object] = {}
        for metric, of in gathered.items():
            if part := {shard: of[shard] for shard in shards if shard in of}:
                values[metric] = [*part.values()]
                if metric in (LAG, "records"):
                    metadata[f"{metric}_by_shard"] = part
        self._write_metrics(values, metadata)

    def _write_metrics(
        self,
        values: Mapping[str, Sequence[float]],
        metadata: Mapping[str, object] = MappingProxyType({}),
        *,
        shard: str = "",
    ) -> None:
        if not values:
            return
        dimensions = {**self._fleet, "shard": shard} if shard else self._fleet
        if self._otlp is not None:
            self._otlp.take(values, dimensions)
        if not self._telling.all_metrics:
            values = metrics.few_of(values)
        if not values or not self._telling.has_emf:
            return
        self._names |= {f"{name}@{shard}" if shard else name for name in values}
        self._stream.write(
            metric_line(
                NAMESPACE, values, dimensions, now_ms=self._clock.now_ms(), metadata=metadata
            )
        )


class _Counted:
    """A stream of text that counts the bytes written to it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self.bytes_written = 0

    def write(self, text: str) -> None:
        self.bytes_written += len(text.encode())
        self._stream.write(text)
        self._stream.flush()


class _Kept(Enum):
    """How a metric's values of a minute are told."""

    READINGS = 0
    SUM = 1
    SHARD_SUM = 2
    SHARD_PEAK = 3


@cache
def _measured(kind: str) -> tuple[tuple[str, str, _Kept], ...]:
    """Return field, metric and way of each of a kind of event; some come with each page."""
    tables = (
        (_Kept.READINGS, metrics.READINGS),
        (_Kept.SUM, metrics.AMOUNTS),
        (_Kept.SHARD_SUM, metrics.SHARD_AMOUNTS),
        (_Kept.SHARD_PEAK, metrics.SHARD_PEAKS),
    )
    return tuple(
        (field, metric, kept)
        for kept, table in tables
        for field, metric in table.get(kind, {}).items()
    )
