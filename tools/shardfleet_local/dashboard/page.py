"""The page: how the fleet is, the leases, and what was deployed; all text is escaped."""

import math
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from shardfleet_local.dashboard.gathering import AlarmState, Series
from shardfleet_local.pages import parts
from shardfleet_ops.explain.fleet_view import (
    PLAN_STILL_MS,
    FleetSummary,
    LeaseRow,
    LeaseState,
    in_words,
    is_unread,
)
from shardfleet_ops.explain.spoken import brief_numbers, spoken_duration

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 420, 190, 52, 22, 164, 20
LEASES_SHOWN = 50
OLD_S = 180.0
"""A figure this old is no longer how it is: two turns of the manager, and CloudWatch's minute."""

_DAY_S = 86_400
_TICKS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, _DAY_S, 7 * _DAY_S)
_CLASSES = {"ALARM": "alarm", "OK": "ok"}
_ASLEEP = (LeaseState.ASLEEP, LeaseState.WAITING, LeaseState.UNOWNED, LeaseState.PAUSED)

SCRIPT = """
const main = document.querySelector('main'), told = document.querySelector('#told');
let good = 0, failed = '';
function tell() {
  const seconds = Math.round((Date.now() - good) / 1000);
  const old = failed !== '' || seconds > LATE_S;
  document.body.classList.toggle('stale', old && good > 0);
  document.body.classList.toggle('lost', failed !== '');
  if (failed === '' && good === 0) told.textContent = 'asking';
  else if (!old) told.textContent = 'as of ' + new Date(good).toTimeString().slice(0, 8);
  else told.textContent = (good ? 'What is shown is ' + seconds + ' s old' : 'Nothing is known')
    + ': not refreshed' + (failed && ', ' + failed);
}
async function refresh() {
  try {
    const answer = await fetch('panels', {cache: 'no-store'});
    const text = await answer.text();
    if (!answer.ok) throw new Error(text);
    main.innerHTML = text; good = Date.now(); failed = '';
  } catch (error) { failed = error.message; }
  tell();
  setTimeout(refresh, EVERY_MS);
}
document.addEventListener('click', async event => {
  const button = event.target.closest('button[data-copy]');
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = 'copied';
});
setInterval(tell, 1000);
refresh();
"""


def whole_page(title: str, *, every_s: float) -> str:
    """Return the page without panels; it fetches them itself, again and again."""
    script = SCRIPT.replace("EVERY_MS", str(int(every_s * 1000)))
    script = script.replace("LATE_S", str(int(3 * every_s + 30)))
    style = parts.style_of("shardfleet_local.dashboard", "dashboard.css")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{style}</style>"
        f"<header><b>{escape(title)}</b><span id=told>asking</span></header><main></main>"
        f"<script>{script}</script>"
    )


def panel(title: str, inside: str, *, wide: bool = False) -> str:
    """Return one panel of the grid, or a wide one; `inside` is HTML."""
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return f"<section{' class=wide' if wide else ''}>{heading}{inside}</section>"


def doubts(found: FleetSummary, *, newest: float | None, end: float) -> list[str]:
    """
    Return why what is shown may be no longer so, in sentences.

    Args:
        found: the fleet's sums.
        newest: moment of the newest metric, epoch seconds; None if there is none.
        end: now.

    """
    said = []
    if newest is None:
        said.append("There are no metrics yet.")
    elif end - newest > OLD_S:
        said.append(f"There have been no metrics for {spoken_duration((end - newest) * 1000)}.")
    if found.plan_age_ms is None:
        said.append("The manager has not planned yet.")
    elif found.plan_age_ms > PLAN_STILL_MS:
        said.append(f"The manager has not planned for {spoken_duration(found.plan_age_ms)}.")
    return said


def state_of(
    found: FleetSummary,
    rows: Sequence[LeaseRow],
    *,
    alarms: Iterable[AlarmState],
    doubts: Sequence[str],
) -> str:
    """
    Return how the fleet is: what is wrong first, then what is in doubt.

    Args:
        found: the fleet's sums.
        rows: its unfinished leases, worst first.
        alarms: their states.
        doubts: why what is shown may be no longer so, in sentences.

    """
    unread = [row for row in rows if is_unread(row)]
    ringing = [alarm.name for alarm in alarms if alarm.state == "ALARM"]
    mood = "bad"
    if unread:
        headline = f"{len(unread)} of {len(rows)} shards {_are(len(unread))} not read."
    elif found.failures:
        headline = "Workers fail."
    elif ringing:
        headline = f"Alarm: {', '.join(ringing)}."
    elif not found.leases:
        headline, mood = "There is no lease yet.", "unsure"
    elif doubts:
        headline, mood = "It is not known how the fleet is.", "unsure"
    else:
        headline, mood = f"Nothing is wrong with {len(rows)} {_shards(len(rows))}.", "good"
    lag = "" if found.lag_ms is None else f"; at most {spoken_duration(found.lag_ms)} behind"
    said = [*doubts, f"Leases: {in_words(found.leases)}{lag}. Slots: {in_words(found.slots)}."]
    said += [f"{each.said}. To do: {each.remedy}." for each in found.failures]
    if unread and not found.failures:
        said.append(f"{unread[0].lease_key}: {unread[0].state.lower()} {unread[0].why}")
    lines = "".join(f"<p>{escape(brief_numbers(line))}</p>" for line in said)
    return parts.verdict(headline, lines, mood=mood)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _shards(count: int) -> str:
    return "shard" if count == 1 else "shards"


def lease_table(rows: Sequence[LeaseRow], *, options: str) -> str:
    """
    Return unfinished leases, in the order given, with the command that shows their lines.

    Args:
        rows: the leases.
        options: what names the fleet on the command line.

    """
    if not rows:
        return "<p class=soft>no unfinished lease</p>"
    heads = ("shard", "state", "lag", "why", "owner", "its lines")
    shown = parts.table(heads, (_lease(row, options) for row in rows[:LEASES_SHOWN]))
    more = len(rows) - LEASES_SHOWN
    return shown + (f"<p class=soft>and {more:,} more, less far behind</p>" if more > 0 else "")


def _lease(row: LeaseRow, options: str) -> list[str]:
    kind = "bad" if is_unread(row) else "soft" if row.state in _ASLEEP else "good"
    command = escape(f"shardfleet logs {shlex.quote(row.lease_key)}{options}")
    words = " ".join(f"<span>{word}</span>" for word in command.split(" "))
    return [
        escape(row.lease_key),
        f'<b class="state {kind}">{escape(row.state.lower())}</b>',
        "unknown" if row.lag_ms is None else spoken_duration(row.lag_ms),
        escape(brief_numbers(row.why)),
        escape(row.owner or ""),
        f'<code>{words}</code> <button data-copy="{command}">copy</button>',
    ]


def alarm_list(alarms: Sequence[AlarmState]) -> str:
    """Return alarms as coloured badges, those that ring first and with their reasons."""
    ringing = [alarm for alarm in alarms if alarm.state == "ALARM"]
    badges = (
        f'<b class="{_CLASSES.get(alarm.state, "")}" data-alarm="{escape(alarm.name)}" '
        f'title="{escape(alarm.description)}&#10;{escape(alarm.reason)}">{escape(alarm.name)}</b>'
        for alarm in [*ringing, *(alarm for alarm in alarms if alarm.state != "ALARM")]
    )
    reasons = (
        f"<p><b>{escape(alarm.name)}</b>: {escape(alarm.description)} "
        f"<span class=soft>{escape(alarm.reason)}</span></p>"
        for alarm in ringing
    )
    return f"<div class=alarms>{''.join(badges)}</div>{''.join(reasons)}"


def number(title: str, series: Sequence[Series], *, end: float) -> str:
    """Return the newest value of a single-value widget, and its age if that is not now."""
    newest = max(((line.points[-1], line.unit) for line in series if line.points), default=None)
    if newest is None:
        return f'<div class="tile old"><b>no data</b><span>{escape(title)}</span></div>'
    (at, value), unit = newest
    ago = _ago(at, end)
    return (
        f'<div class="tile{" old" if ago else ""}"><b>{parts.figure(value, unit)}</b>'
        f"<span>{escape(title)}{ago}</span></div>"
    )


def _ago(at: float, end: float) -> str:
    return f", {spoken_duration((end - at) * 1000)} ago" if end - at > OLD_S else ""


def log_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the rows of a log query; the columns are those of the first row."""
    if not rows:
        return "<p class=soft>no shard is a minute behind</p>"
    return parts.table(
        list(rows[0]),
        ([_logged(name, row.get(name, "")) for name in rows[0]] for row in rows),
    )


def _logged(name: str, text: str) -> str:
    if name.endswith("_ms") and text.replace(".", "", 1).isdigit():
        return spoken_duration(float(text))
    return escape(text)


def fitting_start(moments: Iterable[float], *, start: float, end: float) -> float:
    """Return where charts begin: at the first of what there is, but show ten minutes."""
    return max(start, min([*moments, end - 600]))


def chart(series: Sequence[Series], *, start: float, end: float) -> str:
    """
    Return lines over time with a legend; the axis begins at 0.

    What is counted in different units (times and numbers, records of a stream and the user's in
    them) has an axis each.
    """
    units = dict.fromkeys(line.unit for line in series if line.points)
    missing = ", ".join(line.label for line in series if not line.points)
    coloured = [(parts.colour_of(at), line) for at, line in enumerate(series) if line.points]
    charts = "".join(
        _chart([each for each in coloured if each[1].unit == unit], unit, start=start, end=end)
        for unit in units
    )
    return charts + (f"<p class=soft>no data: {escape(missing)}</p>" if missing else "")


def _chart(lines: Sequence[tuple[str, Series]], unit: str, *, start: float, end: float) -> str:
    # A period that began before the chart does has its point before it, too.
    within = [
        (colour, [point for point in line.points if point[0] >= start]) for colour, line in lines
    ]
    most = max((value for _, points in within for _, value in points), default=0.0)
    top, name, ticks = parts.axis_of(most, unit)

    def x(at: float) -> float:
        return LEFT + (at - start) / max(1.0, end - start) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return BOTTOM - max(0.0, value) / top * (BOTTOM - TOP)

    moments = [(x(at), text) for at, text in _moments(start, end)]
    drawn = [
        *parts.time_axis(moments, top=TOP, bottom=BOTTOM),
        *parts.value_axis(ticks, y, left=LEFT, right=WIDTH - RIGHT),
        f'<text x="4" y="{TOP - 9}" class="unit">{escape(name)}</text>',
        *(_line([(x(at), y(value)) for at, value in points], colour) for colour, points in within),
    ]
    told = parts.legend((colour, _newest(line, end)) for colour, line in lines)
    picture = parts.svg(WIDTH, HEIGHT, drawn, label=", ".join(line.label for _, line in lines))
    return f'{picture}<div class="legend">{told}</div>'


def _newest(line: Series, end: float) -> str:
    at, value = line.points[-1]
    return f"{line.label}: {parts.figure(value, line.unit)}{_ago(at, end)}"


def _moments(start: float, end: float) -> list[tuple[float, str]]:
    """Return round moments of this machine's time zone, and how they are written."""
    days = end - start > _DAY_S
    every = next((s for s in _TICKS_S if (end - start) / s <= (3 if days else 5)), _TICKS_S[-1])
    shift = time.localtime(end).tm_gmtoff
    first = math.ceil((start + shift) / every) * every - shift
    return [
        (at, time.strftime("%m-%d %H:%M" if days else "%H:%M", time.localtime(at)))
        for at in range(int(first), int(end) + 1, every)
    ]


def _line(places: Sequence[tuple[float, float]], colour: str) -> str:
    if len(places) == 1:
        ((across, down),) = places
        return f'<circle cx="{across:.1f}" cy="{down:.1f}" r="2.5" fill="{colour}"/>'
    return f'<path d="{parts.path(places)}" stroke="{colour}" class="line"/>' if places else ""
