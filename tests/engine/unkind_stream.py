"""The embedded Kinesis, as kind or unkind as asked, as a stream in virtual time."""

import asyncio

from shardfleet.adapters.kinesis.polling import KinesisPolling
from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from tests.engine.producing.embedded_stream import client_of

NAME = "clicks"
ARN = f"arn:aws:kinesis:us-east-1:000000000000:stream/{NAME}"


class CallsAtOnce:
    """Calls are made at once, so that virtual time knows of them."""

    threads_most = 1

    async def run(self, call):
        await asyncio.sleep(0)
        return call()


class UnkindStream(KinesisPolling):
    """The ports over one stream of an engine, and what a person or a producer does to it."""

    def __init__(self, clock, *, shards=1, unkind=None):
        settings = AccountSettings(unkind=unkind)
        self.engine = KinesisEngine(settings, clock=lambda: clock.now_ms() / 1000)
        self.engine.call("CreateStream", {"StreamName": NAME, "ShardCount": shards})
        client = client_of(self.engine)
        super().__init__(ARN, records=client, control=client, pool=CallsAtOnce())
        self.client = client

    def inject(self, kind, **fault):
        self.engine.faults.inject({"Kind": kind, "StreamName": NAME, **{"Count": 9_999} | fault})

    def put(self, number, *, key="k"):
        """Put a record that is a number; return its sequence number."""
        hash_key = str(hash_of_partition_key(key))
        stored = self.client.put_record(
            StreamName=NAME, Data=str(number), PartitionKey=key, ExplicitHashKey=hash_key
        )
        return stored["SequenceNumber"]

    def split(self, shard_id):
        listed = self.engine.call("DescribeStream", {"StreamName": NAME})["StreamDescription"]
        (found,) = [each for each in listed["Shards"] if each["ShardId"] == shard_id]
        ends = found["HashKeyRange"]
        middle = (int(ends["StartingHashKey"]) + int(ends["EndingHashKey"])) // 2 + 1
        self.client.split_shard(
            StreamName=NAME, ShardToSplit=shard_id, NewStartingHashKey=str(middle)
        )
