"""Dashboard and alarms: what is deployed, how it is changed, and that run-book and code agree."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from shardfleet.adapters.telemetry import metrics as emitted
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.app import app
from shardfleet_ops.cost.model import METRICS
from tests.cdk.templates import of_type, only, spelled
from tests.cost.fleets import WATCH
from tests.event_kinds import event_kinds

RUNBOOK = Path(__file__).resolve().parents[2] / "docs/operating.md"
ALARM = "AWS::CloudWatch::Alarm"
COMPOSITE = "AWS::CloudWatch::CompositeAlarm"
SIX = {"data_loss", "broken", "uncovered", "manager", "lag", "trouble"}
ALWAYS = SIX | {
    "records_lost", "silent", "stopped_shards", "unclaimed_leases", "unread_shards",
    "unreadable_leases", "unreadable_documents", "holes", "lost_leases", "schedule",
    "manager_errors", "never_caught_up", "unknown_lag", "handler_errors", "quarantine",
    "worker_errors", "slots_missing", "executions", "lease_churn", "throttles",
    "lambda_throttles",
}  # fmt: skip
SOMETIMES = {"quarantine_age", "concurrency"}  # With a queue; with reserved concurrency.
PAGING = {
    "broken", "uncovered", "data_loss", "records_lost", "silent", "stopped_shards",
    "unclaimed_leases", "unread_shards", "unreadable_leases", "holes", "manager", "schedule",
    "quarantine_age",
}  # fmt: skip


def named(template, *, inside=""):
    """Alarm name, as in the run-book link of its description, to properties."""
    return {
        alarm["AlarmDescription"].rpartition("#")[2]: alarm
        for alarm in of_type(template, ALARM, inside=inside).values()
    }


def metrics_of(alarm):
    queries = alarm.get("Metrics") or [{"MetricStat": {"Metric": alarm}}]
    return [query["MetricStat"]["Metric"] for query in queries if "MetricStat" in query]


@pytest.fixture(scope="session")
def watched(template_of):
    return template_of("Two")


def test_a_fleet_has_alarms_and_a_dashboard_unless_it_shall_have_none(minimum, watched):
    kinds = (ALARM, COMPOSITE, "AWS::CloudWatch::Dashboard")

    assert [len(of_type(minimum, kind)) for kind in kinds] == [0, 0, 0]
    assert [len(of_type(watched, kind)) for kind in kinds] == [len(SIX) + len(ALWAYS) + 1, 2, 2]


def test_every_alarm_is_there_and_points_at_its_section_of_the_run_book(watched, everything):
    assert named(watched, inside="FirstMonitoring").keys() == SIX
    assert named(watched, inside="SecondMonitoring").keys() == ALWAYS | {"hot_shard"}
    assert named(everything).keys() == ALWAYS | SOMETIMES
    for alarm in named(watched).values():
        assert re.fullmatch(r"[A-Z].+\. docs/operating\.md#\w+", alarm["AlarmDescription"])
    for alarm in named(everything).values():
        assert "https://example.org/runbook#" in alarm["AlarmDescription"]


def test_the_run_book_has_a_section_and_a_row_for_every_alarm_and_for_no_other():
    text = RUNBOOK.read_text("utf-8")
    wanted = ALWAYS | SOMETIMES | {"hot_shard", "page"}

    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == wanted
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) ", text, re.MULTILINE)
    assert {name for name, _ in rows} == {anchor for _, anchor in rows} == wanted


def test_the_run_books_table_has_the_numbers_that_are_deployed(everything, watched):
    """The everything variant changes `lag` and retention; its other alarms are the defaults."""
    text = RUNBOOK.read_text("utf-8")
    for name, alarm in (named(everything) | named(watched, inside="SecondMonitoring")).items():
        (row,) = re.findall(rf"^\| \[`{name}`\].*$", text, re.MULTILINE)
        window = f"{alarm['DatapointsToAlarm']} of {alarm['EvaluationPeriods']}"
        assert f"| {window} " in row, name
        assert ("| page |" in row) == (name in PAGING), name


def test_the_model_of_cost_has_as_many_alarms_as_are_deployed(watched):
    """Each metric of an alarm is billed, and the expressions over them are not."""
    alarms = named(watched, inside="FirstMonitoring").values()

    assert sum(len(metrics_of(alarm)) for alarm in alarms) == WATCH["alarm_metrics"]
    assert len(of_type(watched, COMPOSITE, inside="FirstMonitoring")) == WATCH["composites"]


def test_each_of_the_six_watches_one_metric_of_the_ten(watched):
    for name, alarm in named(watched, inside="FirstMonitoring").items():
        (metric,) = metrics_of(alarm)
        assert metric["MetricName"] in emitted.FEW, name
    assert len(emitted.FEW) == METRICS
    # Imported here, because it starts Node, which collecting the tests shall not.
    from shardfleet_cdk.monitoring.metrics import FEW  # noqa: PLC0415

    assert FEW == emitted.FEW


def test_what_pages_by_default_are_four_of_the_six(watched):
    rule = spelled(only(watched, COMPOSITE, inside="FirstMonitoring")["AlarmRule"])
    ids = {
        alarm["AlarmDescription"].rpartition("#")[2]: logical
        for logical, alarm in of_type(watched, ALARM, inside="FirstMonitoring").items()
    }

    assert {name for name, logical in ids.items() if logical in rule} == SIX & PAGING


def test_two_fleets_in_one_account_share_no_name(watched):
    for kind in (ALARM, "AWS::CloudWatch::Dashboard"):
        for name, resource in of_type(watched, kind).items():
            assert not {"AlarmName", "DashboardName"} & resource.keys(), name
    names = [composite["AlarmName"] for composite in of_type(watched, COMPOSITE).values()]
    assert len(set(names)) == 2
    assert all(name.startswith("Two") for name in names)


def test_two_fleets_in_one_account_look_at_their_own_metrics_only(watched):
    def dimensions(inside):
        return {
            spelled(dimension["Value"])
            for alarm in named(watched, inside=inside).values()
            for metric in metrics_of(alarm)
            for dimension in metric["Dimensions"]
            if dimension["Name"] != "StreamName"
        }

    assert not dimensions("FirstMonitoring") & dimensions("SecondMonitoring")


def test_what_pages_is_the_composite_alarm_alone_unless_somebody_deploys(everything):
    composite = only(everything, COMPOSITE)
    rule = spelled(composite["AlarmRule"])
    ids = {
        name: logical
        for logical, alarm in of_type(everything, ALARM).items()
        for name in [alarm["AlarmDescription"].rpartition("#")[2]]
    }

    assert {name for name, logical in ids.items() if logical in rule} == PAGING | {"lag"}
    assert rule.endswith(
        'AND (NOT (ALARM("arn:aws:cloudwatch:eu-central-1:111122223333:alarm:deploying"))))'
    )
    (pager,) = (name for name in of_type(everything, "AWS::SNS::Topic") if "Pager" in name)
    assert composite["AlarmActions"] == composite["OKActions"] == [{"Ref": pager}]
    for alarm in named(everything).values():
        assert {"Ref": pager} not in alarm.get("AlarmActions", [])


def test_notices_go_to_their_own_topic(everything):
    (notices,) = (name for name in of_type(everything, "AWS::SNS::Topic") if "Notices" in name)
    for name, alarm in named(everything).items():
        expected = [] if name in PAGING | {"lag"} else [{"Ref": notices}]
        assert alarm.get("AlarmActions", []) == expected, name


def test_an_alarm_is_changed_or_left_out_by_its_name(everything):
    alarms = named(everything)

    assert "hot_shard" not in alarms
    lag = alarms["lag"]
    window = (lag["DatapointsToAlarm"], lag["EvaluationPeriods"])
    assert (lag["Threshold"], *window) == (60_000, 2, 4)


def test_half_the_retention_is_the_limit_of_data_loss(watched, everything):
    hour = 3_600_000

    assert named(watched, inside="FirstMonitoring")["data_loss"]["Threshold"] == 12 * hour
    assert named(everything)["data_loss"]["Threshold"] == 84 * hour


def test_missing_data_is_no_alarm_but_for_the_managers_heartbeat(watched):
    for name, alarm in named(watched, inside="SecondMonitoring").items():
        expected = "breaching" if name == "manager" else "notBreaching"
        assert alarm["TreatMissingData"] == expected, name


def test_concurrency_is_watched_against_what_is_reserved(everything):
    assert named(everything)["concurrency"]["Threshold"] == 4  # 80 % of 5.


def known_metrics():
    """Every metric that the functions can emit."""
    tables = (emitted.READINGS, emitted.AMOUNTS, emitted.SHARD_AMOUNTS, emitted.SHARD_PEAKS)
    found = {name for table in tables for wanted in table.values() for name in wanted.values()}
    found |= {"throttles", "lease_switches", *emitted.COUNTED.values(), *emitted.FEW}
    boundary = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
    return found | {boundary.sub("_", kind.__name__).lower() for kind in event_kinds()}


def test_alarms_look_at_metrics_that_the_functions_emit(watched):
    names = {
        metric["MetricName"]
        for alarm in named(watched).values()
        for metric in metrics_of(alarm)
        if metric["Namespace"] == "shardfleet"
    }

    assert names <= known_metrics()
    assert len(names) >= 12


def body(template, *, inside=""):
    dashboard = only(template, "AWS::CloudWatch::Dashboard", inside=inside)
    return json.loads(spelled(dashboard["DashboardBody"]))


def test_the_dashboard_shows_metrics_that_the_functions_emit(watched):
    shown = {
        metric[1]
        for widget in body(watched, inside="SecondMonitoring")["widgets"]
        for metric in widget["properties"].get("metrics", [])
        if metric[0] == "shardfleet"
    }

    assert shown <= known_metrics()
    assert len(shown) >= 18


def test_the_dashboard_of_a_fleet_that_writes_few_metrics_shows_these_alone(watched):
    widgets = body(watched, inside="FirstMonitoring")["widgets"]
    graphs = [widget["properties"]["metrics"] for widget in widgets if widget["type"] == "metric"]
    shown = {metric[1] for graph in graphs for metric in graph if metric[0] == "shardfleet"}

    assert all(graphs)
    assert shown <= emitted.FEW
    assert len(shown) >= 8


def test_the_dashboard_shows_every_alarm_and_the_log_event_of_lagging_shards(watched):
    widgets = body(watched, inside="SecondMonitoring")["widgets"]
    (alarms,) = (widget for widget in widgets if widget["type"] == "alarm")
    (log,) = (widget for widget in widgets if widget["type"] == "log")

    assert len(alarms["properties"]["alarms"]) == len(ALWAYS) + 2
    shown = re.search(r'message = "(\w+)"', log["properties"]["query"])[1]
    assert shown in {kind.__name__ for kind in event_kinds()}
    assert "SecondManagerLogs" in log["properties"]["query"]


@pytest.mark.parametrize("fleet", ["First", "Second"])
def test_dashboard_and_page_say_which_commands_tell_the_cause(watched, fleet):
    (text,) = (
        widget["properties"]["markdown"]
        for widget in body(watched, inside=f"{fleet}Monitoring")["widgets"]
        if widget["type"] == "text"
    )
    page = only(watched, COMPOSITE, inside=f"{fleet}Monitoring")["AlarmDescription"]
    workers = of_type(watched, "AWS::Lambda::Function", inside=f"{fleet}Worker").values()
    (name,) = {worker["Environment"]["Variables"]["SHARDFLEET_FLEET"] for worker in workers}

    known = get_command(app).commands
    for said in (text, page):
        calls = [line.split() for line in re.findall(r"`shardfleet ([^`]+)`", said)]
        assert [call[0] for call in calls] == ["doctor", "logs"]
        for command, *options in calls:
            given = known[command].make_context(command, options).params
            assert (given["stack"], given["fleet_name"]) == ("Two", name)


def test_the_widgets_fit_the_grid_and_do_not_overlap(watched, everything):
    for template, inside in (
        (watched, "FirstMonitoring"),
        (watched, "SecondMonitoring"),
        (everything, ""),
    ):
        taken = set()
        for widget in body(template, inside=inside)["widgets"]:
            x, y, width, height = (widget[name] for name in ("x", "y", "width", "height"))
            cells = {(x + i, y + j) for i in range(width) for j in range(height)}
            assert not cells & taken
            assert x + width <= 24
            taken |= cells


@pytest.fixture
def a_watch(handler_folder, new_app):
    # Imported here, because it starts Node, which collecting the tests shall not.
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    import shardfleet_cdk  # noqa: PLC0415

    def make(*, dashboard=True, **alarms):
        stack = Stack(new_app(), "Stack")
        arn = "arn:aws:kinesis:eu-central-1:999999999999:stream/orders"
        settings = {
            name: wanted and shardfleet_cdk.AlarmSetting(**wanted)
            for name, wanted in alarms.items()
        }
        return shardfleet_cdk.ShardFleet(
            stack,
            "Fleet",
            stream=kinesis.Stream.from_stream_arn(stack, "Orders", arn),
            handler=shardfleet_cdk.HandlerCode(folder=handler_folder),
            monitoring=shardfleet_cdk.MonitoringOptions(alarms=settings, dashboard=dashboard),
        )

    return make


def test_widgets_fit_into_a_dashboard_of_the_users(a_watch):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_cloudwatch as cw  # noqa: PLC0415
    from aws_cdk.assertions import Template  # noqa: PLC0415

    fleet = a_watch(dashboard=False)
    stack = Stack.of(fleet)
    mine = cw.TextWidget(markdown="ours", width=24, height=1)
    cw.Dashboard(stack, "All", widgets=[[mine], *fleet.monitoring.widgets()])
    template = Template.from_stack(stack).to_json()

    widgets = body(template, inside="All")["widgets"]
    (alarms,) = (widget for widget in widgets if widget["type"] == "alarm")
    assert len(alarms["properties"]["alarms"]) == len(SIX) + 1
    assert [widget["y"] for widget in widgets[:2]] == [0, 1]
    assert named(template).keys() == SIX


@pytest.mark.parametrize(
    ("alarms", "message"),
    [
        (
            {"lagg": None},
            "Stack/Fleet/Monitoring: alarms: lagg: no such alarm of this fleet; did you mean lag",
        ),
        ({"lag": {"periods": 1441}}, "periods: 1441 look back 86460 s, CloudWatch allows 86400"),
        (
            {"trouble": {"periods": 2017}},
            "periods: 2017 look back 605100 s, CloudWatch allows 86400",
        ),
        ({"lag": {"datapoints": 0}}, "datapoints: 0 found, 1 or more allowed"),
        (dict.fromkeys(SIX & PAGING), "no alarm of level page is left"),
    ],
)
def test_a_wrong_setting_is_named(a_watch, alarms, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        a_watch(**alarms)


@pytest.mark.parametrize(
    ("monitoring", "message"),
    [
        ({"colour": 1}, "shardfleet:monitoring: 'colour' found, one of page, notice, alarms"),
        ({"page": "me"}, "page: 'me' found (no ARN), arn:"),
        ({"alarms": {"lag": 3}}, "lag: 3 found, false, or an object of threshold, datapoints"),
        ({"alarms": []}, "alarms: [] found"),
        ({"dashboard": "no"}, "dashboard: 'no' found, true or false expected"),
    ],
)
def test_a_wrong_context_is_named(monitoring, message):
    from shardfleet_cdk.stack_settings import read_settings  # noqa: PLC0415

    context = {"shardfleet:stream": {"shards": 1}, "shardfleet:monitoring": monitoring}
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        read_settings(context.get)


def test_the_context_sets_topics_and_alarms_and_switches_monitoring_off(tmp_path):
    from shardfleet_cdk.synthesis import synthesize  # noqa: PLC0415

    topic = "arn:aws:sns:eu-central-1:111122223333:pager"
    alarms = {"lag": {"threshold": 5, "level": "page"}, "trouble": False}
    wanted = {"page": topic, "alarms": alarms, "retention_hours": 48}
    context = {"shardfleet:monitoring": wanted}
    template = json.loads(synthesize(tmp_path / "on", context=context).read_text("utf-8"))
    without = json.loads(
        synthesize(tmp_path / "off", context={"shardfleet:monitoring": "false"}).read_text("utf-8")
    )

    assert only(template, COMPOSITE)["AlarmActions"] == [topic]
    assert named(template)["lag"]["Threshold"] == 5
    assert named(template).keys() == SIX - {"trouble"}
    assert of_type(without, ALARM) == {}


def test_an_alarm_for_each_cause_wants_the_metrics_that_it_watches(handler_folder, new_app):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    import shardfleet_cdk  # noqa: PLC0415

    stack = Stack(new_app(), "Stack")
    with pytest.raises(ConfigurationError, match="by_cause: true found, allowed with metrics all"):
        shardfleet_cdk.ShardFleet(
            stack,
            "Fleet",
            stream=kinesis.Stream(stack, "Orders"),
            handler=shardfleet_cdk.HandlerCode(folder=handler_folder),
            monitoring=shardfleet_cdk.MonitoringOptions(by_cause=True),
        )
