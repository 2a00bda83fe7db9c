"""The consumer that one writes first: boto3, aws-kinesis-agg, a checkpoint per shard a second."""

from __future__ import annotations

import base64
import time
from typing import Any

import boto3
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from protocol import Task, serve

KINESIS = boto3.client("kinesis")
DYNAMODB = boto3.client("dynamodb")


def consume(task: Task) -> list[bytes]:
    """Read the shards in turn, one call each, to the last record."""
    seen: list[bytes] = []
    iterators = {
        shard: KINESIS.get_shard_iterator(
            StreamName=task.stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        for shard in task.shards
    }
    done: dict[str, str] = {}
    stored_s = dict.fromkeys(task.shards, 0.0)
    while len(seen) < task.records:
        for shard, iterator in iterators.items():
            answer = KINESIS.get_records(ShardIterator=iterator, Limit=10_000)
            iterators[shard] = answer["NextShardIterator"]
            records: Any = answer["Records"]
            if not records:
                continue
            seen += payloads(records, aggregated=task.aggregated)
            done[shard] = records[-1]["SequenceNumber"]
            if time.monotonic() - stored_s[shard] >= task.checkpoint_ms / 1000:
                stored_s[shard] = time.monotonic()
                store(task, shard, done.pop(shard))
    for shard, number in done.items():
        store(task, shard, number)
    return seen


def payloads(records: Any, *, aggregated: bool) -> list[bytes]:
    """Return the data of the user records."""
    if not aggregated:
        return [record["Data"] for record in records]
    users = iter_deaggregate_records(records, data_format="Boto3")
    return [base64.b64decode(user["kinesis"]["data"]) for user in users]


def store(task: Task, shard: str, number: str) -> None:
    """Write how far a shard is done."""
    DYNAMODB.update_item(
        TableName=task.lease_table,
        Key={"leaseKey": {"S": shard}},
        UpdateExpression="SET checkpoint = :number",
        ExpressionAttributeValues={":number": {"S": number}},
    )


if __name__ == "__main__":
    serve(consume)
