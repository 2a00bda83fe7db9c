"""Lines and bars as SVG, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COLOURS = ("#2a9d8f", "#e76f51", "#457b9d", "#e9c46a", "#8d6a9f")
LEFT, WIDTH, HEIGHT, TOP, GAP = 70, 560, 150, 30, 62
NAMES, BARS = 150, 420
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """
    Lines.

    Attributes:
        title: above it.
        lines: name to points, each (x, y).
        x_name: below it.
        x_marks: where the x axis has a number.
        y_marks: where the y axis has a number; the last one is its end.
        logarithmic: both axes.
        bands: spans of x to be shaded.

    """

    title: str
    lines: Mapping[str, Points]
    x_name: str
    x_marks: Sequence[float]
    y_marks: Sequence[float]
    logarithmic: bool = False
    bands: Sequence[tuple[float, float]] = field(default=())

    def drawn(self, top: int) -> list[str]:
        """Return the SVG elements of the chart, `top` pixels below the picture's edge."""
        bottom = top + HEIGHT
        found = [_text(LEFT, top - 8, self.title, bold=True)]
        for first, last in self.bands:
            x, width = self._x(first), self._x(last) - self._x(first)
            found.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT}" '
                'fill="#e9c46a44"/>'
            )
        for mark in self.x_marks:
            x = self._x(mark)
            found.append(_text(x, bottom + 14, f"{mark:,g}", anchor="middle"))
        for mark in self.y_marks:
            y = self._y(mark, top)
            found += [
                f'<path d="M{LEFT},{y:.1f} h{WIDTH}" stroke="#8885"/>',
                _text(LEFT - 6, y + 4, f"{mark:,g}", anchor="end"),
            ]
        found.append(_text(LEFT + WIDTH, bottom + 28, self.x_name, anchor="end"))
        for index, (name, points) in enumerate(self.lines.items()):
            colour = COLOURS[index % len(COLOURS)]
            places = " ".join(f"{self._x(x):.1f},{self._y(y, top):.1f}" for x, y in points)
            x, y = LEFT + 130 * index, bottom + 22
            found += [
                f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.7"/>',
                f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>',
                _text(x + 14, y + 9, name),
            ]
        return found

    def _x(self, x: float) -> float:
        return LEFT + WIDTH * self._share(x, self.x_marks)

    def _y(self, y: float, top: int) -> float:
        return top + HEIGHT * (1 - self._share(y, self.y_marks))

    def _share(self, value: float, marks: Sequence[float]) -> float:
        first, last = marks[0], marks[-1]
        if self.logarithmic:
            value, first, last = (math.log(max(each, first)) for each in (value, first, last))
        return min(1.0, max(0.0, (value - first) / (last - first)))


def waiting(title: str, waited: Mapping[str, Sequence[float]]) -> Chart:
    """Return the chart of which part of all had waited how long, milliseconds in order of size."""
    lines = {
        name: [
            (0.0, 0.0),
            *((found[-(-len(found) * n // 100) - 1], float(n)) for n in range(1, 101)),
        ]
        for name, found in waited.items()
    }
    most = max(400, *(-(-found[-1] // 100) * 100 for found in waited.values()))
    marks = [mark * most / 4 for mark in range(5)]
    return Chart(title=title, lines=lines, x_name="ms", x_marks=marks, y_marks=(0, 25, 50, 75, 100))


def picture(charts: Sequence[Chart]) -> str:
    """Return the SVG of some charts, one below the other."""
    lines = []
    for place, chart in enumerate(charts):
        lines += chart.drawn(TOP + place * (HEIGHT + GAP))
    return _svg(lines, width=LEFT + WIDTH + 20, height=TOP + len(charts) * (HEIGHT + GAP))


def bars(title: str, groups: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """
    Return the SVG of groups of bars on one logarithmic axis.

    Args:
        title: above them.
        groups: name of the group to name of the bar to value, all above 0.
        unit: behind each value.

    """
    values_of_all = [value for group in groups.values() for value in group.values()]
    first, most = min(values_of_all) / 3, max(values_of_all)
    names = list(next(iter(groups.values())))
    found, y = [_text(NAMES, 16, title, bold=True)], 28
    for group, values in groups.items():
        found.append(_text(NAMES - 8, y + 12, group, anchor="end"))
        for name, value in values.items():
            width = BARS * math.log(value / first) / math.log(most / first)
            colour = COLOURS[names.index(name)]
            found += [
                f'<rect x="{NAMES}" y="{y}" width="{width:.1f}" height="14" fill="{colour}"/>',
                _text(NAMES + width + 6, y + 11, f"{name}: {value:,.0f} {unit}"),
            ]
            y += 18
        y += 10
    return _svg(found, width=NAMES + BARS + 240, height=y)


def _svg(elements: Sequence[str], *, width: int, height: int) -> str:
    size = f'width="{width}" height="{height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    )
    style = "<style>text{fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
    return "\n".join([head, style, *elements, "</svg>\n"])


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{weight}>{text}</text>'
