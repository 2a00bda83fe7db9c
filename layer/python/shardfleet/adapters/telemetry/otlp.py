"""
The fleet's metrics for an OpenTelemetry collector, beside CloudWatch: OTLP as JSON over HTTP.

What is gathered for CloudWatch is sent as it is flushed: what counts as sums since the last time,
what is read as gauges. The format is plain JSON, so nothing of OpenTelemetry is needed here; a
collector listens beside the function (the ADOT layer: ``http://localhost:4318/v1/metrics``) or
anywhere else. Best effort: a collector that does not answer costs metrics, never the fleet.

Format: opentelemetry-proto, ``ExportMetricsServiceRequest`` in its JSON mapping.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from threading import Lock, Thread
from typing import Any

from shardfleet.adapters.telemetry import metrics
from shardfleet.adapters.telemetry.metrics import NAMESPACE
from shardfleet.engine.ports import Clock

# A collector beside the function answers within milliseconds; a turn must not wait for long.
_TIMEOUT_S = 2.0
# What a collector that is slow has not taken yet; beyond that the oldest are dropped.
_WAITING_MOST = 2_000
_DELTA = 1  # AGGREGATION_TEMPORALITY_DELTA
_UNITS = {"Milliseconds": "ms", "Bytes": "By", "Count": "1"}
_LAST = frozenset(name for known in metrics.READINGS.values() for name in known.values())
_GREATEST = frozenset(name for known in metrics.SHARD_PEAKS.values() for name in known.values())


class OtlpMetrics:
    """
    Sends what ``EmfEventSink`` writes.

    Args:
        endpoint: URL that takes an ``ExportMetricsServiceRequest``.
        clock: for the times of the points.

    """

    def __init__(self, endpoint: str, *, clock: Clock) -> None:
        """Send nothing yet."""
        self._endpoint = endpoint
        self._clock = clock
        self._lock = Lock()
        self._waiting: list[dict[str, Any]] = []
        self._since_ms = clock.now_ms()
        self._sender: Thread | None = None

    def take(self, found: Mapping[str, Sequence[float]], dimensions: Mapping[str, str]) -> None:
        """Take the metrics of one line: their values by name."""
        now_ms = self._clock.now_ms()
        attributes = [_attribute(name, value) for name, value in dimensions.items()]
        since_ns, now_ns = f"{self._since_ms}000000", f"{now_ms}000000"
        taken = []
        for name, values in found.items():
            point = {"attributes": attributes, "timeUnixNano": now_ns, "asDouble": 0.0}
            kind: dict[str, Any] = {"dataPoints": [point]}
            if name in _GREATEST:
                point["asDouble"] = float(max(values))
            elif name in _LAST:
                point["asDouble"] = float(values[-1])
            else:
                point |= {"asDouble": float(sum(values)), "startTimeUnixNano": since_ns}
                kind |= {"aggregationTemporality": _DELTA, "isMonotonic": True}
            taken.append(
                {
                    "name": f"{NAMESPACE}.{name}",
                    "unit": _UNITS[metrics.unit_of(name)],
                    "sum" if "isMonotonic" in kind else "gauge": kind,
                }
            )
        with self._lock:
            self._waiting = [*self._waiting, *taken][-_WAITING_MOST:]

    def send(self) -> None:
        """Send what waits, in a thread of its own; one at a time."""
        self._since_ms = self._clock.now_ms()
        if self._sender is not None and self._sender.is_alive():
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if waiting:
            self._sender = Thread(target=self._post, args=(waiting,), name="otlp", daemon=True)
            self._sender.start()

    def finish(self) -> None:
        """Wait until nothing is on its way: a thread must not outlive its turn (hazard H10)."""
        self._join()
        self.send()
        self._join()

    def _join(self) -> None:
        if self._sender is not None:
            self._sender.join(timeout=2 * _TIMEOUT_S)

    def _post(self, found: list[dict[str, Any]]) -> None:
        service = {"attributes": [_attribute("service.name", NAMESPACE)]}
        scope = {"scope": {"name": NAMESPACE}, "metrics": found}
        body = {"resourceMetrics": [{"resource": service, "scopeMetrics": [scope]}]}
        try:
            request = urllib.request.Request(  # noqa: S310 - the configuration allows http(s) only
                self._endpoint,
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            # What it answers interests nobody, and might have no end.
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                pass
        except (OSError, ValueError, HTTPException) as error:
            # Not the address, whose query or password may be a token; the error may quote it.
            said = f"{type(error).__name__} {getattr(error, 'code', '')}".rstrip()
            sys.stderr.write(f"shardfleet: metrics not sent to otlp_endpoint: {said}\n")


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": value}}
