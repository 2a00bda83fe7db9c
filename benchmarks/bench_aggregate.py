"""
How quickly are user records packed into KPL aggregates?

Loads as a producer has them: many small records of mostly different keys (270 of about 100 B in an
aggregate of 33 KB), the same with keys of different lengths that repeat (`_mixed`, for comparison),
and records of 1 KiB (48 in an aggregate of 50 KB). The peer is
aws-kinesis-agg's aggregator. The aggregates must be equal byte for byte. The bound is what the
format demands of everybody: one copy of the payload and its MD5.

    python benchmarks/bench_aggregate.py [--only aggregate_100b] [--rounds 15] [--folder DIR]
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence

import side_by_side
from aws_kinesis_agg.aggregator import RecordAggregator
from side_by_side import Contest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import AggregateBuilder

MOST_BYTES = 51_200
Groups = Sequence[Sequence[OutgoingRecord]]


def small_records(groups: int = 310) -> Groups:
    """Return groups of 270 records of 80 to 120 B of 100,000 users."""
    chance = random.Random(1)

    def record() -> OutgoingRecord:
        key = f"user-{chance.randrange(10**5):05d}"
        return OutgoingRecord(key, chance.randbytes(chance.randint(80, 120)))

    return [[record() for _ in range(270)] for _ in range(groups)]


def small_records_of_few(groups: int = 310) -> Groups:
    """Return groups of 270 records of 80 to 120 B, a third of them of a few keys of any length."""
    chance = random.Random(3)

    def record() -> OutgoingRecord:
        key = f"user-{chance.randrange(10 ** chance.choice([1, 5, 6]))}"
        return OutgoingRecord(key, chance.randbytes(chance.randint(80, 120)))

    return [[record() for _ in range(270)] for _ in range(groups)]


def large_records(groups: int = 200) -> Groups:
    """Return groups of 48 records of about 1 KiB."""
    chance = random.Random(2)

    def record() -> OutgoingRecord:
        key = f"user-{chance.randrange(10**6):06d}"
        return OutgoingRecord(key, chance.randbytes(chance.randint(980, 1_060)))

    return [[record() for _ in range(48)] for _ in range(groups)]


def ours(groups: Groups) -> list[bytes]:
    """Pack each group with the builder."""
    found = []
    for group in groups:
        builder = AggregateBuilder(max_bytes=MOST_BYTES)
        assert builder.fill(group) == len(group)
        found.append(builder.build().data)
    return found


def theirs(groups: Groups) -> list[bytes]:
    """Pack each group with aws-kinesis-agg."""
    found = []
    aggregator = RecordAggregator()
    for group in groups:
        for record in group:
            aggregator.add_user_record(record.partition_key, record.data)
        _, _, data = aggregator.clear_and_get().get_contents()
        found.append(data)
    return found


def least(groups: Groups) -> list[bytes]:
    """Copy the payload of each group once and digest it."""
    found = []
    for group in groups:
        body = b"".join([record.data for record in group])
        found.append(hashlib.md5(body, usedforsecurity=False).digest())
    return found


def equal(mine: list[bytes], other: list[bytes]) -> None:
    """Compare aggregates byte for byte."""
    assert mine == other, "the aggregates differ"


def contests() -> Iterator[Contest]:
    """Yield one for each load."""
    loads = (
        ("aggregate_100b", small_records(), 5.3, 7.5),
        ("aggregate_100b_mixed", small_records_of_few(), None, None),
        ("aggregate_1k", large_records(), 2.2, 3.2),
    )
    for name, groups, gate, goal in loads:
        yield Contest(
            name=name,
            compares="user records -> aggregates",
            ours=lambda groups=groups: ours(groups),  # type: ignore[misc]
            peer=lambda groups=groups: theirs(groups),  # type: ignore[misc]
            peer_name="aws-kinesis-agg",
            check=equal,
            bound=lambda groups=groups: least(groups),  # type: ignore[misc]
            bound_name="one copy of the payload and its MD5",
            gate=gate,
            goal=goal,
            time_goes_to=(
                "a third to three fifths is MD5 and one copy; the rest is per record: lengths, "
                "types and keys are looked at in a pass each, the parts joined once."
            ),
            unit_bytes=sum(len(record.data) for group in groups for record in group),
        )


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
