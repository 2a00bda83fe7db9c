"""
Breadth-first search over everything that may happen, with the shortest counterexample.

States that were met before are met once; so a search that ends has seen every interleaving of
every step within the budget of its scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.protocol_model.checks import ModelViolation, check_state
from tests.protocol_model.manager import leader_steps, manager_steps
from tests.protocol_model.outcomes import deliveries
from tests.protocol_model.recovery import obstacle
from tests.protocol_model.rules import Rules
from tests.protocol_model.state import KEYS, ModelWorld
from tests.protocol_model.worker import Worker, claims


@dataclass(frozen=True, slots=True)
class Counterexample:
    """
    The shortest way to a violation.

    Attributes:
        reason: what does not hold.
        steps: what happened, in order.
        world: the last state before the violation.

    """

    reason: str
    steps: tuple[str, ...]
    world: ModelWorld

    def __str__(self) -> str:
        """Render it on one screen."""
        lines = [f"{number:3}  {step}" for number, step in enumerate(self.steps, start=1)]
        table = [
            f"     {key}: nobody's row"
            if lease is None
            else f"     {key}: owner {lease.lease_owner}, checkpoint owner "
            f"{lease.checkpoint_owner}, counter {lease.lease_counter}, at {lease.checkpoint}"
            for key, lease in zip(KEYS, self.world.leases, strict=True)
        ]
        return "\n".join([f"violated: {self.reason}", *lines, "     the table then:", *table])


@dataclass(frozen=True, slots=True)
class SearchResult:
    """
    What a search found.

    Attributes:
        states: met.
        transitions: tried.
        recoveries: states from which a time without faults was tried.
        depth: steps of the longest shortest path.
        is_complete: nothing is left to try within the budget.
        counterexample: the first violation, if there is one.

    """

    states: int
    transitions: int
    recoveries: int
    depth: int
    is_complete: bool
    counterexample: Counterexample | None


def successors(rules: Rules, world: ModelWorld) -> Iterator[tuple[str, ModelWorld]]:
    """Yield everything that may happen next."""
    yield from claims(rules, world)
    for invocation in world.running:
        yield from Worker(rules, world, invocation).steps()
    yield from manager_steps(rules, world)
    yield from leader_steps(rules, world)
    yield from deliveries(world)


def search(
    rules: Rules, start: ModelWorld, *, states_most: int, recover_one_in: int = 0
) -> SearchResult:
    """
    Search from one state until everything is seen, something is violated, or it is enough.

    Args:
        rules: the transitions.
        start: where everything begins.
        states_most: how many states are looked at.
        recover_one_in: each so-manieth state must recover once nothing goes wrong (0: none).

    """
    worlds = [start]
    seen = {start}
    came: list[tuple[int, str]] = [(-1, "")]
    depths = [0]
    transitions = recoveries = at = 0

    def found(
        counterexample: Counterexample | None = None, *, complete: bool = False
    ) -> SearchResult:
        depth = depths[-1]
        return SearchResult(len(worlds), transitions, recoveries, depth, complete, counterexample)

    while at < len(worlds):
        steps = _path(came, at)
        try:
            if recover_one_in and at % recover_one_in == 0:
                recoveries += 1
                stuck = obstacle(rules, worlds[at])
                if stuck is not None:
                    raise ModelViolation(stuck)
            for label, following in successors(rules, worlds[at]):
                transitions += 1
                if following in seen:
                    continue
                steps.append(label)
                check_state(following)
                steps.pop()
                seen.add(following)
                worlds.append(following)
                came.append((at, label))
                depths.append(depths[at] + 1)
        except ModelViolation as violation:
            return found(Counterexample(str(violation), tuple(steps), worlds[at]))
        if len(worlds) > states_most:
            return found()
        at += 1
    return found(complete=True)


def _path(came: list[tuple[int, str]], at: int) -> list[str]:
    steps = []
    while at > 0:
        at, label = came[at]
        steps.append(label)
    return steps[::-1]
