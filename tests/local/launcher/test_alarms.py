"""Alarms: CloudWatch's two tables of missing data, row by row, and alarms in the embedded AWS."""

import json
import time
import uuid

import pytest
from ministack.services import cloudwatch as cloudwatch_service

from shardfleet_local.aws.alarms import decide, evaluate

POINTS = {"0": False, "X": True, "-": None}
M3 = {"EvaluationPeriods": 3, "DatapointsToAlarm": 3}
M2 = {"EvaluationPeriods": 3, "DatapointsToAlarm": 2}
KEEP = "as it was"
NO_DATA = "INSUFFICIENT_DATA"
TREATMENTS = ("missing", "ignore", "breaching", "notBreaching")


@pytest.mark.parametrize(
    ("alarm", "pattern", "expected"),
    [
        (M3, "0-X-X", ("OK", "OK", "OK", "OK")),
        (M3, "----0", ("OK", "OK", "OK", "OK")),
        (M3, "-----", (NO_DATA, KEEP, "ALARM", "OK")),
        (M3, "0XX-X", ("ALARM", "ALARM", "ALARM", "ALARM")),
        (M3, "--X--", ("ALARM", KEEP, "ALARM", "OK")),
        (M2, "0-X-X", ("ALARM", "ALARM", "ALARM", "ALARM")),
        (M2, "00X0X", ("ALARM", "ALARM", "ALARM", "ALARM")),
        (M2, "0-X--", ("OK", "OK", "ALARM", "OK")),
        (M2, "----0", ("OK", "OK", "ALARM", "OK")),
        (M2, "---X-", ("ALARM", KEEP, "ALARM", "OK")),
        (M3, "----X", (KEEP, KEEP, "ALARM", "OK")),
        ({"EvaluationPeriods": 1}, "--X", ("ALARM", "ALARM", "ALARM", "ALARM")),
    ],
)
def test_missing_data(alarm, pattern, expected):
    breaching = [POINTS[point] for point in pattern]
    states = tuple(
        decide(breaching, {**alarm, "TreatMissingData": treat}, KEEP) for treat in TREATMENTS
    )
    assert states == expected


def test_missing_is_the_treatment_unless_another_is_named():
    assert decide([None], {"EvaluationPeriods": 1}, KEEP) == NO_DATA


def red_alarm(namespace, *, in_maths):
    """An alarm in ALARM, of a metric that has no data any more, which is to count as good."""
    what = metric(namespace, "ThrottledRequests", TableName="leases")
    queries = [
        {"Id": "all", "Expression": "a * 2"},
        {
            "Id": "a",
            "MetricStat": {"Metric": what, "Period": 60, "Stat": "Sum"},
            "ReturnData": False,
        },
    ]
    return {
        "AlarmName": namespace,
        "StateValue": "ALARM",
        "TreatMissingData": "notBreaching",
        "ComparisonOperator": "GreaterThanThreshold",
        **({"Metrics": queries} if in_maths else {**what, "Statistic": "Sum", "Period": 60}),
    }


@pytest.mark.parametrize("in_maths", [False, True])
def test_alarms_over_dynamodbs_metrics_keep_their_state_while_data_is_missing(
    monkeypatch, in_maths
):
    """As botocore's model says of PutMetricAlarm.TreatMissingData."""
    for name in ("_record_history", "_dispatch_alarm_actions", "_evaluate_parent_alarms"):
        monkeypatch.setattr(cloudwatch_service, name, lambda *_: None)
    tables, queues = (red_alarm(f"AWS/{each}", in_maths=in_maths) for each in ("DynamoDB", "SQS"))
    for alarm in (tables, queues):
        evaluate(alarm, 1_000_000)

    assert (tables["StateValue"], queues["StateValue"]) == ("ALARM", "OK")


def metric(namespace, name, **dimensions):
    return {
        "Namespace": namespace,
        "MetricName": name,
        "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
    }


@pytest.fixture
def cloudwatch(embedded_aws):
    return embedded_aws.client("cloudwatch")


@pytest.fixture
def namespace():
    return f"Test/{uuid.uuid4().hex[:8]}"


def put(cloudwatch, what, values, *, age_s=60):
    data = {key: what[key] for key in ("MetricName", "Dimensions")}
    cloudwatch.put_metric_data(
        Namespace=what["Namespace"],
        MetricData=[{**data, "Value": value, "Timestamp": time.time() - age_s} for value in values],
    )


def state(cloudwatch, name):
    found = cloudwatch.describe_alarms(
        AlarmNames=[name], AlarmTypes=["MetricAlarm", "CompositeAlarm"]
    )
    (alarm,) = found["MetricAlarms"] + found["CompositeAlarms"]
    return alarm["StateValue"]


def make_alarm(cloudwatch, name, **settings):
    cloudwatch.put_metric_alarm(
        AlarmName=name,
        **{
            "EvaluationPeriods": 1,
            "ComparisonOperator": "GreaterThanThreshold",
            "Threshold": 5,
            **settings,
        },
    )


@pytest.mark.processes
class TestInTheEmbeddedAws:
    def test_an_alarm_looks_at_its_own_dimensions_only(self, cloudwatch, namespace, eventually):
        for shard in ("a", "b"):
            what = metric(namespace, "Lag", Shard=shard)
            make_alarm(cloudwatch, f"{namespace}-{shard}", Statistic="Maximum", Period=60, **what)
        put(cloudwatch, metric(namespace, "Lag", Shard="b"), [10])
        put(cloudwatch, metric(namespace, "Lag", Shard="a"), [1])
        eventually(lambda: state(cloudwatch, f"{namespace}-b") == "ALARM")
        eventually(lambda: state(cloudwatch, f"{namespace}-a") == "OK")

    def test_an_alarm_over_metric_math_fills_missing_data(self, cloudwatch, namespace, eventually):
        stat = {"Metric": metric(namespace, "Beat", Fleet="f"), "Period": 60, "Stat": "Sum"}
        make_alarm(
            cloudwatch,
            f"{namespace}-silent",
            Metrics=[
                {"Id": "silent", "Expression": "FILL(beats, 0)"},
                {"Id": "beats", "MetricStat": stat, "ReturnData": False},
            ],
            ComparisonOperator="LessThanThreshold",
            Threshold=1,
            EvaluationPeriods=2,
        )
        eventually(lambda: state(cloudwatch, f"{namespace}-silent") == "ALARM")
        put(cloudwatch, metric(namespace, "Beat", Fleet="f"), [1])
        eventually(lambda: state(cloudwatch, f"{namespace}-silent") == "OK")
        (described,) = cloudwatch.describe_alarms(AlarmNames=[f"{namespace}-silent"])[
            "MetricAlarms"
        ]
        assert [query["Id"] for query in described["Metrics"]] == ["silent", "beats"]
        assert "MetricName" not in described

    def test_a_composite_alarm_follows_its_children_and_tells_a_topic(
        self, embedded_aws, cloudwatch, namespace, eventually
    ):
        sqs, sns = embedded_aws.client("sqs"), embedded_aws.client("sns")
        queue = sqs.create_queue(QueueName=f"alarms-{uuid.uuid4().hex}")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        topic = sns.create_topic(Name=f"alarms-{uuid.uuid4().hex}")["TopicArn"]
        sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn["Attributes"]["QueueArn"])
        for part in ("x", "y"):
            what = metric(namespace, part)
            make_alarm(cloudwatch, f"{namespace}-{part}", Statistic="Sum", Period=60, **what)
        rule = f'ALARM("{namespace}-x") AND NOT ALARM("{namespace}-y")'
        cloudwatch.put_composite_alarm(
            AlarmName=f"{namespace}-both", AlarmRule=rule, AlarmActions=[topic]
        )
        put(cloudwatch, metric(namespace, "x"), [9])
        eventually(lambda: state(cloudwatch, f"{namespace}-both") == "ALARM")
        (message,) = eventually(lambda: sqs.receive_message(QueueUrl=queue).get("Messages"))
        told = json.loads(json.loads(message["Body"])["Message"])
        assert (told["AlarmName"], told["NewStateValue"]) == (f"{namespace}-both", "ALARM")
        put(cloudwatch, metric(namespace, "y"), [9])
        eventually(lambda: state(cloudwatch, f"{namespace}-both") == "OK")
