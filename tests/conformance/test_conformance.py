"""A sample of `make conformance`, and that its judge finds what is wrong."""

import random
from dataclasses import replace

import pytest

from tests.conformance.__main__ import AREAS
from tests.conformance.judge import Area, Deliberate, compare

CASES = 3000


@pytest.mark.parametrize("area", AREAS.values(), ids=AREAS)
def test_ours_differs_from_the_kcl_only_as_is_written_down(area, kcl):
    found = compare(area, kcl, cases=CASES, seed=1)

    assert found.is_good, "\n".join(found.lines())


@pytest.mark.parametrize(
    ("area", "name"),
    [(area, each.name) for area in AREAS.values() for each in area.deliberate],
)
def test_without_a_predicate_the_run_fails(area, name, kcl):
    rest = replace(area, deliberate=tuple(each for each in area.deliberate if each.name != name))
    for cases in (CASES // 30, CASES // 6, CASES):  # Mostly the first ones tell.
        found = compare(rest, kcl, cases=cases, seed=1)
        if found.unexplained:
            break

    assert found.unexplained
    assert found.faults[0].startswith("  unexplained: seed 1, case ")


class Echo:
    """A KCL that answers each number with itself."""

    def ask(self, name, cases):
        assert name == "numbers"
        self.asked = cases

    def answers(self):
        return self.asked


def numbers(ours, *deliberate):
    """Return the area of numbers from 0 to 9."""

    def differences(case, our, their):
        if our != their:
            yield case

    return Area("numbers", lambda chance: chance.randrange(10), ours, differences, deliberate)


def test_a_difference_wants_an_explanation_and_an_explanation_a_difference():
    odd = Deliberate("odd", "a rule", lambda number: number % 2)
    five = Deliberate("five", "a rule", lambda number: number == 5)

    def judged(ours, *deliberate):
        found = compare(numbers(ours, *deliberate), Echo(), cases=1200, seed=7)
        assert found.cases == 1200
        return found

    assert judged(lambda number: number).is_good
    wrong = judged(lambda number: -number)
    assert (wrong.differing, wrong.is_good, len(wrong.faults)) == (wrong.unexplained, False, 3)
    assert judged(lambda number: -number if number % 2 else number, odd).is_good
    # A predicate is needed only where no other one holds.
    idle = judged(lambda number: -number if number % 2 else number, odd, five)
    assert (idle.unexplained, idle.idle, idle.is_good) == (0, ["five"], False)


def test_a_seed_draws_the_same_cases():
    for area in AREAS.values():
        drawn = [[area.draw(chance) for _ in range(50)] for chance in map(random.Random, "aab")]
        assert drawn[0] == drawn[1] != drawn[2], area.name
