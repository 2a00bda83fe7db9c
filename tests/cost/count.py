"""
What the services of the embedded AWS counted while a fleet was in one state: what would be billed.

Requests and units are those that came to the endpoint, GB-seconds and runs those of Lambda's START
and REPORT lines, states those of the executions' histories, metrics and log bytes those of the log
groups. The fleet's own ledger is not asked.
"""

import re
import time
from collections import Counter
from dataclasses import dataclass

from boto3.dynamodb.types import TypeDeserializer

from shardfleet.domain.cost.prices import PRICES
from shardfleet.domain.cost.usage import HOURS_PER_MONTH, Consumption, price_of
from shardfleet.domain.item_size import value_bytes
from shardfleet.engine.state.kinds import LEDGER, TURN
from shardfleet.engine.state.ledger import KEPT_DAYS
from shardfleet_local.aws.cloudwatch import embedded_metrics

MARK = re.compile(r"(START|END|REPORT) RequestId: (\S+)")
# "DynamoDB adds 100 bytes of per-item storage overhead" (pricing page, "Data storage").
ITEM_BYTES = 100


def between_looks(fleet):
    """Wait until the manager's last look began half a minute ago: then each minute has one."""
    group = fleet.function("ManagerFunction")["LoggingConfig"]["LogGroup"]
    pages = fleet.aws.client("logs").get_paginator("filter_log_events")
    began_ms = max(
        event["timestamp"]
        for page in pages.paginate(logGroupName=group)
        for event in page["events"]
        if event["message"].startswith("START ")
    )
    time.sleep((30 - (time.time() - began_ms / 1_000)) % 60)


def stored_dollars(client, names):
    """
    Return what these tables keep, dollars a month.

    A day's notes are kept for all their days. What was changed is kept for a week, and is no part
    of a state in which nothing changes: it is left out.
    """
    to_python, sizes = TypeDeserializer().deserialize, []
    for name in names:
        for page in client.get_paginator("scan").paginate(TableName=name):
            for item in page["Items"]:
                body = {key: to_python(value) for key, value in item.items()}
                kind = str(body.get("kind", ""))
                days = KEPT_DAYS if kind.startswith(f"{LEDGER} ") else kind != TURN
                sizes.append(days * (value_bytes(body) + ITEM_BYTES))
    return sum(sizes) / 1e9 * PRICES.table_gb_month


@dataclass(frozen=True)
class Line:
    """A line of a log."""

    group: str
    at_ms: int
    text: str


class StateCount:
    """Counts from when it is made, at one deployed fleet."""

    def __init__(self, fleet):
        self._fleet = fleet
        self._before = fleet.aws.admin("GET", "requests")
        self._began_ms = time.time_ns() // 1_000_000

    def costs(self, seconds):
        """Wait, and return dollars a month by item as they were counted, and the counts."""
        time.sleep(seconds)
        until_ms = time.time_ns() // 1_000_000
        after, lines = self._fleet.aws.admin("GET", "requests"), self._lines()
        a_month = HOURS_PER_MONTH * 3_600_000 / (until_ms - self._began_ms)
        within = [line for line in lines if self._began_ms <= line.at_ms < until_ms]
        gb_s, runs = self._runs(lines, until_ms)
        manager = self._fleet.stack.outputs["ManagerFunction"]
        units = Counter(after["units"])
        units.subtract(self._before["units"])
        used = Consumption(
            mb_ms=round(gb_s * 1_024_000 * a_month),
            requests=round(sum(runs.values()) * a_month),
            transitions=round(self._states(until_ms) * a_month),
            read_tenths=round(units["read"] * 10 * a_month),
            write_tenths=round(units["write"] * 10 * a_month),
            log_bytes=round(sum(len(line.text.encode()) for line in within) * a_month),
            scheduled_runs=round(runs[manager] * a_month),
        )
        found = dict(price_of(used, metric_days=0).by_item)
        metrics = {
            (each["name"], *sorted(each["dimensions"].items()))
            for line in within
            for each in embedded_metrics(line.text, 0.0)
        }
        found["metrics"] = len(metrics) * PRICES.metric_month
        tables = [self._fleet.stack.outputs[name] for name in ("LeaseTable", "StateTable")]
        found["storage"] = stored_dollars(self._fleet.aws.client("dynamodb"), tables)
        found |= self._watch()
        requests = Counter(after["requests"])
        requests.subtract(self._before["requests"])
        counts = {
            "seconds": (until_ms - self._began_ms) / 1_000,
            "gb_seconds": round(gb_s, 2),
            "runs": dict(runs),
            "units": {kind: count for kind, count in units.items() if count},
            "requests": {name: count for name, count in sorted(requests.items()) if count},
            "metrics": sorted(name for name, *_ in metrics),
            "log_bytes": sum(len(line.text.encode()) for line in within),
            "log_lines": _by_kind(within),
        }
        return found, counts

    def _watch(self):
        """Return dollars of what watches: alarms by their metrics, and dashboards."""
        watch = self._fleet.aws.client("cloudwatch")
        alarms = watch.describe_alarms(AlarmTypes=["MetricAlarm", "CompositeAlarm"], MaxRecords=100)
        watched = sum(
            sum("MetricStat" in query for query in alarm.get("Metrics", ())) or 1
            for alarm in alarms["MetricAlarms"]
        )
        composites = len(alarms["CompositeAlarms"]) * PRICES.composite_alarm_month
        dashboards = watch.list_dashboards()["DashboardEntries"]
        return {
            "alarms": watched * PRICES.alarm_month + composites,
            "dashboard": len(dashboards) * PRICES.dashboard_month,
        }

    def _lines(self):
        logs = self._fleet.aws.client("logs")
        return [
            Line(group["logGroupName"], event["timestamp"], event["message"])
            for group in logs.describe_log_groups()["logGroups"]
            for page in logs.get_paginator("filter_log_events").paginate(
                logGroupName=group["logGroupName"]
            )
            for event in page["events"]
        ]

    def _runs(self, lines, until_ms):
        """Return GB-seconds within the time, and the runs that began in it by function."""
        groups = {}
        for output in ("WorkerFunction", "ManagerFunction"):
            function = self._fleet.function(output)
            groups[function["LoggingConfig"]["LogGroup"]] = (
                self._fleet.stack.outputs[output],
                function["MemorySize"],
            )
        began, gb_s, runs = {}, 0.0, Counter()
        ended = {
            found[2]: line.at_ms
            for line in lines
            if (found := MARK.match(line.text)) and found[1] == "REPORT"
        }
        for line in lines:
            if not (found := MARK.match(line.text)) or found[1] != "START":
                continue
            began[found[2]] = line.at_ms
            function, memory_mb = groups.get(line.group, ("other", 128))
            first = max(line.at_ms, self._began_ms)
            last = min(ended.get(found[2], until_ms), until_ms)
            gb_s += max(0, last - first) / 1_000 * memory_mb / 1_024
            runs[function] += self._began_ms <= line.at_ms < until_ms
        return gb_s, runs

    def _states(self, until_ms):
        states = self._fleet.aws.client("stepfunctions")
        machine = self._fleet.stack.outputs["StateMachineArn"]
        return sum(
            event["type"].endswith("StateEntered")
            and self._began_ms <= event["timestamp"].timestamp() * 1_000 < until_ms
            for execution in states.list_executions(stateMachineArn=machine)["executions"]
            for event in states.get_execution_history(
                executionArn=execution["executionArn"], maxResults=1_000
            )["events"]
        )


class TablesCount:
    """Counts from when it is made what processes ask of their tables, and that it is all."""

    def __init__(self, aws):
        self._aws = aws
        self._before = aws.admin("GET", "requests")
        self._began_s = time.monotonic()

    def costs(self, seconds):
        """Wait, and return dollars a month by item, and the counts; free services have no item."""
        time.sleep(seconds)
        after, lasted_s = self._aws.admin("GET", "requests"), time.monotonic() - self._began_s
        requests, units = Counter(after["requests"]), Counter(after["units"])
        requests.subtract(self._before["requests"])
        units.subtract(self._before["units"])
        asked = {name.partition(".")[0] for name, count in requests.items() if count}
        assert asked <= {"DynamoDB", "Kinesis"}, asked
        a_month = HOURS_PER_MONTH * 3_600 / lasted_s
        used = Consumption(
            read_tenths=round(units["read"] * 10 * a_month),
            write_tenths=round(units["write"] * 10 * a_month),
        )
        counts = {
            "seconds": round(lasted_s, 1),
            "units": dict(units),
            "requests": {name: count for name, count in sorted(requests.items()) if count},
        }
        return dict(price_of(used, metric_days=0).by_item), counts


def _by_kind(lines):
    """Return count and bytes of lines by function and what they are about, the most first."""
    counts, sizes = Counter(), Counter()
    for line in lines:
        kind = f"{'Worker' if 'Worker' in line.group else 'Manager'} {_kind(line.text)}"
        counts[kind] += 1
        sizes[kind] += len(line.text.encode())
    return {kind: [counts[kind], size] for kind, size in sizes.most_common(16)}


def _kind(text):
    """Return what a log line is about."""
    if found := MARK.match(text):
        return found[1]
    named = re.search(r'"message":"(\w+)"', text)
    return named[1] if named else "metrics" if "CloudWatchMetrics" in text else text[:40]
