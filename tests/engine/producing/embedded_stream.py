"""The embedded Kinesis, quotas on, without HTTP and in virtual time; boto3 can be put before it."""

import asyncio
import io
import json
from base64 import b64decode, b64encode

import boto3
from botocore.awsrequest import AWSResponse
from botocore.config import Config

from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import PutOutcome
from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_local.kinesis.errors import KinesisError
from shardfleet_local.kinesis.faults import FaultKind

NAME = "orders"
LATENCY_MS = 20


class EmbeddedStream:
    """
    One stream of an engine; the `StreamWriter` port.

    `now_ms` is the engine's clock; `refuses` is asked for each entry, with its shard's id.
    """

    def __init__(self, shards, *, now_ms, refuses=lambda shard_id: False):
        self._later_ms = 0
        self.engine = KinesisEngine(
            AccountSettings(quotas=True), clock=lambda: (now_ms() + self._later_ms) / 1000
        )
        self.engine.faults.take = lambda kind, site: (
            True if kind is FaultKind.THROTTLE_WRITES and refuses(site.shard) else None
        )
        self.engine.call("CreateStream", {"StreamName": NAME, "ShardCount": shards})
        self._now_ms = now_ms
        self.accepted_ms = {}  # shard id -> when each of its records came

    async def put_records(self, entries):
        records = [
            {"Data": b64encode(e.data).decode(), "PartitionKey": e.partition_key}
            | ({"ExplicitHashKey": e.explicit_hash_key} if e.explicit_hash_key else {})
            for e in entries
        ]
        await asyncio.sleep(LATENCY_MS / 2000)
        answer = self.engine.call("PutRecords", {"StreamName": NAME, "Records": records})
        for result in answer["Records"]:
            if "ShardId" in result:
                self.accepted_ms.setdefault(result["ShardId"], []).append(self._now_ms())
        await asyncio.sleep(LATENCY_MS / 2000)
        return [
            PutOutcome(
                shard_id=result.get("ShardId"),
                sequence_number=result.get("SequenceNumber"),
                error_code=result.get("ErrorCode"),
            )
            for result in answer["Records"]
        ]

    async def list_shards(self):
        await asyncio.sleep(LATENCY_MS / 1000)
        return self.shards()

    def shards(self):
        found = self.engine.call("ListShards", {"StreamName": NAME})["Shards"]
        return [
            Shard(
                shard_id=each["ShardId"],
                hash_key_range=HashKeyRange(
                    int(each["HashKeyRange"]["StartingHashKey"]),
                    int(each["HashKeyRange"]["EndingHashKey"]),
                ),
            )
            for each in found
        ]

    def keys(self, count):
        """Return shard id -> that many partition keys that it gets."""
        found = {shard.shard_id: [] for shard in self.shards()}
        number = 0
        while any(len(keys) < count for keys in found.values()):
            key = f"key-{number}"
            number += 1
            hash_key = hash_of_partition_key(key)
            owner = next(s for s in self.shards() if s.hash_key_range.contains(hash_key))
            if len(found[owner.shard_id]) < count:
                found[owner.shard_id].append(key)
        return found

    def read(self):
        """Return shard id -> (partition key, data) in the order of the shard."""
        return {shard.shard_id: self._read(shard.shard_id) for shard in self.shards()}

    def _read(self, shard_id):
        first = {"ShardIteratorType": "TRIM_HORIZON", "StreamName": NAME, "ShardId": shard_id}
        iterator = self.engine.call("GetShardIterator", first)["ShardIterator"]
        found = []
        while True:
            self._later_ms += 1_000  # Reading has quotas too, and nobody is in a hurry.
            page = self.engine.call("GetRecords", {"ShardIterator": iterator})
            iterator = page["NextShardIterator"]
            found += [(r["PartitionKey"], b64decode(r["Data"])) for r in page["Records"]]
            if not page["Records"]:
                return found

    def boto3_client(self, on_call):
        """Return a real boto3 client whose requests go to the engine; `on_call` before each."""
        return client_of(self.engine, on_call=on_call)


def client_of(engine, *, on_call=lambda: None):
    """Return a real boto3 client of an engine in this process."""
    client = boto3.client("kinesis", config=Config(retries={"total_max_attempts": 1}))

    def answer(request, **_):
        on_call()
        operation = request.headers["X-Amz-Target"].decode().rpartition(".")[2]
        try:
            status, body = 200, engine.call(operation, json.loads(request.body))
        except KinesisError as error:
            status, body = error.status, {"__type": error.code, "message": error.message}
        raw = _Raw(json.dumps(body).encode())
        return AWSResponse(request.url, status, {"Content-Type": "application/x-amz-json-1.1"}, raw)

    client.meta.events.register("before-send.kinesis.*", answer)
    return client


class _Raw(io.BytesIO):
    def stream(self, **_):
        yield self.getvalue()
