"""
The alarms: what each looks at, from when on it is bad, and who hears of it.

By default there are six, which every cause rings: five watch one metric each that the functions
make of all others, and the sixth their silence. One for each cause besides is an option.

Each has a section of its own in the run-book, `docs/operating.md`; a test compares the two. An
alarm says M of N periods; missing data is no alarm, but for the manager's heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from aws_cdk import aws_cloudwatch as cw

from shardfleet_cdk.monitoring.metrics import FleetMetrics, math
from shardfleet_cdk.monitoring.settings import AlarmLevel, AlarmSetting

MINUTES_5, HOUR = 300, 3_600
DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """
    One alarm.

    Attributes:
        name: in the run-book, in options, and in the construct's path.
        meaning: what is wrong, one sentence.
        metric: what is compared.
        threshold: more than this is bad; ``below`` turns it round.
        datapoints: how many periods must be bad ...
        periods: ... among this many.
        level: who hears of it.
        below: less than the threshold is bad.
        missing_is_bad: no data is an alarm too.

    """

    name: str
    meaning: str
    metric: cw.IMetric
    threshold: float
    datapoints: int
    periods: int
    level: AlarmLevel
    below: bool = False
    missing_is_bad: bool = False

    def changed(self, setting: AlarmSetting) -> AlarmRule:
        """Return the rule with what the setting says."""
        periods = setting.periods or max(self.periods, setting.datapoints or 0)
        return replace(
            self,
            threshold=self.threshold if setting.threshold is None else setting.threshold,
            datapoints=min(setting.datapoints or self.datapoints, periods),
            periods=periods,
            level=setting.level or self.level,
        )


def alarm_rules(
    metrics: FleetMetrics,
    *,
    retention_hours: int,
    reserved_concurrency: int | None,
    by_cause: bool,
) -> list[AlarmRule]:
    """
    Return the alarms of a fleet.

    Args:
        metrics: the fleet's.
        retention_hours: the stream's.
        reserved_concurrency: the worker's; without one there is no `concurrency`.
        by_cause: one for each cause, beside the six.

    """
    six = [*_at_once(metrics, retention_hours=retention_hours), *_if_it_lasts(metrics)]
    if not by_cause:
        return six
    return [
        *six,
        *_about_records(metrics),
        *_about_reading(metrics),
        *_about_the_manager(metrics),
        *_about_lag(metrics),
        *_about_handlers(metrics),
        *_about_slots(metrics, reserved_concurrency=reserved_concurrency),
        *_about_limits(metrics),
    ]


def _at_once(metrics: FleetMetrics, *, retention_hours: int) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="data_loss",
        meaning="Lag passes half the stream's retention: unread records will expire.",
        metric=metrics.own("millis_behind_latest", "Maximum"),
        threshold=retention_hours * HOUR * 1000 / 2,
        datapoints=3,
        periods=3,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="broken",
        meaning="A shard is stopped or cannot be read, or records may be lost.",
        metric=metrics.own("broken", "Maximum"),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="uncovered",
        meaning="Something of the stream is read or handled by nobody.",
        metric=metrics.own("uncovered", "Minimum"),
        threshold=0,
        datapoints=3,
        periods=3,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="manager",
        meaning="The lease manager completes no turn.",
        metric=metrics.own("uncovered", "SampleCount"),
        threshold=1,
        datapoints=3,
        periods=3,
        level=AlarmLevel.PAGE,
        below=True,
        missing_is_bad=True,
    )


def _if_it_lasts(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="lag",
        meaning="A shard is more than five minutes behind.",
        metric=metrics.own("millis_behind_latest", "Maximum"),
        threshold=MINUTES_5 * 1000,
        datapoints=3,
        periods=3,
        level=AlarmLevel.NOTICE,
    )
    yield AlarmRule(
        name="trouble",
        meaning="Something fails again and again, or was given up.",
        metric=metrics.own("trouble", "Sum", period_s=MINUTES_5),
        threshold=11,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )


def _about_records(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="records_lost",
        meaning="A position is older than the stream's retention: records may be lost.",
        metric=math(
            "FILL(position, 0) + FILL(expired, 0)",
            {
                "position": metrics.own("position_lost", "Sum"),
                "expired": metrics.own("shard_expired", "Sum"),
            },
            label="positions lost",
        ),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="silent",
        meaning="Records arrive in the stream and none is handled.",
        metric=math(
            # A fleet that is paused as a whole wants no slots, and handles nothing on purpose; one
            # that is asleep wants none either, but must wake.
            # FILL fills gaps only: that there is a point at all is the manager's doing, who puts
            # these with each turn, a 0 of `records` too.
            "IF(FILL(incoming, 0) > 0 AND FILL(handled, 0) == 0"
            " AND (FILL(wanted, 1) > 0 OR FILL(paused, 0) == 0), 1, 0)",
            {
                "incoming": metrics.stream("IncomingRecords", "Sum"),
                "handled": metrics.own("records", "Sum"),
                "wanted": metrics.own("slots_wanted", "Maximum"),
                "paused": metrics.own("paused_leases", "Minimum"),
            },
            label="silent",
        ),
        threshold=0,
        datapoints=5,
        periods=5,
        level=AlarmLevel.PAGE,
    )


def _about_reading(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="stopped_shards",
        meaning="A shard is stopped by policy, for a while by an unforeseen error, or not found.",
        metric=metrics.own("stopped_shards", "Maximum"),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="unreadable_leases",
        meaning="Items of the lease table cannot be read: their shards wait.",
        metric=metrics.own("unreadable_leases", "Maximum"),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="unreadable_documents",
        meaning="Documents of the fleet-state table cannot be read: `shardfleet documents`.",
        metric=metrics.own("document_unreadable", "Sum"),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )
    yield from _about_coverage(metrics)


def _about_coverage(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="unclaimed_leases",
        meaning="Leases have no living owner.",
        metric=metrics.own("unclaimed_leases", "Minimum"),
        threshold=0,
        datapoints=3,
        periods=3,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="unread_shards",
        meaning="Open shards have no lease that leads to them.",
        metric=metrics.own("unread_shards", "Minimum"),
        threshold=0,
        datapoints=3,
        periods=3,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="holes",
        meaning="Part of the hash space is covered by no unfinished lease.",
        metric=metrics.own("hash_range_holes", "Minimum"),
        threshold=0,
        datapoints=3,
        periods=3,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="lost_leases",
        meaning="Leases that somebody deleted were made again: records come twice.",
        metric=metrics.own("lease_healed", "Sum"),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )


def _about_the_manager(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="schedule",
        meaning="EventBridge Scheduler could not invoke the lease manager.",
        metric=metrics.queue(
            metrics.fleet.schedule_dead_letters, "ApproximateNumberOfMessagesVisible"
        ),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.PAGE,
    )
    yield AlarmRule(
        name="manager_errors",
        meaning="Turns of the lease manager are cut short again and again.",
        metric=metrics.own("manager_turn_failed", "Sum", period_s=MINUTES_5),
        threshold=2,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )


def _about_lag(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="never_caught_up",
        meaning="No shard has been at its tip for half an hour: the fleet is too small.",
        metric=metrics.own("least_millis_behind_latest", "Minimum", period_s=MINUTES_5),
        threshold=0,
        datapoints=6,
        periods=6,
        level=AlarmLevel.NOTICE,
    )
    yield AlarmRule(
        name="unknown_lag",
        meaning="Of some leases nobody knows how far behind they are.",
        metric=metrics.own("leases_of_unknown_lag", "Minimum"),
        threshold=0,
        datapoints=10,
        periods=10,
        level=AlarmLevel.NOTICE,
    )
    yield AlarmRule(
        name="hot_shard",
        meaning="One shard handles many times the average of all: its keys are uneven.",
        metric=math(
            "IF(sum > 1000, most * shards / sum, 0)",
            {
                "sum": metrics.own("records", "Sum"),
                "most": metrics.own("records", "Maximum"),
                # One point for each shard that handled records, as those have.
                "shards": metrics.own("handler_ms", "SampleCount"),
            },
            label="records of the hottest shard over the average",
        ),
        threshold=4,
        datapoints=15,
        periods=15,
        level=AlarmLevel.INFO,
    )


def _about_handlers(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="handler_errors",
        meaning="More than 5 % of the handler's calls fail.",
        metric=math(
            "IF(FILL(calls, 0) > 0, 100 * FILL(failed, 0) / calls, 0)",
            {
                "calls": metrics.own("handler_calls", "Sum"),
                "failed": metrics.own("batch_failed", "Sum"),
            },
            label="failed calls, percent",
        ),
        threshold=5,
        datapoints=3,
        periods=3,
        level=AlarmLevel.NOTICE,
    )
    yield AlarmRule(
        name="quarantine",
        meaning="Records were given up, kept elsewhere in full, and skipped.",
        metric=metrics.own("record_skipped", "Sum"),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )
    queue = metrics.fleet.failed_queue
    if queue is not None:
        yield AlarmRule(
            name="quarantine_age",
            meaning="A given-up record has waited for a day; SQS deletes it after 14.",
            metric=metrics.queue(queue, "ApproximateAgeOfOldestMessage"),
            threshold=DAY,
            datapoints=1,
            periods=1,
            level=AlarmLevel.PAGE,
        )
    yield AlarmRule(
        name="worker_errors",
        meaning="Worker invocations fail or are killed again and again.",
        metric=metrics.function(metrics.fleet.worker, "Errors", "Sum", period_s=MINUTES_5),
        threshold=2,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )


def _about_slots(metrics: FleetMetrics, *, reserved_concurrency: int | None) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="slots_missing",
        meaning="Fewer worker slots run than the leases need.",
        metric=metrics.own("slots_missing", "Minimum"),
        threshold=0,
        datapoints=5,
        periods=5,
        level=AlarmLevel.NOTICE,
    )
    yield AlarmRule(
        name="executions",
        meaning="Executions of worker slots failed, timed out, were stopped or throttled.",
        metric=math(
            "FILL(failed, 0) + FILL(timedout, 0) + FILL(aborted, 0) + FILL(throttled, 0)",
            {
                "failed": metrics.executions("ExecutionsFailed"),
                "timedout": metrics.executions("ExecutionsTimedOut"),
                "aborted": metrics.executions("ExecutionsAborted"),
                "throttled": metrics.executions("ExecutionThrottled"),
            },
            label="executions that ended badly",
        ),
        threshold=0,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )
    yield AlarmRule(
        name="lease_churn",
        meaning="Leases change their owners all the time.",
        metric=metrics.own("lease_switches", "Sum", period_s=HOUR),
        threshold=60,
        datapoints=1,
        periods=1,
        level=AlarmLevel.NOTICE,
    )
    if reserved_concurrency is not None:
        yield AlarmRule(
            name="concurrency",
            meaning="Worker slots use more than 80 % of the reserved concurrency.",
            metric=metrics.function(metrics.fleet.worker, "ConcurrentExecutions", "Maximum"),
            threshold=0.8 * reserved_concurrency,
            datapoints=3,
            periods=3,
            level=AlarmLevel.NOTICE,
        )


def _about_limits(metrics: FleetMetrics) -> Iterator[AlarmRule]:
    yield AlarmRule(
        name="throttles",
        meaning="Kinesis or DynamoDB refuse the fleet's calls.",
        metric=metrics.own("throttles", "Sum"),
        threshold=10,
        datapoints=3,
        periods=3,
        level=AlarmLevel.NOTICE,
    )
    functions = (metrics.fleet.worker, metrics.fleet.manager)
    workers, managers = (metrics.function(each, "Throttles", "Sum") for each in functions)
    yield AlarmRule(
        name="lambda_throttles",
        meaning="Lambda refuses to run the worker or the manager.",
        metric=math(
            "FILL(workers, 0) + FILL(managers, 0)",
            {"workers": workers, "managers": managers},
            label="throttled invocations",
        ),
        threshold=0,
        datapoints=3,
        periods=3,
        level=AlarmLevel.NOTICE,
    )
