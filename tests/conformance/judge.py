"""
Two readers of one protocol, asked the same: ours and the Java KCL's.

An area draws cases, says what ours answers, and what of two answers differs. Each difference wants
one predicate that holds: a deliberate difference, by name, with the rule that it follows. A run
fails on a difference that no predicate explains, and on a predicate that was never the only one to
explain something: with or without it, the run would say the same.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

AT_ONCE = 500
SHOWN = 3


@dataclass(frozen=True)
class Deliberate:
    """
    A deliberate difference.

    Attributes:
        name: what is different.
        rule: where it is written down.
        holds: tells whether a difference of the area is this one.

    """

    name: str
    rule: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Area:
    """
    What is compared.

    Attributes:
        name: as the driver knows it.
        draw: makes a case, which JSON can hold, of a source of chance.
        ours: answers it.
        differences: yields what differs, of a case, our answer and theirs.
        deliberate: what may differ.

    """

    name: str
    draw: Callable[[random.Random], Any]
    ours: Callable[[Any], Any]
    differences: Callable[[Any, Any, Any], Iterable[Any]]
    deliberate: tuple[Deliberate, ...]


@dataclass
class Findings:
    """What a run of one area found; ``faults`` are its first few cases that nothing explains."""

    area: Area
    cases: int = 0
    differing: int = 0
    unexplained: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)
    explained: Counter = field(default_factory=Counter)
    alone: Counter = field(default_factory=Counter)

    @property
    def idle(self):
        """Return the names of the predicates without which the run would say the same."""
        return [each.name for each in self.area.deliberate if not self.alone[each.name]]

    @property
    def is_good(self):
        """Tell whether each difference is explained, and each predicate needed."""
        return not self.unexplained and not self.idle

    def lines(self):
        """Tell it."""
        rate = self.cases / max(self.seconds, 0.001)
        yield (
            f"{self.area.name}: {self.cases:,} cases, {self.differing:,} differ, "
            f"{self.unexplained:,} unexplained; {rate:,.0f} cases/s"
        )
        for each in self.area.deliberate:
            yield f"  {self.explained[each.name]:>9,} {each.name} ({each.rule})"
        yield from (f"  never needed: {name}" for name in self.idle)
        yield from self.faults

    def figures(self):
        """Return it for a file."""
        return {
            "cases": self.cases,
            "differing": self.differing,
            "unexplained": self.unexplained,
            "seconds": round(self.seconds, 1),
            "deliberate": {each.name: self.explained[each.name] for each in self.area.deliberate},
        }


def compare(area, kcl, *, cases, seed):
    """Ask both for so many cases drawn from a seed."""
    found, began = Findings(area), time.monotonic()
    for start in range(0, cases, AT_ONCE):
        chance = random.Random(f"{area.name} {seed} {start}")
        drawn = [area.draw(chance) for _ in range(min(AT_ONCE, cases - start))]
        kcl.ask(area.name, drawn)
        _judge(found, drawn, [area.ours(case) for case in drawn], kcl.answers(), seed, start)
    found.seconds = time.monotonic() - began
    return found


def _judge(found, drawn, ours, theirs, seed, start):
    for number, (case, our, their) in enumerate(zip(drawn, ours, theirs, strict=True), start):
        found.cases += 1
        differs = False
        for difference in found.area.differences(case, our, their):
            differs = True
            names = [each.name for each in found.area.deliberate if each.holds(difference)]
            found.explained.update(names)
            if len(names) == 1:
                found.alone[names[0]] += 1
            if not names:
                found.unexplained += 1
                if len(found.faults) < SHOWN:
                    found.faults.append(
                        f"  unexplained: seed {seed}, case {number}: {json.dumps(case)}\n"
                        f"    ours {our}\n    theirs {their}\n    differs {difference}"
                    )
        found.differing += differs
