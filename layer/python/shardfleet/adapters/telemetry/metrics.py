"""
Which fields of which events are metrics, under which name and unit.

Names are kcl-rust's where it has the metric (protocol.md §6). Besides, each event of level
WARNING or above counts as a metric of its own, named after the event: ``ManagerTurnFailed`` is
``manager_turn_failed``.

By default CloudWatch gets ten of them, as it bills each: those of kcl-rust, and three made of the
others, which are what the alarms watch.
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
BROKEN, UNCOVERED, TROUBLE = "broken", "uncovered", "trouble"
# What needs a person at once, and what does when it lasts: added up.
_BROKEN = ("stopped_shards", "unreadable_leases", "position_lost", "shard_expired")
_UNCOVERED = ("unclaimed_leases", "unread_shards", "hash_range_holes")
SILENT_MS = 300_000  # not one shard is less behind: what comes is not handled
# Points within five minutes, of which so many ring the alarm `trouble`.
TROUBLE_POINTS = 12.0
_AT_ONCE, _THIRD, _LASTING = TROUBLE_POINTS, 5.0, 3.0
_POINTS: Mapping[str, float] = {
    **dict.fromkeys(("lease_healed", "document_unreadable", "slot_restarted"), _AT_ONCE),
    **dict.fromkeys(("record_skipped", "window_skipped", "record_not_kept"), _AT_ONCE),
    **dict.fromkeys(("manager_turn_failed", "recovery_ms"), _THIRD),
    "throttles": TROUBLE_POINTS / 30,
    "lease_switches": TROUBLE_POINTS / 5,
}
# What lasts for four turns or minutes, and from which value on.
_LASTING_FROM = {
    "slots_missing": 1,
    "leases_of_unknown_lag": 1,
    "least_millis_behind_latest": 60_000,
}
FAILED_CALLS = 0.05  # a greater part of the handler's calls is trouble, if it lasts
FEW = frozenset(
    {
        *("total_leases", "total_shards", "unclaimed_leases", "worker_leases"),
        *(LAG, "bytes", "records", BROKEN, UNCOVERED, TROUBLE),
    }
)
FEW_ASLEEP = frozenset({LAG, BROKEN, UNCOVERED})
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


def made_of(values: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return the metrics that are made of others, of what was gathered between two flushes."""
    found: dict[str, list[float]] = {}
    broken = [sum(values[name]) for name in _BROKEN if name in values]
    if broken:
        found[BROKEN] = [sum(broken)]
    if "unclaimed_leases" in values:
        is_silent = min(values.get("least_millis_behind_latest", [0])) > SILENT_MS
        found[UNCOVERED] = [sum(values[name][-1] for name in _UNCOVERED) + is_silent]
    points = sum(
        weight * (len(values[name]) if name == "recovery_ms" else sum(values[name]))
        for name, weight in _POINTS.items()
        if name in values
    )
    points += _LASTING * sum(
        name in values and min(values[name]) >= least for name, least in _LASTING_FROM.items()
    )
    calls, failed = sum(values.get("handler_calls", ())), sum(values.get("batch_failed", ()))
    points += (_AT_ONCE / 3) * (failed > FAILED_CALLS * calls)
    return found | ({TROUBLE: [points]} if points else {})


def few_of(values: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    """Return what CloudWatch gets by default: ten metrics, three of a fleet that is asleep."""
    is_asleep = values.get("slots_wanted") == [0] and sum(values["sleeping_leases"]) > 0
    wanted = FEW_ASLEEP | {TROUBLE} if is_asleep else FEW
    return {name: of for name, of in values.items() if name in wanted}


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
    return json.dumps(told, separators=(",", ":")) + "\n"
