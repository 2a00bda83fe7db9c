"""A seal store in memory that can be made to fail, and small builders for the pure parts."""

from shardfleet.domain.stream.sequence import (
    ExtendedSequenceNumber,
    PointKind,
    Position,
    StreamIncarnation,
)
from shardfleet_spark.offsets.plan_token import Emission, PlanToken, Quota, Stand
from shardfleet_spark.offsets.seals import Seal, ShardSeal

INCARNATION = StreamIncarnation("arn:aws:kinesis:eu-central-1:123456789012:stream/memory", 1_000)


class MemorySealStore:
    """The `SealStore` protocol; `fault(operation)` is called first and raises what it likes."""

    def __init__(self):
        self.stored = {}
        self.fault = lambda _operation: None

    def get(self, key):
        self.fault("get")
        return self.stored.get(key)

    def put_if_absent(self, key, body):
        self.fault("put")
        stored = self.stored.setdefault(key, body)
        self.fault("answer")  # Stored, but the answer is lost.
        return stored

    def read_plan(self, sid, plan):
        self.fault("read")
        found = self.stored.items()
        return {key.partition: body for key, body in found if (key.sid, key.plan) == (sid, plan)}

    def delete(self, keys):
        self.fault("delete")
        for key in keys:
            self.stored.pop(key, None)


def stand(shard_id, at="TRIM_HORIZON", *, arrived=0, tip=0):
    """Make a stand: `stand("s0", 17)` has done record 17, `stand("s0", "END")` is finished."""
    if isinstance(at, int):
        done = ExtendedSequenceNumber(str(at))
        position = Position(INCARNATION, shard_id, PointKind.SEQUENCE, done=done)
    else:
        position = Position(INCARNATION, shard_id, PointKind(at))
    return Stand(position, arrived, tip)


def token(stands, *, layout=(), waiting=None, number=1, **changes):
    quotas = (Quota(total_bytes=1_000, fetch_ms=100),) * len(layout)
    return PlanToken(
        sid="sid",
        number=number,
        incarnation=INCARNATION,
        stands={each.position.shard_id: each for each in stands},
        emission=Emission(),
        layout=tuple(tuple(shards) for shards in layout),
        waiting=waiting or {},
        **{"quotas": quotas, **changes},
    )


def seal(*shards):
    return Seal(shards=tuple(ShardSeal(**{"lag_ms": 0, **shard}) for shard in shards))
