"""
How quickly does the body of a GetRecords answer become records?

Plain records of 10 KiB and of 1 KiB against botocore; KPL aggregates, expanded, against
botocore and aws-kinesis-agg. Loads: see `answers.py`. The bound is what nobody can leave out: one
look at every byte of the body, base64, and the MD5 of each aggregate. Ours are made and dropped
batch by batch, as a worker does; the peer's one by one.

    python benchmarks/bench_decode.py [--only decode_plain_10k] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import answers
import pybase64
import side_by_side
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from side_by_side import Contest

from shardfleet.adapters.kinesis.decode import decode_page, epoch_ms
from shardfleet.domain.reading.pages import RecordsPage

PLAIN = {"decode_plain_10k": ("a", 9.5, 13.0), "decode_plain_1k": ("b", 6.5, 10.0)}
AGGREGATED = {"decode_kpl_100b": ("c", 3.1, 4.5), "decode_kpl_1k": ("d", 3.0, 4.2)}
BOUND = "a look at each byte, base64"
TIME_GOES_TO = {
    "decode_plain_10k": "base64 (SIMD) and one copy of the payload are most of what remains.",
    "decode_plain_1k": (
        "per record, not per byte: one bytes object and one Struct each, the scalar base64 inside "
        "msgspec; at 1 KiB cutting with pybase64 takes as long."
    ),
    "decode_kpl_100b": "objects: a Struct, bytes and the text of a key per user record; MD5.",
    "decode_kpl_1k": "MD5, which is most of the bound.",
}


def same_records(page: RecordsPage, answer: dict[str, Any]) -> None:
    found = answer["Records"]
    assert len(page.records) == len(found) > 0
    for ours, theirs in zip(page.records, found, strict=True):
        assert ours.data == theirs["Data"]
        assert ours.partition_key == theirs["PartitionKey"]
        assert ours.sequence_number == theirs["SequenceNumber"]
        assert ours.approximate_arrival_ms == epoch_ms(theirs["ApproximateArrivalTimestamp"])


def plain(name: str, load: str, *, gate: float, goal: float) -> Contest:
    data = answers.payloads(load)
    body = answers.body_of(data)
    return Contest(
        name=name,
        compares="body -> records",
        ours=partial(decode_page, body),
        peer=partial(answers.BotocoreParser(), body),
        peer_name="botocore's parser",
        check=same_records,
        bound=partial(least_work, body, [base64.b64encode(each) for each in data], digests=False),
        bound_name=BOUND,
        gate=gate,
        goal=goal,
        unit_bytes=sum(map(len, data)),
        time_goes_to=TIME_GOES_TO[name],
    )


def least_work(body: bytes, texts: list[bytes], *, digests: bool) -> None:
    body.find(b"\x00")
    for text in texts:
        data = pybase64.b64decode(text, validate=True)
        if digests:
            hashlib.md5(data, usedforsecurity=False).digest()


def our_users(body: bytes) -> int:
    return answers.count_delivered(decode_page(body))


def their_users(parser: answers.BotocoreParser, body: bytes) -> int:
    found: Any = parser(body)["Records"]
    return sum(1 for _ in iter_deaggregate_records(found, data_format="Boto3"))


def aggregated(name: str, load: str, *, gate: float, goal: float) -> Contest:
    data = answers.payloads(load)
    body = answers.body_of(data)
    parser = answers.BotocoreParser()
    check_users(parser, body)
    return Contest(
        name=name,
        compares="body -> user records",
        ours=partial(our_users, body),
        peer=partial(their_users, parser, body),
        peer_name="botocore + aws-kinesis-agg",
        check=same_count,
        bound=partial(least_work, body, [base64.b64encode(each) for each in data], digests=True),
        bound_name=f"{BOUND}, MD5",
        gate=gate,
        goal=goal,
        unit_bytes=sum(map(len, data)),
        time_goes_to=TIME_GOES_TO[name],
    )


def check_users(parser: answers.BotocoreParser, body: bytes) -> None:
    """Compare every user record once; only the counts are compared afterwards."""
    found: Any = parser(body)["Records"]
    theirs = [each["kinesis"] for each in iter_deaggregate_records(found, data_format="Boto3")]
    ours = answers.user_records(decode_page(body))
    assert len(ours) == len(theirs)
    for record, other in zip(ours, theirs, strict=True):
        assert record.data == base64.b64decode(other["data"])
        assert record.partition_key == other["partitionKey"]
        assert record.sequence_number == other["sequenceNumber"]
        assert record.sub_sequence_number == other["subSequenceNumber"]


def same_count(ours: int, theirs: int) -> None:
    assert ours == theirs > 0


def contests() -> Iterator[Contest]:
    # In Lambda it is UTC; without a time zone botocore asks the disk for every timestamp.
    os.environ["TZ"] = "UTC"
    time.tzset()
    for name, (load, gate, goal) in PLAIN.items():
        yield plain(name, load, gate=gate, goal=goal)
    for name, (load, gate, goal) in AGGREGATED.items():
        yield aggregated(name, load, gate=gate, goal=goal)


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
