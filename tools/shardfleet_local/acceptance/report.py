"""
The report that is kept: Markdown for people, JSON for programs; no account is named in it.

A row is a step, and what it has measured beside what was promised.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from shardfleet_local.acceptance.plan import AcceptanceSize, price

HIDDEN = "(account)"


class Shown(StrEnum):
    """``PASSED``: as promised. ``FAILED``: not so. ``NOT_SHOWN``: this run could not tell."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class Measured:
    """
    What came of a step.

    Attributes:
        shown: whether it is as promised.
        text: for a person.
        figures: for programs, by name with the unit last.
        is_done: whether it could be done at all.

    """

    shown: Shown
    text: str
    figures: Mapping[str, object] = field(default_factory=dict)
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class ReportPart:
    """
    A part of a run, which is a row of the report.

    Attributes:
        name: for the report.
        does: what is done.
        promise: what should come of it.
        page: where that is promised, in the repository.

    """

    name: str
    does: str
    promise: str
    page: str


@dataclass(frozen=True, slots=True)
class Step(ReportPart):
    """
    A part that is done to a deployed fleet.

    Attributes:
        run: does and measures it, given the scene.
        is_fed: whether records come meanwhile.

    """

    run: Callable[[Any], Awaitable[Measured]]
    is_fed: bool = True


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step or another part, what came of it, and how long it was in milliseconds."""

    step: ReportPart
    measured: Measured
    took_ms: int


def in_time(took_ms: int, *, most_ms: int, embedded: bool) -> Shown:
    """Judge a duration; what a laptop takes longer for shows nothing about AWS."""
    if took_ms <= most_ms:
        return Shown.PASSED
    return Shown.NOT_SHOWN if embedded else Shown.FAILED


def percentile(values: Sequence[int], part: float) -> int:
    """Return the value below which a part of all lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


def passed(rows: Sequence[StepRow]) -> bool:
    """Return whether no promise was broken, and nothing is left."""
    return all(row.measured.shown is not Shown.FAILED for row in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceReport:
    """
    What is written.

    Attributes:
        name: of the run.
        where: ``AWS, <region>``, or ``the embedded AWS``.
        version: of shardfleet.
        began: the begin, ISO 8601 in UTC.
        size: how much was done.
        rows: the steps.
        hidden: an account's id that is not to be written; "" writes it.

    """

    name: str
    where: str
    version: str
    began: str
    size: AcceptanceSize
    rows: Sequence[StepRow]
    hidden: str

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        page, document = folder / f"{self.name}.md", folder / f"{self.name}.json"
        page.write_text(self._clean("\n".join(self._lines())) + "\n", encoding="utf-8")
        document.write_text(self._clean(json.dumps(self._document(), indent=2)) + "\n", "utf-8")
        return page, document

    def _clean(self, text: str) -> str:
        return text.replace(self.hidden, HIDDEN) if self.hidden else text

    def _lines(self) -> Iterator[str]:
        total_s = sum(row.took_ms for row in self.rows) / 1000
        yield f"# Acceptance: {'passed' if passed(self.rows) else 'FAILED'}"
        yield ""
        yield f"* run: {self.name}, {self.began}, on {self.where}, shardfleet {self.version}"
        yield (
            f"* size: {self.size.records:,} records at least, {self.size.shards} shards at the "
            f"beginning, {total_s / 60:.1f} minutes"
        )
        yield f"* price announced: at most ${price(self.size).total:.2f}"
        yield ""
        yield "| step | what it does | promised | measured | result | seconds |"
        yield "|---|---|---|---|---|---|"
        for row in self.rows:
            cells = (
                row.step.name,
                row.step.does,
                f"{row.step.promise} ({row.step.page})",
                row.measured.text,
                row.measured.shown.value,
                f"{row.took_ms / 1000:.1f}",
            )
            yield "| " + " | ".join(_cell(each) for each in cells) + " |"

    def _document(self) -> dict[str, object]:
        return {
            "name": self.name,
            "where": self.where,
            "version": self.version,
            "began": self.began,
            "passed": passed(self.rows),
            "price_most_dollars": price(self.size).total,
            "steps": [
                {
                    "name": row.step.name,
                    "does": row.step.does,
                    "promise": row.step.promise,
                    "page": row.step.page,
                    "result": row.measured.shown.value,
                    "measured": row.measured.text,
                    "figures": dict(row.measured.figures),
                    "took_ms": row.took_ms,
                }
                for row in self.rows
            ],
        }


def _cell(text: str) -> str:
    """Return text as one cell: no line break and no bar ends it."""
    return " ".join(text.split()).replace("|", "\\|")
