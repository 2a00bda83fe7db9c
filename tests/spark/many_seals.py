"""Seals of many busy shards, as long as Kinesis makes their parts, and what DynamoDB counts."""

from shardfleet_spark.offsets.seals import Seal, ShardSeal
from tests.spark.memory_seals import MemorySealStore

# GetShardIterator's own example has 224 characters, sequence numbers have 56 digits.
ITERATOR = "A" * 224
NUMBER = "49590338271490256608559692538361571095921575989136588898"
NOW = 1_700_000_000_000
ITEM_BYTES_MOST = 400 * 1024
"""DynamoDB: an item's size, names and values together."""


def busy_shard(number):
    return ShardSeal(
        shard_id=f"shardId-{number:012d}",
        first=NUMBER,
        last=NUMBER,
        count=1_000,
        size_bytes=1_000_000,
        digest="0123456789abcdef",
        is_cut=True,
        lag_ms=60_000,
        arrived_ms=NOW,
        tip_ms=0,
        iterator=ITERATOR,
        iterator_ms=NOW,
        free_ms=NOW,
    )


def busy_seal(numbers):
    writer = {"host": "ip-10-0-0-1", "pid": "12345", "query": "q" * 36, "batch": "7"}
    writer |= {"attempt": "0", "task": "123"}
    return Seal(shards=tuple(map(busy_shard, numbers)), calls=5, writer=writer)


class MeteredSealStore(MemorySealStore):
    """
    A store that counts units and refuses items as DynamoDB does (developer guide).

    A write is a unit for each KB, a consistent read one for each 4 KB, of a query by the sum, and
    one where there is nothing; a deletion is a write of what it deletes.
    """

    def __init__(self):
        super().__init__()
        self.read_units = self.write_units = 0
        self.largest = 0

    def get(self, key):
        found = super().get(key)
        self.read_units += units(size_of(key, found), 4_096) if found else 1
        return found

    def put_if_absent(self, key, body):
        size = size_of(key, body)
        assert size <= ITEM_BYTES_MOST, f"Item size has exceeded the maximum allowed size: {size}"
        self.largest = max(self.largest, size)
        self.write_units += units(size, 1_024)
        return super().put_if_absent(key, body)

    def read_plan(self, sid, plan):
        self.read_units += self._query(lambda key: (key.sid, key.plan) == (sid, plan))
        return super().read_plan(sid, plan)

    def delete(self, keys):
        for key in keys:
            self.write_units += units(size_of(key, self.stored[key]), 1_024)
        super().delete(keys)

    def _query(self, wanted):
        size = sum(size_of(key, body) for key, body in self.stored.items() if wanted(key))
        return units(size, 4_096)


def size_of(key, body):
    """Return the size of an item: sid, item, body and the time to live, which is a number."""
    name = f"{key.plan}/{key.partition:08d}"
    number = len("expires") + 10 // 2 + 1
    return len("sid") + len(key.sid) + len("item") + len(name) + len("body") + len(body) + number


def units(size, unit):
    return max(1, -(-size // unit))
