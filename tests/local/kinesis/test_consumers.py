"""Enhanced fan-out: registering consumers, and the events of their subscriptions."""

import asyncio
from contextlib import aclosing

import pytest

from shardfleet_local.kinesis.account import Phases
from shardfleet_local.kinesis.subscriptions import SubscriptionReset

SHARD = "shardId-000000000000"
PATIENCE_S = 30


@pytest.fixture
def consumer(kinesis):
    """Return the ARN of a consumer of stream s."""
    return register(kinesis.create(1))


@pytest.fixture(autouse=True)
def no_heartbeats(monkeypatch):
    """What is pushed is pushed because something happened, not because time passed."""
    monkeypatch.setattr("shardfleet_local.kinesis.subscriptions.HEARTBEAT_MS", 3_600_000)


def register(kinesis, name="c"):
    answer = kinesis.RegisterStreamConsumer(StreamARN=kinesis.arn(), ConsumerName=name)
    return answer["Consumer"]["ConsumerARN"]


def subscribe(kinesis, consumer, kind="TRIM_HORIZON", shard=SHARD, **position):
    return kinesis.engine.subscribe(
        {
            "ConsumerARN": consumer,
            "ShardId": shard,
            "StartingPosition": {"Type": kind, **position},
        }
    )


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


def sizes(events):
    return [len(event["Records"]) for event in events]


def test_a_consumer_is_creating_then_active(kinesis_with, clock, refused):
    kinesis = kinesis_with(phases=Phases(consumer_ms=1000)).create(1)
    arn = register(kinesis)
    assert arn.startswith(f"{kinesis.arn()}/consumer/c:")
    with refused("ResourceInUseException"):
        subscribe(kinesis, arn)
    clock.advance(1)
    described = kinesis.DescribeStreamConsumer(ConsumerARN=arn)["ConsumerDescription"]
    assert described["ConsumerStatus"] == "ACTIVE"
    assert described["StreamARN"] == kinesis.arn()
    by_name = kinesis.DescribeStreamConsumer(StreamARN=kinesis.arn(), ConsumerName="c")
    assert by_name["ConsumerDescription"] == described


def test_consumer_names_are_unique_within_a_stream(kinesis, consumer, refused):
    assert consumer
    with refused("ResourceInUseException"):
        register(kinesis)


def test_a_stream_has_at_most_twenty_consumers(kinesis, refused):
    kinesis.create(1)
    for number in range(20):
        register(kinesis, f"c{number:02d}")
    with refused("LimitExceededException"):
        register(kinesis, "one-more")
    first = kinesis.ListStreamConsumers(StreamARN=kinesis.arn(), MaxResults=15)
    rest = kinesis.ListStreamConsumers(StreamARN=kinesis.arn(), NextToken=first["NextToken"])
    names = [each["ConsumerName"] for each in first["Consumers"] + rest["Consumers"]]
    assert names == [f"c{number:02d}" for number in range(20)]


def test_a_stream_with_consumers_is_deleted_only_by_force(kinesis, consumer, refused):
    assert consumer
    with refused("ResourceInUseException"):
        kinesis.DeleteStream(StreamName="s")
    kinesis.DeleteStream(StreamName="s", EnforceConsumerDeletion=True)


def test_a_deregistered_consumer_is_not_found(kinesis, consumer, refused):
    kinesis.DeregisterStreamConsumer(ConsumerARN=consumer)
    with refused("ResourceNotFoundException"):
        kinesis.DescribeStreamConsumer(ConsumerARN=consumer)
    with refused("ResourceNotFoundException"):
        subscribe(kinesis, consumer)


def test_a_consumer_has_tags_of_its_own(kinesis, consumer):
    kinesis.TagResource(ResourceARN=consumer, Tags={"a": "1"})
    assert kinesis.ListTagsForResource(ResourceARN=consumer)["Tags"] == [{"Key": "a", "Value": "1"}]
    assert kinesis.ListTagsForResource(ResourceARN=kinesis.arn())["Tags"] == []


def test_records_are_pushed_as_they_arrive(kinesis, consumer):
    kinesis.put("before")

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            assert sizes([await anext(events)]) == [1]
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            number = kinesis.put("after")["SequenceNumber"]
            event = await following
        assert event["Records"][0]["SequenceNumber"] == number
        assert event["ContinuationSequenceNumber"] == number
        assert event["MillisBehindLatest"] == 0

    run(scenario())


def test_the_last_event_of_a_closed_shard_has_its_children_and_no_continuation(kinesis, consumer):
    kinesis.put("a")

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            kinesis.split(0)
            last = await following
            assert [child["ShardId"][-1] for child in last["ChildShards"]] == ["1", "2"]
            assert "ContinuationSequenceNumber" not in last
            assert [event async for event in events] == []

    run(scenario())


@pytest.mark.parametrize("kind", ["LATEST", "TRIM_HORIZON"])
def test_the_first_event_names_a_place_to_go_on_from_even_when_empty(kinesis, consumer, kind):
    if kind == "LATEST":
        kinesis.put("skipped")

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer, kind).events()) as events:
            first = await anext(events)
        assert first["Records"] == []
        kinesis.put("after")
        number = first["ContinuationSequenceNumber"]
        again = subscribe(kinesis, consumer, "AFTER_SEQUENCE_NUMBER", SequenceNumber=number)
        async with aclosing(again.events()) as events:
            assert sizes([await anext(events)]) == [1]

    run(scenario())


def test_a_subscription_ends_after_five_minutes(kinesis, consumer, clock, monkeypatch):
    monkeypatch.setattr("shardfleet_local.kinesis.subscriptions.HEARTBEAT_MS", 5_000)

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            clock.advance(299)
            assert sizes([await anext(events)]) == [0]
            clock.advance(1)
            assert [event async for event in events] == []

    run(scenario())


def test_a_second_subscription_takes_over_after_five_seconds(kinesis_with, clock, refused):
    kinesis = kinesis_with(quotas=True).create(1)
    consumer = register(kinesis)

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as old:
            await anext(old)
            clock.advance(4.9)
            with refused("ResourceInUseException"):
                subscribe(kinesis, consumer)
            clock.advance(0.1)
            async with aclosing(subscribe(kinesis, consumer).events()) as new:
                with refused("ResourceInUseException"):
                    await anext(old)
                await anext(new)

    run(scenario())


def test_the_five_seconds_count_from_a_success_though_its_subscription_has_ended(
    kinesis_with, clock, refused
):
    """K34, botocore's model of SubscribeToShard: "within 5 seconds of a successful call"."""
    kinesis = kinesis_with(quotas=True).create(2)
    consumer = register(kinesis)

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as ended:
            await anext(ended)
        clock.advance(4.9)
        with refused("ResourceInUseException"):
            subscribe(kinesis, consumer)
        other = subscribe(kinesis, consumer, shard="shardId-000000000001")
        async with aclosing(other.events()) as events:
            await anext(events)
        clock.advance(0.1)
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)

    run(scenario())


def test_a_subscription_is_silent_as_long_as_is_asked_for_and_says_then_what_came(
    kinesis, consumer, clock, monkeypatch
):
    monkeypatch.setattr("shardfleet_local.kinesis.subscriptions.LOOK_MS", 1)

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            kinesis.faults.inject({"Kind": "Silence", "ShardId": SHARD, "DurationMs": 60_000})
            kinesis.put("a")
            following = asyncio.ensure_future(anext(events))
            clock.advance(59.9)
            await asyncio.sleep(0.02)
            assert not following.done()
            clock.advance(0.1)
            assert sizes([await following]) == [1]

    run(scenario())


def test_a_half_open_subscription_is_silent_for_ever_and_the_next_one_is_not(
    kinesis, consumer, clock, monkeypatch
):
    monkeypatch.setattr("shardfleet_local.kinesis.subscriptions.LOOK_MS", 1)

    async def scenario():
        kinesis.faults.inject({"Kind": "Silence", "Operation": "SubscribeToShard", "Count": 1})
        async with aclosing(subscribe(kinesis, consumer).events()) as half_open:
            silent = asyncio.ensure_future(anext(half_open))
            await asyncio.sleep(0)
            clock.advance(600)
            kinesis.put("a")
            async with aclosing(subscribe(kinesis, consumer).events()) as events:
                assert sizes([await anext(events)]) == [1]
            await asyncio.sleep(0.02)
            assert not silent.done()
            silent.cancel()
            await asyncio.wait([silent])

    run(scenario())


def test_a_take_over_that_is_asked_for_is_told_by_its_event(kinesis, consumer, refused):
    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            kinesis.faults.inject({"Kind": "TakeOver", "Count": 1})
            kinesis.put("a")
            with refused("ResourceInUseException"):
                await anext(events)

    run(scenario())


def test_a_reset_that_is_asked_for_is_no_answer_of_the_service(kinesis, consumer):
    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            kinesis.faults.inject({"Kind": "Reset", "Count": 1})
            kinesis.put("a")
            with pytest.raises(SubscriptionReset):
                await anext(events)

    run(scenario())


@pytest.mark.parametrize("ending", ["DeleteStream", "DeregisterStreamConsumer"])
def test_a_subscription_ends_with_its_stream_or_its_consumer(kinesis, consumer, refused, ending):
    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            if ending == "DeleteStream":
                kinesis.DeleteStream(StreamName="s", EnforceConsumerDeletion=True)
            else:
                kinesis.DeregisterStreamConsumer(ConsumerARN=consumer)
            with refused("ResourceNotFoundException"):
                await following

    run(scenario())


def test_an_event_has_at_most_a_mebibyte(kinesis, consumer):
    for _ in range(300):
        kinesis.put("x" * 5000)

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            first, second = await anext(events), await anext(events)
        assert sizes([first, second]) == [(1 << 20) // 5001, 300 - (1 << 20) // 5001]

    run(scenario())


def test_a_record_larger_than_an_event_is_an_event_of_its_own(kinesis, consumer):
    kinesis.UpdateMaxRecordSize(StreamARN=kinesis.arn(), MaxRecordSizeInKiB=10_240)
    kinesis.put("x" * (3 << 20))
    kinesis.put("y")

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            assert sizes([await anext(events), await anext(events)]) == [1, 1]

    run(scenario())


def test_a_split_that_comes_due_while_waiting_is_noticed(kinesis_with, clock):
    kinesis = kinesis_with(phases=Phases(updating_ms=50)).create(1)
    consumer = register(kinesis)

    async def scenario():
        async with aclosing(subscribe(kinesis, consumer).events()) as events:
            await anext(events)
            kinesis.split(0)
            following = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            clock.advance(0.05)
            assert "ChildShards" in await following

    run(scenario())


def test_a_position_is_checked_before_anything_is_sent(kinesis, consumer, refused):
    with refused("InvalidArgumentException"):
        subscribe(kinesis, consumer, "AFTER_SEQUENCE_NUMBER", SequenceNumber="1")
    with refused("ResourceNotFoundException"):
        subscribe(kinesis, consumer, shard="shardId-000000000009")


def test_an_on_demand_stream_of_an_advantage_account_has_at_most_fifty_consumers(
    kinesis_with, refused
):
    """K39, botocore's model of RegisterStreamConsumer."""
    kinesis = kinesis_with(on_demand_advantage=True)
    kinesis.CreateStream(StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    for number in range(50):
        register(kinesis, f"c{number}")
    with refused("LimitExceededException"):
        register(kinesis, "one-too-many")
    kinesis.create(1, name="provisioned")
    for number in range(20):
        kinesis.RegisterStreamConsumer(
            StreamARN=kinesis.arn("provisioned"), ConsumerName=f"c{number}"
        )
    with refused("LimitExceededException"):
        kinesis.RegisterStreamConsumer(
            StreamARN=kinesis.arn("provisioned"), ConsumerName="one-too-many"
        )


def test_the_continuation_moves_on_without_a_record_and_is_a_position(kinesis, consumer, clock):
    """K35, botocore's model of SubscribeToShardEvent.ContinuationSequenceNumber."""

    async def first_continuation(**position):
        subscription = subscribe(kinesis, consumer, **position)
        async with aclosing(subscription.events()) as events:
            return await anext(events)

    async def scenario():
        kinesis.put("a")
        one = await first_continuation()
        clock.advance(10)
        at = {"kind": "AFTER_SEQUENCE_NUMBER"}
        two = await first_continuation(**at, SequenceNumber=one["ContinuationSequenceNumber"])
        assert two["Records"] == []
        assert int(two["ContinuationSequenceNumber"]) > int(one["ContinuationSequenceNumber"])
        kinesis.put("b")
        three = await first_continuation(**at, SequenceNumber=two["ContinuationSequenceNumber"])
        assert [record["PartitionKey"] for record in three["Records"]] == ["k"]

    run(scenario())
