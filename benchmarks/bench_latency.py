"""
How long does a record wait, from the stream's answer to the end of the handler call?

On the embedded AWS: the deployed template, real processes, four shards, one worker, 40 records a
second, the least time between two reads of a shard (200 ms, AWS's quota of five a second) always.
A record that comes at any moment of it waits half of it on the average, whoever reads. What came
before all shards were read is left out. The plot is written to docs/img/latency.svg.

    python benchmarks/bench_latency.py [--folder DIR]
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import charts
import side_by_side
from embedded_fleet import FleetUnderLoad, fleet_under_load, wait_until
from side_by_side import Figures

POLL_MS, SHARDS, RECORDS_PER_S = 200, 4, 40.0
RECORDS_LEAST, SETTLE_S = 2_400, 10.0
HALF_MOST_MS, NEARLY_ALL_MOST_MS = 120, 350
PLOT = Path(__file__).parent.parent / "docs/img/latency.svg"


def contests() -> Iterator[Figures]:
    config = {"idle_read_ms": POLL_MS, "busy_read_ms": POLL_MS, "max_workers": 1}
    with fleet_under_load(shards=SHARDS, config=config, records_per_s=RECORDS_PER_S) as load:
        wait_until(lambda: load.is_settled(workers=1), what="a settled fleet", within_s=240)
        time.sleep(SETTLE_S)
        from_ms = time.time_ns() // 1_000_000
        time.sleep(RECORDS_LEAST / RECORDS_PER_S + 1)
        load.feed.stop()
        wait_until(load.drained, what="all records handled", within_s=60)
        waited = latencies(load, from_ms=from_ms)
        found = load.delivered()
    half, nearly_all = percentile(waited, 50), percentile(waited, 99)
    PLOT.write_text(picture(waited), encoding="utf-8")
    yield Figures(
        name="latency",
        compares=f"from PutRecords' answer to the end of the handler call, read each {POLL_MS} ms",
        summary=(
            f"{half} ms (median), {percentile(waited, 90)} ms (90 %), {nearly_all} ms (99 %), "
            f"{waited[-1]} ms at most of {len(waited):,} records; {found.lost} lost, "
            f"{found.duplicates} came again"
        ),
        gate=f"half within {HALF_MOST_MS} ms, 99 % within {NEARLY_ALL_MOST_MS} ms",
        met=half <= HALF_MOST_MS
        and nearly_all <= NEARLY_ALL_MOST_MS
        and len(waited) >= RECORDS_LEAST
        and not found.lost,
        details={"mean_ms": round(statistics.mean(waited), 1), "waited_ms": waited},
        time_goes_to="half of the time between two reads of a shard, which is AWS's quota.",
    )


def latencies(load: FleetUnderLoad, *, from_ms: int) -> list[int]:
    """Return how long each record waited that was sent since, shortest first."""
    first_ms: dict[str, int] = {}
    for line in load.lines():
        for row in line.records:
            first_ms.setdefault(row.digest, line.at_ms)
    sent = load.feed.sent.items()
    return sorted(max(0, first_ms[it] - at_ms) for it, at_ms in sent if at_ms >= from_ms)


def percentile(values: Sequence[int], share: int) -> int:
    """Return the value that so many of a hundred are not above."""
    return values[-(-len(values) * share // 100) - 1]


def picture(waited: Sequence[int]) -> str:
    """Draw which part of the records had waited how long."""
    title = "records handled, % of all, by the time since the stream took them"
    return charts.picture([charts.waiting(title, {f"read each {POLL_MS} ms": waited})])


if __name__ == "__main__":
    side_by_side.main(__doc__, contests)
