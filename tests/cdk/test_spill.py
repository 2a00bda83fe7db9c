"""A fleet whose slots processes carry, and Lambda the rest: what it is told, and whose rights."""

import pytest

from shardfleet.errors import ConfigurationError
from tests.cdk.templates import of_type, rights
from tests.cdk.test_handler_function import named
from tests.cdk.test_mistakes import ARN, cdk

__all__ = ["cdk"]  # fixtures
FUNCTION = "arn:aws:lambda:eu-central-1:111122223333:function:orders"


@pytest.fixture
def shop(cdk, new_app, handler_folder):
    """Make a fleet and the role of a process; return template, role and what is told at synth."""
    from aws_cdk import Stack, assertions  # noqa: PLC0415
    from aws_cdk import aws_iam as iam  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415
    from aws_cdk import aws_lambda as lambda_  # noqa: PLC0415

    def make(*, has_function=False, **options):
        stack = Stack(new_app(), "Shop")
        stream = kinesis.Stream.from_stream_arn(stack, "Clicks", ARN)
        handler = cdk.HandlerCode(folder=handler_folder)
        if has_function:
            handler = lambda_.Function.from_function_arn(stack, "Orders", FUNCTION)
        fleet = cdk.ShardFleet(stack, "Fleet", stream=stream, handler=handler, **options)
        of_tasks = iam.ServicePrincipal("ecs-tasks.amazonaws.com")
        role = iam.Role(stack, "Task", assumed_by=of_tasks, inline_policies={"Own": one_right(iam)})
        fleet.grant_work(role)
        notes = " ".join(str(entry.data) for entry in fleet.node.metadata)
        template = assertions.Template.from_stack(stack).to_json()
        return template, named(template, "AWS::IAM::Role", "Task"), notes

    return make


def one_right(iam):
    right = iam.PolicyStatement(actions=["ecs:ListTasks"], resources=["*"])
    return iam.PolicyDocument(statements=[right])


def told(template):
    variables = [
        function["Environment"]["Variables"]
        for function in of_type(template, "AWS::Lambda::Function").values()
        if "SHARDFLEET_FLEET" in function.get("Environment", {}).get("Variables", {})
    ]
    names = ("SHARDFLEET_SPILL", "SHARDFLEET_SPILL_AFTER_MS")
    return [tuple(each.get(name) for name in names) for each in variables]


def test_worker_and_manager_are_told_and_its_price_beside_processes_is(shop):
    template, _, notes = shop(spill=True, experts={"spill_after_ms": 20_000})
    assert set(told(template)) == {("true", "20000")}
    assert "while two processes carry all of 10 shards, the fleet costs $" in notes
    template, _, notes = shop()
    assert set(told(template)) == {(None, None)}
    assert "spill" not in notes


def test_a_process_may_what_worker_and_manager_may_and_nothing_of_other_fleets(shop):
    template, role, _ = shop(spill=True)
    of_process = {right.split(" if ")[0] for right in rights(template, role)}
    roles = [
        named(template, "AWS::IAM::Role", f"Fleet{part}Role") for part in ("Worker", "Manager")
    ]
    of_fleet = {right.split(" if ")[0] for each in roles for right in rights(template, each)}
    of_fleet = {right for right in of_fleet if not right.startswith("logs:")}
    (manager,) = [n for n in of_type(template, "AWS::Lambda::Function") if "Manager" in n]
    assert of_process - of_fleet == {
        "ecs:ListTasks on *",
        "cloudformation:ListStackResources on <AWS::StackId>",
        f"lambda:GetFunctionConfiguration on <{manager}.Arn>",
    }
    # Processes stand by for the manager: none calls it.
    assert of_fleet - of_process == {f"lambda:InvokeFunction on <{manager}.Arn>"}


def test_what_no_process_can_run_is_refused(shop):
    with pytest.raises(ConfigurationError, match="spill: true found, none allowed with handler_f"):
        shop(has_function=True, spill=True)


def test_the_option_belongs_to_the_construct():
    from shardfleet_cdk.fleet_config import options_of  # noqa: PLC0415

    with pytest.raises(ConfigurationError, match="spill: set by `spill`, not by `config`"):
        options_of({"spill": True}, {})
