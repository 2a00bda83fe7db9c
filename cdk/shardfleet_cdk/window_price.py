"""
What tumbling windows cost, told at synthesis: a busy shard's state is written with each checkpoint.

Prices: `shardfleet.domain.cost.prices`; a write unit is a write of up to 1 KB.
"""

from __future__ import annotations

from shardfleet.config import FleetConfig
from shardfleet.domain.cost.estimate import window_per_month
from shardfleet.domain.cost.prices import PRICES


def told(config: FleetConfig) -> str:
    """Return what a kilobyte of a window's state costs, and what makes it cheaper."""
    dollars = window_per_month(config)
    large = (
        "a state above 340 KB goes to failed_bucket, an object a checkpoint"
        if config.failed_bucket
        else "a state above 340 KB is refused, for failed_bucket is not set"
    )
    return (
        f"tumbling windows of {config.tumbling_window_ms // 1_000} s: the state of a busy shard is "
        f"written each {config.checkpoint_ms} ms (checkpoint_ms), for about ${dollars:.2f} a month "
        f"and shard for each KB of it (list prices of {PRICES.as_of}, {PRICES.region}); a longer "
        f"checkpoint_ms is cheaper and repeats more after a crash; {large}."
    )
