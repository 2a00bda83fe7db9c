"""
What does flow control do when a shard is shared, shut, and free again?

Four shards of our Kinesis engine in virtual time, fed at 600 records/s each for 60 s. On one of
them another writer takes 800 of the 1,000 records/s from second 10 to 30, and from 40 to 46 it
refuses everything. Written to docs/img/flow_control.svg: batch size, pause, and what the shard
accepted each second. In virtual time, so the figures are the same on every machine.

    python benchmarks/bench_flow_control.py [--folder DIR]
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import side_by_side
from side_by_side import Figures

from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import PutOutcome
from shardfleet.kpl.hash_keys import hash_of_partition_key
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerCounts, ShardAnswer
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy

PLOT = Path(__file__).parent.parent / "docs/img/flow_control.svg"
STREAM, SHARDS, SECONDS, PER_S, LATENCY_S = "orders", 4, 60, 600, 0.02
TROUBLED = "shardId-000000000001"
SHARED_S, OTHERS_PER_S, SHUT_S = (10, 30), 800, (40, 46)
WIDTH, HEIGHT, LEFT, GAP = 760, 120, 60, 34


class EngineStream:
    """The `StreamWriter` port on an engine, with quotas and a latency."""

    def __init__(self, clock: VirtualClock) -> None:
        self.engine = KinesisEngine(AccountSettings(), clock=lambda: clock.now_ms() / 1000)
        self.engine.call("CreateStream", {"StreamName": STREAM, "ShardCount": SHARDS})
        self.accepted: Counter[tuple[str, int]] = Counter()

    async def put_records(self, entries: Sequence[OutgoingRecord]) -> list[PutOutcome]:
        """Put; half of the latency before and half after."""
        records = [
            {"Data": b64encode(each.data).decode(), "PartitionKey": each.partition_key}
            for each in entries
        ]
        await asyncio.sleep(LATENCY_S / 2)
        answer = self.engine.call("PutRecords", {"StreamName": STREAM, "Records": records})
        second = int(asyncio.get_running_loop().time())
        self.accepted.update((e["ShardId"], second) for e in answer["Records"] if "ShardId" in e)
        await asyncio.sleep(LATENCY_S / 2)
        return [
            PutOutcome(
                shard_id=each.get("ShardId"),
                sequence_number=each.get("SequenceNumber"),
                error_code=each.get("ErrorCode"),
            )
            for each in answer["Records"]
        ]

    async def list_shards(self) -> list[Shard]:
        """List all shards."""
        found = self.engine.call("ListShards", {"StreamName": STREAM})["Shards"]
        bounds = [each["HashKeyRange"] for each in found]
        return [
            Shard(
                shard_id=each["ShardId"],
                hash_key_range=HashKeyRange(int(b["StartingHashKey"]), int(b["EndingHashKey"])),
            )
            for each, b in zip(found, bounds, strict=True)
        ]


async def keys_of_each_shard(stream: EngineStream) -> dict[str, list[str]]:
    """Return a hundred keys for each shard."""
    shards = await stream.list_shards()
    found: dict[str, list[str]] = {shard.shard_id: [] for shard in shards}
    for number in range(100 * SHARDS * 2):
        hash_key = hash_of_partition_key(f"user-{number}")
        owner = next(s.shard_id for s in shards if s.hash_key_range.contains(hash_key))
        found[owner].append(f"user-{number}")
    return {shard_id: keys[:100] for shard_id, keys in found.items()}


async def other_writer(stream: EngineStream, key: str) -> None:
    """Take a part of the troubled shard, and shut it for a while."""
    await asyncio.sleep(SHARED_S[0])
    record = {"Data": "eA==", "PartitionKey": key}
    for _ in range((SHARED_S[1] - SHARED_S[0]) * 100):
        request = {"StreamName": STREAM, "Records": [record] * (OTHERS_PER_S // 100)}
        stream.engine.call("PutRecords", request)
        await asyncio.sleep(0.01)
    await asyncio.sleep(SHUT_S[0] - SHARED_S[1])
    stream.engine.faults.throttle_writes(
        STREAM, shard=TROUBLED, duration_ms=(SHUT_S[1] - SHUT_S[0]) * 1000
    )


async def run(*, trouble: bool) -> tuple[EngineStream, list[ShardAnswer], ProducerCounts]:
    """Feed the stream for a minute, with or without trouble on one shard."""
    clock = VirtualClock()
    stream, answers = EngineStream(clock), list[ShardAnswer]()
    producer = Producer(stream, clock=clock, entropy=SeededEntropy(1), observe=answers.append)
    keys = await keys_of_each_shard(stream)
    others = asyncio.create_task(other_writer(stream, keys[TROUBLED][0])) if trouble else None
    for tick in range(SECONDS * 20):
        await producer.put(
            *(
                OutgoingRecord(own[(tick * PER_S // 20 + number) % 100], b"x" * 100)
                for own in keys.values()
                for number in range(PER_S // 20)
            )
        )
        await asyncio.sleep(0.05)
    await producer.flush()
    if others is not None:
        await others
    return stream, answers, producer.counts


def panel(
    place: int, title: str, points: Sequence[tuple[float, float]], *, last: float
) -> list[str]:
    """Return the lines of one curve up to the last second; points are (second, value)."""
    top = 24 + place * (HEIGHT + GAP)
    most = max(value for _, value in points) or 1

    def at(second: float, value: float) -> str:
        return f"{LEFT + second / last * WIDTH:.1f},{top + HEIGHT * (1 - value / most):.1f}"

    def band(span: tuple[int, int], colour: str) -> str:
        x, width = LEFT + span[0] / last * WIDTH, (span[1] - span[0]) / last * WIDTH
        return (
            f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" fill="{colour}"/>'
        )

    steps = [at(points[0][0], points[0][1])]
    for (_, before), (second, value) in pairwise(points):
        steps += [at(second, before), at(second, value)]
    axis = [
        f'<text x="{LEFT + second / last * WIDTH:.1f}" y="{top + HEIGHT + 14}" '
        f'text-anchor="middle">{second} s</text>'
        for second in range(0, int(last) + 1, 10)
    ]
    return [
        band(SHARED_S, "#e9c46a55"),
        band(SHUT_S, "#d1495b44"),
        f'<text x="{LEFT}" y="{top - 6}" font-weight="bold">{title}</text>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most:,.0f}</text>',
        f'<text x="{LEFT - 6}" y="{top + HEIGHT}" text-anchor="end">0</text>',
        f'<path d="M{LEFT},{top} v{HEIGHT} h{WIDTH}" fill="none" stroke="#888"/>',
        f'<polyline points="{" ".join(steps)}" fill="none" stroke="#2a9d8f" stroke-width="1.5"/>',
        *axis,
    ]


def plot(stream: EngineStream, answers: Sequence[ShardAnswer]) -> str:
    """Return the picture of the troubled shard."""
    mine = [each for each in answers if each.shard_id == TROUBLED]
    last = max(SECONDS, mine[-1].at_ms / 1000)
    per_second = [stream.accepted[TROUBLED, second] for second in range(int(last) + 1)]

    def curve(value: Callable[[ShardAnswer], float]) -> list[tuple[float, float]]:
        return [(each.at_ms / 1000, value(each)) for each in mine]

    lines = [
        *panel(0, "batch: most entries in a request", curve(lambda each: each.batch), last=last),
        *panel(1, "pause between requests, ms", curve(lambda each: each.pause_ms), last=last),
        *panel(2, "accepted from us, records/s", list(enumerate(per_second)), last=last),
    ]
    height = 24 + 3 * (HEIGHT + GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" '
        f'height="{height + 10}" font-family="sans-serif" font-size="11">'
    )
    style = "<style>text{fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
    legend = (
        f'<text x="{LEFT}" y="{height + 4}">600 records/s come in; yellow: another writer '
        "takes 800 of the shard's 1,000 records/s; red: the shard refuses everything</text>"
    )
    return "\n".join([head, style, *lines, legend, "</svg>\n"])


def figures() -> Iterator[Figures]:
    """Run with and without trouble, draw the picture, and compare the other shards."""
    quiet, _, _ = run_virtual(run(trouble=False))
    stream, answers, counts = run_virtual(run(trouble=True))
    PLOT.parent.mkdir(parents=True, exist_ok=True)
    PLOT.write_text(plot(stream, answers), encoding="utf-8")

    def others(found: EngineStream) -> int:
        return sum(
            count
            for (shard_id, second), count in found.accepted.items()
            if shard_id != TROUBLED and second < SECONDS
        )

    share = others(stream) / others(quiet)
    shared = sum(stream.accepted[TROUBLED, second] for second in range(15, SHARED_S[1]))
    full = next(
        second
        for second in range(SHUT_S[1], SECONDS * 3)
        if stream.accepted[TROUBLED, second] >= PER_S
    )
    yield Figures(
        name="flow_control",
        compares="one shard of four shared, then shut, in virtual time",
        summary=(
            f"the other shards at {share:.1%} of the run without trouble; beside a writer of "
            f"800/s we get {shared / (SHARED_S[1] - 15):.0f}/s; full speed {full - SHUT_S[1]} s "
            f"after a shut shard opens; {counts.refused:,} refused of "
            f"{counts.refused + counts.entries:,} entries"
        ),
        gate="the other shards at 90 % or more",
        met=share >= 0.9,
        details={
            "others_share": share,
            "shared_per_s": shared / (SHARED_S[1] - 15),
            "recovered_s": full - SHUT_S[1],
            "refused": counts.refused,
            "entries": counts.entries,
            "min_batch": counts.min_batch,
            "max_pause_ms": counts.max_pause_ms,
        },
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
