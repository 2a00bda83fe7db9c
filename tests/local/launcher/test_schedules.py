"""Schedules fire, with their input, through an alias; quickly enough to wait for."""

import json
import uuid

import pytest

pytestmark = pytest.mark.processes


def schedule(aws, expression, target, payload):
    aws.client("scheduler").create_schedule(
        Name=f"schedule-{uuid.uuid4().hex[:8]}",
        ScheduleExpression=expression,
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={
            "Arn": target,
            "RoleArn": "arn:aws:iam::111122223333:role/any",
            "Input": json.dumps(payload),
        },
    )


def test_a_rate_fires_a_minute_after_its_creation(make_function, eventually):
    function = make_function("def handler(event, context):\n    print('input', event['from'])\n")
    client = function.aws.client("lambda")
    version = client.publish_version(FunctionName=function.name)["Version"]
    alias = client.create_alias(FunctionName=function.name, Name="live", FunctionVersion=version)
    schedule(function.aws, "rate(1 minute)", alias["AliasArn"], {"from": "rate"})

    def inputs():
        return [line for line in function.log_lines() if line == "input rate"]

    assert not inputs()
    eventually(inputs, deadline_s=150, pause_s=1)  # Asking costs, and it takes a minute.
