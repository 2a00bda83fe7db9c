"""A step and what it has measured, beside what was promised: a row of the report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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


async def _by_itself(_: Any) -> Measured:
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Step:
    """
    A step.

    Attributes:
        name: for the report.
        does: what is done.
        promise: what should come of it.
        page: where that is promised, in the repository.
        run: does and measures it, given the scene.
        is_fed: whether records come meanwhile.

    """

    name: str
    does: str
    promise: str
    page: str
    run: Callable[[Any], Awaitable[Measured]] = _by_itself
    is_fed: bool = True


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step, what came of it, and how long it was in milliseconds."""

    step: Step
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
