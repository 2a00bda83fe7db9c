"""
Which fields of which events are metrics, under which name and unit.

Names are kcl-rust's where it has the metric (protocol.md §6). Besides, each event of level
WARNING or above counts as a metric of its own, named after the event: ``ManagerTurnFailed`` is
``manager_turn_failed``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from shardfleet.events.base import Event, Level

NAMESPACE = "shardfleet"
LAG = "millis_behind_latest"

# Told as they come: one value per event.
READINGS: Mapping[str, Mapping[str, str]] = {
    "ManagerTurnDone": {
        "total_leases": "total_leases",
        "total_shards": "total_shards",
        "unclaimed_leases": "unclaimed_leases",
        "expired_leases": "expired_leases",
        "stopped_shards": "stopped_shards",
        "unreadable_leases": "unreadable_leases",
        "paused_leases": "paused_leases",
        "sleeping_leases": "sleeping_leases",
        "sleep_off": "sleep_off",
        "unread_shards": "unread_shards",
        "hash_range_holes": "hash_range_holes",
        "millis_behind_latest_max": LAG,
        "millis_behind_latest_min": "least_millis_behind_latest",
        "leases_of_unknown_lag": "leases_of_unknown_lag",
        "slots_wanted": "slots_wanted",
        "slots_running": "slots_running",
        "slots_missing": "slots_missing",
        "duration_ms": "manager_turn_ms",
    },
    "TurnBegun": {"recovery_ms": "recovery_ms"},
    "WorkerBeat": {"held_leases": "worker_leases"},
    "TurnEnded": {"held_leases": "worker_leases", "duration_ms": "turn_ms"},
}
# Added up between two flushes.
AMOUNTS: Mapping[str, Mapping[str, str]] = {
    "PageRead": {"size_bytes": "bytes"},
    "BatchHandled": {"duration_ms": "handler_busy_ms"},
    "RecordsFiltered": {"count": "records_filtered"},
    "ConsumptionTold": {"cost_microdollars": "cost_microdollars"},
}
# Added up per shard, and told as one value for each shard: their sum is the fleet's, and the
# greatest over the average shows a hot shard.
SHARD_AMOUNTS: Mapping[str, Mapping[str, str]] = {
    "BatchHandled": {"done": "records"},
    # A fleet whose filters leave nothing is not silent (alarm `silent`).
    "RecordsFiltered": {"count": "records"},
}
# Told as 0 by who handles none, so that the metric has a point where no worker runs: CloudWatch's
# FILL fills gaps, and promises nothing where there is no point (alarm `silent`).
ZEROES: Mapping[str, tuple[str, ...]] = {"ManagerTurnDone": ("records",)}
# The greatest per shard between two flushes.
SHARD_PEAKS: Mapping[str, Mapping[str, str]] = {
    "PageRead": {"millis_behind_latest": LAG},
    "BatchHandled": {"millis_behind_latest": LAG, "duration_ms": "handler_ms"},
}
# Counted although they are no warnings: a read that was throttled or found no answer, a call.
COUNTED = {"ReadDelayed": "read_delayed", "BatchHandled": "handler_calls"}
THROTTLED = "Throttled"  # errors.Throttled, as events name it
_UNSETTLED = frozenset({"EXPIRED", "STEAL"})  # domain.balance.by_count.AssignmentKind
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def counts_of(event: Event) -> tuple[str, ...]:
    """Return the metrics in which this event counts as one."""
    name = type(event).__name__
    found = []
    if name in COUNTED:
        found.append(COUNTED[name])
    elif event.level >= Level.WARNING:
        found.append(_BOUNDARY.sub("_", name).lower())
    if getattr(event, "error", None) == THROTTLED:
        found.append("throttles")
    if name == "LeaseAssigned" and getattr(event, "kind", None) in _UNSETTLED:
        found.append("lease_switches")
    return tuple(found)


def unit_of(metric: str) -> str:
    """Return the unit that a metric's name says, as CloudWatch has it."""
    if "millis" in metric or metric.endswith("_ms"):
        return "Milliseconds"
    return "Bytes" if metric.endswith("bytes") else "Count"


def metric_line(
    namespace: str,
    values: Mapping[str, Sequence[float]],
    dimensions: Mapping[str, str],
    *,
    now_ms: int,
    metadata: Mapping[str, object] = MappingProxyType({}),
) -> str:
    """Return a line in CloudWatch's embedded metric format, up to 100 metrics of 100 values."""
    # Here, as to load it takes a fifteenth of a start; no line is due before the first batch.
    from aws_lambda_powertools.metrics.provider.cloudwatch_emf import cloudwatch  # noqa: PLC0415

    # No service name whatever POWERTOOLS_* says: the user's handler shares the environment.
    provider = cloudwatch.AmazonCloudWatchEMFProvider(namespace=namespace, service="")
    provider.timestamp = now_ms
    found = {name: {"Unit": unit_of(name), "Value": [*of]} for name, of in values.items()}
    told = provider.serialize_metric_set(found, dict(dimensions), dict(metadata))
    return json.dumps(told) + "\n"
