"""Line charts as SVG, one below the other, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

COLOURS = ("#2a9d8f", "#e76f51", "#457b9d", "#e9c46a", "#8d6a9f")
LEFT, WIDTH, HEIGHT, TOP, GAP = 70, 560, 150, 30, 62
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """
    One chart.

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
        found = [f'<text x="{LEFT}" y="{top - 8}" font-weight="bold">{self.title}</text>']
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


def picture(charts: Sequence[Chart]) -> str:
    """Return the SVG of some charts."""
    height = TOP + len(charts) * (HEIGHT + GAP)
    size = f'width="{LEFT + WIDTH + 20}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        "<style>text{fill:#333}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>",
    ]
    for place, chart in enumerate(charts):
        lines += chart.drawn(TOP + place * (HEIGHT + GAP))
    return "\n".join([*lines, "</svg>\n"])


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
