"""The watcher of `make interop` sees every change, however soon the next one follows."""

import time
from types import SimpleNamespace

from tests.interop.checker import Look
from tests.interop.watcher import LeaseWatcher

SHARD = "shardId-000000000000"


def lease(owner, counter, checkpoint_owner=None, checkpoint="5"):
    owners = {"leaseOwner": owner, "checkpointOwner": checkpoint_owner}
    return {
        "leaseKey": {"S": SHARD},
        "leaseCounter": {"N": str(counter)},
        "checkpoint": {"S": checkpoint},
        **{name: {"S": value} for name, value in owners.items() if value},
    }


def record(at_ms, item):
    return {"dynamodb": {"SequenceNumber": f"{at_ms:020d}{at_ms:010d}", "NewImage": item}}


class FakeAws:
    """A table that appears at the second look, and its stream of changes."""

    def __init__(self, *records):
        self.is_there = False
        self.records = list(records)
        self.exceptions = SimpleNamespace(
            ResourceNotFoundException=KeyError, ResourceInUseException=BlockingIOError
        )

    def client(self, _service):
        return self

    def update_table(self, **_asked):
        if not self.is_there:
            self.is_there = True
            raise KeyError
        return {"TableDescription": {"LatestStreamArn": "arn"}}

    def describe_stream(self, **_asked):
        return {"StreamDescription": {"Shards": [{"ShardId": "s"}]}}

    def get_shard_iterator(self, **_asked):
        return {"ShardIterator": "0"}

    def get_records(self, *, ShardIterator):  # noqa: N803 - boto3's
        came = self.records[int(ShardIterator) :]
        return {"Records": came, "NextShardIterator": str(int(ShardIterator) + len(came))}

    def scan(self, **_asked):
        foreign = {"leaseKey": {"S": "java-1"}, "entityType": {"S": "WORKER_METRIC_STATS"}}
        return {"Items": [lease("b", 3), {**lease("a", 0), "leaseKey": {"S": "old"}}, foreign]}


def watched(*records):
    with LeaseWatcher(FakeAws(*records), "leases") as watcher:
        until = time.monotonic() + 20
        while "old" not in watcher.history and time.monotonic() < until:
            time.sleep(0.01)
    assert watcher.failure is None
    return watcher


def test_a_handover_that_begins_and_ends_between_two_looks_is_no_robbery():
    watcher = watched(
        record(1_000, lease("a", 1)),
        record(1_700, lease("a", 2)),
        record(2_000, lease("b", 2, "a")),
        record(2_128, lease("b", 3)),
    )

    assert watcher.history[SHARD] == [
        Look(1_000, "a", None),
        Look(2_000, "b", "a", still_ms=300),
        Look(2_128, "b", None, still_ms=428),
    ]
    assert watcher.owners() == {SHARD: "b", "old": "a"}


def test_what_was_there_before_the_table_had_a_stream_is_known_and_foreign_items_are_not():
    assert watched().history.keys() == {SHARD, "old"}
