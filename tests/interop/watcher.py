"""Who owned what when: every write to a lease table, in the order of its stream."""

import threading
import time
from contextlib import suppress

from botocore.exceptions import BotoCoreError, ClientError

from tests.interop.checker import Look

EVERY_S = 0.2
# Milliseconds since 1970, with which the embedded AWS begins the number of each write.
_WHEN_DIGITS = 20


class LeaseWatcher:
    """
    A context within which a table is watched, from when it exists.

    Looks from outside would miss what begins and ends between two of them, and on a busy machine
    that is a whole handover. So the table is given a stream of its changes, which no KCL looks at.

    Args:
        aws: the account.
        table: name.
        heard: told of each write: when, and the item before and after it.

    Attributes:
        history: shard to its looks, one for each change of an owner.
        failure: what ended the watching.
        late_ms: how long it took at most from one reading to the next, more than was meant.

    """

    def __init__(self, aws, table, heard=lambda *_: None):
        self.history = {}
        self.failure = None
        self.late_ms = 0
        self._dynamodb = aws.client("dynamodb")
        self._streams = aws.client("dynamodbstreams")
        self._table = table
        self._heard = heard
        self._renewed = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(timeout=60)

    def owners(self):
        """Return unfinished shard to effective owner, as last seen."""
        last = {shard: looks[-1] for shard, looks in list(self.history.items())}
        return {shard: look.effective for shard, look in last.items() if not look.is_finished}

    def _watch(self):
        try:
            iterator = self._begin()
            began = time.monotonic()
            while iterator and not self._over.wait(EVERY_S):
                iterator = self._read(iterator)
                late_s, began = time.monotonic() - began - EVERY_S, time.monotonic()
                self.late_ms = max(self.late_ms, round(1000 * late_s))
        except (BotoCoreError, ClientError) as error:
            self.failure = error

    def _begin(self):
        """Wait for the table, give it a stream, and read what came before that."""
        busy = self._dynamodb.exceptions
        arn = None
        while arn is None and not self._over.wait(EVERY_S):
            with suppress(busy.ResourceNotFoundException, busy.ResourceInUseException):
                made = self._dynamodb.update_table(
                    TableName=self._table,
                    StreamSpecification={
                        "StreamEnabled": True,
                        "StreamViewType": "NEW_AND_OLD_IMAGES",
                    },
                )
                arn = made["TableDescription"]["LatestStreamArn"]
        if arn is None:
            return None
        shard = self._streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][0]
        iterator = self._read(
            self._streams.get_shard_iterator(
                StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
        )
        for item in self._dynamodb.scan(TableName=self._table, ConsistentRead=True)["Items"]:
            if item.get("leaseKey", {}).get("S") not in self.history:
                self._note(item, time.time_ns() // 1_000_000)
        return iterator

    def _read(self, iterator):
        """Take in all there is; return where the next reading begins."""
        while True:
            answer = self._streams.get_records(ShardIterator=iterator)
            for record in answer["Records"]:
                change = record["dynamodb"]
                at_ms = int(change["SequenceNumber"][:_WHEN_DIGITS])
                self._heard(at_ms, change.get("OldImage"), change.get("NewImage"))
                if "NewImage" in change:
                    self._note(change["NewImage"], at_ms)
            iterator = answer["NextShardIterator"]
            if not answer["Records"]:
                return iterator

    def _note(self, item, at_ms):
        if "leaseCounter" not in item:
            return
        key, counter = item["leaseKey"]["S"], item["leaseCounter"]["N"]
        known, since_ms = self._renewed.get(key, (None, at_ms))
        if counter != known:
            self._renewed[key] = counter, at_ms
        owners = [item.get(name, {}).get("S") for name in ("leaseOwner", "checkpointOwner")]
        is_finished = item["checkpoint"]["S"] == "SHARD_END"
        found = Look(at_ms, *owners, is_finished=is_finished, still_ms=at_ms - since_ms)
        looks = self.history.setdefault(key, [])
        if not looks or looks[-1].owners != found.owners:
            looks.append(found)
