"""
What does it cost to bring user records to Kinesis: packed into aggregates, signed, sent by TLS?

The loads of `bench_aggregate.py`, 10 MB each, in one PutRecords request to a server on this
machine; only the client's CPU time counts. The peer is aws-kinesis-agg with boto3. The server
answers with checksums of what came, so equal outcomes mean equal data. The bound is what the
protocol demands: the MD5 of the aggregates, and the SHA-256 of the body in the signature.

    python benchmarks/bench_put_records.py [--only NAME] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial

import bench_aggregate as packing
import side_by_side
from mypy_boto3_kinesis.client import KinesisClient
from side_by_side import Contest
from tls_server import boto3_and_wire, serving

from shardfleet.adapters.kinesis.put_records_body import encode_put_records
from shardfleet.adapters.kinesis.wire import KinesisWire
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import AggregateBuilder

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
Outcomes = list[tuple[str | None, str | None]]


def ours(groups: packing.Groups, wire: KinesisWire) -> Outcomes:
    """Pack with the builder, send by the own wire."""
    return [(each.shard_id, each.sequence_number) for each in wire.put_records(packed(groups))]


def packed(groups: packing.Groups) -> list[OutgoingRecord]:
    """Return an aggregate per group."""
    entries = []
    for group in groups:
        builder = AggregateBuilder(max_bytes=packing.MOST_BYTES)
        builder.fill(group)
        built = builder.build()
        entries.append(OutgoingRecord(data=built.data, partition_key=built.partition_key))
    return entries


def theirs(groups: packing.Groups, client: KinesisClient) -> Outcomes:
    """Pack with aws-kinesis-agg, send by boto3."""
    data = packing.theirs(groups)
    keys = [group[0].partition_key for group in groups]
    answer = client.put_records(
        StreamARN=ARN,
        Records=[{"Data": each, "PartitionKey": key} for each, key in zip(data, keys, strict=True)],
    )
    return [(each.get("ShardId"), each.get("SequenceNumber")) for each in answer["Records"]]


def least(entries: list[OutgoingRecord], body: bytes) -> str:
    """Digest each aggregate, and the body."""
    for entry in entries:
        hashlib.md5(entry.data, usedforsecurity=False).digest()
    return hashlib.sha256(body).hexdigest()


def equal(mine: Outcomes, other: Outcomes) -> None:
    """Compare the server's answers."""
    assert mine == other, "the server got different data"
    assert len(mine) > 100


def contests() -> Iterator[Contest]:
    """Yield both loads."""
    with serving() as (endpoint, certificate):
        client, wire = boto3_and_wire(endpoint, certificate, ARN)
        loads = (
            ("put_records_tls_100b", packing.small_records(), 4.6, 6.5),
            ("put_records_tls_1k", packing.large_records(), 2.9, 3.4),
        )
        for name, groups, gate, goal in loads:
            entries = packed(groups)
            yield Contest(
                name=name,
                compares="user records -> aggregates -> PutRecords by TLS",
                ours=partial(ours, groups, wire),
                peer=partial(theirs, groups, client),
                peer_name="aws-kinesis-agg + boto3",
                check=equal,
                bound=partial(least, entries, encode_put_records(ARN, entries)),
                bound_name="MD5 of the aggregates, SHA-256 of the body",
                gate=gate,
                goal=goal,
                time_goes_to="packing (see aggregate_*), then SHA-256, TLS and copies of the body.",
                unit_bytes=sum(len(record.data) for group in groups for record in group),
            )
        wire.close()


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
