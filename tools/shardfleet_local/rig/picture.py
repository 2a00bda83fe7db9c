"""The picture of a run: what came of it, the throughput of each shard, and what was done to it."""

from __future__ import annotations

from html import escape
from pathlib import Path

from shardfleet_local.pages.parts import style_of
from shardfleet_local.rig.charts import LOOKS, WIDTH, sent_per_step, shard_series, throughput
from shardfleet_local.rig.incidents import clock_text
from shardfleet_local.rig.outcome import Outcome
from shardfleet_local.rig.report import axis_of_run

_TOP = 76
_MARGIN = 20
_ROW = 22
_COLUMNS = 2
_STYLE = """
svg { margin: 0; font: 12.5px system-ui, "DejaVu Sans", sans-serif; }
text { fill: var(--soft); }
.first { font-size: 23px; font-weight: 700; fill: var(--good); }
.first.bad { fill: var(--bad); }
.badge text { fill: #fff; }
"""


def write_picture(outcome: Outcome, folder: Path) -> Path:
    """Write `picture.svg`, and return its path."""
    path = folder / "picture.svg"
    path.write_text(picture_of(outcome), encoding="utf-8")
    return path


def picture_of(outcome: Outcome) -> str:
    """Return the picture as SVG that needs nothing from elsewhere."""
    axis = axis_of_run(outcome)
    series = shard_series(outcome.sent, outcome.first_handled_ms, axis)
    height, chart = throughput(
        series,
        axis,
        sent_per_step=sent_per_step(outcome.sent, axis),
        happenings=outcome.happenings,
    )
    notes, notes_height = _notes(outcome, top=_TOP + height + _MARGIN)
    size = f"{WIDTH} {_TOP + height + notes_height + 2 * _MARGIN:.0f}"
    label = "A run of the demo: the throughput of each shard, and what was done to the fleet"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img">\n'
        f"<title>{label}</title>\n"
        f"<style>{style_of('shardfleet_local.rig', 'report.css')}{_STYLE}</style>\n"
        '<rect width="100%" height="100%" style="fill: var(--card)"/>\n'
        f"{_headline(outcome)}\n"
        f'<g transform="translate(0 {_TOP})">{"".join(chart)}</g>\n{notes}\n</svg>\n'
    )


def _headline(outcome: Outcome) -> str:
    verdict = outcome.verdict
    recovered = [took for took in outcome.crash_recovery_s if took is not None]
    slowest = f", slowest recovery {max(recovered):.1f} s" if recovered else ""
    first = (
        f"{verdict.records_handled_distinct:,} of {verdict.records_in:,} records handled, "
        f"{len(verdict.lost):,} lost, {len(verdict.out_of_order):,} out of order"
    )
    second = (
        "Records handled per second, by shard, while the fleet is broken on purpose; dashed: sent. "
        f"{verdict.duplicates:,} came more than once{slowest}."
    )
    mood = "first" if outcome.passed else "first bad"
    return (
        f'<text x="{_MARGIN}" y="38" class="{mood}">{first}</text>'
        f'<text x="{_MARGIN}" y="62">{second}</text>'
    )


def _notes(outcome: Outcome, *, top: float) -> tuple[str, float]:
    """Return what the numbers in the chart stand for, in columns, and how high that is."""
    rows = -(-len(outcome.happenings) // _COLUMNS)
    parts = []
    for at, each in enumerate(outcome.happenings):
        column, row = divmod(at, rows)
        x, y = _MARGIN + column * WIDTH / _COLUMNS, top + row * _ROW
        when = clock_text(each.at_ms - outcome.began_ms)
        parts.append(
            f'<g class="badge {LOOKS.get(each.kind, "other")}">'
            f'<circle cx="{x + 10:.0f}" cy="{y:.0f}" r="9"/>'
            f'<text x="{x + 10:.0f}" y="{y + 4:.0f}">{at + 1}</text></g>'
            f'<text x="{x + 28:.0f}" y="{y + 4:.0f}">{when} {escape(each.text)}</text>'
        )
    return "\n".join(parts), rows * _ROW
