"""Large states of windows in S3: kept, fetched and deleted, and what is gone is named."""

import asyncio
import uuid

from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.adapters.window_states import S3WindowStates
from shardfleet.errors import ConfigurationError
from tests.adapters.loopback import doubted
from tests.virtual import in_a_loop

FUNCTION = "arn:aws:lambda:eu-west-1:123456789012:function:worker:live"
STATE = '{"ä":1}'


def states_in(clients, bucket):
    pool = ThreadPool("streams", threads=2)
    return S3WindowStates(
        bucket, client=clients.s3, pool=pool, fleet="orders", function_arn=FUNCTION
    )


def a_bucket(clients):
    name = f"states-{uuid.uuid4().hex[:8]}"
    where = {"LocationConstraint": clients.s3.meta.region_name}
    is_first = where["LocationConstraint"] == "us-east-1"
    clients.s3.create_bucket(
        Bucket=name, **({} if is_first else {"CreateBucketConfiguration": where})
    )
    return name


@in_a_loop
async def test_a_state_is_an_object_of_its_own_until_it_is_dropped(moto_clients):
    bucket = a_bucket(moto_clients)
    states = states_in(moto_clients, bucket)
    place = await states.keep("shardId-000000000001", "abc", STATE)
    key = "shardfleet/windows/123456789012/eu-west-1/orders/shardId-000000000001/abc.json"
    assert place == f"s3://{bucket}/{key}"
    assert await states.fetch(place) == STATE
    await states.keep("shardId-000000000001", "abc", STATE)  # A repeat is the same object.
    await states.drop(place)
    with doubted(ConfigurationError, match=f"GetObject of the state of a window, {place}"):
        await states.fetch(place)


def test_a_bucket_that_is_not_there_is_named(moto_clients):
    with doubted(ConfigurationError, match="PutObject of the state of a window to nowhere"):
        asyncio.run(states_in(moto_clients, "nowhere").keep("shard", "abc", STATE))
