"""The outcome of a demo: what is judged, what is counted, and `result.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet.producer.settings import ProducerCounts
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.incidents import IncidentLog
from shardfleet_local.rig.recovery import ShardRecovery
from shardfleet_local.rig.source import Source
from shardfleet_local.rig.spark_part import SparkOutcome
from shardfleet_local.rig.verdict import RunVerdict
from shardfleet_ops.explain.answer import Explanation

RECOVERY_WANTED_S = 5.0
"""A killed worker's shards go on within this time; above it the demo says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    Everything that is known at the end of a demo.

    Attributes:
        source: what was fed.
        seed: of all choices.
        enforce_iam: whether roles had only their own rights.
        verdict: what became of the records.
        unsettled: closed shards whose lease is wrong, and what is wrong.
        recoveries: of the kills.
        log: what was done to the fleet.
        sent: every record's way into the stream.
        first_handled_ms: number of a record to when it was first handled.
        counts: what the producer went through.
        shards: the final listing.
        leases: the final lease table.
        worker_pids: every worker process seen.
        template_sha256: of the template that was deployed.
        began_ms: when the feed began, epoch milliseconds.
        fed_ms: when it was over.
        ended_ms: when everything was handled.
        wall_ms: the whole run, synthesis and start included.
        spark: what came out of Spark; None if that was not asked for.
        explained: why each lease is where it is, as `shardfleet explain` answers.

    """

    source: Source
    seed: int
    enforce_iam: bool
    verdict: RunVerdict
    unsettled: Mapping[str, str]
    recoveries: Sequence[ShardRecovery]
    log: IncidentLog
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
    wall_ms: int
    spark: SparkOutcome | None = None
    explained: Sequence[Explanation] = ()

    @property
    def passed(self) -> bool:
        """Tell whether every promise was kept."""
        through_spark = self.spark is None or self.spark.passed
        return self.verdict.passed and not self.unsettled and through_spark

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
        verdict = self.verdict
        found = []
        if verdict.lost:
            found.append(f"{len(verdict.lost):,} records were never handled: {_some(verdict.lost)}")
        if verdict.out_of_order:
            found.append(
                f"{len(verdict.out_of_order):,} records came after a later one of their key: "
                f"{_some(verdict.out_of_order)}"
            )
        if verdict.foreign:
            found.append(f"{verdict.foreign:,} handled records match nothing that was sent")
        if not verdict.parents_before_children:
            found.append("a child shard was read before its parent was done")
        found += [f"{shard_id}: {what}" for shard_id, what in self.unsettled.items()]
        found += self.spark.wrong if self.spark else []
        return found


def result_of(outcome: Outcome) -> dict[str, Any]:
    """Return the content of `result.json`."""
    verdict = outcome.verdict
    return {
        "passed": outcome.passed,
        "records_in": verdict.records_in,
        "records_handled_distinct": verdict.records_handled_distinct,
        "duplicates": verdict.duplicates,
        "lost": len(verdict.lost),
        "out_of_order_per_key": len(verdict.out_of_order),
        "parents_before_children": verdict.parents_before_children,
        "crash_recovery_seconds": outcome.crash_recovery_s,
        "reshards": outcome.log.reshards,
        "workers_started": len(outcome.worker_pids),
        "template_sha256": outcome.template_sha256,
        "wall_seconds": round(outcome.wall_ms / 1000, 1),
        "worker_kills": len(outcome.log.kills),
        "manager_kills": outcome.log.manager_kills,
        "throttled_seconds": sum(
            (each.until_ms - each.from_ms) // 1000 for each in outcome.log.blackouts
        ),
        "records_aggregated": outcome.aggregated,
        "aggregates_sent_again": outcome.counts.misrouted,
        "foreign": verdict.foreign,
        "rejected_lines": {why: list(lines) for why, lines in outcome.source.rejects.items()},
        "unsettled_leases": dict(outcome.unsettled),
        "iam_enforced": outcome.enforce_iam,
        "leases_explained": sum(each.since_ms is not None for each in outcome.explained),
        "spark": _spark_of(outcome.spark),
        "source": outcome.source.name,
        "seed": outcome.seed,
    }


def _spark_of(spark: SparkOutcome | None) -> dict[str, Any] | None:
    if spark is None:
        return None
    return {
        "skipped": spark.skipped,
        "passed": spark.passed,
        "records": spark.rows,
        "keys": spark.keys,
        "windows": spark.windows,
        "summed": list(spark.fields),
        "differences": list(spark.wrong),
        "micro_batches": len(spark.batches),
        "records_per_s_most": max(
            (each.rows * 1000 // max(1, each.took_ms) for each in spark.batches), default=0
        ),
        "wall_seconds": round(spark.wall_ms / 1000, 1),
    }


def write_result(outcome: Outcome, path: Path) -> None:
    """Write `result.json`."""
    path.write_text(json.dumps(result_of(outcome), indent=2) + "\n", encoding="utf-8")


def _some(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:5]))
    return f"{first}, ..." if len(numbers) > 5 else first  # noqa: PLR2004 - as many as are shown
