"""The page: a grid of panels, charts as SVG; the text of everything is escaped."""

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from shardfleet.local.dashboard.gathering import AlarmState, Series

COLOURS = ("#2563c9", "#d9772b", "#1f8a68", "#b5438f", "#7a5cc4", "#a88414")
WIDTH, LEFT, TOP, BOTTOM = 600, 56, 10, 22
ROW_PX = 44
_CLASSES = {"ALARM": "alarm", "OK": "ok"}

STYLE = """
body{margin:0;font:14px/1.4 system-ui,sans-serif;background:#f3f4f6;color:#1c2430}
header{padding:12px 20px;background:#1c2430;color:#fff;display:flex;gap:24px;align-items:baseline}
header h1{font-size:18px;margin:0}header span{color:#aab4c2}
main{padding:12px;display:grid;grid-template-columns:repeat(24,1fr);gap:10px}
section{background:#fff;border-radius:6px;padding:8px 12px;box-shadow:0 1px 2px #0002;
overflow:hidden}
h2{font-size:13px;margin:0 0 4px;color:#4a5666;font-weight:600}
.number{font-size:26px;font-weight:600}.none{color:#8994a3}
.alarms{display:flex;flex-wrap:wrap;gap:6px}
.alarms b{font-weight:500;padding:3px 9px;border-radius:12px;background:#e3e7ec}
.alarms .ok{background:#d5f0e2;color:#12603f}
.alarms .alarm{background:#c62f2f;color:#fff}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:2px 10px 2px 0;
border-bottom:1px solid #e8ebef;font-variant-numeric:tabular-nums}th{color:#4a5666}
svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:#4a5666}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
@media(max-width:900px){main{display:block}section{margin-bottom:10px}}
"""

SCRIPT = """
const main = document.querySelector('main'), told = document.querySelector('#told');
async function refresh() {
  try {
    const answer = await fetch('panels', {cache: 'no-store'});
    if (!answer.ok) throw new Error(await answer.text());
    main.innerHTML = await answer.text();
    told.textContent = 'as of ' + new Date().toLocaleTimeString();
  } catch (error) { told.textContent = 'not refreshed: ' + error.message; }
  setTimeout(refresh, EVERY_MS);
}
refresh();
"""


def whole_page(title: str, *, every_s: float) -> str:
    """Return the page without panels; it fetches them itself, again and again."""
    script = SCRIPT.replace("EVERY_MS", str(int(every_s * 1000)))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f"<header><h1>{escape(title)}</h1><span id=told>asking</span></header><main></main>"
        f"<script>{script}</script>"
    )


def panel(title: str, inside: str, *, columns: int, rows: int) -> str:
    """Return one panel of the grid; `inside` is HTML."""
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    place = f"grid-column:span {columns};min-height:{rows * ROW_PX - 26}px"
    return f'<section style="{place}">{heading}{inside}</section>'


def alarm_list(alarms: Iterable[AlarmState]) -> str:
    """Return alarms as coloured badges; the reason is shown when the pointer rests on one."""
    badges = (
        f'<b class="{_CLASSES.get(alarm.state, "")}" data-alarm="{escape(alarm.name)}" '
        f'title="{escape(alarm.description)}&#10;{escape(alarm.reason)}">{escape(alarm.name)}</b>'
        for alarm in alarms
    )
    return f"<div class=alarms>{''.join(badges)}</div>"


def number(series: Sequence[Series]) -> str:
    """Return the newest value of a single-value widget."""
    points = [point for line in series for point in line.points]
    if not points:
        return "<div class='number none'>no data</div>"
    return f"<div class=number>{shown(max(points)[1])}</div>"


def table(rows: Sequence[Mapping[str, Any]], *, empty: str) -> str:
    """Return rows as a table; the columns are those of the first row."""
    if not rows:
        return f"<p class=none>{escape(empty)}</p>"
    head = "".join(f"<th>{escape(str(name))}</th>" for name in rows[0])
    lines = (
        "<tr>" + "".join(f"<td>{escape(str(row.get(name, '')))}</td>" for name in rows[0]) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def chart(
    series: Sequence[Series], *, start: float, end: float, height: int, columns: int = 12
) -> str:
    """
    Return lines over time as SVG, with a legend; the axis begins at 0.

    Drawn as wide as the panel's columns of the grid ask for, so that its text is as large in
    every panel.
    """
    width = WIDTH * columns // 12
    values = [value for line in series for at, value in line.points if at >= start]
    top = max(values, default=0.0) or 1.0
    floor = height - BOTTOM

    def place(at: float, value: float) -> str:
        across = LEFT + (at - start) / max(1.0, end - start) * (width - LEFT - 10)
        return f"{across:.1f},{floor - max(0.0, value) / top * (floor - TOP):.1f}"

    lines = "".join(
        # A period that began before the chart does has its point before it, too.
        _line(
            [place(*point) for point in line.points if point[0] >= start],
            COLOURS[index % len(COLOURS)],
        )
        for index, line in enumerate(series)
    )
    legend = "".join(
        f'<span><i style="background:{COLOURS[index % len(COLOURS)]}"></i>{escape(line.label)}: '
        f"{shown(line.points[-1][1]) if line.points else 'no data'}</span>"
        for index, line in enumerate(series)
    )
    axis = (
        f'<path d="M{LEFT} {TOP}V{floor}H{width - 10}" fill="none" stroke="#c3cad3"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{shown(top)}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{height - 6}">{_clock(start)}</text>'
        f'<text x="{width - 10}" y="{height - 6}" text-anchor="end">{_clock(end)}</text>'
    )
    box = f'viewBox="0 0 {width} {height}" role="img"'
    return f"<svg {box}>{axis}{lines}</svg><div class=legend>{legend}</div>"


def _line(places: Sequence[str], colour: str) -> str:
    if len(places) == 1:
        across, down = places[0].split(",")
        return f'<circle cx="{across}" cy="{down}" r="2.5" fill="{colour}"/>'
    line = " ".join(places)
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>'


def shown(value: float) -> str:
    """Return a number for a person: three digits that count."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:.4g}"


def _clock(at: float) -> str:
    return time.strftime("%H:%M", time.localtime(at))
