"""
What sleep costs, told at synthesis: the manager looks at sleeping shards, and is paid by the time.

Prices: `shardfleet.domain.cost.prices`. Reads of the stream are free. What does not depend on sleep
is named and not summed: how many metrics a sleeping fleet goes on writing is not modelled yet.
"""

from __future__ import annotations

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.estimate import METRICS, asleep_per_month
from shardfleet.domain.cost.prices import PRICES


def told(config: FleetConfig, *, manager_memory_mb: int) -> str:
    """Return what sleep costs, and how long waking takes at most."""
    dollars = asleep_per_month(config, manager_mb=manager_memory_mb)
    runs_s = config.linger_ms // 1_000
    looks = f"stays {runs_s} s of each minute to look" if runs_s else "looks once a minute"
    return (
        f"sleep is on: a shard falls asleep after {config.sleep_after_ms // 1_000} s without a "
        f"record, and the first record waits up to {config.max_wake_ms // 1_000} s "
        f"(max_wake_ms). While all shards sleep, the manager ({manager_memory_mb} MB) {looks}: "
        f"about ${dollars:.2f} a month of Lambda alone (list prices of {PRICES.as_of}, "
        f"{PRICES.region}). On top come metrics, ${PRICES.metric_month:.2f} for each that is "
        f"written, ${METRICS * PRICES.metric_month:.2f} at most, alarms and dashboard, tables and "
        "logs."
    )
