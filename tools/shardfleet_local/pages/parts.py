"""The parts: the style, figures with their units, SVG with its axes, and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from importlib.resources import files

from shardfleet_ops.explain.spoken import spoken_duration

COLOURS = (
    *("#3b6fd4", "#e0803a", "#2d9d78", "#c2509a", "#8a6cd1", "#c9a227", "#3aa6c4", "#b5524b"),
    *("#6f8f3a", "#7a6a5a"),
)
"""One per line or shard, told apart also when printed in grey next to each other."""

MS, SECONDS, BYTES = "ms", "s", "bytes"
"""Units whose figures are said in larger ones; any other is a count of what it names."""

_LARGER = {
    MS: ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")),
    SECONDS: ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")),
    BYTES: ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
}
_COUNTED = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
_QUARTERS = 4


def style_of(room: str, name: str) -> str:
    """Return the style that all pages share, and after it the file of that name in a package."""
    shared = files("shardfleet_local.pages").joinpath("pages.css").read_text("utf-8")
    return shared + files(room).joinpath(name).read_text("utf-8")


def colour_of(position: int) -> str:
    """Return the colour of what has a position in a list."""
    return COLOURS[position % len(COLOURS)]


def figure(value: float, unit: str) -> str:
    """Return a number for a person, with its unit where it is no count: `4.5 min`, `34.2k`."""
    if unit in (MS, SECONDS):
        return spoken_duration(value * (1_000 if unit == SECONDS else 1))
    if unit == BYTES:
        scale, name = _scale(value, unit)
        return f"{value / scale:.3g} {name}"
    for limit, name in _COUNTED:
        if abs(value) >= limit:
            return f"{value / (1e3 if name == 'k' else limit):.3g}{name}"
    return f"{value:,.0f}" if value == round(value) else f"{value:.3g}"


def axis_of(most: float, unit: str) -> tuple[float, str, list[tuple[float, str]]]:
    """Return an axis's end, the name of its unit, and the values of its ticks with their texts."""
    scale, name = _scale(most, unit) if unit in _LARGER else (1.0, unit)
    end = scale * nice_ceiling(max(most / scale, 1 if unit in _LARGER else _QUARTERS))
    if unit in _LARGER:
        return end, name, [(tick, f"{tick / scale:g}") for tick in quarters(end)]
    return end, name, [(tick, figure(tick, unit)) for tick in quarters(end)]


def _scale(value: float, unit: str) -> tuple[float, str]:
    return next((found for found in _LARGER[unit] if value >= found[0]), _LARGER[unit][-1])


def nice_ceiling(value: float) -> float:
    """Return the least end of an axis, not below the value, whose quarters are round numbers."""
    power = 10.0 ** math.floor(math.log10(value / _QUARTERS))
    steps = (_QUARTERS * step * power for step in (1, 1.5, 2, 2.5, 5, 10))
    return next(end for end in steps if end >= value)


def quarters(end: float) -> list[float]:
    """Return the values at which an axis from 0 to its end has ticks."""
    return [end * quarter / _QUARTERS for quarter in range(_QUARTERS + 1)]


def value_axis(
    ticks: Iterable[tuple[float, str]], y: Callable[[float], float], *, left: float, right: float
) -> list[str]:
    """Return a line and a text for each tick of a vertical axis."""
    return [
        f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="minor"/>'
        f'<text x="{left - 8}" y="{y(value) + 4:.1f}" class="tick">{text}</text>'
        for value, text in ticks
    ]


def time_axis(ticks: Iterable[tuple[float, str]], *, top: float, bottom: float) -> list[str]:
    """Return a line and a text beneath it for each place of a horizontal axis."""
    return [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" class="minor"/>'
        f'<text x="{x:.1f}" y="{bottom + 18}" class="time">{text}</text>'
        for x, text in ticks
    ]


def path(points: Iterable[tuple[float, float]]) -> str:
    """Return a line through points."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def svg(width: float, height: float, parts: Iterable[str], *, label: str) -> str:
    """Return a picture, which is as wide as there is room, and scrolls where that is little."""
    return (
        f'<div class="drawn"><svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(label)}" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
        "</div>"
    )


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Return colours and what they stand for."""
    return "".join(
        f'<span><i style="background:{colour}"></i>{escape(text)}</span>'
        for colour, text in entries
    )


def table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Collection[str] = ()
) -> str:
    """
    Return a table; where the page is narrow, a row is a card with the heads before its cells.

    Args:
        heads: of the columns, as text.
        rows: their cells, as HTML.
        numbers: heads of the columns that are set to the right.

    """

    def cell(tag: str, head: str, inside: str) -> str:
        number = ' class="number"' if head in numbers else ""
        name = f' data-name="{escape(head)}"' if tag == "td" else ""
        return f"<{tag}{number}{name}>{inside}</{tag}>"

    top = "".join(cell("th", head, escape(head)) for head in heads)
    lines = (
        "".join(cell("td", head, inside) for head, inside in zip(heads, row, strict=True))
        for row in rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def verdict(headline: str, inside: str, *, mood: str) -> str:
    """Return the first thing that a page says: `mood` is `good`, `bad` or `unsure`."""
    seal = {"good": "✓", "bad": "!"}.get(mood, "?")
    return (
        f'<div class="verdict {mood}"><div class="seal">{seal}</div>'
        f"<div><h1>{escape(headline)}</h1>{inside}</div></div>"
    )
