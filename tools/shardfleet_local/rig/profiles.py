"""
The profiles of a run: what is fed, what is done to the fleet, how long it may take to settle.

`RunOptions` as they are make the demo; `chaos_options` makes chaos of them. The third profile is
the room `acceptance`, whose steps can be done in an account that is not on this machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardfleet_local.rig.fleet import FleetPlan
from shardfleet_local.rig.incidents import FULL_SCENARIO, Incident, chaos_scenario
from shardfleet_local.rig.proxy import ERROR_RATE, FaultDice
from shardfleet_local.rig.source import Source, click_stream

FEED_MS = 110_000
"""How long the demo's feed lasts: enough for the throttled minute and what comes around it."""

RECORDS_PER_S_MOST = 2_000
"""A longer input is fed for longer: half of what four shards take."""

SETTLE_MOST_MS = 120_000
"""How long after the feed and the last incident everything must have been handled."""

CHAOS_SETTLE_MOST_MS = 420_000
"""
Longer than the longest wait of a state machine whose worker has crashed many times in a row
(hazard H9: five minutes).
"""

SHORT_TURNS = {"SHARDFLEET_MAX_TURN_MS": "10000", "SHARDFLEET_HANDLER_TIMEOUT_MS": "5000"}
"""So that trouble also meets turns that begin and end; one that ends well forgives crashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """
    What to do; without more than a source and a folder, the demo.

    Attributes:
        source: what to feed.
        folder: where the ledger goes; it is made, an older ledger in it is replaced.
        seed: of all choices.
        plan: the fleet, and the dice that let its calls fail while it is fed.
        scenario: what is done to it.
        feed_ms: how long the feed lasts, at least.
        settle_ms: how long after it everything must have been handled.
        spark: whether the stream goes through Spark, too, when the fleet is done.

    """

    source: Source
    folder: Path
    seed: int = 1
    plan: FleetPlan = field(default_factory=FleetPlan)
    scenario: Sequence[Incident] = FULL_SCENARIO
    feed_ms: int = FEED_MS
    settle_ms: int = SETTLE_MOST_MS
    spark: bool = False

    @property
    def duration_ms(self) -> int:
        """Return how long the feed lasts."""
        return max(self.feed_ms, len(self.source.records) * 1000 // RECORDS_PER_S_MOST)


def chaos_options(
    *,
    minutes: float,
    records_per_minute: int,
    folder: Path,
    seed: int = 1,
    error_rate: float = ERROR_RATE,
) -> RunOptions:
    """
    Return the profile of chaos.

    Args:
        minutes: how long to feed and to make trouble.
        records_per_minute: how fast to feed.
        folder: where the ledger goes.
        seed: of all choices.
        error_rate: part of the calls to DynamoDB, Kinesis and Step Functions that go wrong.

    """
    duration_ms = round(minutes * 60_000)
    dice = FaultDice(random.Random(seed), rate=error_rate, is_on=False)
    return RunOptions(
        source=click_stream(round(minutes * records_per_minute), seed=seed),
        folder=folder,
        seed=seed,
        plan=FleetPlan(environment=SHORT_TURNS, dice=dice),
        scenario=chaos_scenario(duration_ms, seed=seed),
        feed_ms=duration_ms,
        settle_ms=CHAOS_SETTLE_MOST_MS,
    )
