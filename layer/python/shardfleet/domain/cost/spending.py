"""
How eager the fleet is: what its lag objective and its budget ask of it, and which gives way.

Consuming never stops for money unless that was asked for (``over_budget`` ``pause``). Where the two
cannot both hold, the objective does, and the reason says by how much the budget is missed.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from shardfleet.domain.reasons import (
    BudgetGivenUp,
    BudgetSpent,
    DayComesTo,
    NoBudget,
    ObjectiveMissed,
    Reason,
)

# Back to eager only when this part of the budget suffices, or the fleet would go to and fro.
RELIEF = 0.8


class Regime(StrEnum):
    """
    How eager the fleet is.

    ``EAGER``: as configured. ``THRIFTY``: the manager looks once a minute while all is well, and
    keeps no more workers than the shards need. ``PAUSED``: the day's budget is spent, and it was
    asked for that nothing is read then.
    """

    EAGER = "EAGER"
    THRIFTY = "THRIFTY"
    PAUSED = "PAUSED"


class Chosen(Struct, frozen=True, kw_only=True):
    """
    The regime that is in force.

    Attributes:
        name: see :class:`Regime`.
        reason: why.
        since_ms: epoch milliseconds.

    """

    name: Regime
    reason: Reason
    since_ms: int


class Spending(Struct, frozen=True, kw_only=True):
    """
    Objective, budget, and how things stand.

    Attributes:
        lag_ms: the greatest lag known.
        objective_ms: how far behind a shard may be, 0 no objective.
        budget: dollars a day, 0 no budget.
        spent: dollars since midnight UTC.
        rate: dollars a day at the present rate; None: not known yet.
        day_left: part of the day that is still to come, 0 to 1.
        may_pause: a spent budget stops the fleet.

    """

    lag_ms: int
    objective_ms: int
    budget: float
    spent: float
    rate: float | None
    day_left: float
    may_pause: bool

    @property
    def expected(self) -> float:
        """Return what the day will have cost at its end, dollars."""
        return self.spent + (self.rate or 0.0) * self.day_left


def choose(now: Spending, before: Chosen | None, *, now_ms: int) -> Chosen:
    """
    Choose the regime; it keeps its beginning, and its reason, while it stays.

    Args:
        now: how things stand.
        before: what is in force, None at first.
        now_ms: epoch milliseconds.

    """
    name, reason = _choice(now, before.name if before else Regime.EAGER)
    if before is not None and before.name is name:
        return before
    return Chosen(name=name, reason=reason, since_ms=now_ms)


def _choice(now: Spending, before: Regime) -> tuple[Regime, Reason]:
    if not now.budget:
        return Regime.EAGER, NoBudget()
    budget_cents = round(100 * now.budget)
    if now.may_pause and now.spent >= now.budget:
        return Regime.PAUSED, BudgetSpent(round(100 * now.spent), budget_cents)
    is_late = bool(now.objective_ms) and now.lag_ms > now.objective_ms
    limit = now.budget * (1.0 if before is Regime.EAGER else RELIEF)
    is_dear = now.expected > limit
    cost = DayComesTo(round(100 * now.expected), budget_cents)
    if is_late and is_dear:
        return Regime.EAGER, BudgetGivenUp(now.lag_ms, now.objective_ms, cost)
    if is_late:
        return Regime.EAGER, ObjectiveMissed(now.lag_ms, now.objective_ms)
    return (Regime.THRIFTY if is_dear else Regime.EAGER), cost
