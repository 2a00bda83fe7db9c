"""Spark in the report: what was compared, and a chart of throughput and lag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from shardfleet_local.pages.parts import COLOURS, nice_ceiling, quarters, svg, value_axis
from shardfleet_local.rig.charts import LEFT, RIGHT, WIDTH
from shardfleet_local.rig.spark_part import MicroBatch, SparkOutcome

_TOP, _HEIGHT, _AXIS = 10, 150, 26
_PATH_GAP = 2
_LABEL_WIDTH = 45.0


def spark_section(spark: SparkOutcome | None) -> str:
    """Return the section as HTML; empty if Spark was not asked for."""
    if spark is None:
        return ""
    if spark.skipped:
        return (
            f"<section><h2>Through Spark</h2><p class='soft'>{escape(spark.skipped)}</p></section>"
        )
    if spark.wrong:
        problems = "".join(f"<li>{escape(each)}</li>" for each in spark.wrong)
        return f"<section><h2>Through Spark</h2><ul>{problems}</ul></section>"
    summed = f", the sums of {', '.join(spark.fields)}" if spark.fields else ""
    return (
        "<section><h2>Through Spark</h2>"
        f"<p>The same stream went through two Spark pipelines: {spark.rows:,} records, counted per "
        f"key in windows of 10 seconds into a second stream, and from there into Parquet. The "
        f"counts{summed} of all {spark.keys:,} keys, from {spark.windows:,} windows, are those of "
        f"the input, to the last digit.</p>{_chart(spark)}"
        '<div class="legend">'
        f'<span><i style="background:{COLOURS[0]}"></i>records a second, by micro-batch</span>'
        '<span><i class="dash"></i>records still to be read</span></div></section>'
    )


def _chart(spark: SparkOutcome) -> str:
    batches = spark.batches
    if not batches:
        return ""
    began = batches[0].began_ms
    ended = max(each.began_ms + each.took_ms for each in batches)
    bottom = _TOP + _HEIGHT
    pace = [each.rows * 1000 / max(1, each.took_ms) for each in batches]
    most = nice_ceiling(max(1.0, *pace))

    def x(at_ms: float) -> float:
        return LEFT + (at_ms - began) / max(1, ended - began) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return bottom - value / most * _HEIGHT

    ticks = [(value, f"{value:,.0f}") for value in quarters(most)]
    parts = value_axis(ticks, y, left=LEFT, right=WIDTH - RIGHT)
    for each, rate in zip(batches, pace, strict=True):
        left, right = x(each.began_ms), x(each.began_ms + each.took_ms)
        height = rate / most * _HEIGHT
        parts.append(
            f'<rect x="{left:.1f}" y="{bottom - height:.1f}" '
            f'width="{max(1.0, right - left - _PATH_GAP):.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[0]}" opacity="0.8"><title>{each.rows:,} records in '
            f"{each.took_ms / 1000:.1f} s; {each.behind_ms / 1000:.0f} s behind the newest record"
            "</title></rect>"
        )
    parts.append(f'<path d="{_left_over(batches, x, bottom)}" class="sent"/>')
    labelled = -_LABEL_WIDTH
    for each in batches:
        across = x(each.began_ms)
        if across - labelled >= _LABEL_WIDTH:
            labelled = across
            seconds = f"{(each.began_ms - began) / 1000:.0f} s"
            parts.append(f'<text x="{across:.1f}" y="{bottom + 18}" class="time">{seconds}</text>')
    return svg(WIDTH, bottom + _AXIS, parts, label="Throughput and lag of Spark")


def _left_over(batches: Sequence[MicroBatch], x: Callable[[float], float], bottom: float) -> str:
    """Return the path of what is still to be read, from all of it to nothing."""
    total = sum(each.rows for each in batches)
    left, points = total, [(x(batches[0].began_ms), _TOP + 0.0)]
    for each in batches:
        left -= each.rows
        points.append((x(each.began_ms + each.took_ms), bottom - left / max(1, total) * _HEIGHT))
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in points)
