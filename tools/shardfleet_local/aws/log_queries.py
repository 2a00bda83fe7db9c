"""
Logs Insights in the embedded AWS: queries that add up over the fields of JSON log lines.

Understood are `filter FIELD = "value"`, one `stats FUNCTION(FIELD) as NAME by FIELD`, and `sort`
and `limit` behind it; ministack answers all others.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ministack.services import cloudwatch_logs

from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

FUNCTIONS: Mapping[str, Callable[[list[float]], float]] = {
    "max": max,
    "min": min,
    "sum": sum,
    "count": len,
    "avg": lambda values: sum(values) / len(values),
}
"""The functions that `stats` may call."""

_FILTER = re.compile(r"""filter\s+(\w+)\s*=\s*["']([^"']*)["']""")
_STATS = re.compile(r"stats\s+(\w+)\((\w+)\)\s+as\s+(\w+)\s+by\s+(\w+)")
_SORT = re.compile(r"sort\s+(\w+)(?:\s+(asc|desc))?")
_LIMIT = re.compile(r"limit\s+(\d+)")

Rows = list[dict[str, str]]


def statistics(query: str, messages: Iterable[str]) -> Rows | None:
    """Return the rows of a query with `stats`; None if it has none, or none like the above."""
    stages = [stage.strip() for stage in query.split("|")]
    stats = next((found for stage in stages if (found := _STATS.fullmatch(stage))), None)
    if stats is None or stats[1] not in FUNCTIONS:
        return None
    filters = [found for stage in stages if (found := _FILTER.fullmatch(stage))]
    groups: dict[str, list[float]] = {}
    for fields in map(_fields, messages):
        fits = all(str(fields.get(each[1])) == each[2] for each in filters)
        if fits and stats[2] in fields and stats[4] in fields:
            groups.setdefault(str(fields[stats[4]]), []).append(float(fields[stats[2]]))
    rows = [(key, FUNCTIONS[stats[1]](values)) for key, values in sorted(groups.items())]
    for stage in stages:
        if (sort := _SORT.fullmatch(stage)) and sort[1] == stats[3]:
            rows.sort(key=lambda row: row[1], reverse=sort[2] == "desc")
        if limit := _LIMIT.fullmatch(stage):
            rows = rows[: int(limit[1])]
    return [{stats[4]: key, stats[3]: f"{value:g}"} for key, value in rows]


def _fields(message: str) -> Mapping[str, Any]:
    try:
        found = json.loads(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _answer_statistics(_: ServerSettings) -> None:
    stock = cloudwatch_logs._start_query

    def start(data: Mapping[str, Any]) -> Any:
        answer = stock(data)
        started = json.loads(answer[2])
        if "queryId" in started:
            groups = cloudwatch_logs._resolve_query_log_groups(data)
            found = cloudwatch_logs._collect_query_records(
                groups, data.get("startTime", 0), data.get("endTime", 0)
            )
            messages = (str(record.get("@message", "")) for record in found)
            rows = statistics(str(data.get("queryString", "")), messages)
            if rows is not None:
                cloudwatch_logs._queries[started["queryId"]]["results"] = [
                    [{"field": name, "value": value} for name, value in row.items()] for row in rows
                ]
        return answer

    cloudwatch_logs._start_query = start


_SERVICE = "ministack.services.cloudwatch_logs:"

PATCHES = (
    Patch(
        gap="A log query's stats are ignored, and filters on fields of JSON lines too",
        touches=(
            _SERVICE + "_start_query",
            _SERVICE + "_resolve_query_log_groups",
            _SERVICE + "_collect_query_records",
            _SERVICE + "_queries",
        ),
        apply=_answer_statistics,
    ),
)
"""What this module corrects in ministack."""
