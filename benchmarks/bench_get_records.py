"""
What does a GetRecords call cost its caller, from signing to user records, over TLS?

A server in another process answers with finished bodies (`answers.py`: four full ones, one empty);
only the client's CPU time counts. Ours is the wire and the decoder of the worker, the peer a boto3
client, with aws-kinesis-agg for the aggregates, one after the other on both sides. An empty answer
is what an idle shard costs.

    python benchmarks/bench_get_records.py [--only idle_poll_tls] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import answers
import botocore.session
import side_by_side
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from botocore.config import Config
from side_by_side import Contest
from tls_server import serving

from shardfleet.adapters.kinesis.wire import KinesisWire, open_wire

ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/bench"
GATES = {"a": (4.2, 6.0), "b": (5.0, 7.0), "c": (2.7, 3.8), "d": (2.6, 3.6)}
EMPTY = json.dumps(
    {"Records": [], "NextShardIterator": "A" * 200, "MillisBehindLatest": 0}
).encode()
CALLS = 20
TIME_GOES_TO = {
    "a": "receiving: the kernel's copy and the decryption of 14 MB.",
    "b": "receiving, and one Struct and bytes object per record.",
    "c": "objects: a Struct, bytes and the text of a key per user record; MD5.",
    "d": "MD5, and receiving.",
}


def ours(wire: KinesisWire, load: str) -> int:
    page = wire.get_records(load, limit=10_000)
    return len(page.records) if load in "ab" else answers.count_delivered(page)


def theirs(client: Any, load: str) -> int:
    records = client.get_records(StreamARN=ARN, ShardIterator=load)["Records"]
    if load in "ab":
        return len(records)
    return sum(1 for _ in iter_deaggregate_records(records, data_format="Boto3"))


def our_polls(wire: KinesisWire) -> int:
    return sum(len(wire.get_records("empty", limit=10_000).records) for _ in range(CALLS))


def their_polls(client: Any) -> int:
    found = [client.get_records(StreamARN=ARN, ShardIterator="empty") for _ in range(CALLS)]
    return sum(len(each["Records"]) for each in found)


def same(ours: int, theirs: int) -> None:
    assert ours == theirs


def contests() -> Iterator[Contest]:
    os.environ["TZ"] = "UTC"  # As in Lambda.
    time.tzset()
    data = {load: answers.payloads(load) for load in answers.LOADS}
    bodies = {load: answers.body_of(each) for load, each in data.items()}
    with serving(bodies | {"empty": EMPTY}) as (endpoint, authority):
        os.environ["AWS_CA_BUNDLE"] = str(authority)
        session = botocore.session.get_session()
        session.set_credentials("bench", "bench")
        client: Any = session.create_client(
            "kinesis",
            region_name="us-east-1",
            endpoint_url=endpoint,
            config=Config(retries={"total_max_attempts": 1}),
        )
        wire = open_wire(ARN, client=client, session=session)
        assert wire is not None
        yield Contest(
            name="idle_poll_tls",
            compares=f"{CALLS} empty answers",
            ours=partial(our_polls, wire),
            peer=partial(their_polls, client),
            peer_name="boto3",
            check=same,
            gate=5.0,
            goal=10.0,
            time_goes_to="the system calls of one request and its TLS records.",
        )
        for load, (gate, goal) in GATES.items():
            yield Contest(
                name=f"get_records_tls_{load}",
                compares=f"call -> {'stream' if load in 'ab' else 'user'} records",
                ours=partial(ours, wire, load),
                peer=partial(theirs, client, load),
                peer_name="boto3" if load in "ab" else "boto3 + aws-kinesis-agg",
                check=same,
                gate=gate,
                goal=goal,
                unit_bytes=sum(map(len, data[load])),
                time_goes_to=TIME_GOES_TO[load],
            )
        wire.close()


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
