"""A fleet whose records are pushed: its consumer, the right to it, and what it costs."""

import pytest

from tests.cdk.templates import of_type, rights
from tests.cdk.test_handler_function import named, worker_of
from tests.cdk.test_mistakes import ARN, cdk

__all__ = ["cdk"]  # fixtures
CONSUMER = f"{ARN}/consumer/billing:1700000000"


@pytest.fixture
def pushed(cdk, new_app, handler_folder):
    """Make a fleet that reads so; return the template and what is told at synth."""
    from aws_cdk import Stack, assertions  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    def make(reading, **options):
        stack = Stack(new_app(), "Shop")
        stream = kinesis.Stream(stack, "Clicks", shard_count=4)
        fleet = cdk.ShardFleet(
            stack,
            "Fleet",
            stream=stream,
            handler=cdk.HandlerCode(folder=handler_folder),
            reading=reading,
            **options,
        )
        notes = " ".join(str(entry.data) for entry in fleet.node.metadata)
        return assertions.Template.from_stack(stack).to_json(), notes

    return make


def subscribing(template):
    role = named(template, "AWS::IAM::Role", "FleetWorkerRole")
    return {right for right in rights(template, role) if "Subscribe" in right}


def consumer_of(template):
    return worker_of(template)["Environment"]["Variables"].get("SHARDFLEET_CONSUMER_ARN")


def test_a_consumer_is_made_for_the_fleet_and_its_worker_alone_may_subscribe(pushed, cdk):
    template, _ = pushed(cdk.FanOut(), name="billing")
    ((name, made),) = of_type(template, "AWS::Kinesis::StreamConsumer").items()
    stream = named(template, "AWS::Kinesis::Stream", "Clicks")
    assert made["ConsumerName"] == "billing"
    assert made["StreamARN"] == {"Fn::GetAtt": [stream, "Arn"]}
    assert consumer_of(template) == {"Fn::GetAtt": [name, "ConsumerARN"]}
    assert subscribing(template) == {f"kinesis:SubscribeToShard on <{name}.ConsumerARN>"}
    manager = named(template, "AWS::IAM::Role", "FleetManagerRole")
    assert not any("Subscribe" in right for right in rights(template, manager))


def test_a_consumer_that_is_there_is_used_and_none_is_made(pushed, cdk):
    template, _ = pushed(cdk.FanOut(consumer_arn=CONSUMER))
    assert not of_type(template, "AWS::Kinesis::StreamConsumer")
    assert consumer_of(template) == CONSUMER
    assert subscribing(template) == {f"kinesis:SubscribeToShard on {CONSUMER}"}


def test_a_fleet_that_polls_has_neither_consumer_nor_right(pushed):
    template, notes = pushed(None)
    assert not of_type(template, "AWS::Kinesis::StreamConsumer")
    assert consumer_of(template) is None
    assert not subscribing(template)
    assert "fan-out" not in notes


def test_its_price_is_told_at_synthesis(pushed, cdk):
    """AWS's price page: $0.015 a consumer and shard for an hour, $0.013 a GB; 730 hours."""
    _, notes = pushed(cdk.FanOut())
    assert "$10.95 a month and shard, counted above, and $0.013 for each GB" in notes
    _, polled = pushed(None)

    def dollars(said):
        return float(said.split("4 shards, 1 worker: $")[1].split(" ")[0].replace(",", ""))

    assert dollars(notes) - dollars(polled) == pytest.approx(4 * 10.95)


def test_the_option_belongs_to_the_construct(cdk):
    from shardfleet.errors import ConfigurationError  # noqa: PLC0415
    from shardfleet_cdk.fleet_config import options_of  # noqa: PLC0415

    with pytest.raises(ConfigurationError, match="consumer_arn: set by `reading`"):
        options_of({"consumer_arn": CONSUMER}, {})


def test_a_fleet_that_sleeps_to_cost_little_is_refused_a_consumer_by_the_option_s_name(pushed, cdk):
    from shardfleet.errors import ConfigurationError  # noqa: PLC0415

    message = r"Fleet: configuration: sleep: True found, False allowed .* \$10\.95 a month"
    with pytest.raises(ConfigurationError, match=message):
        pushed(cdk.FanOut(), config={"sleep": True})


@pytest.mark.parametrize(
    "arn", [ARN, f"{ARN}/consumer/billing", CONSUMER.replace("central", "west")]
)
def test_what_is_no_consumer_of_the_stream_is_refused(cdk, new_app, handler_folder, arn):
    from aws_cdk import Stack  # noqa: PLC0415
    from aws_cdk import aws_kinesis as kinesis  # noqa: PLC0415

    from shardfleet.errors import ConfigurationError  # noqa: PLC0415

    stack = Stack(new_app(), "Shop")
    with pytest.raises(ConfigurationError, match=r"reading\.consumer_arn: .* found"):
        cdk.ShardFleet(
            stack,
            "Fleet",
            stream=kinesis.Stream.from_stream_arn(stack, "Clicks", ARN),
            handler=cdk.HandlerCode(folder=handler_folder),
            reading=cdk.FanOut(consumer_arn=arn),
        )
