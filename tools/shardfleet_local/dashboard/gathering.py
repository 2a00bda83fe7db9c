"""What a dashboard's widgets show, asked of CloudWatch: series, alarms, rows of log queries."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from shardfleet.errors import ConfigurationError
from shardfleet_local.dashboard.definition import Dashboard, metric_queries, read_dashboard, units

LOG_QUERY_LIMIT_S = 5.0
"""Longest wait for a log query; the page comes again in a few seconds anyway."""

ALARMS_PER_CALL = 100
"""DescribeAlarms takes this many names (quota)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart: points of (epoch seconds, value), oldest first, and their unit."""

    label: str
    unit: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmState:
    """An alarm: its name in the run-book, its state, why, and where the run-book is."""

    name: str
    state: str
    reason: str
    description: str


class Gatherer:
    """
    Asks for what a fleet's dashboard shows.

    Args:
        client: makes a boto3 client of the account and region, by the service's name.
        dashboard: its name.

    """

    def __init__(self, client: Callable[[str], Any], dashboard: str) -> None:
        self._cloudwatch = client("cloudwatch")
        self._logs = client("logs")
        self._name = dashboard

    def dashboard(self) -> Dashboard:
        """
        Return the dashboard as it was deployed.

        Raises:
            ConfigurationError: it is not there, or may not be read.

        """
        try:
            answer = self._cloudwatch.get_dashboard(DashboardName=self._name)
        except ClientError as error:
            raise ConfigurationError(
                f"dashboard {self._name}: {error.response['Error']['Message']}; deploy its stack "
                "again, or get the right cloudwatch:GetDashboard"
            ) from error
        return read_dashboard(answer.get("DashboardBody", ""))

    def series(self, metrics: Sequence[Sequence[Any]], *, start: float, end: float) -> list[Series]:
        """Return the lines of a widget's metrics between two moments, epoch seconds."""
        measured = units(metrics)
        answer = self._cloudwatch.get_metric_data(
            MetricDataQueries=metric_queries(metrics),
            StartTime=start,
            EndTime=end,
            ScanBy="TimestampAscending",
        )
        return [
            Series(
                label=result["Label"],
                unit=measured[result["Id"]],
                points=tuple(
                    (moment.timestamp(), value)
                    for moment, value in zip(result["Timestamps"], result["Values"], strict=True)
                ),
            )
            for result in answer["MetricDataResults"]
        ]

    def alarms(self, arns: Sequence[str]) -> list[AlarmState]:
        """Return the state of alarms, in the order given."""
        names = [arn.partition(":alarm:")[2] for arn in arns]
        found: dict[str, Mapping[str, Any]] = {}
        for begin in range(0, len(names), ALARMS_PER_CALL):
            answer = self._cloudwatch.describe_alarms(
                AlarmNames=names[begin : begin + ALARMS_PER_CALL],
                AlarmTypes=["MetricAlarm", "CompositeAlarm"],
            )
            alarms = [*answer["MetricAlarms"], *answer["CompositeAlarms"]]
            found.update({alarm["AlarmName"]: alarm for alarm in alarms})
        return [_alarm_state(found[name]) for name in names if name in found]

    def log_rows(self, query: str, *, start: float, end: float) -> list[dict[str, str]]:
        """Return the rows of a Logs Insights query; none if it does not end in time."""
        source, _, text = query.partition(" | ")
        groups = [part.strip("' ") for part in source.removeprefix("SOURCE ").split("|")]
        started = self._logs.start_query(
            logGroupNames=groups, startTime=int(start), endTime=int(end), queryString=text
        )
        deadline = time.monotonic() + LOG_QUERY_LIMIT_S
        while time.monotonic() < deadline:
            answer = self._logs.get_query_results(queryId=started["queryId"])
            if answer["status"] not in ("Scheduled", "Running"):
                return [
                    {cell["field"]: cell["value"] for cell in row if cell["field"] != "@ptr"}
                    for row in answer["results"]
                ]
            time.sleep(0.2)
        return []


def _alarm_state(alarm: Mapping[str, Any]) -> AlarmState:
    description = str(alarm.get("AlarmDescription", ""))
    return AlarmState(
        name=description.rpartition("#")[2] or str(alarm["AlarmName"]),
        state=str(alarm["StateValue"]),
        reason=str(alarm.get("StateReason", "")),
        description=description,
    )
