"""A fleet's dashboard with planted data: five states, served by the page's own server."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime

from botocore.exceptions import EndpointConnectionError
from msgspec.structs import replace

from shardfleet.domain.slots.failure import FailureKind
from shardfleet_local.dashboard.gathering import Gatherer
from shardfleet_local.dashboard.server import DashboardServer, ShownFleet
from shardfleet_testkit.clock import run_virtual
from tests.cli.clicks_fleet import FIRST, SECOND, clicks_fleet
from tests.domain.builders import a_failure

STATES = ("healthy", "stopped", "crash loop", "endpoint gone", "empty")
AGE_S = 40 * 60
ALARMS = {
    "page": "Something needs a person.",
    "lag": "A shard is further behind than 5 min.",
    "stopped_shards": "A shard is stopped.",
    "handler_errors": "Handlers fail.",
    "slots_missing": "Fewer workers run than are wanted.",
    "throttles": "Calls are throttled.",
    "manager_errors": "The manager fails.",
    "silent": "Records come in and none is handled.",
}
RINGING = {
    "stopped": ("page", "lag", "stopped_shards"),
    "crash loop": ("page", "lag", "handler_errors", "slots_missing"),
}
# How each metric goes by state: a value at the beginning, and one at the end.
HEALTHY = {
    "millis_behind_latest": (400, 900),
    "least_millis_behind_latest": (0, 120),
    "total_leases": (5, 5),
    "slots_running": (2, 2),
    "slots_wanted": (2, 2),
    "IncomingRecords": (1_200, 1_500),
    "records": (120_000, 150_000),
    "IncomingBytes": (24e6, 31e6),
    "bytes": (24e6, 30e6),
    "handler_ms": (180, 240),
    "manager_turn_ms": (310, 290),
    "ApproximateAgeOfOldestMessage": (0, 0),
}
BEHIND = HEALTHY | {
    "millis_behind_latest": (900, 1_450_000),
    "stopped_shards": (0, 1),
    "records": (120_000, 70_000),
    "ApproximateAgeOfOldestMessage": (0, 1_200),
    "ApproximateNumberOfMessagesVisible": (0, 3),
}


def _metric(name, stat="Sum", **more):
    return ["ShardFleet", name, "fleet", "clicks-consumer", {"stat": stat, **more}]


def _widgets():
    def number(title, name):
        metrics = [_metric(name, "Maximum")]
        return "metric", 2, {"title": title, "view": "singleValue", "metrics": metrics}

    def graph(title, *metrics):
        return "metric", 12, {"title": title, "view": "timeSeries", "metrics": metrics}

    busy = {"expression": "busy / calls", "label": "average ms per call"}
    about = "**clicks-consumer**: shards behind, records handled, worker slots."
    query = {"title": "The 10 shards furthest behind", "query": "SOURCE '/log' | filter x"}
    alarms = {"title": "Alarms", "alarms": [f"arn:aws:cloudwatch:x:1:alarm:{n}" for n in ALARMS]}
    return [
        ("text", 24, {"markdown": about}),
        ("alarm", 24, alarms),
        number("Greatest lag", "millis_behind_latest"),
        number("Stopped shards", "stopped_shards"),
        number("Leases", "total_leases"),
        number("Slots running", "slots_running"),
        graph(
            "Lag of all unfinished leases",
            _metric("millis_behind_latest", "Maximum", label="furthest behind"),
            _metric("least_millis_behind_latest", "Minimum", label="least behind"),
        ),
        ("log", 12, query),
        graph("Records", _metric("IncomingRecords"), _metric("records")),
        graph("Bytes", _metric("IncomingBytes"), _metric("bytes")),
        graph("Handler time", _metric("handler_ms", "Maximum"), [busy]),
        graph("Worker slots", _metric("slots_wanted"), _metric("slots_running")),
        graph(
            "Records given up",
            _metric("ApproximateNumberOfMessagesVisible"),
            _metric("ApproximateAgeOfOldestMessage"),
        ),
    ]


class PlantedAccount:
    """CloudWatch and its logs, as far as the page asks them; `gone` once nobody answers."""

    def __init__(self, state):
        self.gone = False
        self._state = state
        self._values = {"empty": {}, "stopped": BEHIND, "crash loop": BEHIND}.get(state, HEALTHY)

    def get_dashboard(self, DashboardName):  # noqa: N803 - as boto3 has it
        place = {"x": 0, "y": 0, "height": 6}
        widgets = [
            {"type": kind, "width": width, "properties": properties, **place}
            for kind, width, properties in _widgets()
        ]
        return {"DashboardBody": json.dumps({"widgets": widgets})}

    def get_metric_data(self, MetricDataQueries, StartTime, EndTime, ScanBy):  # noqa: N803 - likewise
        if self.gone:
            raise EndpointConnectionError(endpoint_url="http://127.0.0.1:4566/")
        times = [EndTime - 30 - 60 * ago for ago in reversed(range(AGE_S // 60))]
        return {
            "MetricDataResults": [
                {"Id": query["Id"], "Label": query["Label"], **self._points(query, times)}
                for query in MetricDataQueries
            ]
        }

    def _points(self, query, times):
        stat = query.get("MetricStat")
        found = self._values.get(stat["Metric"]["MetricName"]) if stat else None
        if found is None:
            return {"Timestamps": [], "Values": []}
        first, last = found
        steps = [(at / len(times)) ** 2 for at in range(1, len(times) + 1)]
        return {
            "Timestamps": [datetime.fromtimestamp(at, UTC) for at in times],
            "Values": [first + (last - first) * step for step in steps],
        }

    def describe_alarms(self, AlarmNames, AlarmTypes):  # noqa: N803 - likewise
        def state(name):
            if self._state == "empty":
                return "INSUFFICIENT_DATA"
            return "ALARM" if name in RINGING.get(self._state, ()) else "OK"

        alarms = [
            {
                "AlarmName": name,
                "StateValue": state(name),
                "StateReason": "Threshold Crossed: 3 of 3 datapoints were above 0.",
                "AlarmDescription": f"{ALARMS[name]} docs/operating.md#{name}",
            }
            for name in AlarmNames
        ]
        return {"MetricAlarms": alarms, "CompositeAlarms": []}

    def start_query(self, **_):
        return {"queryId": "1"}

    def get_query_results(self, queryId):  # noqa: N803 - likewise
        row = [
            {"field": "lease_key", "value": FIRST},
            {"field": "greatest_lag_ms", "value": "1450000"},
        ]
        return {"status": "Complete", "results": [row] if self._state in RINGING else []}


def planted_reading(state):
    """Return what both tables say of the fleet in a state."""
    kept = state if state in ("stopped", "empty") else "healthy"

    async def read():
        return await (await clicks_fleet(kept)).reading()

    reading = run_virtual(read())
    if state == "empty":
        return replace(reading, slots=())
    now_ms = reading.at_ms
    slots = [replace(slot, lags_ms={FIRST: 480, SECOND: 900}) for slot in reading.slots]
    if state == "crash loop":
        failure = a_failure(
            kind=FailureKind.EXIT,
            message="the process ended with status 139 while it handled records of this shard",
            where="/opt/python/handler_with_a_long_name/orders.py, line 1207",
            times=17,
            first_ms=now_ms - 1_320_000,
            last_ms=now_ms - 8_000,
        )
        imports = a_failure(first_ms=now_ms - 1_320_000, last_ms=now_ms - 5_000, times=41)
        slots = [replace(slots[0], failure=failure), replace(slots[1], failure=imports)]
    return replace(reading, slots=slots, planned_ms=now_ms - 12_000)


@contextmanager
def served(state, **options):
    """Serve the page of a state; yields the server and the account behind it."""
    account, reading = PlantedAccount(state), planted_reading(state)
    fleet = ShownFleet(
        title="ShardFleetStack, clicks-consumer",
        options=" --stack ShardFleetStack --fleet clicks-consumer",
        reading=lambda: reading,
    )
    with DashboardServer(Gatherer(lambda _: account, "clicks"), fleet=fleet, **options) as server:
        yield server, account
