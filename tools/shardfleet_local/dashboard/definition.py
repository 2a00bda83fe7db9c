"""
CloudWatch's dashboard body, read: widgets on a grid of 24 columns, and their metrics.

Read is what `ShardFleet` writes; the shorthands "." and "..." of hand-written bodies are not.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_json
from shardfleet_local.pages.parts import BYTES, MS, SECONDS

_HOURS = re.compile(r"-PT(\d+)H")
_DEFAULT_HOURS = 3
_OF_THE_STREAM = ("IncomingRecords",)
_OF_THE_USER = ("records", "record_skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Widget:
    """
    One widget.

    Attributes:
        kind: `text`, `alarm`, `metric` or `log`.
        column: of 24, from 0.
        row: from 0.
        width: in columns.
        height: in rows.
        properties: as the body has them.

    """

    kind: str
    column: int
    row: int
    width: int
    height: int
    properties: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Return the title, empty if there is none."""
        return str(self.properties.get("title", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard: its widgets, and how many hours it shows."""

    widgets: tuple[Widget, ...]
    hours: int


def read_dashboard(body: str) -> Dashboard:
    """
    Read a dashboard's body, which anybody may have changed.

    Raises:
        ConfigurationError: it is none, or its widgets have not all a place.

    """
    try:
        document = read_json(body)
        hours = _HOURS.fullmatch(str(document.get("start", "")))
        return Dashboard(
            widgets=tuple(
                Widget(
                    kind=widget["type"],
                    column=int(widget["x"]),
                    row=int(widget["y"]),
                    width=int(widget["width"]),
                    height=int(widget["height"]),
                    properties=dict(widget["properties"]),
                )
                for widget in document["widgets"]
            ),
            hours=int(hours[1]) if hours else _DEFAULT_HOURS,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the dashboard's body is none that the construct made ({type(error).__name__}: "
            f"{error}); deploy it again"
        ) from error


def metric_queries(metrics: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Return GetMetricData's queries for a widget's metrics; hidden ones return no data."""
    return [_query(entry, f"line{number}") for number, entry in enumerate(metrics)]


def units(metrics: Sequence[Sequence[Any]]) -> dict[str, str]:
    """Return by the query's id in what a widget's metrics are measured, read off their names."""
    return {
        query["Id"]: _unit(query["MetricStat"]["Metric"]["MetricName"])
        if "MetricStat" in query
        else _unit(str(query.get("Label", "")))
        for query in metric_queries(metrics)
    }


def _unit(name: str) -> str:
    """
    Return the unit; a record of the stream may be an aggregate of many of the user's records.

    What this names beside times and bytes is counted.
    """
    if name in _OF_THE_STREAM:
        return "records of the stream"
    if name in _OF_THE_USER:
        return "user records"
    if "millis" in name or name.endswith(("_ms", "Duration")) or " ms " in name:
        return MS
    if name.startswith("ApproximateAge"):
        return SECONDS
    if name.startswith("GB-seconds"):
        return "GB-seconds"
    return BYTES if name.lower().endswith("bytes") else "count"


def _query(entry: Sequence[Any], default_id: str) -> dict[str, Any]:
    options = entry[-1] if isinstance(entry[-1], Mapping) else {}
    query: dict[str, Any] = {
        "Id": options.get("id", default_id),
        "ReturnData": options.get("visible", True),
    }
    if "label" in options:
        query["Label"] = options["label"]
    if "expression" in options:
        return {**query, "Expression": options["expression"]}
    namespace, name, *pairs = [part for part in entry if not isinstance(part, Mapping)]
    dimensions = [
        {"Name": key, "Value": value} for key, value in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    metric = {"Namespace": namespace, "MetricName": name, "Dimensions": dimensions}
    stat = options.get("stat", "Average")
    query.setdefault("Label", f"{name} ({stat})")
    period = int(options.get("period", 60))
    return {**query, "MetricStat": {"Metric": metric, "Period": period, "Stat": stat}}
