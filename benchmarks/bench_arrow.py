"""
How quickly do KPL aggregates become Arrow columns?

The data of stream records in, record batches of partition key, data and sub-sequence number out, in
chunks of 512 KiB, MD5 verified. The peer is aws-kinesis-agg and `pa.array`. Loads: `answers.py`.

    python benchmarks/bench_arrow.py [--only arrow_kpl_100b] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import answers
import pyarrow as pa
import side_by_side
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from side_by_side import Contest

from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet.records import StreamRecord
from shardfleet_spark.aws.arrow import CHUNK_BYTES, user_columns

LIMITS = ExpansionLimits()
NAMES = ("partition_key", "data", "sub_sequence_number")
GATES = {"arrow_kpl_100b": ("c", 4.0, 6.0), "arrow_kpl_1k": ("d", 2.4, 3.8)}


def chunks(records: Sequence[StreamRecord]) -> Iterator[Sequence[StreamRecord]]:
    chunk, size = [], 0
    for record in records:
        chunk.append(record)
        size += len(record.data)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def ours(records: Sequence[StreamRecord]) -> pa.Table:
    return pa.Table.from_batches([batch(chunk) for chunk in chunks(records)])


def batch(chunk: Sequence[StreamRecord]) -> pa.RecordBatch:
    columns = user_columns(chunk, LIMITS)
    if columns is not None:
        arrays = [columns.partition_key, columns.data, columns.sub_sequence_number]
        return pa.RecordBatch.from_arrays(arrays, NAMES)
    users = [
        user
        for record in chunk
        for user in deaggregate(
            record.data,
            partition_key=record.partition_key,
            limits=LIMITS,
            hash_range=None,
            policy="deliver",
        ).records
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([user.partition_key for user in users], pa.string()),
            pa.array([user.data for user in users], pa.binary()),
            pa.array([user.sub_sequence_number for user in users], pa.int64()),
        ],
        NAMES,
    )


def theirs(records: Sequence[dict[str, Any]]) -> pa.Table:
    users = [each["kinesis"] for each in iter_deaggregate_records(records, data_format="Boto3")]
    return pa.table(
        [
            pa.array([user["partitionKey"] for user in users], pa.string()),
            pa.array([base64.b64decode(user["data"]) for user in users], pa.binary()),
            pa.array([user["subSequenceNumber"] for user in users], pa.int64()),
        ],
        NAMES,
    )


def same(ours: pa.Table, theirs: pa.Table) -> None:
    assert ours.num_rows == theirs.num_rows > 0
    assert ours.combine_chunks().equals(theirs)


def least_work(data: Sequence[bytes]) -> None:
    for each in data:
        hashlib.md5(each, usedforsecurity=False).digest()


def contests() -> Iterator[Contest]:
    parser = answers.BotocoreParser()
    for name, (load, gate, goal) in GATES.items():
        data = answers.payloads(load)
        parsed: Any = parser(answers.body_of(data))["Records"]
        records = [
            StreamRecord(each["Data"], each["PartitionKey"], each["SequenceNumber"], 0)
            for each in parsed
        ]
        yield Contest(
            name=name,
            compares="stream records -> record batches",
            ours=partial(ours, records),
            peer=partial(theirs, parsed),
            peer_name="aws-kinesis-agg + pa.array",
            check=same,
            bound=partial(least_work, data),
            bound_name="the MD5 of each aggregate",
            gate=gate,
            goal=goal,
            unit_bytes=sum(map(len, data)),
            time_goes_to="MD5, one bytes object per record from the parser, and its copy to Arrow.",
        )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
