"""What flows while processes die: numbered records, and splits and merges of the shards."""

import itertools
import threading

KEYS = 16
PER_ROUND = 40
# Bytes of a record, with blanks behind its number: some pages are long, and so read in CBOR as
# columns, others are short.
SIZES = (0, 1_000, 4_000)
ROUND_S = 0.1
SHARDS_MOST = 5
MERGES = 0.4

_ACTIVE = "ACTIVE"


class Load:
    """
    Puts records from a thread of its own until it is stopped.

    Attributes:
        sent: the numbers that are in the stream, per partition key, in the order of their keys.
        splits, merges: done so far.
        error: what ended the thread early, None if nothing did.

    """

    def __init__(self, client, stream, chance):
        self._client = client
        self._stream = stream
        self._chance = chance
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self.sent = {}
        self.splits = self.merges = 0
        self.error = None

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Put no more; raise what went wrong."""
        self._stopping.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    @property
    def count(self):
        return sum(map(len, self.sent.values()))

    def lineage(self):
        """Return the parents of each shard that ever was."""
        found = self._shards()
        return {
            shard["ShardId"]: [
                shard[name]
                for name in ("ParentShardId", "AdjacentParentShardId")
                if shard.get(name)
            ]
            for shard in found
        }

    def _guarded(self):
        try:
            self._put()
        except Exception as error:  # noqa: BLE001 - told by stop()
            self.error = error

    def _put(self):
        numbers = itertools.count()
        while not self._stopping.wait(ROUND_S):
            batch = [
                (f"key-{self._chance.randrange(KEYS)}", next(numbers)) for _ in range(PER_ROUND)
            ]
            answer = self._client.put_records(
                StreamName=self._stream,
                Records=[
                    {"Data": self._data(number), "PartitionKey": key} for key, number in batch
                ],
            )
            if answer["FailedRecordCount"]:
                message = f"{answer['FailedRecordCount']} records were refused: order is unknown"
                raise RuntimeError(message)
            for key, number in batch:
                self.sent.setdefault(key, []).append(number)

    def _data(self, number):
        return (b"%d" % number).ljust(self._chance.choice(SIZES))

    def reshard(self):
        """Split a shard or merge two, unless the last change is not over."""
        summary = self._client.describe_stream_summary(StreamName=self._stream)
        if summary["StreamDescriptionSummary"]["StreamStatus"] != _ACTIVE:
            return
        shards = [
            shard
            for shard in self._shards()
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        shards.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        if len(shards) >= SHARDS_MOST or (len(shards) > 1 and self._chance.random() < MERGES):
            self._merge(shards)
        else:
            self._split(self._chance.choice(shards))

    def _merge(self, shards):
        left = self._chance.randrange(len(shards) - 1)
        self._client.merge_shards(
            StreamName=self._stream,
            ShardToMerge=shards[left]["ShardId"],
            AdjacentShardToMerge=shards[left + 1]["ShardId"],
        )
        self.merges += 1

    def _split(self, shard):
        first, last = (
            int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending")
        )
        self._client.split_shard(
            StreamName=self._stream,
            ShardToSplit=shard["ShardId"],
            NewStartingHashKey=str((first + last + 1) // 2),
        )
        self.splits += 1

    def _shards(self):
        pages = self._client.get_paginator("list_shards").paginate(StreamName=self._stream)
        return [shard for page in pages for shard in page["Shards"]]
