"""The dashboard on this machine: the deployed definition, drawn, and nothing changed by it."""

import http.client
import json
import re
import time
import uuid
from urllib.parse import urlsplit

import pytest

from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import SlotState
from shardfleet.errors import ConfigurationError
from shardfleet_local.dashboard import page
from shardfleet_local.dashboard.definition import metric_queries, read_dashboard, units
from shardfleet_local.dashboard.gathering import AlarmState, Gatherer, Series
from shardfleet_local.dashboard.server import DashboardServer, ShownFleet
from shardfleet_local.pages import parts
from shardfleet_ops.explain.fleet_view import (
    FailureRow,
    FleetSummary,
    LeaseRow,
    LeaseState,
    worst_first,
)
from tests.local.dashboard.browser import CHROMIUM, look
from tests.local.dashboard.planted import planted_reading

BODY = {
    "start": "-PT6H",
    "widgets": [
        {
            "type": "metric",
            "x": 0,
            "y": 0,
            "width": 12,
            "height": 6,
            "properties": {"title": "Records", "metrics": [["N", "m", "k", "v", {"stat": "Sum"}]]},
        }
    ],
}


def test_a_dashboards_body_is_read_with_the_hours_it_shows():
    dashboard = read_dashboard(json.dumps(BODY))

    assert dashboard.hours == 6
    assert [(w.kind, w.title, w.width) for w in dashboard.widgets] == [("metric", "Records", 12)]


def test_a_metric_becomes_a_query_and_a_hidden_one_returns_no_data():
    found = metric_queries(
        [
            ["N", "m", "k", "v", {"stat": "Sum", "period": 300}],
            [{"expression": "a / 2", "label": "half"}],
            ["N", "n", {"id": "a", "visible": False}],
        ]
    )

    dimensions = [{"Name": "k", "Value": "v"}]
    assert found[0]["MetricStat"] == {
        "Metric": {"Namespace": "N", "MetricName": "m", "Dimensions": dimensions},
        "Period": 300,
        "Stat": "Sum",
    }
    assert (found[1]["Expression"], found[1]["Label"]) == ("a / 2", "half")
    assert (found[2]["Id"], found[2]["ReturnData"]) == ("a", False)


def test_what_is_measured_is_told_by_its_name_and_records_of_two_kinds_apart():
    metrics = [
        ["AWS/Kinesis", "IncomingRecords", {}],
        ["N", "records", {}],
        ["N", "millis_behind_latest", {}],
        ["N", "handler_ms", {}],
        ["AWS/Lambda", "Duration", {}],
        ["AWS/SQS", "ApproximateAgeOfOldestMessage", {}],
        ["AWS/Kinesis", "IncomingBytes", {}],
        ["N", "bytes", {}],
        ["N", "slots_running", {}],
        [{"expression": "busy / calls", "label": "average ms per call"}],
    ]

    assert list(units(metrics).values()) == [
        "records of the stream",
        "user records",
        *("ms", "ms", "ms"),
        "s",
        *("bytes", "bytes"),
        "count",
        "ms",
    ]


def test_what_others_named_is_text_and_no_markup():
    bad = "<script>alert(1)</script>"
    alarm = AlarmState(name=bad, state="ALARM", reason=bad, description=bad)
    failing = FailureRow(
        slots=(bad,), kind=FailureKind.EXIT, is_certain=False, times=2, said=bad, remedy=bad
    )
    row = LeaseRow(lease_key=bad, state=LeaseState.STOPPED, owner=bad, why=bad)
    line = Series(label=bad, unit=bad, points=((1.0, 2.0),))
    empty = Series(label=bad, unit="count", points=())
    drawn = [
        page.panel(bad, ""),
        page.alarm_list([alarm]),
        page.lease_table([row], options=bad),
        page.log_table([{bad: bad, "lag_ms": bad}]),
        page.number(bad, [line], end=2),
        page.chart([line, empty], start=0, end=2),
        page.state_of(sums(failures=[failing]), [row], alarms=[alarm], doubts=[bad]),
        page.whole_page(bad, every_s=1).partition("<script>")[0],
    ]

    assert not [text for text in drawn if bad in text]


def sums(**changes):
    """Build the sums of a fleet of two leases that the manager plans."""
    given = {
        "leases": {LeaseState.READING: 2},
        "slots": {SlotState.RUNNING: 1},
        "workers": (),
        "lag_ms": 400,
        "lag_unknown": 0,
        "plan_age_ms": 20_000,
        "failures": (),
    }
    return FleetSummary(**given | changes)


READ = LeaseRow(lease_key="shard-1", state=LeaseState.READING, lag_ms=400)
RINGING = AlarmState(name="lag", state="ALARM", reason="", description="")
FAILS = FailureRow(
    slots=("s1",), kind=FailureKind.EXIT, is_certain=False, times=2, said="s1 fails", remedy="look"
)


@pytest.mark.parametrize(
    ("changes", "alarms", "doubts", "mood", "headline"),
    [
        ({}, [], [], "good", "Nothing is wrong with 1 shard."),
        ({}, [], ["It is old."], "unsure", "It is not known how the fleet is."),
        ({}, [RINGING], ["It is old."], "bad", "Alarm: lag."),
        ({"failures": (FAILS,)}, [RINGING], [], "bad", "Workers fail."),
        ({"leases": {}}, [], [], "unsure", "There is no lease yet."),
    ],
)
def test_the_page_says_first_how_the_fleet_is(changes, alarms, doubts, mood, headline):
    text = page.state_of(sums(**changes), [READ], alarms=alarms, doubts=doubts)

    assert f'class="verdict {mood}"' in text
    assert f"<h1>{headline}</h1>" in text
    assert all(doubt in text for doubt in doubts)


def test_a_shard_that_is_not_read_is_named_with_its_cause_and_the_command_for_its_lines():
    stopped = LeaseRow(lease_key="shard-2", state=LeaseState.STOPPED, why="at 5: no price")
    rows = worst_first([READ, stopped])
    text = page.state_of(sums(), rows, alarms=[], doubts=[])

    assert "1 of 2 shards is not read." in text
    assert "shard-2: stopped at 5: no price" in text
    table = page.lease_table(rows, options=" --stack S")
    assert table.index("shard-2") < table.index("shard-1")
    assert 'data-copy="shardfleet logs shard-2 --stack S"' in table


@pytest.mark.parametrize(
    ("newest", "plan_age_ms", "said"),
    [
        (990.0, 20_000, []),
        (400.0, 20_000, ["There have been no metrics for 10 min."]),
        (None, None, ["There are no metrics yet.", "The manager has not planned yet."]),
        (990.0, 600_000, ["The manager has not planned for 10 min."]),
    ],
)
def test_what_is_old_is_doubted(newest, plan_age_ms, said):
    assert page.doubts(sums(plan_age_ms=plan_age_ms), newest=newest, end=1000) == said


def test_what_lies_before_the_chart_is_not_drawn_and_does_not_stretch_it():
    line = Series(label="x", unit="count", points=((5.0, 900.0), (10.0, 1.0), (20.0, 4.0)))
    drawn = page.chart([line], start=10, end=20)

    (places,) = re.findall(r'<path d="M([^"]*)"', drawn)
    low = page.BOTTOM - (page.BOTTOM - page.TOP) / 4
    assert places == f"{page.LEFT}.0,{low:.1f}L{page.WIDTH - page.RIGHT}.0,{page.TOP}.0"
    assert "900" not in drawn


def test_what_is_measured_in_different_units_has_an_axis_each():
    aggregates = Series(label="in", unit="records of the stream", points=((1.0, 8.0),))
    records = Series(label="out", unit="user records", points=((1.0, 80_000.0),))
    drawn = page.chart([aggregates, records], start=0, end=2)

    assert re.findall(r'class="unit">([^<]*)<', drawn) == ["records of the stream", "user records"]
    assert re.findall(r'class="tick">([^<]*)<', drawn) == [
        *("0", "2", "4", "6", "8"),
        *("0", "20k", "40k", "60k", "80k"),
    ]


def test_an_axis_of_time_is_in_the_unit_in_which_its_end_is_said():
    lag = Series(label="lag", unit="ms", points=((1.0, 1_450_000.0),))
    drawn = page.chart([lag], start=0, end=2)

    assert re.findall(r'class="unit">([^<]*)<', drawn) == ["min"]
    assert re.findall(r'class="tick">([^<]*)<', drawn) == ["0", "10", "20", "30", "40"]
    assert "lag: 24.2 min" in drawn


@pytest.mark.parametrize(
    ("moments", "start"), [((), 9_400), ((9_900, 9_950), 9_400), ((5_000,), 5_000), ((10,), 1_000)]
)
def test_charts_begin_with_what_there_is_and_show_ten_minutes(moments, start):
    assert page.fitting_start(moments, start=1_000, end=10_000) == start


def test_a_number_that_is_old_says_so():
    line = Series(label="x", unit="ms", points=((100.0, 34_200.0),))

    assert "34.2 s</b><span>Lag</span>" in page.number("Lag", [line], end=130)
    assert 'class="tile old"' in page.number("Lag", [line], end=820)
    assert "<span>Lag, 12 min ago</span>" in page.number("Lag", [line], end=820)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "count", "0"),
        (12.3456, "count", "12.3"),
        (43_210, "count", "43.2k"),
        (2_500_000, "count", "2.5M"),
        (7e9, "user records", "7G"),
        (34_200, "ms", "34.2 s"),
        (90, "s", "1.5 min"),
        (31e6, "bytes", "31 MB"),
    ],
)
def test_numbers_are_short_and_have_their_unit(value, unit, text):
    assert parts.figure(value, unit) == text


@pytest.fixture(scope="module")
def stack(embedded_aws):
    """A stack with a dashboard of one alarm, one number, one chart."""
    name = f"stack-{uuid.uuid4().hex[:8]}"
    metric = [name, "m", {"stat": "Sum", "period": 60}]
    place = {"width": 12, "height": 6, "x": 0, "y": 0}
    alarm = {"Fn::GetAtt": ["Alarm", "Arn"]}
    chart = {"title": "Chart", "view": "timeSeries", "metrics": [metric]}
    number = {"title": "Number", "view": "singleValue", "metrics": [metric]}
    widgets = [
        {"type": "alarm", **place, "properties": {"title": "Alarms", "alarms": ["ALARM-ARN"]}},
        {"type": "metric", **place, "properties": chart},
        {"type": "metric", **place, "properties": number},
    ]
    before, _, after = json.dumps({"widgets": widgets}).partition("ALARM-ARN")
    template = {
        "Resources": {
            "Alarm": {
                "Type": "AWS::CloudWatch::Alarm",
                "Properties": {
                    "AlarmDescription": "It is red. docs/operating.md#reddening",
                    "Namespace": name,
                    "MetricName": "m",
                    "Statistic": "Sum",
                    "Period": 60,
                    "EvaluationPeriods": 1,
                    "Threshold": 0,
                    "ComparisonOperator": "GreaterThanThreshold",
                    "TreatMissingData": "notBreaching",
                },
            },
            "Dashboard": {
                "Type": "AWS::CloudWatch::Dashboard",
                "Properties": {"DashboardBody": {"Fn::Join": ["", [before, alarm, after]]}},
            },
        }
    }
    cloudformation = embedded_aws.client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template))
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name)
    return name


@pytest.fixture
def served(embedded_aws, stack):
    resources = embedded_aws.client("cloudformation").describe_stack_resource(
        StackName=stack, LogicalResourceId="Dashboard"
    )
    gatherer = Gatherer(embedded_aws.client, resources["StackResourceDetail"]["PhysicalResourceId"])
    reading = planted_reading("healthy")
    fleet = ShownFleet(title=stack, options="", reading=lambda: reading)
    with DashboardServer(gatherer, fleet=fleet, minutes=10) as server:
        yield server


def ask(server, page="", method="GET", host=None):
    address = urlsplit(server.url + page)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    connection.request(method, address.path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def redden(aws, stack):
    """Put a value a minute ago, so that the last whole minute is bad."""
    data = {"MetricName": "m", "Value": 41, "Timestamp": time.time() - 60}
    aws.client("cloudwatch").put_metric_data(Namespace=stack, MetricData=[data])


def eventually(question):
    deadline = time.monotonic() + 120
    while not (answer := question()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return answer


@pytest.mark.processes
class TestServed:
    def test_the_page_fetches_its_panels_and_may_load_nothing_else(self, served, stack):
        answer, text = ask(served)

        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert f"<title>{stack}</title>" in text
        assert "fetch('panels'" in text

    def test_panels_show_alarms_numbers_charts_and_leases(self, served, embedded_aws, stack):
        redden(embedded_aws, stack)
        _, text = ask(served, "panels")

        assert 'data-alarm="reddening"' in text
        assert re.search(r'<div class="tile"><b>\d+</b><span>Number</span>', text)
        assert "<circle" in text or 'class="line"' in text
        assert "shardId-000000000000" in text

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
    def test_nothing_can_be_changed(self, served, method):
        assert ask(served, "panels", method)[0].status == 501

    def test_another_name_for_this_machine_is_refused(self, served):
        assert ask(served, "panels", host="evil.example:80")[0].status == 403

    def test_there_is_no_other_page(self, served):
        assert ask(served, "etc/passwd")[0].status == 404

    def test_it_listens_on_loopback_only(self, served):
        assert served._server.server_address[0] == "127.0.0.1"

    def test_a_dashboard_that_is_not_there_is_named(self, embedded_aws):
        with pytest.raises(ConfigurationError, match="nowhere"):
            Gatherer(embedded_aws.client, "nowhere").dashboard()

    @pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH (Debian: chromium)")
    def test_a_browser_shows_an_alarm_that_goes_red(self, served, embedded_aws, stack, tmp_path):
        def state():
            text = look(served.url, tmp_path)
            return re.search(r'<b class="(\w*)" data-alarm="reddening"', text)

        assert state() is not None
        eventually(lambda: redden(embedded_aws, stack) or state()[1] == "alarm")
