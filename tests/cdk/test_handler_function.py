"""A fleet whose handler is a Lambda function of its own: its rights, its time, its mistakes."""

import pytest

from shardfleet.config import FleetConfig
from tests.cdk.templates import of_type, rights, spelled
from tests.cdk.test_mistakes import ARN, a_fleet, cdk, refusal

__all__ = ["a_fleet", "cdk"]  # fixtures
ORDERS = "arn:aws:lambda:eu-central-1:111122223333:function:orders"


@pytest.fixture
def parts():
    """Return the CDK's modules: importing them starts Node."""
    from aws_cdk import Duration, Stack, assertions, aws_kinesis, aws_lambda  # noqa: PLC0415

    class Parts:
        duration, stack, lambda_, kinesis = Duration, Stack, aws_lambda, aws_kinesis
        template = assertions.Template

    return Parts


@pytest.fixture
def shop(parts, cdk, new_app):
    """Make a stack with a function of Node and a fleet for it; return the template and fleet."""

    def make(*, alias=False, timeout_s=None, **options):
        stack = parts.stack(new_app(), "Shop")
        function = parts.lambda_.Function(
            stack,
            "Orders",
            runtime=parts.lambda_.Runtime.NODEJS_22_X,
            handler="index.handler",
            code=parts.lambda_.Code.from_inline("exports.handler = async () => null;"),
            **({"timeout": parts.duration.seconds(timeout_s)} if timeout_s else {}),
        )
        handler = function
        if alias:
            handler = parts.lambda_.Alias(
                stack, "Live", alias_name="live", version=function.current_version
            )
        stream = parts.kinesis.Stream.from_stream_arn(stack, "Stream", ARN)
        fleet = cdk.ShardFleet(stack, "Fleet", stream=stream, handler=handler, **options)
        return parts.template.from_stack(stack).to_json(), fleet

    return make


def named(template, kind, prefix):
    (name,) = [name for name in of_type(template, kind) if name.startswith(prefix)]
    return name


def worker_of(template):
    return of_type(template, "AWS::Lambda::Function", inside="FleetWorker").popitem()[1]


@pytest.mark.parametrize("alias", [False, True])
def test_the_worker_may_invoke_that_function_and_the_function_nothing_of_the_fleet(shop, alias):
    template, _ = shop(alias=alias)
    role = named(template, "AWS::IAM::Role", "FleetWorkerRole")
    arn = f"<{named(template, 'AWS::Lambda::Alias', 'Live')}>" if alias else ""
    arn = arn or f"<{named(template, 'AWS::Lambda::Function', 'Orders')}.Arn>"

    invoking = {right for right in rights(template, role) if right.startswith("lambda:")}
    manager = f"<{named(template, 'AWS::Lambda::Function', 'FleetManagerFunction')}.Arn>"
    assert invoking == {f"lambda:InvokeFunction on {each}" for each in (arn, manager)}
    own = template["Resources"][named(template, "AWS::IAM::Role", "OrdersServiceRole")]
    assert "Policies" not in own["Properties"]
    assert not [
        policy
        for policy in of_type(template, "AWS::IAM::Policy").values()
        if {"Ref": named(template, "AWS::IAM::Role", "OrdersServiceRole")} in policy["Roles"]
    ]
    variables = {
        name: spelled(value)
        for name, value in worker_of(template)["Environment"]["Variables"].items()
    }
    assert variables["SHARDFLEET_HANDLER_FUNCTION"] == arn
    assert FleetConfig.from_env(variables).handler == ""


def test_the_worker_has_no_user_code_and_the_librarys_entry_point(shop):
    template, _ = shop()
    assert worker_of(template)["Handler"] == "shardfleet.runtime.entry_points.worker_handler"


def test_an_sdk_of_few_services_knows_sns_only_where_it_is_told(shop, monkeypatch):
    from shardfleet_cdk import layers  # noqa: PLC0415

    asked = []
    real = layers.FleetLayers.__init__

    def seen(*given, sdk_services, **options):
        asked.append(sdk_services)
        real(*given, sdk_services=sdk_services, **options)

    monkeypatch.setattr(layers.FleetLayers, "__init__", seen)
    shop(sdk_services=["ses"], config={"on_exhausted": "sns"})
    shop(sdk_services=["ses"])
    shop()
    assert asked == [["ses", "sns"], ["ses"], None]


def test_what_is_granted_to_the_fleet_is_granted_to_the_function(shop):
    _, fleet = shop()
    function = fleet.node.scope.node.find_child("Orders")
    assert fleet.grant_principal.node.path == function.role.node.path == "Shop/Orders/ServiceRole"


def test_a_fleet_with_a_folder_may_invoke_its_manager_alone(minimum):
    role = named(minimum, "AWS::IAM::Role", "FleetWorkerRole")
    manager = f"<{named(minimum, 'AWS::Lambda::Function', 'FleetManagerFunction')}.Arn>"
    invoking = [right for right in rights(minimum, role) if right.startswith("lambda:")]
    assert invoking == [f"lambda:InvokeFunction on {manager}"]


@pytest.mark.parametrize("alias", [False, True])
@pytest.mark.parametrize(
    ("timeout_s", "handler_timeout_ms"), [(None, 60_000), (59, 60_000), (300, 301_000)]
)
def test_a_batch_has_at_least_the_time_that_the_function_has(
    shop, alias, timeout_s, handler_timeout_ms
):
    _, fleet = shop(alias=alias, timeout_s=timeout_s)
    assert fleet.config.handler_timeout_ms == handler_timeout_ms


def test_less_time_than_the_function_has_is_refused(shop):
    found = refusal(shop, timeout_s=30, config={"handler_timeout_ms": 30_000})
    assert found.startswith("Shop/Fleet: handler_timeout_ms: 30000 found, at least 31000 allowed")
    assert shop(timeout_s=30, config={"handler_timeout_ms": 31_000})


def test_a_function_that_may_run_longer_than_a_turn_is_refused(shop):
    found = refusal(shop, timeout_s=900)
    assert "handler_timeout_ms: 901000 found, at most 840000 allowed" in found


def test_an_imported_function_is_invoked_by_its_arn(a_fleet, parts, new_app):
    stack = parts.stack(new_app(), "Other")
    handler = parts.lambda_.Function.from_function_arn(stack, "Orders", f"{ORDERS}:live")
    fleet = a_fleet(handler=handler)
    assert fleet.config.handler_function == f"{ORDERS}:live"
    assert fleet.config.handler_timeout_ms == 60_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"handler": "functions/handler"}, "handler: 'functions/handler' found, HandlerCode("),
        ({"handler": None}, "handler: None found, HandlerCode(folder=…) or a Lambda function"),
        ({"config": {"handler_function": "x"}}, "handler_function: set by `handler`, not by"),
    ],
)
def test_what_is_no_handler_is_refused(a_fleet, options, message):
    assert message in refusal(a_fleet, **options)


def test_options_for_user_code_in_the_worker_are_refused(shop, cdk):
    found = refusal(shop, worker=cdk.WorkerOptions(environment={"TARGET": "here"}))
    assert "worker environment: none allowed where the handler is a function of its own" in found


def test_manual_checkpoints_are_refused_for_an_event_has_none(shop):
    found = refusal(shop, config={"checkpoint": "manual"})
    assert "checkpoint: manual found, auto allowed with handler_function" in found


@pytest.mark.parametrize("named", ["orders", ORDERS, f"{ORDERS}:live"])
def test_the_context_names_a_function_by_name_or_arn(named):
    from shardfleet_cdk.stack_settings import read_settings  # noqa: PLC0415

    context = {"shardfleet:stream": ARN, "shardfleet:handler_function": named}
    assert read_settings(context.get).handler_function == named


@pytest.mark.parametrize("named", ["arn:aws:sqs:eu:1:x", "a b", f"{ORDERS}:live:x", 5])
def test_a_context_that_names_no_function_is_refused(named):
    from shardfleet_cdk.stack_settings import read_settings  # noqa: PLC0415

    context = {"shardfleet:stream": ARN, "shardfleet:handler_function": named}
    message = refusal(read_settings, get=context.get)
    assert "shardfleet:handler_function: " in message
