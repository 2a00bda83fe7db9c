"""What a fleet has spent, by day, from its ledger; and what a day comes to at that rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardfleet.domain.cost.estimate import Consumption, Costs, price_of
from shardfleet.domain.cost.prices import PRICES, Prices

DAY_MS = 86_400_000
# A rate from less than this says more about the start than about the fleet.
RATE_LEAST_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """
    What one writer has used on one day, or all together.

    Attributes:
        day: UTC, e.g. ``2026-11-21``.
        writer: ``manager``, or a slot's id; "" all of them.
        used: so far.
        metrics: names of the CloudWatch metrics that were written.
        began_ms: end of the first invocation that wrote, epoch milliseconds.
        until_ms: end of the last one.

    """

    day: str
    writer: str
    used: Consumption
    metrics: frozenset[str]
    began_ms: int = 0
    until_ms: int = 0

    def __add__(self, other: LedgerPage) -> LedgerPage:
        """Return both together; each metric counts once."""
        return LedgerPage(
            day=self.day,
            writer="",
            used=self.used + other.used,
            metrics=self.metrics | other.metrics,
            began_ms=min(self.began_ms, other.began_ms),
            until_ms=max(self.until_ms, other.until_ms),
        )

    @property
    def covered_ms(self) -> int:
        """Return how much of the day the page covers."""
        return max(0, self.until_ms - self.began_ms)

    def costs(self, prices: Prices = PRICES) -> Costs:
        """Return dollars by item; CloudWatch bills a metric by the hour in which it is written."""
        metric_days = len(self.metrics) * min(1.0, self.covered_ms / DAY_MS)
        return price_of(self.used, metric_days=metric_days, prices=prices)


def days_of(pages: Iterable[LedgerPage]) -> list[LedgerPage]:
    """Return a page of the whole fleet for each day, oldest first."""
    days: dict[str, LedgerPage] = {}
    for page in pages:
        days[page.day] = days[page.day] + page if page.day in days else page
    return [days[day] for day in sorted(days)]


def rate_per_day(days: Sequence[LedgerPage], prices: Prices = PRICES) -> float | None:
    """Return dollars a day at the rate of the latest day that tells one; None: none does yet."""
    for day in reversed(days):
        if day.covered_ms >= RATE_LEAST_MS:
            return day.costs(prices).total * DAY_MS / day.covered_ms
    return None
