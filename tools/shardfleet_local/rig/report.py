"""The report: one HTML file that needs nothing else, verdict first, then the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import chain
from pathlib import Path

from shardfleet_local.pages.parts import colour_of, legend, style_of, table
from shardfleet_local.pages.parts import verdict as first_said
from shardfleet_local.rig.charts import (
    LOOKS,
    ShardSeries,
    TimeAxis,
    lag_chart,
    sent_per_step,
    shard_series,
    spark_chart,
    throughput_chart,
)
from shardfleet_local.rig.incidents import KILL_MANAGER, KILL_WORKER, clock_text, short
from shardfleet_local.rig.outcome import RECOVERY_WANTED_S, Outcome
from shardfleet_local.rig.spark_part import SparkOutcome
from shardfleet_ops.explain.spoken import brief_numbers, spoken_duration

STEP_MS = 1_000
_LEAD_OUT_MS = 2_000


def write_report(outcome: Outcome, folder: Path) -> Path:
    """Write `report.html`, and return its path."""
    path = folder / "report.html"
    path.write_text(report_of(outcome), encoding="utf-8")
    return path


def report_of(outcome: Outcome) -> str:
    """Return the report as HTML text."""
    axis = axis_of_run(outcome)
    series = shard_series(outcome.sent, outcome.first_handled_ms, axis)
    style = style_of("shardfleet_local.rig", "report.css")
    body = "\n".join(
        [
            _banner(outcome),
            _tiles(outcome),
            _throughput(outcome, series, axis=axis),
            _lag(outcome, series, axis=axis),
            _story(outcome),
            _shards(outcome, series),
            spark_section(outcome.spark),
            _footer(outcome),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>shardfleet demo</title>\n<style>\n{style}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def axis_of_run(outcome: Outcome) -> TimeAxis:
    """Return the time of a run, and two seconds more."""
    return TimeAxis(
        began_ms=outcome.began_ms, ended_ms=outcome.ended_ms + _LEAD_OUT_MS, step_ms=STEP_MS
    )


def _banner(outcome: Outcome) -> str:
    verdict = outcome.verdict
    headline = (
        "Nothing was lost, and every key kept its order."
        if outcome.passed
        else "A promise was broken."
    )
    took = clock_text(outcome.ended_ms - outcome.began_ms)
    story = (
        f"{verdict.records_in:,} records went through {len(outcome.shards)} shards in {took} "
        f"minutes. Meanwhile a worker was killed {times(outcome.done(KILL_WORKER))}, the manager "
        f"{times(outcome.done(KILL_MANAGER))}, the stream was resharded {times(outcome.reshards)}, "
        f"and a shard refused every read for {outcome.throttled_s} seconds."
    )
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in outcome.problems())
    inside = f"<p>{story}</p>{f'<ul>{problems}</ul>' if problems else ''}"
    return first_said(headline, inside, mood="good" if outcome.passed else "bad")


def times(count: int) -> str:
    """Return a number of times in words: `once`, `4 times`."""
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _tiles(outcome: Outcome) -> str:
    verdict = outcome.verdict
    recovered = [took for took in outcome.crash_recovery_s if took is not None]
    slowest = f"{max(recovered):.1f} s" if recovered else "none"
    tiles = [
        (f"{verdict.records_handled_distinct:,}", f"of {verdict.records_in:,} handled", ""),
        (f"{len(verdict.lost):,}", "lost", _grade(not verdict.lost)),
        (f"{len(verdict.out_of_order):,}", "out of order", _grade(not verdict.out_of_order)),
        (f"{verdict.duplicates:,}", "duplicates", ""),
        (slowest, "slowest recovery", _grade(not outcome.slow_recoveries)),
        (f"{len(outcome.worker_pids)}", "worker processes", ""),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile {grade}"><b>{value}</b><span>{name}</span></div>'
            for value, name, grade in tiles
        )
        + "</div>"
    )


def _grade(good: bool) -> str:  # noqa: FBT001 - private, and its name says it
    return "good" if good else "bad"


def _throughput(outcome: Outcome, series: Sequence[ShardSeries], *, axis: TimeAxis) -> str:
    sent = sent_per_step(outcome.sent, axis)
    chart = throughput_chart(series, axis, sent_per_step=sent, happenings=outcome.happenings)
    names = legend((colour_of(at), short(each.shard_id)) for at, each in enumerate(series))
    return (
        "<section><h2>Throughput</h2>"
        "<p class='soft'>Records handled per second for the first time, by shard (mean of three "
        "seconds). The numbers are explained below.</p>"
        f'{chart}<div class="legend">{names}<span><i class="dash"></i>sent</span></div></section>'
    )


def _lag(outcome: Outcome, series: Sequence[ShardSeries], *, axis: TimeAxis) -> str:
    if not series:
        return ""
    chart = lag_chart(series, axis, happenings=outcome.happenings)
    return (
        "<section><h2>Lag</h2>"
        '<p class="soft">Age of the oldest record that waits in each shard. A shard is shaded '
        "while it has records.</p>"
        f"{chart}</section>"
    )


def _story(outcome: Outcome) -> str:
    rows = []
    for number, each in enumerate(outcome.happenings, start=1):
        back = [
            f"{short(r.shard_id)} after {spoken_duration(r.took_ms)}"
            if r.took_ms is not None
            else f"{short(r.shard_id)} never"
            for r in outcome.recoveries
            if r.kill is each
        ]
        rows.append(
            (
                f'<span class="dot {LOOKS.get(each.kind, "")}">{number}</span>',
                clock_text(each.at_ms - outcome.began_ms),
                escape(each.text),
                escape(", ".join(back)),
            )
        )
    return (
        "<section><h2>What was done to it</h2>"
        f"{table(('', 'at', 'what', 'next record handled'), rows)}"
        "<p class='soft'>A killed worker's shards should go on within "
        f"{RECOVERY_WANTED_S:.0f} s. A shard that is refused at that moment is not counted."
        "</p></section>"
    )


def _shards(outcome: Outcome, series: Sequence[ShardSeries]) -> str:
    handled = {each.shard_id: sum(each.handled) for each in series}
    worst = {each.shard_id: max(each.lag_ms) for each in series}
    colours = {each.shard_id: colour_of(at) for at, each in enumerate(series)}
    leases = {lease.lease_key: lease for lease in outcome.leases}
    rows = []
    for shard in sorted(outcome.shards, key=lambda each: each.shard_id):
        lease = leases.get(shard.shard_id)
        chip = colours.get(shard.shard_id, "transparent")
        parents = " and ".join(short(parent) for parent in shard.parent_shard_ids)
        cells = (
            (
                f'<span class="legend" style="margin:0;color:inherit"><span><i style="background:'
                f'{chip}"></i>{short(shard.shard_id)}</span></span>'
            ),
            parents,
            "open" if shard.is_open else "closed",
            f"{handled.get(shard.shard_id, 0):,}",
            spoken_duration(worst.get(shard.shard_id, 0)),
            f"<code>{brief_numbers(str(lease.checkpoint)) if lease else 'deleted'}</code>",
            # Without the name of the fleet, which all have.
            escape((lease.lease_owner or "").rpartition("-")[2]) if lease else "",
        )
        rows.append(cells)
    heads = ("shard", "from", "", "records", "greatest lag", "checkpoint", "owner")
    shards = table(heads, rows, numbers=("records", "greatest lag"))
    return f"<section><h2>The shards at the end</h2>{shards}</section>"


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
        f"the input, to the last digit.</p>{spark_chart(spark.batches)}"
        f'<div class="legend">{legend([(colour_of(0), "records a second, by micro-batch")])}</div>'
        "</section>"
    )


def _footer(outcome: Outcome) -> str:
    counts = outcome.counts
    facts = [
        f"Input: {escape(outcome.options.source.name)}",
        (
            f"{outcome.aggregated:,} of the records travelled in KPL aggregates; "
            f"{counts.misrouted:,} aggregates were misrouted by a reshard and sent again"
        ),
        f"IAM {'enforced' if outcome.options.plan.enforce_iam else 'not enforced'}",
        f"Whole run {outcome.wall_ms / 1000:.0f} s",
        f"Template <code>sha256 {outcome.template_sha256}</code>",
    ]
    rejects = sum(map(len, outcome.options.source.rejects.values()))
    extra = [f"{rejects:,} lines of the input were rejected"] if rejects else []
    return f"<footer>{'<br>'.join(chain(facts, extra))}</footer>"
