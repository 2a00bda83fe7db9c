"""The resource types that the launcher adds: streams on our engine, consumers, two alarms."""

import uuid

import pytest

pytestmark = pytest.mark.processes

KEY = "arn:aws:kms:us-east-1:111122223333:key/one"


class Stack:
    def __init__(self, aws):
        self.name = f"Stack{uuid.uuid4().hex[:8]}"
        self.aws = aws
        self._client = aws.client("cloudformation")

    def deploy(self, resources, outputs=None):
        import json  # noqa: PLC0415

        body = json.dumps({"Resources": resources, "Outputs": outputs or {}})
        exists = self._exists()
        change = self._client.update_stack if exists else self._client.create_stack
        change(StackName=self.name, TemplateBody=body)
        kind = "update" if exists else "create"
        waiter = self._client.get_waiter(f"stack_{kind}_complete")
        waiter.wait(StackName=self.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        (stack,) = self._client.describe_stacks(StackName=self.name)["Stacks"]
        return {each["OutputKey"]: each["OutputValue"] for each in stack.get("Outputs", [])}

    def delete(self):
        self._client.delete_stack(StackName=self.name)
        waiter = self._client.get_waiter("stack_delete_complete")
        waiter.wait(StackName=self.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})

    def _exists(self):
        try:
            self._client.describe_stacks(StackName=self.name)
        except self._client.exceptions.ClientError:
            return False
        return True


@pytest.fixture
def stack(embedded_aws):
    return Stack(embedded_aws)


def stream(**properties):
    return {"Stream": {"Type": "AWS::Kinesis::Stream", "Properties": properties}}


NAME_AND_ARN = {
    "Name": {"Value": {"Ref": "Stream"}},
    "Arn": {"Value": {"Fn::GetAtt": ["Stream", "Arn"]}},
}


def summary(aws, name):
    answer = aws.client("kinesis").describe_stream_summary(StreamName=name)
    return answer["StreamDescriptionSummary"]


def test_a_stream_is_made_on_our_engine_with_its_properties(stack, embedded_aws):
    outputs = stack.deploy(
        stream(
            ShardCount=3,
            RetentionPeriodHours=48,
            StreamEncryption={"EncryptionType": "KMS", "KeyId": KEY},
            Tags=[{"Key": "team", "Value": "a"}],
        ),
        NAME_AND_ARN,
    )
    found = summary(embedded_aws, outputs["Name"])
    assert found["StreamARN"] == outputs["Arn"]
    assert (found["OpenShardCount"], found["RetentionPeriodHours"]) == (3, 48)
    assert (found["EncryptionType"], found["KeyId"]) == ("KMS", KEY)
    tags = embedded_aws.client("kinesis").list_tags_for_stream(StreamName=outputs["Name"])["Tags"]
    assert {"Key": "team", "Value": "a"} in tags


def test_an_update_reshards_in_place_and_keeps_the_closed_shards(stack, embedded_aws):
    outputs = stack.deploy(stream(ShardCount=1), NAME_AND_ARN)
    assert stack.deploy(stream(ShardCount=2, RetentionPeriodHours=30), NAME_AND_ARN) == outputs
    found = summary(embedded_aws, outputs["Name"])
    assert (found["OpenShardCount"], found["RetentionPeriodHours"]) == (2, 30)
    shards = embedded_aws.client("kinesis").list_shards(StreamName=outputs["Name"])["Shards"]
    assert len(shards) == 3


def test_a_stream_on_demand_has_no_shard_count(stack, embedded_aws):
    mode = {"StreamMode": "ON_DEMAND"}
    outputs = stack.deploy(stream(StreamModeDetails=mode), NAME_AND_ARN)
    assert summary(embedded_aws, outputs["Name"])["StreamModeDetails"] == mode


def test_a_named_stream_has_that_name_and_goes_with_its_stack(stack, embedded_aws):
    name = f"clicks-{uuid.uuid4().hex[:8]}"
    assert stack.deploy(stream(Name=name, ShardCount=1), NAME_AND_ARN)["Name"] == name
    stack.delete()
    kinesis = embedded_aws.client("kinesis")
    assert name not in kinesis.list_streams()["StreamNames"]


def test_a_template_of_more_streams_than_may_be_made_in_a_second_is_deployed(stack, embedded_aws):
    """CreateStream: 5 a second (API reference); CloudFormation tries again where it is refused."""
    properties = {"Type": "AWS::Kinesis::Stream", "Properties": {"ShardCount": 1}}
    names = [f"Stream{n}" for n in range(7)]
    outputs = stack.deploy(
        dict.fromkeys(names, properties), {name: {"Value": {"Ref": name}} for name in names}
    )
    assert set(outputs.values()) <= set(
        embedded_aws.client("kinesis").list_streams()["StreamNames"]
    )
    stack.delete()


def test_a_stream_consumer_is_registered_and_goes_with_its_stack(stack, embedded_aws):
    consumer = {
        "Type": "AWS::Kinesis::StreamConsumer",
        "Properties": {"ConsumerName": "fan", "StreamARN": {"Fn::GetAtt": ["Stream", "Arn"]}},
    }
    outputs = stack.deploy(
        {**stream(ShardCount=1), "Consumer": consumer},
        {**NAME_AND_ARN, "Consumer": {"Value": {"Ref": "Consumer"}}},
    )
    kinesis = embedded_aws.client("kinesis")
    (found,) = kinesis.list_stream_consumers(StreamARN=outputs["Arn"])["Consumers"]
    assert found["ConsumerARN"] == outputs["Consumer"]
    stack.deploy(stream(ShardCount=1), NAME_AND_ARN)
    assert kinesis.list_stream_consumers(StreamARN=outputs["Arn"])["Consumers"] == []


def test_alarms_over_metric_math_and_over_alarms_are_made_and_updated(stack, embedded_aws):
    stat = {"Metric": {"Namespace": "N", "MetricName": "M"}, "Period": "60", "Stat": "Sum"}

    def resources(threshold):
        return {
            "Math": {
                "Type": "AWS::CloudWatch::Alarm",
                "Properties": {
                    "ComparisonOperator": "LessThanThreshold",
                    "Threshold": threshold,
                    "EvaluationPeriods": 2,
                    "Metrics": [
                        {"Id": "e", "Expression": "FILL(m, 0)", "ReturnData": True},
                        {"Id": "m", "MetricStat": stat, "ReturnData": False},
                    ],
                },
            },
            "Both": {
                "Type": "AWS::CloudWatch::CompositeAlarm",
                "Properties": {"AlarmRule": {"Fn::Sub": 'ALARM("${Math}")'}},
            },
        }

    names = {"Math": {"Value": {"Ref": "Math"}}, "Both": {"Value": {"Ref": "Both"}}}
    outputs = stack.deploy(resources(1), names)
    assert stack.deploy(resources(2), names) == outputs
    cloudwatch = embedded_aws.client("cloudwatch")
    (math,) = cloudwatch.describe_alarms(AlarmNames=[outputs["Math"]])["MetricAlarms"]
    assert math["Threshold"] == 2
    assert math["Metrics"][1]["MetricStat"]["Period"] == 60
    found = cloudwatch.describe_alarms(AlarmNames=[outputs["Both"]], AlarmTypes=["CompositeAlarm"])
    assert found["CompositeAlarms"][0]["AlarmRule"] == f'ALARM("{outputs["Math"]}")'
    stack.delete()
    assert cloudwatch.describe_alarms(AlarmNames=list(outputs.values()))["MetricAlarms"] == []
