"""What a step has measured, beside what was promised; a row of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from shardfleet_local.rig.feed import SentRecord


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

    """

    shown: Shown
    text: str
    figures: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """
    A row of the report.

    Attributes:
        name: of the step.
        does: what was done.
        promise: what is promised of it.
        page: where that is written, in the repository.
        measured: what came of it.
        took_ms: how long the step was.

    """

    name: str
    does: str
    promise: str
    page: str
    measured: Measured
    took_ms: int


def waited_ms(
    sent: Sequence[SentRecord], first_ms: Mapping[int, int], *, from_ms: int, until_ms: int
) -> int | None:
    """
    Return how long the slowest record of a time waited to be handled; None: one still waits.

    Args:
        sent: what was sent.
        first_ms: number of a record to when it was first handled.
        from_ms: sent from then on, epoch milliseconds.
        until_ms: and until then.

    """
    slowest = 0
    for record in sent:
        if from_ms <= record.sent_ms <= until_ms:
            if record.number not in first_ms:
                return None
            slowest = max(slowest, first_ms[record.number] - record.sent_ms)
    return slowest


def in_time(took_ms: int, *, most_ms: int, embedded: bool) -> Shown:
    """Judge a duration; what a laptop takes longer for shows nothing about AWS."""
    if took_ms <= most_ms:
        return Shown.PASSED
    return Shown.NOT_SHOWN if embedded else Shown.FAILED


def percentile(values: Sequence[int], part: float) -> int:
    """Return the value below which a part of all lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0


Say = Callable[[str], None]
