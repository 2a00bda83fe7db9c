"""
Charts as SVG text: throughput of all shards, the lag of each, and Spark's micro-batches.

Lag is exact, not sampled: at any moment the age of the oldest record of the shard that was sent
and not yet handled (for the first time); zero when there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from shardfleet_local.pages.parts import (
    colour_of,
    nice_ceiling,
    path,
    quarters,
    svg,
    time_axis,
    value_axis,
)
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.incidents import (
    KILL_MANAGER,
    KILL_WORKER,
    MERGE,
    SPLIT,
    THROTTLE,
    FleetDisturbance,
    clock_text,
    of_kind,
    short,
)
from shardfleet_local.rig.spark_part import MicroBatch

WIDTH = 1080
LEFT = 112
RIGHT = 20
BADGES = 26

THROUGHPUT_HEIGHT = 220
LAG_ROW = 58
LAG_GAP = 10
AXIS = 26

# After a throttled minute a shard catches up at many times the pace of the feed. The axis ends at
# so many times that pace; what is beyond is written as a number.
_CATCHING_UP_SHOWN = 2.5

_LABEL_WIDTH = 60
_LABEL_STEPS = 8  # What the number of one peak takes of the axis.
_SMOOTHED_STEPS = 3

_LAG_UNIT_MS = 200
_LAG_TICKS_MS = (1_000, 10_000, 60_000)
LOOKS = {
    **dict.fromkeys((KILL_WORKER, KILL_MANAGER), "kill"),
    **dict.fromkeys((SPLIT, MERGE), "reshard"),
    THROTTLE: "throttle",
}
"""The style's class of what was done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAxis:
    """
    The horizontal axis that all charts share.

    Attributes:
        began_ms: its left end, epoch milliseconds.
        ended_ms: its right end.
        step_ms: length of a step of the series.

    """

    began_ms: int
    ended_ms: int
    step_ms: int

    def x(self, at_ms: float) -> float:
        """Return where a moment is."""
        part = (at_ms - self.began_ms) / max(1, self.ended_ms - self.began_ms)
        return LEFT + min(1.0, max(0.0, part)) * (WIDTH - LEFT - RIGHT)

    @property
    def steps(self) -> int:
        """Count the steps."""
        return max(1, -(-(self.ended_ms - self.began_ms) // self.step_ms))

    def step_of(self, at_ms: float) -> int:
        """Return in which step a moment is, the last one at most."""
        return min(self.steps - 1, max(0, int(at_ms - self.began_ms) // self.step_ms))

    def x_of_step(self, step: int) -> float:
        """Return where the middle of a step is."""
        return self.x(self.began_ms + (step + 0.5) * self.step_ms)

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels, at most a dozen of them."""
        length_s = (self.ended_ms - self.began_ms) / 1000
        every_s = next((s for s in (5, 10, 15, 30, 60, 120, 300) if length_s / s <= 12), 600)  # noqa: PLR2004 - a dozen
        return [
            (self.x(self.began_ms + s * 1000), clock_text(s * 1000))
            for s in range(0, math.floor(length_s) + 1, every_s)
        ]


@dataclass(slots=True)
class ShardSeries:
    """
    One shard over the time of a run.

    Attributes:
        shard_id: the shard.
        first_ms: when its first record was sent.
        lag_ms: greatest lag in each step.
        handled: records first handled in each step.
        last_ms: when its last record was handled.

    """

    shard_id: str
    first_ms: int
    lag_ms: list[int]
    handled: list[int]
    last_ms: int = 0


def shard_series(
    sent: Sequence[SentRecord], first_handled_ms: Mapping[int, int], axis: TimeAxis
) -> list[ShardSeries]:
    """
    Return the series of every shard that got a record, ordered by shard.

    Args:
        sent: what was sent, per shard in the order of sending.
        first_handled_ms: number of a record to when it was first handled.
        axis: time, and its steps.

    """
    by_shard: dict[str, ShardSeries] = {}
    for record in sent:
        shard_id, sent_ms = record.receipt.shard_id, record.sent_ms
        if shard_id not in by_shard:
            by_shard[shard_id] = ShardSeries(shard_id, sent_ms, [0] * axis.steps, [0] * axis.steps)
        series = by_shard[shard_id]
        handled_ms = first_handled_ms.get(record.number, axis.ended_ms)
        series.last_ms = max(series.last_ms, handled_ms)
        series.handled[axis.step_of(handled_ms)] += 1
        for step in range(axis.step_of(sent_ms), axis.step_of(handled_ms) + 1):
            until_ms = min(handled_ms, axis.began_ms + (step + 1) * axis.step_ms)
            series.lag_ms[step] = max(series.lag_ms[step], until_ms - sent_ms)
    return [by_shard[shard_id] for shard_id in sorted(by_shard)]


def sent_per_step(sent: Iterable[SentRecord], axis: TimeAxis) -> list[int]:
    """Return how many records were sent in each step, to all shards."""
    counts = [0] * axis.steps
    for record in sent:
        counts[axis.step_of(record.sent_ms)] += 1
    return counts


def throughput_chart(
    series: Sequence[ShardSeries],
    axis: TimeAxis,
    *,
    sent_per_step: Sequence[int],
    happenings: Sequence[FleetDisturbance],
) -> str:
    """Return :func:`throughput` as a picture of a page."""
    height, parts = throughput(series, axis, sent_per_step=sent_per_step, happenings=happenings)
    return svg(WIDTH, height, parts, label="Throughput of each shard over time")


def throughput(
    series: Sequence[ShardSeries],
    axis: TimeAxis,
    *,
    sent_per_step: Sequence[int],
    happenings: Sequence[FleetDisturbance],
) -> tuple[float, list[str]]:
    """
    Return height and parts of the stacked throughput of all shards; the width is `WIDTH`.

    Args:
        series: the shards.
        axis: time.
        sent_per_step: records sent in each step, all shards: a line above.
        happenings: marked, and numbered as the report's list numbers them.

    """
    top, bottom = BADGES + 8, BADGES + 8 + THROUGHPUT_HEIGHT
    per_second = 1000 / axis.step_ms
    steps = len(sent_per_step)
    stacked = [0.0] * steps
    layers: list[tuple[list[float], list[float]]] = []
    for each in series:
        pace = [count * per_second for count in smoothed(each.handled)]
        above = [low + value for low, value in zip(stacked, pace, strict=True)]
        layers.append((stacked, above))
        stacked = above
    sent = [count * per_second for count in smoothed(sent_per_step)]
    mean = sum(sent) / max(1, sum(value > 0 for value in sent))
    shown = _CATCHING_UP_SHOWN * mean if any(sent) else max(stacked)
    most = nice_ceiling(max(1, *sent, min(max(stacked), shown)))

    def y(value: float) -> float:
        return bottom - min(1, value / most) * (bottom - top)

    ticks = [(value, f"{value:,.0f}") for value in quarters(most)]
    parts = time_axis(axis.ticks(), top=top, bottom=bottom)
    parts += value_axis(ticks, y, left=LEFT, right=WIDTH - RIGHT)
    for position, (each, (low, high)) in enumerate(zip(series, layers, strict=True)):
        outline = [(axis.x_of_step(i), y(v)) for i, v in enumerate(high)]
        outline += [(axis.x_of_step(i), y(low[i])) for i in reversed(range(steps))]
        parts.append(
            f'<path d="{path(outline)}Z" fill="{colour_of(position)}" class="area">'
            f"<title>{escape(short(each.shard_id))}: {sum(each.handled):,} records</title></path>"
        )
    parts += _beyond(stacked, axis, most=most, top=top)
    line = [(axis.x_of_step(i), y(value)) for i, value in enumerate(sent)]
    parts.append(f'<path d="{path(line)}" class="sent"/>')
    parts.append(_markers(axis, happenings, top=top, bottom=bottom, badges=True))
    return bottom + AXIS, parts


def _beyond(values: Sequence[float], axis: TimeAxis, *, most: float, top: float) -> list[str]:
    """Write what the axis does not reach as numbers, one for each peak, beside its beginning."""
    parts = []
    for i, value in enumerate(values):
        near = values[max(0, i - _LABEL_STEPS) : i + _LABEL_STEPS]
        if value <= most or value < max(near) or (i and values[i - 1] == value):
            continue
        x, anchor = axis.x_of_step(i) + 6, "start"
        if x > WIDTH - RIGHT - _LABEL_WIDTH:
            x, anchor = x - 12, "end"
        where = f'x="{x:.1f}" y="{top + 12}" text-anchor="{anchor}"'
        parts.append(f'<text {where} class="beyond">↑ {value:,.0f}</text>')
    return parts


def lag_chart(
    series: Sequence[ShardSeries],
    axis: TimeAxis,
    *,
    happenings: Sequence[FleetDisturbance],
) -> str:
    """
    Return the lag of each shard, one row per shard, on a scale that shows 0.2 s and 60 s.

    Args:
        series: the shards.
        axis: time.
        happenings: marked by lines through all rows, times of refused reads in their shard's.

    """
    bottom = BADGES / 2 + len(series) * (LAG_ROW + LAG_GAP)
    parts = time_axis(axis.ticks(), top=0, bottom=bottom)
    most = max(_scaled(60_000), *(_scaled(max(each.lag_ms)) for each in series)) * 1.04
    for position, each in enumerate(series):
        floor = BADGES / 2 + (position + 1) * (LAG_ROW + LAG_GAP) - LAG_GAP
        bands = [h for h in of_kind(happenings, THROTTLE) if each.shard_id in h.shard_ids]
        parts += _lag_row(
            each, axis, floor=floor, most=most, colour=colour_of(position), bands=bands
        )
    parts.append(_markers(axis, happenings, top=0, bottom=bottom, badges=False))
    return svg(WIDTH, bottom + AXIS, parts, label="Lag of each shard over time")


def _lag_row(
    each: ShardSeries,
    axis: TimeAxis,
    *,
    floor: float,
    most: float,
    colour: str,
    bands: Sequence[FleetDisturbance],
) -> list[str]:
    def y(lag_ms: float) -> float:
        return floor - _scaled(lag_ms) / most * LAG_ROW

    begin, end = axis.x(each.first_ms), axis.x(each.last_ms)
    parts = [
        (
            f'<rect x="{begin:.1f}" y="{floor - LAG_ROW:.1f}" width="{max(1.0, end - begin):.1f}" '
            f'height="{LAG_ROW}" class="life"/>'
        )
    ]
    for band in bands:
        left, right = axis.x(band.at_ms), axis.x(band.until_ms)
        parts.append(
            f'<rect x="{left:.1f}" y="{floor - LAG_ROW:.1f}" width="{right - left:.1f}" '
            f'height="{LAG_ROW}" class="band"/><text x="{left + 5:.1f}" '
            f'y="{floor - LAG_ROW + 13:.1f}" class="bandname">reads refused</text>'
        )
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
        f'class="minor"/><text x="{LEFT - 6}" y="{y(tick) + 3:.1f}" class="tick">'
        f"{tick // 1000} s</text>"
        for tick in _LAG_TICKS_MS
    ]
    first, last = axis.step_of(each.first_ms), axis.step_of(each.last_ms)
    points = [(axis.x_of_step(i), y(each.lag_ms[i])) for i in range(first, last + 1)]
    shape = [(points[0][0], floor), *points, (points[-1][0], floor)]
    worst = max(each.lag_ms) / 1000
    parts.append(
        f'<path d="{path(shape)}Z" fill="{colour}" class="lagfill"/>'
        f'<path d="{path(points)}" stroke="{colour}" class="lagline">'
        f"<title>{escape(short(each.shard_id))}: at most {worst:.1f} s behind</title></path>"
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}" class="floor"/>'
        f'<text x="2" y="{floor - LAG_ROW / 2 + 4:.1f}" class="rowname" fill="{colour}">'
        f"{escape(short(each.shard_id))}</text>"
    )
    return parts


def _scaled(lag_ms: float) -> float:
    """Return the height of a lag: linear near zero, logarithmic above."""
    return math.log1p(lag_ms / _LAG_UNIT_MS)


def smoothed(counts: Sequence[int]) -> list[float]:
    """Return the mean of each step and its two neighbours: batches come in lumps."""
    around = _SMOOTHED_STEPS // 2
    windows = [counts[max(0, i - around) : i + around + 1] for i in range(len(counts))]
    return [sum(window) / len(window) for window in windows]


def _markers(
    axis: TimeAxis,
    happenings: Sequence[FleetDisturbance],
    *,
    top: float,
    bottom: float,
    badges: bool,
) -> str:
    parts = []
    for number, each in enumerate(happenings, start=1):
        x, kind = axis.x(each.at_ms), LOOKS.get(each.kind, "other")
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="mark {kind}"/>'
        )
        if badges:
            parts.append(
                f'<g class="badge {kind}"><title>{escape(each.text)}</title>'
                f'<circle cx="{x:.1f}" cy="{top - 14}" r="10"/>'
                f'<text x="{x:.1f}" y="{top - 10}">{number}</text></g>'
            )
    return "".join(parts)


def spark_chart(batches: Sequence[MicroBatch]) -> str:
    """Return the throughput of micro-batches."""
    if not batches:
        return ""
    ended_ms = max(each.began_ms + each.took_ms for each in batches)
    axis = TimeAxis(began_ms=batches[0].began_ms, ended_ms=ended_ms, step_ms=1_000)
    nothing = [0] * axis.steps
    series = ShardSeries("micro-batches", axis.began_ms, nothing, [*nothing])
    for each in batches:
        first, last = axis.step_of(each.began_ms), axis.step_of(each.began_ms + each.took_ms)
        for step in range(first, last + 1):
            series.handled[step] += each.rows // (last + 1 - first)
    return throughput_chart([series], axis, sent_per_step=nothing, happenings=())
