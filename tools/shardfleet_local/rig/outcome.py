"""
A run: what is asked for, and what comes of it, which is judged, counted, and `result.json`.

`RunOptions` as they are make the demo; `chaos_options` makes chaos of them. The third profile is
the room `acceptance`, whose steps can be done in an account that is not on this machine.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import ConfigurationError
from shardfleet.producer.settings import ProducerCounts
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.fleet import FleetPlan
from shardfleet_local.rig.incidents import (
    FREEZE,
    FULL_SCENARIO,
    KILL_MANAGER,
    KILL_WORKER,
    MERGE,
    SPLIT,
    THROTTLE,
    WRONG_ANSWER,
    FleetDisturbance,
    Incident,
    chaos_scenario,
    of_kind,
)
from shardfleet_local.rig.proxy import ERROR_RATE, FaultDice
from shardfleet_local.rig.source import Source, click_stream
from shardfleet_local.rig.spark_part import SparkOutcome
from shardfleet_local.rig.verdict import RunVerdict, ShardRecovery

RECOVERY_WANTED_S = 5.0
"""A killed worker's shards go on within this time; above it the demo says so."""

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

DRIVERS = (LAMBDA, PROCESS) = ("lambda", "process")
"""What may carry a fleet: a deployed stack, or processes of `shardfleet work`."""

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
        driver: what carries it, one of ``DRIVERS``.
        scenario: what is done to it.
        feed_ms: how long the feed lasts, at least.
        settle_ms: how long after it everything must have been handled.
        spark: whether the stream goes through Spark, too, when the fleet is done.

    """

    source: Source
    folder: Path
    seed: int = 1
    plan: FleetPlan = field(default_factory=FleetPlan)
    driver: str = LAMBDA
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
    driver: str = LAMBDA,
) -> RunOptions:
    """
    Return the profile of chaos.

    Args:
        minutes: how long to feed and to make trouble.
        records_per_minute: how fast to feed.
        folder: where the ledger goes.
        seed: of all choices.
        error_rate: part of the calls to DynamoDB, Kinesis and Step Functions that go wrong.
        driver: what carries the fleet, one of ``DRIVERS``.

    Raises:
        ConfigurationError: there is no such driver.

    """
    if driver not in DRIVERS:
        raise ConfigurationError(f"--driver {driver}: {' or '.join(DRIVERS)} expected")
    duration_ms = round(minutes * 60_000)
    dice = FaultDice(random.Random(seed), rate=error_rate, is_on=False)
    return RunOptions(
        source=click_stream(round(minutes * records_per_minute), seed=seed),
        folder=folder,
        seed=seed,
        plan=FleetPlan(environment=SHORT_TURNS, dice=dice),
        driver=driver,
        scenario=chaos_scenario(duration_ms, seed=seed),
        feed_ms=duration_ms,
        settle_ms=CHAOS_SETTLE_MOST_MS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    Everything that is known at the end of a run.

    Attributes:
        options: what was to be done.
        verdict: what became of the records.
        unsettled: closed shards whose lease is wrong, and what is wrong.
        recoveries: of the kills.
        happenings: what was done to the fleet.
        sent: every record's way into the stream.
        first_handled_ms: number of a record to when it was first handled.
        counts: what the producer went through.
        shards: the final listing.
        leases: the final lease table.
        worker_pids: every worker process seen.
        template_sha256: of the template that was deployed.
        began_ms: when the feed began, epoch milliseconds.
        fed_ms: when it was over.
        ended_ms: when everything was sent and handled.
        settled_ms: when every lease was seen as it should be, or was given up.
        wall_ms: the whole run, synthesis and start included.
        spark: what came out of Spark; None if that was not asked for.

    """

    options: RunOptions
    verdict: RunVerdict
    unsettled: Mapping[str, str]
    recoveries: Sequence[ShardRecovery]
    happenings: Sequence[FleetDisturbance]
    sent: Sequence[SentRecord]
    first_handled_ms: Mapping[int, int]
    counts: ProducerCounts
    shards: Sequence[Shard]
    leases: Sequence[Lease]
    worker_pids: frozenset[int]
    template_sha256: str
    began_ms: int
    fed_ms: int
    ended_ms: int
    settled_ms: int
    wall_ms: int
    spark: SparkOutcome | None = None

    @property
    def passed(self) -> bool:
        """Return whether every promise was kept."""
        return not self.problems()

    def done(self, *kinds: str) -> int:
        """Count what was done to the fleet, of some kinds."""
        return len(of_kind(self.happenings, *kinds))

    @property
    def reshards(self) -> int:
        """Count the splits and merges."""
        return self.done(SPLIT, MERGE)

    @property
    def throttled_s(self) -> int:
        """Return for how long shards refused every read, in seconds."""
        return sum(h.until_ms - h.at_ms for h in of_kind(self.happenings, THROTTLE)) // 1000

    @property
    def crash_recovery_s(self) -> list[float | None]:
        """Return, for each kill and shard, seconds until the next handled record."""
        return [None if r.took_ms is None else round(r.took_ms / 1000, 3) for r in self.recoveries]

    @property
    def slow_recoveries(self) -> int:
        """Count the recoveries that took longer than wanted."""
        return sum(took is None or took >= RECOVERY_WANTED_S for took in self.crash_recovery_s)

    @property
    def aggregated(self) -> int:
        """Count the records that travelled in aggregates."""
        return sum(record.receipt.aggregated for record in self.sent)

    def problems(self) -> list[str]:
        """Return what went wrong, in words; nothing when the promises were kept."""
        return [
            *self.verdict.problems(),
            *(f"{shard_id}: {what}" for shard_id, what in self.unsettled.items()),
            *(self.spark.wrong if self.spark else ()),
        ]


def result_of(outcome: Outcome) -> dict[str, Any]:
    """Return the content of `result.json`."""
    verdict, options, dice = outcome.verdict, outcome.options, outcome.options.plan.dice
    common = {
        "passed": outcome.passed,
        "seed": options.seed,
        "records_handled_distinct": verdict.records_handled_distinct,
        "duplicates": verdict.duplicates,
        "lost": len(verdict.lost),
        "foreign": verdict.foreign,
        "parents_before_children": verdict.parents_before_children,
        "unsettled_leases": dict(outcome.unsettled),
        "reshards": outcome.reshards,
        "worker_kills": outcome.done(KILL_WORKER),
        "manager_kills": outcome.done(KILL_MANAGER),
        "workers_started": len(outcome.worker_pids),
        "template_sha256": outcome.template_sha256,
        "wall_seconds": round(outcome.wall_ms / 1000, 1),
    }
    return common | (_of_chaos(outcome, dice) if dice else _of_demo(outcome))


def _of_demo(outcome: Outcome) -> dict[str, Any]:
    return {
        "records_in": outcome.verdict.records_in,
        "out_of_order_per_key": len(outcome.verdict.out_of_order),
        "crash_recovery_seconds": outcome.crash_recovery_s,
        "throttled_seconds": outcome.throttled_s,
        "records_aggregated": outcome.aggregated,
        "aggregates_sent_again": outcome.counts.misrouted,
        "rejected_lines": {why: list(n) for why, n in outcome.options.source.rejects.items()},
        "iam_enforced": outcome.options.plan.enforce_iam,
        "spark": outcome.spark.figures() if outcome.spark else None,
        "source": outcome.options.source.name,
    }


def _of_chaos(outcome: Outcome, dice: FaultDice) -> dict[str, Any]:
    wrong = of_kind(outcome.happenings, WRONG_ANSWER)
    wrong_answers = Counter(each.text.rpartition(" ")[2] for each in wrong)
    return {
        "feed_seconds": (outcome.fed_ms - outcome.began_ms) // 1000,
        "settled_seconds": round((outcome.settled_ms - outcome.fed_ms) / 1000, 1),
        "kills": outcome.done(KILL_WORKER, KILL_MANAGER),
        "freezes": outcome.done(FREEZE),
        "calls": dice.calls,
        "injected_errors": dice.errors,
        "injected_by_kind": dict(sorted(dice.drawn.items())),
        "injected_by_operation": dict(sorted(dice.operations.items())),
        "stream_faults": dict(sorted(wrong_answers.items())),
        "records": outcome.verdict.records_in,
        "out_of_order": len(outcome.verdict.out_of_order),
    }


def write_result(outcome: Outcome, folder: Path) -> Path:
    """Write `result.json`, and beside it the numbers of what was lost or late, if anything was."""
    path, broken = folder / "result.json", folder / "broken.json"
    path.write_text(json.dumps(result_of(outcome), indent=2) + "\n", encoding="utf-8")
    broken.unlink(missing_ok=True)
    if not outcome.passed:
        numbers = {"lost": outcome.verdict.lost, "out_of_order": outcome.verdict.out_of_order}
        broken.write_text(json.dumps(numbers) + "\n", encoding="utf-8")
    return path
