"""
What a fleet has used, by its ledger, day by day, and what that costs by list prices.

What one will cost is estimated by `shardfleet_ops.cost.model`, in the same units and by the same
prices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import astuple

from shardfleet.domain.cost.prices import PRICES, Prices

DAY_MS = 86_400_000
# A rate from less than this says more about the start than about the fleet.
RATE_LEAST_MS = 600_000
HOURS_PER_MONTH = 730
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
# cdk/shardfleet_cdk/worker_definition.py: the task and the choice after it.
TRANSITIONS_PER_TURN = 2


class Consumption(Struct, frozen=True, kw_only=True):
    """
    What was used, in whole units, so that a document can hold it.

    Attributes:
        mb_ms: Lambda: milliseconds of an invocation times its memory in MB.
        requests: Lambda: invocations.
        transitions: Step Functions: states entered.
        read_tenths: DynamoDB: read units, in tenths.
        write_tenths: DynamoDB: write units, in tenths.
        log_bytes: CloudWatch Logs: written by the functions themselves.
        scheduled_runs: EventBridge Scheduler.

    """

    mb_ms: int = 0
    requests: int = 0
    transitions: int = 0
    read_tenths: int = 0
    write_tenths: int = 0
    log_bytes: int = 0
    scheduled_runs: int = 0

    def __add__(self, other: Consumption) -> Consumption:
        """Return both together."""
        added = zip(astuple(self), astuple(other), strict=True)
        names = self.__struct_fields__
        return Consumption(
            **{name: mine + more for name, (mine, more) in zip(names, added, strict=True)}
        )


class Costs(Struct, frozen=True):
    """
    Dollars by what they are for.

    Attributes:
        by_item: name of the item to dollars.

    """

    by_item: Mapping[str, float] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Return the sum."""
        return sum(self.by_item.values())


def price_of(used: Consumption, *, metric_days: float, prices: Prices = PRICES) -> Costs:
    """
    Return what was used in dollars.

    Args:
        used: counted by the functions.
        metric_days: CloudWatch metrics times the days on which they were written.
        prices: list prices.

    """
    return Costs(
        {
            "lambda": used.mb_ms / 1_024_000 * prices.lambda_gb_second
            + used.requests * prices.lambda_request,
            "step_functions": used.transitions * prices.transition,
            "dynamodb": used.read_tenths / 10 * prices.table_read_unit
            + used.write_tenths / 10 * prices.table_write_unit,
            "metrics": metric_days * prices.metric_month / DAYS_PER_MONTH,
            "logs": used.log_bytes / 1_000_000_000 * prices.log_gb,
            "scheduler": used.scheduled_runs * prices.scheduled_run,
        }
    )


class LedgerPage(Struct, frozen=True, kw_only=True):
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
