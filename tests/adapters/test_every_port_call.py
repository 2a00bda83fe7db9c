"""
Whatever a real adapter raises for one shard, its neighbours' next record waits less than 2 s.

As in ``tests/engine/worker_side``, but the ports are those of production: both tables and the queue
of the embedded AWS, its Kinesis in this process; large states of windows are kept in memory. Time
is virtual: a call takes none of it.
"""

import asyncio
import os

import pytest

from shardfleet.adapters.dead_letters import Invocation, SqsDeadLetters
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet_testkit.clock import run_virtual
from tests.adapters.test_unreadable_items import put
from tests.engine.unkind_stream import ARN, NAME, CallsAtOnce, UnkindStream
from tests.engine.worker_side.test_every_port_call import (
    CALLS,
    ILL,
    SETTINGS,
    Life,
    delays_no_other,
    windows_for,
)
from tests.engine.worker_side.worker_kit import World, a_lease, key

SHARDS = 3
# All of them take a minute: `make whole`.
PLAYED = CALLS if os.environ.get("SHARDFLEET_TEST_DRAWN") else ["leases.apply", "source.page"]


class EmbeddedWorld(World):
    """What survives a worker, in an embedded AWS."""

    def __init__(self, tables, queue_url, **config):
        settings = {**SETTINGS, "failed_queue_url": queue_url, **config}
        super().__init__(stream_arn=ARN, leases=(), **settings)
        at_once, clients = CallsAtOnce(), tables.clients
        pools = TablePools(
            writes=at_once,
            reads=at_once,
            write_client=clients.table_writes,
            read_client=clients.table_reads,
        )
        self.leases = DynamoDBLeaseStore(tables.lease_table, pools, events=self.events)
        self.state = DynamoDBStateStore(tables.state_table, pools)
        self.stream = UnkindStream(self.clock, shards=SHARDS)
        self.dead_letters = SqsDeadLetters(
            queue_url,
            client=clients.sqs,
            pool=at_once,
            invocation=Invocation(
                fleet="fleet",
                function_arn="arn:aws:lambda:us-east-1:000000000000:function:worker",
                request_id="1",
                as_event=lambda records: {"Records": [r.sequence_number for r in records]},
            ),
        )
        for number in range(SHARDS):
            put(tables, a_lease(number, checkpoint=AT_TRIM_HORIZON))

    def put(self, first, last=None, *, number=0):
        """Put one record into one shard."""
        assert last is None
        (shard,) = [
            each
            for each in self.stream.client.list_shards(StreamName=NAME)["Shards"]
            if each["ShardId"] == key(number)
        ]
        self.stream.client.put_record(
            StreamName=NAME,
            Data=str(first),
            PartitionKey="k",
            ExplicitHashKey=shard["HashKeyRange"]["StartingHashKey"],
        )


class EmbeddedLife(Life):
    """The same life; what Kinesis refuses, it refuses itself."""

    async def feed(self):
        refusing = asyncio.create_task(self.refuse())
        await super().feed()
        await refusing

    async def refuse(self):
        """Refuse the ill shard once, then know nothing of it for two seconds."""
        clock, stream = self.world.clock, self.world.stream
        shard = {"ShardId": key(ILL), "Operation": "GetRecords"}
        await clock.sleep_ms(3_500)
        stream.inject("ThrottleReads", ShardId=key(ILL), Count=1)
        await clock.sleep_ms(3_000)
        stream.inject("Failure", **shard, Code="ResourceNotFoundException", DurationMs=2_000)


@pytest.fixture(scope="module")
def queue_url(embedded_aws):
    return embedded_aws.client("sqs").create_queue(QueueName="every-port-call")["QueueUrl"]


@pytest.mark.processes
@pytest.mark.parametrize("call", PLAYED)
def test_a_port_that_raises_for_one_shard_delays_no_other_by_two_seconds(
    call, embedded_tables, queue_url
):
    def life_of(call):
        world = EmbeddedWorld(embedded_tables, queue_url, **windows_for(call))
        return EmbeddedLife(call, overlaps=False, world=world)

    run_virtual(delays_no_other(life_of, call))
