"""The limits of Step Functions executions, and what is seen of them late."""

import json
import uuid

import pytest
from botocore.exceptions import ClientError

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour

pytestmark = pytest.mark.processes

ROLE = "arn:aws:iam::111122223333:role/any"
BEHIND_S = 3_600.0


@pytest.fixture
def machine(embedded_aws):
    """Make a state machine of these states; return its client and ARN."""
    client = embedded_aws.client("stepfunctions")

    def make(**states):
        definition = {"QueryLanguage": "JSONata", "StartAt": "First", "States": states}
        name = f"machine-{uuid.uuid4().hex[:8]}"
        made = client.create_state_machine(
            name=name, roleArn=ROLE, definition=json.dumps(definition)
        )
        return client, made["stateMachineArn"]

    return make


def wait(seconds, **more):
    return {"Type": "Wait", "Seconds": seconds, **({"End": True} | more)}


def ended(eventually, client, execution_arn):
    eventually(lambda: client.describe_execution(executionArn=execution_arn)["status"] != "RUNNING")
    found = client.describe_execution(executionArn=execution_arn)
    return found["status"], found.get("error")


def invoke(function, **more):
    return {
        "Type": "Task",
        "Resource": "arn:aws:states:::lambda:invoke",
        "Arguments": {"FunctionName": function.name, "Payload": {}},
        **({"End": True} | more),
    }


LARGE = "def handler(event, context):\n    return 'x' * 262_144\n"


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("States.ALL", ("FAILED", "States.DataLimitExceeded")),
        ("States.TaskFailed", ("FAILED", "States.DataLimitExceeded")),
        ("States.DataLimitExceeded", ("SUCCEEDED", None)),
    ],
)
def test_a_reply_over_256_kib_is_caught_by_its_own_name_only(
    machine, make_function, eventually, named, expected
):
    """Facts S01 and S02: the guide's "Handling errors in Step Functions workflows"."""
    caught = {"ErrorEquals": [named], "Next": "Caught"}
    client, arn = machine(
        First=invoke(make_function(LARGE), Catch=[caught]),
        Caught={"Type": "Pass", "Output": "caught", "End": True},
    )
    started = client.start_execution(stateMachineArn=arn)["executionArn"]
    assert ended(eventually, client, started) == expected


def test_an_input_over_256_kib_is_refused(machine):
    """Fact S02; the limit is the input's `max` in botocore's model of StartExecution."""
    client, arn = machine(First=wait(600))
    shape = client.meta.service_model.operation_model("StartExecution").input_shape
    most = shape.members["input"].metadata["max"]
    with pytest.raises(ClientError, match="less than or equal to 262144"):
        client.start_execution(stateMachineArn=arn, input=json.dumps("x" * (most - 1)))
    started = client.start_execution(stateMachineArn=arn, input=json.dumps("x" * (most - 2)))
    client.stop_execution(executionArn=started["executionArn"])


@pytest.mark.parametrize("name", ["a b", "a:b", "a/b", "a*", "a\tb", "a$b"])
def test_a_name_with_what_aws_excludes_is_refused(machine, name):
    """botocore, stepfunctions StartExecution.name."""
    client, arn = machine(First=wait(600))
    with pytest.raises(client.exceptions.InvalidName):
        client.start_execution(stateMachineArn=arn, name=name)


def test_a_history_ends_with_its_25000th_event(machine, eventually):
    """Fact S03."""
    client, arn = machine(First={"Type": "Pass", "Next": "First"})
    started = client.start_execution(stateMachineArn=arn)["executionArn"]
    assert ended(eventually, client, started) == ("FAILED", "States.Runtime")
    last = client.get_execution_history(executionArn=started, reverseOrder=True, maxResults=1)
    (event,) = last["events"]
    assert (event["id"], event["type"]) == (25_000, "ExecutionFailed")


def test_a_machine_is_deleted_when_its_executions_come_to_a_transition(machine, eventually):
    """Fact S09: botocore, stepfunctions DeleteStateMachine."""
    client, arn = machine(First=wait(3, End=False, Next="Second"), Second=wait(600))
    started = client.start_execution(stateMachineArn=arn)["executionArn"]
    eventually(lambda: len(client.get_execution_history(executionArn=started)["events"]) > 1)
    client.delete_state_machine(stateMachineArn=arn)
    assert client.describe_state_machine(stateMachineArn=arn)["status"] == "DELETING"
    assert client.describe_execution(executionArn=started)["status"] == "RUNNING"
    with pytest.raises(client.exceptions.StateMachineDeleting):
        client.start_execution(stateMachineArn=arn)
    eventually(lambda: is_gone(client, arn))


def is_gone(client, arn):
    try:
        client.describe_state_machine(stateMachineArn=arn)
    except client.exceptions.StateMachineDoesNotExist:
        return True
    return False


def test_a_stack_waits_for_the_executions_of_its_machine(embedded_aws, eventually):
    """Finding A11: a stopped execution is waited for no longer."""
    stacks, client = embedded_aws.client("cloudformation"), embedded_aws.client("stepfunctions")
    name = f"Stack{uuid.uuid4().hex[:8]}"
    definition = {"StartAt": "First", "States": {"First": wait(600)}}
    machine = {
        "Type": "AWS::StepFunctions::StateMachine",
        "Properties": {"RoleArn": ROLE, "DefinitionString": json.dumps(definition)},
    }
    body = {"Resources": {"Machine": machine}}
    stacks.create_stack(StackName=name, TemplateBody=json.dumps(body))
    stacks.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    resources = stacks.describe_stack_resources(StackName=name)["StackResources"]
    arn = resources[0]["PhysicalResourceId"]
    started = client.start_execution(stateMachineArn=arn)["executionArn"]
    # Or its first state is the transition at which it would end.
    eventually(lambda: len(client.get_execution_history(executionArn=started)["events"]) > 1)
    stacks.delete_stack(StackName=name)
    eventually(lambda: client.describe_state_machine(stateMachineArn=arn)["status"] == "DELETING")
    assert stacks.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"] == (
        "DELETE_IN_PROGRESS"
    )
    client.stop_execution(executionArn=started)
    stacks.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 1})


def test_executions_are_described_as_they_were_a_while_ago():
    """Fact S06: what has begun is absent; here for an hour."""
    with EmbeddedAws(behaviour=AwsBehaviour(executions_behind_s=BEHIND_S)) as aws:
        client = aws.client("stepfunctions")
        definition = {"StartAt": "First", "States": {"First": wait(600)}}
        arn = client.create_state_machine(
            name="machine", roleArn=ROLE, definition=json.dumps(definition)
        )["stateMachineArn"]
        started = client.start_execution(stateMachineArn=arn)["executionArn"]
        with pytest.raises(client.exceptions.ExecutionDoesNotExist):
            client.describe_execution(executionArn=started)
        assert client.list_executions(stateMachineArn=arn)["executions"] == []
        client.stop_execution(executionArn=started)  # It is there all the same.
