"""An engine on a virtual clock, and the shortest way to put, read and list."""

from base64 import b64decode, b64encode

import pytest

from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine

START_S = 1_800_000_000.0
HASH_KEYS = 1 << 128


class Clock:
    def __init__(self):
        self.now_s = START_S

    def __call__(self):
        return self.now_s

    def advance(self, seconds):
        self.now_s += seconds


class Kinesis:
    """An engine with one call per line of a test; data are text, shards are numbers."""

    def __init__(self, clock, **settings):
        self.clock = clock
        self.engine = KinesisEngine(AccountSettings(**{"quotas": False} | settings), clock=clock)
        self.faults = self.engine.faults

    def __getattr__(self, operation):
        return lambda **request: self.engine.call(operation, request)

    def create(self, shards=1, name="s"):
        self.CreateStream(StreamName=name, ShardCount=shards)
        return self

    def put(self, data="x", *, key="k", shard=None, name="s"):
        explicit = {}
        if shard is not None:
            explicit["ExplicitHashKey"] = str(self.shard(shard, name=name)["first"])
        encoded = b64encode(data.encode()).decode()
        return self.PutRecord(StreamName=name, PartitionKey=key, Data=encoded, **explicit)

    def iterator(self, shard=0, kind="TRIM_HORIZON", name="s", **position):
        return self.GetShardIterator(
            StreamName=name, ShardId=shard_id(shard), ShardIteratorType=kind, **position
        )["ShardIterator"]

    def get(self, shard=0, kind="TRIM_HORIZON", limit=10_000, **position):
        return self.GetRecords(ShardIterator=self.iterator(shard, kind, **position), Limit=limit)

    def read(self, shard=0, kind="TRIM_HORIZON", **position):
        return data_of(self.get(shard, kind, **position))

    def shards(self, name="s", **request):
        listed = self.ListShards(StreamName=name, **request)["Shards"]
        return [number_of(shard["ShardId"]) for shard in listed]

    def shard(self, number, name="s"):
        listed = self.ListShards(StreamName=name)["Shards"]
        (shard,) = [each for each in listed if each["ShardId"] == shard_id(number)]
        numbers = shard["SequenceNumberRange"]
        return {
            "first": int(shard["HashKeyRange"]["StartingHashKey"]),
            "last": int(shard["HashKeyRange"]["EndingHashKey"]),
            "start": numbers["StartingSequenceNumber"],
            "end": numbers.get("EndingSequenceNumber"),
            "parents": [
                number_of(shard[field])
                for field in ("ParentShardId", "AdjacentParentShardId")
                if field in shard
            ],
        }

    def split(self, number, name="s"):
        shard = self.shard(number, name=name)
        middle = (shard["first"] + shard["last"] + 1) // 2
        self.SplitShard(
            StreamName=name, ShardToSplit=shard_id(number), NewStartingHashKey=str(middle)
        )

    def merge(self, one, other, name="s"):
        self.MergeShards(
            StreamName=name, ShardToMerge=shard_id(one), AdjacentShardToMerge=shard_id(other)
        )

    def status(self, name="s"):
        summary = self.DescribeStreamSummary(StreamName=name)["StreamDescriptionSummary"]
        return summary["StreamStatus"]

    def arn(self, name="s"):
        summary = self.DescribeStreamSummary(StreamName=name)["StreamDescriptionSummary"]
        return summary["StreamARN"]


def shard_id(number):
    return f"shardId-{number:012d}"


def number_of(shard):
    return int(shard.removeprefix("shardId-"))


def data_of(answer):
    return [b64decode(record["Data"]).decode() for record in answer["Records"]]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def kinesis(clock):
    """Return an engine without quotas, with nothing in it."""
    return Kinesis(clock)


@pytest.fixture
def kinesis_with(clock):
    """Return a function that makes an engine with other settings."""
    return lambda **settings: Kinesis(clock, **settings)


@pytest.fixture
def refused():
    """Return `with refused("Code") as error:`, as `pytest.raises` for the engine's refusals."""
    return lambda code: pytest.raises(Exception, match=f"^{code}: ")
