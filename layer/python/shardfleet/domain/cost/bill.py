"""What a fleet has spent, by day, from its ledger; and what a day comes to at that rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardfleet.domain.cost.estimate import NOTHING, Consumption, Costs, price_of
from shardfleet.domain.cost.prices import PRICES, Prices

DAY_MS = 86_400_000
# A rate from less than this says more about the start than about the fleet.
RATE_LEAST_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """
    What one writer has used on one day.

    Attributes:
        day: UTC, e.g. ``2026-11-21``.
        writer: ``manager``, or a slot's id.
        used: so far.
        metrics: names of the CloudWatch metrics that it has written.
        began_ms: end of the first invocation that wrote, epoch milliseconds.
        until_ms: end of the last one.

    """

    day: str
    writer: str
    used: Consumption
    metrics: frozenset[str]
    began_ms: int = 0
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledDay:
    """
    A day of the whole fleet.

    Attributes:
        day: UTC.
        used: by all writers.
        metrics: how many CloudWatch metrics they wrote, each counted once.
        costs: dollars by item.
        covered_ms: how much of the day the ledger covers.
        until_ms: end of the last invocation that wrote, epoch milliseconds.

    """

    day: str
    used: Consumption
    metrics: int
    costs: Costs
    covered_ms: int
    until_ms: int


def days_of(pages: Iterable[LedgerPage], prices: Prices = PRICES) -> list[BilledDay]:
    """Return what each day cost, oldest first."""
    by_day: dict[str, list[LedgerPage]] = {}
    for page in pages:
        by_day.setdefault(page.day, []).append(page)
    return [_billed(day, by_day[day], prices) for day in sorted(by_day)]


def _billed(day: str, pages: Sequence[LedgerPage], prices: Prices) -> BilledDay:
    used = sum((page.used for page in pages), NOTHING)
    metrics = len(frozenset().union(*(page.metrics for page in pages)))
    until_ms = max(page.until_ms for page in pages)
    covered_ms = max(0, until_ms - min(page.began_ms for page in pages))
    return BilledDay(
        day=day,
        used=used,
        metrics=metrics,
        # CloudWatch bills a metric by the hour in which it is written.
        costs=price_of(used, metric_days=metrics * min(1.0, covered_ms / DAY_MS), prices=prices),
        covered_ms=covered_ms,
        until_ms=until_ms,
    )


def rate_per_day(days: Sequence[BilledDay]) -> float | None:
    """Return dollars a day at the rate of the latest day that tells one; None: none does yet."""
    for day in reversed(days):
        if day.covered_ms >= RATE_LEAST_MS:
            return day.costs.total * DAY_MS / day.covered_ms
    return None
