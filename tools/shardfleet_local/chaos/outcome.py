"""The outcome of a chaos run: what was done to the fleet, what became of the records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet_local.rig.verdict import RunVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOutcome:
    """
    Everything that was counted.

    Attributes:
        seed: of all choices.
        feed_ms: how long records were fed and trouble was made.
        wall_ms: the whole run.
        settled_ms: from the end of the trouble until everything was handled.
        verdict: what became of the records.
        unsettled: closed shards whose lease is wrong, and what is wrong.
        strikes: kills of `worker` and `manager` processes, and `freeze`.
        reshards: splits and merges.
        calls: that went through the proxy.
        errors: those of them that went wrong.
        faults: per kind of fault of a call, slow ones included.
        operations: errors per operation of AWS.
        stream_faults: what the stream was told to do wrong (false ends, empty reads), per kind.
        workers_started: worker processes that handled records.
        template_sha256: of the template that was deployed.

    """

    seed: int
    feed_ms: int
    wall_ms: int
    settled_ms: int
    verdict: RunVerdict
    unsettled: Mapping[str, str]
    strikes: Mapping[str, int]
    reshards: int
    calls: int
    errors: int
    faults: Mapping[str, int]
    operations: Mapping[str, int]
    stream_faults: Mapping[str, int]
    workers_started: int
    template_sha256: str

    @property
    def passed(self) -> bool:
        """Tell whether every promise was kept."""
        return self.verdict.passed and not self.unsettled

    @property
    def kills(self) -> int:
        """Count the processes that were killed."""
        return self.strikes.get("worker", 0) + self.strikes.get("manager", 0)


def result_of(outcome: ChaosOutcome) -> dict[str, Any]:
    """Return the content of `result.json`."""
    verdict = outcome.verdict
    return {
        "passed": outcome.passed,
        "seed": outcome.seed,
        "feed_seconds": outcome.feed_ms // 1000,
        "settled_seconds": round(outcome.settled_ms / 1000, 1),
        "wall_seconds": round(outcome.wall_ms / 1000, 1),
        "kills": outcome.kills,
        "worker_kills": outcome.strikes.get("worker", 0),
        "manager_kills": outcome.strikes.get("manager", 0),
        "freezes": outcome.strikes.get("freeze", 0),
        "reshards": outcome.reshards,
        "calls": outcome.calls,
        "injected_errors": outcome.errors,
        "injected_by_kind": dict(sorted(outcome.faults.items())),
        "injected_by_operation": dict(sorted(outcome.operations.items())),
        "stream_faults": dict(sorted(outcome.stream_faults.items())),
        "workers_started": outcome.workers_started,
        "records": verdict.records_in,
        "records_handled_distinct": verdict.records_handled_distinct,
        "duplicates": verdict.duplicates,
        "lost": len(verdict.lost),
        "out_of_order": len(verdict.out_of_order),
        "foreign": verdict.foreign,
        "parents_before_children": verdict.parents_before_children,
        "unsettled_leases": dict(outcome.unsettled),
        "template_sha256": outcome.template_sha256,
    }


def write_result(outcome: ChaosOutcome, path: Path) -> None:
    """Write `result.json`, and beside it the numbers of what was lost or late, if anything was."""
    path.write_text(json.dumps(result_of(outcome), indent=2) + "\n", encoding="utf-8")
    broken = path.with_name("broken.json")
    broken.unlink(missing_ok=True)
    if not outcome.passed:
        verdict = outcome.verdict
        found = {"lost": verdict.lost, "out_of_order": verdict.out_of_order}
        broken.write_text(json.dumps(found) + "\n", encoding="utf-8")
