"""The widgets, top to bottom: is it well, how far behind, what is handled, by whom, for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import Stack
from aws_cdk import aws_cloudwatch as cw
from aws_cdk import aws_sqs as sqs

from shardfleet_cdk.monitoring.metrics import FleetMetrics, WatchedFleet, math

# What the manager logs of the leases that are furthest behind, each turn.
LAG_EVENT = "LeaseBehind"
SHARDS_SHOWN = 10
WIDTH = 24  # CloudWatch's grid.
HEIGHT = 6


def fleet_widgets(
    metrics: FleetMetrics, *, page: cw.IAlarm, alarms: Mapping[str, cw.Alarm]
) -> list[list[cw.IWidget]]:
    """
    Make the widgets, row by row: new ones each time, as a widget has its place in one dashboard.

    Args:
        metrics: the fleet's.
        page: the composite alarm.
        alarms: all others, by name.

    """
    rows = [
        _state(metrics, page, alarms),
        _now(metrics),
        _behind(metrics),
        _handled(metrics),
        _handlers(metrics),
        _slots(metrics),
        _limits(metrics),
        _left_over(metrics),
        _cost(metrics),
    ]
    # A fleet that writes few metrics has fewer widgets.
    there = [[widget for widget in row if widget is not None] for row in rows]
    return [row for row in there if row]


def causes_told(fleet: WatchedFleet) -> str:
    """Return the sentence that says which commands tell why a fleet is not well."""
    which = f"--stack {Stack.of(fleet.worker).stack_name} --fleet {fleet.name}"
    return (
        f"`shardfleet doctor {which}` names cause and remedy, "
        f"`shardfleet logs {which}` shows the lines."
    )


def _state(
    metrics: FleetMetrics, page: cw.IAlarm, alarms: Mapping[str, cw.Alarm]
) -> Sequence[cw.IWidget | None]:
    about = (
        f"**{metrics.fleet.name}**: shards behind, records handled, worker slots. "
        f"{causes_told(metrics.fleet)} "
        "Each alarm's description points at its section of the run-book."
    )
    return [
        cw.TextWidget(markdown=about, width=WIDTH, height=2),
        cw.AlarmStatusWidget(
            title="Alarms", alarms=[page, *alarms.values()], width=WIDTH, height=4
        ),
    ]


def _now(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    shown = {
        "Greatest lag": metrics.own("millis_behind_latest", "Maximum"),
        "Broken": metrics.own("broken", "Maximum"),
        "Uncovered": metrics.own("uncovered", "Minimum"),
        "Trouble": metrics.own("trouble", "Sum"),
        "Unclaimed leases": metrics.own("unclaimed_leases", "Minimum"),
        "Stopped shards": metrics.own("stopped_shards", "Maximum"),
        "Unreadable leases": metrics.own("unreadable_leases", "Maximum"),
        "Paused leases": metrics.own("paused_leases", "Maximum"),
        "Unread shards": metrics.own("unread_shards", "Minimum"),
        "Holes": metrics.own("hash_range_holes", "Minimum"),
        "Leases": metrics.own("total_leases", "Maximum"),
        "Slots running": metrics.own("slots_running", "Minimum"),
    }
    shown = {title: metric for title, metric in shown.items() if metrics.writes(metric)}
    return [
        cw.SingleValueWidget(title=title, metrics=[metric], width=WIDTH // len(shown), height=3)
        for title, metric in shown.items()
    ]


def _behind(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    query = cw.LogQueryWidget(
        title=f"The {SHARDS_SHOWN} shards furthest behind",
        log_group_names=[metrics.fleet.manager.log_group.log_group_name],
        query_lines=[
            f'filter message = "{LAG_EVENT}"',
            "stats max(lag_ms) as greatest_lag_ms by lease_key",
            "sort greatest_lag_ms desc",
            f"limit {SHARDS_SHOWN}",
        ],
        view=cw.LogQueryVisualizationType.TABLE,
        width=WIDTH // 2,
        height=HEIGHT,
    )
    lag = _graph(
        metrics,
        "Lag of all unfinished leases",
        metrics.own("millis_behind_latest", "Maximum").with_(label="furthest behind"),
        metrics.own("least_millis_behind_latest", "Minimum").with_(label="least behind"),
    )
    return [lag, query]


def _handled(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    return [
        _graph(
            metrics,
            "Records",
            metrics.stream("IncomingRecords", "Sum"),
            metrics.own("records", "Sum"),
            metrics.own("record_skipped", "Sum"),
        ),
        _graph(
            metrics,
            "Bytes",
            metrics.stream("IncomingBytes", "Sum"),
            metrics.own("bytes", "Sum"),
        ),
    ]


def _handlers(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    busy = math(
        "busy / calls",
        {
            "busy": metrics.own("handler_busy_ms", "Sum"),
            "calls": metrics.own("handler_calls", "Sum"),
        },
        label="average ms per call",
    )
    return [
        _graph(
            metrics,
            "Handler calls",
            metrics.own("handler_calls", "Sum"),
            metrics.own("batch_failed", "Sum"),
        ),
        _graph(metrics, "Handler time", metrics.own("handler_ms", "Maximum"), busy),
    ]


def _slots(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    return [
        _graph(
            metrics,
            "Worker slots",
            metrics.own("slots_wanted", "Maximum"),
            metrics.own("slots_running", "Minimum"),
            metrics.executions("ExecutionsStarted"),
            across=3,
        ),
        _graph(
            metrics,
            "Leases",
            metrics.own("unclaimed_leases", "Maximum"),
            metrics.own("expired_leases", "Maximum"),
            metrics.own("paused_leases", "Maximum"),
            metrics.own("sleeping_leases", "Maximum"),
            metrics.own("lease_switches", "Sum"),
            across=3,
        ),
        _graph(
            metrics,
            "Turns and recoveries",
            metrics.own("manager_turn_ms", "Maximum"),
            metrics.own("recovery_ms", "Maximum"),
            across=3,
        ),
    ]


def _limits(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    worker, manager = metrics.fleet.worker, metrics.fleet.manager
    return [
        _graph(
            metrics,
            "Throttled calls",
            metrics.own("throttles", "Sum"),
            metrics.stream("ReadProvisionedThroughputExceeded", "Sum"),
            metrics.table("WriteThrottleEvents"),
            across=3,
        ),
        _graph(
            metrics,
            "Worker invocations",
            metrics.function(worker, "ConcurrentExecutions", "Maximum"),
            metrics.function(worker, "Errors", "Sum"),
            metrics.function(worker, "Throttles", "Sum"),
            across=3,
        ),
        _graph(
            metrics,
            "Manager invocations",
            metrics.function(manager, "Duration", "Maximum"),
            metrics.function(manager, "Errors", "Sum"),
            metrics.function(manager, "Throttles", "Sum"),
            across=3,
        ),
    ]


def _left_over(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    fleet = metrics.fleet
    visible = "ApproximateNumberOfMessagesVisible"
    queues: list[tuple[str, sqs.IQueue]] = [
        ("Manager runs that could not be made", fleet.schedule_dead_letters)
    ]
    if fleet.failed_queue is not None:
        queues.append(("Records given up", fleet.failed_queue))
    return [
        _graph(
            metrics,
            "Executions that ended badly",
            metrics.executions("ExecutionsFailed"),
            metrics.executions("ExecutionsTimedOut"),
            metrics.executions("ExecutionsAborted"),
            across=3,
        ),
        *(
            _graph(
                metrics,
                title,
                metrics.queue(queue, visible),
                metrics.queue(queue, "ApproximateAgeOfOldestMessage"),
                across=3,
            )
            for title, queue in queues
        ),
    ]


def _cost(metrics: FleetMetrics) -> Sequence[cw.IWidget | None]:
    """Show what is paid for: GB-seconds of the worker, and writes to the lease table."""
    memory_gb = metrics.fleet.worker_options.memory_mb / 1024
    seconds = math(
        f"duration / 1000 * {memory_gb}",
        {"duration": metrics.function(metrics.fleet.worker, "Duration", "Sum")},
        label="GB-seconds of workers",
    )
    return [
        _graph(metrics, "Worker GB-seconds", seconds),
        _graph(metrics, "Lease writes", metrics.table("ConsumedWriteCapacityUnits")),
    ]


def _graph(
    metrics: FleetMetrics, title: str, *shown: cw.IMetric, across: int = 2
) -> cw.GraphWidget | None:
    """Return a graph of what the fleet writes of these; None: it writes none of its own."""
    written = [each for each in shown if metrics.writes(each)]
    if not written:
        return None
    return cw.GraphWidget(
        title=title,
        left=written,
        left_y_axis=cw.YAxisProps(min=0),
        width=WIDTH // across,
        height=HEIGHT,
    )
