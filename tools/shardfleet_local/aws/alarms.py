"""
CloudWatch alarms, evaluated as CloudWatch does: by period, M out of N, with missing data.

The rules are those of the user guide's "Configuring how CloudWatch alarms treat missing data" and
its two tables; a test holds each row.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ministack.core.responses import request_scope
from ministack.services import cloudwatch

from shardfleet_local.aws.metric_math import MetricMathError
from shardfleet_local.aws.metric_queries import QuerySet
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

EXTRA_PERIODS = 2  # fact C05
"""CloudWatch looks this much further back than EvaluationPeriods for data points that exist."""

SCALE_MOST = 1_000  # ours
"""Longest minute of an alarm, in minutes."""

COMPARISONS = {
    "GreaterThanOrEqualToThreshold": lambda value, threshold: value >= threshold,
    "GreaterThanThreshold": lambda value, threshold: value > threshold,
    "LessThanThreshold": lambda value, threshold: value < threshold,
    "LessThanOrEqualToThreshold": lambda value, threshold: value <= threshold,
}
"""The comparison operators of alarms with a fixed threshold."""

logger = logging.getLogger("shardfleet_local.aws.alarms")
_period_scale = [1.0]


def scale_periods(scale: float) -> None:
    """Shorten or lengthen the periods of all alarms, from now on. Raises ValueError."""
    if not 0 < scale <= SCALE_MOST:
        raise ValueError(f"scale: {scale!r} found, above 0 to {SCALE_MOST} allowed")  # ours
    _period_scale[-1] = float(scale)


def decide(breaching: Sequence[bool | None], alarm: Mapping[str, Any], current: str) -> str:
    """
    Return the state that follows from the periods looked at.

    `breaching` has one entry per period, oldest first: True, False, or None for no data; it spans
    EvaluationPeriods + EXTRA_PERIODS. `current` is kept where CloudWatch keeps the state.
    """
    periods = int(alarm.get("EvaluationPeriods", 1))
    needed = int(alarm.get("DatapointsToAlarm") or periods)
    treat = str(alarm.get("TreatMissingData") or "missing")
    found = [each for each in breaching if each is not None][-periods:]
    missing = periods - len(found)
    if not found:
        return {"breaching": "ALARM", "notBreaching": "OK", "ignore": current}.get(
            treat, "INSUFFICIENT_DATA"
        )
    count = sum(found)
    if count >= needed or (treat == "breaching" and count + missing >= needed):
        return "ALARM"
    if not missing or treat in ("breaching", "notBreaching") or not all(found):
        return "OK"
    # Fewer breaching points than needed, none that is not breaching, the rest is missing.
    recent = list(breaching)[-periods:]
    oldest_age = periods - recent.index(True) if True in recent else 0
    return "ALARM" if treat == "missing" and oldest_age >= needed else current


def evaluate(alarm: dict[str, Any], now: float, *, period_scale: float = 1.0) -> None:
    """
    Look at an alarm's last whole periods and change its state, history and parents if needed.

    A `period_scale` other than 1 shortens or lengthens every period, whole seconds at least.
    """
    queries = alarm.get("Metrics") or _single_query(alarm)
    if period_scale != 1.0:
        queries = [_scaled(query, period_scale) for query in queries]
    compare = COMPARISONS.get(str(alarm.get("ComparisonOperator")))
    if not queries or compare is None:
        return
    returned = next(query for query in queries if query.get("ReturnData", True))
    period = QuerySet(queries, 0, 0).period(returned)
    end = int(now // period) * period
    looked_at = int(alarm.get("EvaluationPeriods", 1)) + EXTRA_PERIODS
    query_set = QuerySet(queries, end - looked_at * period, end)
    try:
        series = (query_set.series(str(returned["Id"])) or [{}])[0]
    except MetricMathError as error:
        logger.warning("Alarm %s: %s", alarm["AlarmName"], error)
        return
    values = [series.get(end - back * period) for back in range(looked_at, 0, -1)]
    threshold = float(alarm.get("Threshold", 0))
    breaching = [None if value is None else compare(value, threshold) for value in values]
    state = decide(breaching, {**alarm, **_ignoring(queries)}, alarm["StateValue"])
    if state != alarm["StateValue"]:
        shown = [value for value in values if value is not None][-looked_at + EXTRA_PERIODS :]
        reason = f"Data points {shown}, threshold {threshold}"
        _change(alarm, state, reason=reason, now=now)


def _ignoring(queries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Alarms over DynamoDB's metrics ignore missing data (PutMetricAlarm.TreatMissingData)."""
    metrics = (query.get("MetricStat", {}).get("Metric", {}) for query in queries)
    names = {metric.get("Namespace") for metric in metrics}
    return {"TreatMissingData": "ignore"} if "AWS/DynamoDB" in names else {}


def _scaled(query: Mapping[str, Any], scale: float) -> dict[str, Any]:
    scaled = dict(query)
    if query.get("Period"):
        scaled["Period"] = max(1, round(int(query["Period"]) * scale))
    if query.get("MetricStat"):
        scaled["MetricStat"] = _scaled({"Period": 60, **query["MetricStat"]}, scale)
    return scaled


def _single_query(alarm: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Write a plain metric alarm as a query."""
    if not alarm.get("MetricName"):
        return []
    return [
        {
            "Id": "m1",
            "MetricStat": {
                "Metric": {
                    "Namespace": alarm.get("Namespace"),
                    "MetricName": alarm["MetricName"],
                    "Dimensions": alarm.get("Dimensions") or [],
                },
                "Period": alarm.get("Period") or 60,
                "Stat": alarm.get("ExtendedStatistic") or alarm.get("Statistic") or "Average",
            },
        }
    ]


def _change(alarm: dict[str, Any], state: str, *, reason: str, now: float) -> None:
    before = alarm["StateValue"]
    alarm["StateValue"] = state
    alarm["StateReason"] = reason
    alarm["StateUpdatedTimestamp"] = int(now)
    cloudwatch._record_history(alarm["AlarmName"], before, state, reason)
    cloudwatch._dispatch_alarm_actions(alarm, before, state, reason)
    cloudwatch._evaluate_parent_alarms(alarm)


def _evaluate_periodically(settings: ServerSettings) -> None:
    one_at_a_time = threading.RLock()

    def evaluate_now(alarm: dict[str, Any]) -> None:
        with one_at_a_time:
            evaluate(alarm, time.time(), period_scale=_period_scale[-1])

    def look() -> None:
        while True:
            time.sleep(settings.alarm_tick_s)
            for (account_id, region, _), alarm in list(cloudwatch._alarms._data.items()):
                try:
                    with request_scope(account_id, region):
                        evaluate_now(alarm)
                except Exception:
                    logger.exception("Alarm %s could not be evaluated", alarm.get("AlarmName"))

    cloudwatch._evaluate_alarm = evaluate_now
    cloudwatch._evaluate_all_alarms = lambda: None  # The thread below does it.
    threading.Thread(target=look, name="alarms", daemon=True).start()


def _keep_metric_math(_: ServerSettings) -> None:
    """Store the Metrics of a PutMetricAlarm call."""
    stock = cloudwatch._put_metric_alarm

    def put(params: Any, data: Mapping[str, Any], *protocol: Any) -> Any:
        answer = stock(params, data, *protocol)
        alarm = cloudwatch._alarms.get(data.get("AlarmName"))
        if alarm and data.get("Metrics"):
            as_metric_math(alarm, data["Metrics"])
        return answer

    cloudwatch._put_metric_alarm = put


def as_metric_math(alarm: dict[str, Any], metrics: Sequence[Mapping[str, Any]]) -> None:
    """Turn a stored metric alarm into one over queries: it has no metric of its own then."""
    for name in ("MetricName", "Namespace", "Statistic", "Period", "Dimensions"):
        alarm.pop(name, None)
    alarm["Metrics"] = [dict(metric) for metric in metrics]


_SERVICE = "ministack.services.cloudwatch:"

PATCHES = (
    Patch(
        gap="Alarms are evaluated when a metric is put only, over all dimensions at once, without "
        "M of N, missing data and metric math",
        touches=(
            *(
                _SERVICE + name
                for name in (
                    "_evaluate_alarm", "_evaluate_all_alarms", "_alarms._data", "_record_history",
                    "_dispatch_alarm_actions", "_evaluate_parent_alarms", "_dims_key", "_metrics",
                    "_calc_stats", "_stat_value",
                )
            ),
        ),
        apply=_evaluate_periodically,
    ),
    Patch(
        gap="The Metrics of PutMetricAlarm are dropped",
        touches=(_SERVICE + "_put_metric_alarm",),
        apply=_keep_metric_math,
    ),
)  # fmt: skip
"""What this module corrects in ministack."""
