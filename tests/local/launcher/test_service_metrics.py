"""Metrics that services report of their own accord, and the dead letters of schedules."""

import json
import time
import uuid

import pytest

from shardfleet_local.aws.service_metrics import queue_metrics

MACHINE = {
    "StartAt": "End",
    "States": {"End": {"Type": "Fail", "Error": "Planned", "Cause": "for the test"}},
}
ROLE = "arn:aws:iam::111122223333:role/any"


def test_a_queue_is_as_old_as_its_oldest_message_and_hidden_ones_are_not_visible():
    messages = [{"sent_at": 10.0, "visible_at": 10.0}, {"sent_at": 20.0, "visible_at": 50.0}]

    assert queue_metrics(messages, 30.0) == {
        "ApproximateNumberOfMessagesVisible": 1,
        "ApproximateNumberOfMessagesNotVisible": 1,
        "ApproximateAgeOfOldestMessage": 20.0,
    }
    assert set(queue_metrics([], 30.0).values()) == {0}


def total(aws, namespace, name, **dimensions):
    found = aws.client("cloudwatch").get_metric_statistics(
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=time.time() - 600,
        EndTime=time.time() + 60,
        Period=60,
        Statistics=["Sum"],
    )
    return sum(point["Sum"] for point in found["Datapoints"])


@pytest.mark.processes
class TestInTheEmbeddedAws:
    def test_executions_are_counted_by_how_they_end(self, embedded_aws, eventually):
        states = embedded_aws.client("stepfunctions")
        machine = states.create_state_machine(
            name=f"machine-{uuid.uuid4().hex}", definition=json.dumps(MACHINE), roleArn=ROLE
        )["stateMachineArn"]
        states.start_execution(stateMachineArn=machine)

        def count(name):
            return total(embedded_aws, "AWS/States", name, StateMachineArn=machine)

        eventually(lambda: count("ExecutionsFailed") == 1)
        assert (count("ExecutionsStarted"), count("ExecutionsSucceeded")) == (1, 0)

    def test_a_queue_s_depth_is_reported(self, embedded_aws, eventually):
        sqs, name = embedded_aws.client("sqs"), f"queue-{uuid.uuid4().hex}"
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="one")

        metric = "ApproximateNumberOfMessagesVisible"
        eventually(lambda: total(embedded_aws, "AWS/SQS", metric, QueueName=name) >= 1)

    def test_running_invocations_are_reported_as_concurrency(
        self, embedded_aws, make_function, eventually
    ):
        function = make_function("def handler(event, context):\n    return 1\n")
        function.invoke({})

        dimensions = {"FunctionName": function.name}
        eventually(
            lambda: total(embedded_aws, "AWS/Lambda", "ConcurrentExecutions", **dimensions) >= 1
        )

    def test_an_invocation_that_a_schedule_cannot_make_is_a_dead_letter(
        self, embedded_aws, eventually
    ):
        sqs, scheduler = embedded_aws.client("sqs"), embedded_aws.client("scheduler")
        url = sqs.create_queue(QueueName=f"dead-{uuid.uuid4().hex}")["QueueUrl"]
        queue = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        scheduler.create_schedule(
            Name=f"schedule-{uuid.uuid4().hex}",
            ScheduleExpression=f"at({now})",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={
                "Arn": "arn:aws:lambda:us-east-1:111122223333:function:gone",
                "RoleArn": ROLE,
                "Input": '{"trigger": "schedule"}',
                "DeadLetterConfig": {"Arn": queue["Attributes"]["QueueArn"]},
            },
        )

        (message,) = eventually(lambda: sqs.receive_message(QueueUrl=url).get("Messages"))
        assert json.loads(message["Body"]) == {"trigger": "schedule"}


@pytest.mark.processes
def test_a_shorter_minute_lets_alarms_look_more_often(embedded_aws, eventually):
    cloudwatch, name = embedded_aws.client("cloudwatch"), f"alarm-{uuid.uuid4().hex}"
    embedded_aws.scale_alarm_periods(1 / 30)
    try:
        cloudwatch.put_metric_alarm(
            AlarmName=name,
            Namespace=name,
            MetricName="m",
            Statistic="Sum",
            Period=60,
            EvaluationPeriods=1,
            Threshold=0,
            ComparisonOperator="GreaterThanThreshold",
            TreatMissingData="notBreaching",
        )
        cloudwatch.put_metric_data(
            Namespace=name, MetricData=[{"MetricName": "m", "Value": 1, "Timestamp": time.time()}]
        )
        began = time.monotonic()

        def state():
            return cloudwatch.describe_alarms(AlarmNames=[name])["MetricAlarms"][0]["StateValue"]

        eventually(lambda: state() == "ALARM")
        eventually(lambda: state() == "OK")
        assert time.monotonic() - began < 60
    finally:
        embedded_aws.scale_alarm_periods(1)
