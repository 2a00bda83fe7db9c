"""A query's figures, under the names and units of a fleet's metrics."""

import io
import json

import pytest

from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.telemetry import metrics
from shardfleet_local.aws.cloudwatch import embedded_metrics
from shardfleet_spark.offsets.lineage import CommittedStanding, Family
from shardfleet_spark.plan.lags import behind_now
from shardfleet_spark.plan.planning import stats_of
from shardfleet_spark.publish.figures import (
    LAG,
    METRICS,
    NAMESPACE,
    CloudWatchFigures,
    EmfFigures,
    Figures,
    is_at_tip,
    unit_of,
)
from shardfleet_testkit.clock import VirtualClock, run_virtual
from tests.spark.memory_seals import seal, stand, token
from tests.virtual import virtual, within

MINUTE_MS = 60_000


class Sink:
    def __init__(self):
        self.told, self.fails = [], False

    def put(self, values, *, at_ms):
        if self.fails:
            raise ConnectionError("no way")
        self.told.append(values)


def stats(number, *, records=3, lag=250):
    sealed = seal({"shard_id": "a", "count": records, "size_bytes": 9, "lag_ms": lag})
    family = Family({"a": stand("a")}, {})
    plan = token([stand("a")], layout=[["a"]], number=number)
    behind = behind_now(Family({"a": stand("a", 5, arrived=1)}, {}), {}, busy=(), now_ms=0)
    return {**stats_of(plan, {0: sealed}, family), **behind, LAG: lag}


@virtual
async def in_minutes(scenario):
    clock, sink = VirtualClock(), Sink()
    await scenario(clock, sink, Figures(sink, clock))


def test_names_and_units_are_those_of_a_fleets_metrics():
    assert (NAMESPACE, LAG) == (metrics.NAMESPACE, metrics.LAG)
    assert METRICS["bytes"][0] in metrics.AMOUNTS["PageRead"].values()
    assert METRICS["shards"][0] in metrics.READINGS["ManagerTurnDone"]
    for name, unit in METRICS.values():
        assert unit == unit_of(name) == metrics.unit_of(name)


def test_every_figure_is_one_that_a_plan_has():
    assert set(METRICS) <= set(stats(1))


@within(in_minutes)
async def test_each_batch_is_told_once_a_minute_whatever_spark_asks(clock, sink, figures, /):
    figures.take(stats(1, lag=250), at_tip=False)
    for number in (2, 2, 2, 3):
        await clock.sleep_ms(100)
        figures.take(stats(number, lag=number), at_tip=False)
    assert [told[LAG] for told in sink.told] == [[250.0]]
    await clock.sleep_ms(MINUTE_MS)
    figures.take(stats(3), at_tip=False)
    assert [told[LAG] for told in sink.told] == [[250.0], [2.0, 3.0]]
    assert sink.told[1]["stream_records"] == [3.0, 3.0]


@within(in_minutes)
async def test_a_stream_at_its_tip_has_no_lag_and_says_so_each_minute(clock, sink, figures, /):
    figures.take(stats(1), at_tip=False)
    for _ in range(1_200):
        await clock.sleep_ms(100)
        figures.take(stats(1), at_tip=True)
    assert sink.told[1:] == [{LAG: [0.0]}, {LAG: [0.0]}]
    # Silence where nobody knows: an alarm on missing data sees it.
    for _ in range(1_200):
        await clock.sleep_ms(100)
        figures.take(stats(1), at_tip=False)
    assert len(sink.told) == 3


def test_at_the_tip_means_that_every_live_shard_was_seen_there_lately():
    now_ms = 10_000_000
    read = Family({"a": stand("a", 5, tip=now_ms - 1_000), "b": stand("b", "END")}, {})
    stale = Family({**read.stands, "c": stand("c", 5, tip=now_ms - 400_000)}, {})

    assert is_at_tip(CommittedStanding("sid", read, None), now_ms=now_ms)
    assert not is_at_tip(CommittedStanding("sid", stale, None), now_ms=now_ms)


@within(in_minutes)
async def test_metrics_that_cannot_be_told_never_stop_a_query(clock, sink, figures, /):
    sink.fails = True
    figures.take(stats(1), at_tip=False)
    assert figures.trouble == "ConnectionError: no way"
    sink.fails = False
    await clock.sleep_ms(MINUTE_MS)
    figures.take(stats(2), at_tip=False)
    assert (figures.trouble, len(sink.told)) == ("", 1)


def test_a_line_is_what_cloudwatch_logs_takes_metrics_from():
    out = io.StringIO()

    EmfFigures("clicks", stream=out).put({LAG: [5.0, 7.0], "throttles": [0.0]}, at_ms=99)

    line = json.loads(out.getvalue())
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert (directive["Namespace"], directive["Dimensions"]) == ("shardfleet", [["fleet"]])
    assert {"Name": LAG, "Unit": "Milliseconds"} in directive["Metrics"]
    assert (line["_aws"]["Timestamp"], line["fleet"], line[LAG]) == (99, "clicks", [5.0, 7.0])


def test_a_line_never_has_more_values_than_cloudwatch_takes():
    """Fact C18: beyond 100 values of a metric a line is dropped whole; batches may be as fast."""
    out = io.StringIO()

    async def main():
        clock = VirtualClock()
        figures = Figures(EmfFigures("clicks", stream=out), clock)
        for number in range(300):
            await clock.sleep_ms(MINUTE_MS if number == 99 else 1)
            figures.take(stats(number), at_tip=True)
        figures.flush()

    run_virtual(main())

    lines = out.getvalue().splitlines()
    taken = [found for line in lines for found in embedded_metrics(line, now=0.0)]
    assert sum(len(found["values"]) for found in taken if found["name"] == "stream_records") == 300


@pytest.mark.processes
def test_figures_are_read_back_from_cloudwatch(embedded_aws):
    client = embedded_aws.client("cloudwatch")
    figures = Figures(CloudWatchFigures(client, "figures-fleet"), SystemClock())

    figures.take(stats(1, records=4), at_tip=False)

    dimension = {"Name": "fleet", "Value": "figures-fleet"}
    found = client.list_metrics(Namespace=NAMESPACE, Dimensions=[dimension])["Metrics"]
    assert {each["MetricName"] for each in found} == {name for name, _ in METRICS.values()}
