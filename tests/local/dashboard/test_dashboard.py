"""The dashboard on this machine: the deployed definition, drawn, and nothing changed by it."""

import http.client
import json
import re
import time
import uuid
from urllib.parse import urlsplit

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet.local.dashboard import page
from shardfleet.local.dashboard.definition import metric_queries, read_dashboard
from shardfleet.local.dashboard.gathering import AlarmState, Gatherer, Series
from shardfleet.local.dashboard.server import DashboardServer
from tests.local.dashboard.browser import CHROMIUM, look

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


def test_what_others_named_is_text_and_no_markup():
    bad = "<script>alert(1)</script>"
    drawn = [
        page.panel(bad, "", columns=1, rows=1),
        page.alarm_list([AlarmState(name=bad, state="OK", reason=bad, description=bad)]),
        page.table([{bad: bad}], empty=""),
        page.chart([Series(label=bad, points=((1.0, 2.0),))], start=0, end=2, height=100),
        page.whole_page(bad, every_s=1).partition("<script>")[0],
    ]

    assert not [text for text in drawn if bad in text]


def test_what_lies_before_the_chart_is_not_drawn_and_does_not_stretch_it():
    line = Series(label="x", points=((5.0, 900.0), (10.0, 1.0), (20.0, 2.0)))
    drawn = page.chart([line], start=10, end=20, height=100, columns=8)

    (places,) = re.findall(r'<polyline points="([^"]*)"', drawn)
    width = page.WIDTH * 8 // 12
    assert places.split() == [f"{page.LEFT}.0,44.0", f"{width - 10}.0,{page.TOP}.0"]
    assert "900" not in drawn


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12.3456, "12.35"), (43_210, "43.2k"), (2_500_000, "2.5M"), (7e9, "7G")],
)
def test_numbers_are_short(value, text):
    assert page.shown(value) == text


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
    rows = [{"lease": "shardId-000000000000", "state": "READING"}]
    with DashboardServer(gatherer, leases=lambda: rows, title=stack, minutes=10) as server:
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
        assert re.search(r"<h2>Number</h2><div class=number>\d+<", text)
        assert "<circle" in text or "<polyline" in text
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
