"""
What sleep costs, told at synthesis: the manager looks at sleeping shards, and is paid by the time.

List prices of 2026-11-20, us-east-1 and arm64: Lambda $1.33334 per 100,000 GB-s and $0.20 per
million requests. Reads of the stream are free; DynamoDB adds cents.
"""

from __future__ import annotations

from shardfleet.config import MANAGER_EVERY_MS, FleetConfig

_GB_SECOND = 1.33334e-5
_REQUEST = 2e-7
_RUNS_PER_MONTH = 730 * 3_600_000 // MANAGER_EVERY_MS
_TURN_MS = 1_000  # one turn over a sleeping fleet, start of the function included


def asleep_per_month(config: FleetConfig, *, manager_memory_mb: int) -> float:
    """Return what the manager of a fleet costs while all shards sleep, dollars a month."""
    seconds = (config.linger_ms + _TURN_MS) / 1_000
    return _RUNS_PER_MONTH * (seconds * manager_memory_mb / 1_024 * _GB_SECOND + _REQUEST)


def told(config: FleetConfig, *, manager_memory_mb: int) -> str:
    """Say what sleep costs, and what waking costs at most in time."""
    dollars = asleep_per_month(config, manager_memory_mb=manager_memory_mb)
    runs_s = config.linger_ms // 1_000
    looks = f"stays {runs_s} s of each minute to look" if runs_s else "looks once a minute"
    return (
        f"sleep is on: a shard falls asleep after {config.sleep_after_ms // 1_000} s without a "
        f"record, and the first record waits up to {config.wake_most_ms // 1_000} s "
        f"(wake_most_ms). While all shards sleep, the manager ({manager_memory_mb} MB) {looks}: "
        f"about ${dollars:.2f} a month for the fleet (list prices of 2026-11-20, us-east-1)."
    )
