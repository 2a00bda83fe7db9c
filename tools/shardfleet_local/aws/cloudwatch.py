"""
CloudWatch in the embedded AWS: reading metrics, and the metrics that services emit by themselves.

Reads without dimensions, metric math, metrics in log lines (EMF), Kinesis metrics.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from ministack.core.responses import request_scope
from ministack.services import cloudwatch, cloudwatch_logs

from shardfleet_local.aws import metric_queries
from shardfleet_local.aws.metric_math import MetricMathError
from shardfleet_local.aws.patches import Patch
from shardfleet_local.aws.settings import ServerSettings

EMF_MOST = 100  # fact C18
"""What a line in the embedded metric format has at most: metrics, and values of each."""
VALUE_MOST = 2.0**360  # fact C19
PLAIN_STATISTICS = ("SampleCount", "Sum", "Average", "Minimum", "Maximum")

logger = logging.getLogger("shardfleet_local.aws.cloudwatch")

Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def get_metric_statistics(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer GetMetricStatistics for exactly the metric that is named."""
    wanted = request.get("Statistics") or []
    extended = request.get("ExtendedStatistics") or []
    if not wanted and not extended:
        wanted = PLAIN_STATISTICS
    groups = metric_queries.points_by_period(
        request, _span(request), int(request.get("Period", 60))
    )
    return {
        "Label": request.get("MetricName"),
        "Datapoints": [
            _datapoint(at, points, wanted=wanted, extended=extended)
            for at, points in groups.items()
        ],
    }


def _datapoint(
    at: int, points: list[dict[str, Any]], *, wanted: Iterable[str], extended: Iterable[str]
) -> dict[str, Any]:
    found = metric_queries.statistics(points)
    percentiles = {name: metric_queries.statistic(points, name) for name in extended}
    return {
        "Timestamp": at,
        "Unit": points[0]["Unit"],
        **{name: found[name] for name in wanted if name in found},
        **({"ExtendedStatistics": percentiles} if percentiles else {}),
    }


def get_metric_data(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer GetMetricData, metric math included. Raises MetricMathError."""
    start, end = _span(request)
    queries = request.get("MetricDataQueries") or []
    query_set = metric_queries.QuerySet(queries, start, end)
    newest_first = request.get("ScanBy") != "TimestampAscending"
    results = []
    for query in queries:
        if str(query.get("ReturnData", True)).lower() == "false":
            continue
        for series in query_set.series(str(query["Id"])) or [{}]:
            moments = sorted(series, reverse=newest_first)
            results.append(
                {
                    "Id": query["Id"],
                    "Label": query.get("Label") or _label(query),
                    "Timestamps": moments,
                    "Values": [series[at] for at in moments],
                    "StatusCode": "Complete",
                }
            )
    return {"MetricDataResults": results}


def _label(query: Mapping[str, Any]) -> str:
    if query.get("MetricStat"):
        return str(query["MetricStat"]["Metric"].get("MetricName"))
    return str(query["Id"])


def _span(request: Mapping[str, Any]) -> tuple[float, float]:
    start = cloudwatch._parse_ts(request.get("StartTime"))
    end = cloudwatch._parse_ts(request.get("EndTime"))
    return float(start or 0.0), float(time.time() if end is None else end)


def _operation(name: str, answer: Answer) -> Callable[..., Any]:
    """Wrap an operation for ministack's three protocols: CBOR, JSON and query."""

    def run(params: Any, data: Mapping[str, Any], *protocol: Any) -> Any:
        is_cbor, is_json = (*map(bool, protocol), False)[:2]
        request = data if is_cbor or is_json else from_query(params)
        try:
            found = answer(request)
        except MetricMathError as error:
            return cloudwatch._error(  # fact C30
                "ValidationError", str(error), 400, use_json=is_json, use_cbor=is_cbor
            )
        if is_cbor:
            return cloudwatch._cbor_ok(_with_moments(found, cloudwatch._cbor_timestamp))
        if is_json:
            return cloudwatch._json_ok(found)
        text = to_xml(_with_moments(found, cloudwatch._ts_iso))
        return cloudwatch._xml(200, f"{name}Response", f"<{name}Result>{text}</{name}Result>")

    return run


def _with_moments(value: Any, convert: Callable[[float], Any]) -> Any:
    """Convert every timestamp of an answer, which are epoch seconds so far."""
    if isinstance(value, list):
        return [_with_moments(each, convert) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: convert(each)
        if key == "Timestamp"
        else [convert(moment) for moment in each]
        if key == "Timestamps"
        else _with_moments(each, convert)
        for key, each in value.items()
    }


def from_query(params: Mapping[str, Any]) -> dict[str, Any]:
    """Read the query protocol's flat names (`A.member.1.B`) into nested maps and lists."""
    root: dict[str, Any] = {}
    for name, values in params.items():
        node = root
        *path, last = [part for part in name.split(".") if part != "member"]
        for part in path:
            node = node.setdefault(part, {})
        node[last] = values[0] if isinstance(values, list) else values
    found: dict[str, Any] = _with_lists(root)
    return found


def _with_lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdigit() for key in node):
        return [_with_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _with_lists(each) for key, each in node.items()}


def to_xml(value: Any) -> str:
    """Write an answer's body in the query protocol's XML."""
    if isinstance(value, Mapping):
        return "".join(f"<{key}>{to_xml(each)}</{key}>" for key, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(f"<member>{to_xml(each)}</member>" for each in value)
    return escape(str(value))


def embedded_metrics(line: str, now: float) -> list[dict[str, Any]]:
    """
    Read the metrics of one log line in the embedded metric format (EMF), if it has any.

    Each has namespace, name, unit, dimensions, timestamp (seconds) and values. A line that has more
    metrics, or more values of one, than the format allows is dropped whole, as CloudWatch does.
    """
    if '"CloudWatchMetrics"' not in line:
        return []
    try:
        document = json.loads(line)
        directives = document["_aws"]["CloudWatchMetrics"]
        if any(len(each["Metrics"]) > EMF_MOST for each in directives):  # fact C18
            raise ValueError(f"more than {EMF_MOST} metrics")  # fact C18
        at = float(document["_aws"].get("Timestamp", now * 1000)) / 1000
        return [
            {
                "namespace": directive["Namespace"],
                "name": metric["Name"],
                "unit": metric.get("Unit", "None"),
                "dimensions": {name: str(document[name]) for name in names},
                "timestamp": at,
                "values": _numbers(document[metric["Name"]]),
            }
            for directive in directives
            for metric in directive["Metrics"]
            for names in directive.get("Dimensions") or [[]]
            if metric["Name"] in document
        ]
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("A log line in the embedded metric format cannot be read: %r", error)
        return []


def _numbers(value: Any) -> list[float]:
    found = [float(each) for each in (value if isinstance(value, list) else [value])]
    if len(found) > EMF_MOST:  # fact C18
        raise ValueError(f"more than {EMF_MOST} values")  # fact C18
    if not all(abs(each) <= VALUE_MOST for each in found):  # fact C19
        raise ValueError("a value that is no number, or beyond 2^360")  # fact C19
    return found


def _read_like_cloudwatch(_: ServerSettings) -> None:
    cloudwatch._get_metric_statistics = _operation("GetMetricStatistics", get_metric_statistics)
    cloudwatch._get_metric_data = _operation("GetMetricData", get_metric_data)


def _take_metrics_from_logs(_: ServerSettings) -> None:
    stock = cloudwatch_logs._append_log_events

    def append(stream: Any, events: Sequence[Mapping[str, Any]]) -> None:
        stock(stream, events)
        for event in events:
            for metric in embedded_metrics(str(event.get("message", "")), time.time()):
                cloudwatch._store_datum(
                    metric["namespace"],
                    metric["name"],
                    metric["dimensions"],
                    metric["timestamp"],
                    metric["unit"],
                    None,
                    metric["values"],
                    None,
                    None,
                )

    cloudwatch_logs._append_log_events = append


def publish_kinesis_metrics(
    drain: Callable[[], Iterable[tuple[str, str, Sequence[Mapping[str, Any]]]]], every_s: float
) -> None:
    """
    Copy the metrics of the Kinesis engines into CloudWatch, from a thread of its own.

    `drain` returns (account id, region, entries shaped like PutMetricData's) and is called each
    `every_s` seconds.
    """

    def copy() -> None:
        while True:
            time.sleep(every_s)
            for account_id, region, entries in drain():
                with request_scope(account_id, region):
                    for entry in entries:
                        _store_statistics("AWS/Kinesis", entry)

    threading.Thread(target=copy, name="kinesis-metrics", daemon=True).start()


def _store_statistics(namespace: str, entry: Mapping[str, Any]) -> None:
    dimensions = {each["Name"]: each["Value"] for each in entry["Dimensions"]}
    cloudwatch._store_datum(
        namespace,
        entry["MetricName"],
        dimensions,
        entry["Timestamp"],
        entry.get("Unit", "None"),
        None,
        None,
        None,
        dict(entry["StatisticValues"]),
    )


_SERVICE = "ministack.services.cloudwatch:"

PATCHES = (
    Patch(
        gap="Reads without dimensions add up all dimension sets; metric math gives nothing",
        touches=(
            *(
                _SERVICE + name
                for name in (
                    "_get_metric_statistics", "_get_metric_data", "_parse_ts", "_ts_iso", "_error",
                    "_cbor_ok", "_cbor_timestamp", "_json_ok", "_xml",
                )
            ),
        ),
        apply=_read_like_cloudwatch,
    ),
    Patch(
        gap="Metrics in log lines (EMF) are not taken",
        touches=(
            "ministack.services.cloudwatch_logs:_append_log_events",
            _SERVICE + "_store_datum",
        ),
        apply=_take_metrics_from_logs,
    ),
)  # fmt: skip
"""What this module corrects in ministack."""
