"""
Answering metric queries from ministack's store of data points: statistics and metric math.

A metric is a namespace, a name and a *set* of dimensions: a query without dimensions means the
metric published without any, not the sum over all of them.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ministack.services import cloudwatch

from shardfleet_local.aws.metric_math import (
    MetricMathError,
    MetricScope,
    Series,
    Value,
    as_series,
    evaluate,
)

LATE_S = 300  # ours
"""How far out of order data points may have been stored and are still found."""

MOST_PERIODS = 100_800  # fact C16
"""Data points one query may span (GetMetricData quota)."""


def grid(start: float, end: float, period: int) -> list[int]:
    """List the starts of the periods that begin in [start, end), aligned to the period."""
    first = int(start // period) * period
    moments = itertools.islice(itertools.count(first, period), MOST_PERIODS)
    return list(itertools.takewhile(lambda at: at < end, moments))


def points_by_period(
    metric: Mapping[str, Any], span: tuple[float, float], period: int
) -> dict[int, list[dict[str, Any]]]:
    """Group one metric's data points in [start, end) by the start of their period, ascending."""
    dimensions = {each["Name"]: each["Value"] for each in metric.get("Dimensions") or []}
    key = (
        metric.get("Namespace"),
        metric.get("MetricName"),
        cloudwatch._dims_key(dimensions),
    )
    groups: dict[int, list[dict[str, Any]]] = {}
    for point in _between(cloudwatch._metrics.get(key) or [], *span):
        groups.setdefault(int(point["Timestamp"] // period) * period, []).append(point)
    return dict(sorted(groups.items()))


def _between(
    points: Sequence[dict[str, Any]], start: float, end: float
) -> Iterator[dict[str, Any]]:
    for point in reversed(points):
        at = point["Timestamp"]
        if at < start - LATE_S:
            return
        if start <= at < end:
            yield point


def statistics(points: list[dict[str, Any]]) -> dict[str, float]:
    """Compute the five plain statistics of one period's data points."""
    found: dict[str, float] = cloudwatch._calc_stats(points)
    return found


def statistic(points: list[dict[str, Any]], name: str) -> float | None:
    """Compute one statistic, percentiles included; None when there is none for these points."""
    value: float | None = cloudwatch._stat_value(statistics(points), name, points)
    return value


class QuerySet:
    """
    The queries of one GetMetricData call, or of one alarm, over one span of time.

    Each query is evaluated once, when it is needed; `start` and `end` are epoch seconds.
    """

    def __init__(self, queries: Sequence[Mapping[str, Any]], start: float, end: float) -> None:
        self._queries = {str(query["Id"]): query for query in queries}
        self._start = start
        self._end = end
        self._values: dict[str, Value] = {}
        self._evaluating: set[str] = set()
        periods = [self.period(query) for query in queries]
        self.grid = grid(start, end, max(periods, default=60))  # ours

    def period(self, query: Mapping[str, Any]) -> int:
        """Return a query's period in seconds; an expression has that of its metrics."""
        own = (query.get("MetricStat") or query).get("Period")
        if own:
            return int(own)
        stats = [each["MetricStat"] for each in self._queries.values() if each.get("MetricStat")]
        return max((int(stat.get("Period", 60)) for stat in stats), default=60)  # ours

    def series(self, query_id: str) -> list[Series]:
        """Return the time series of one query. Raises MetricMathError."""
        return as_series(self._value(query_id), self.grid)

    def _value(self, query_id: str) -> Value:
        if query_id not in self._values:
            if query_id in self._evaluating:
                raise MetricMathError(f"Query '{query_id}' refers to itself")  # fact C30
            self._evaluating.add(query_id)
            self._values[query_id] = self._evaluate(self._queries[query_id])
            self._evaluating.remove(query_id)
        return self._values[query_id]

    def _evaluate(self, query: Mapping[str, Any]) -> Value:
        expression = query.get("Expression")
        if not expression:
            return self._metric(query["MetricStat"])
        metrics = {
            key: self._metric(each["MetricStat"])
            for key, each in self._queries.items()
            if each.get("MetricStat")
        }
        scope = MetricScope(values=_Lazy(self, query), grid=self.grid, metrics=metrics)
        return evaluate(str(expression), scope)

    def _metric(self, stat: Mapping[str, Any]) -> Series:
        period = int(stat.get("Period", 60))
        groups = points_by_period(stat["Metric"], (self._start, self._end), period)
        name = str(stat.get("Stat", "Average"))
        values = {at: statistic(points, name) for at, points in groups.items()}
        return {at: value for at, value in values.items() if value is not None}


class _Lazy(dict[str, Value]):
    """The values of the other queries, evaluated when an expression names them."""

    def __init__(self, queries: QuerySet, asking: Mapping[str, Any]) -> None:
        super().__init__()
        self._owner = queries
        self._asking = asking

    def __contains__(self, key: object) -> bool:
        return key in self._owner._queries and key != self._asking["Id"]

    def __getitem__(self, key: str) -> Value:
        return self._owner._value(key)
