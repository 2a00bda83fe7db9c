"""
How a consumer of `bench_e2e_consumer.py` is asked to consume: lines of JSON by stdin and stdout.

A consumer runs in an environment of its own, so this is the standard library only. It consumes a
stream to a known number of user records, stores its progress, and answers with the CPU and the
time that took, and with what it saw: a digest per shard of the data in the order of arrival.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The first bytes of each user record's data: the shard it was sent to.
SHARD_BYTES = 2


@dataclass(frozen=True)
class Task:
    """
    What to consume.

    Attributes:
        stream: its name.
        arn: its ARN.
        shards: ids.
        records: user records in all shards.
        aggregated: whether they are inside KPL aggregates.
        lease_table: for progress; in ours also for leases.
        state_table: ours only.
        checkpoint_ms: least time between two checkpoints of a shard.

    """

    stream: str
    arn: str
    shards: list[str]
    records: int
    aggregated: bool
    lease_table: str
    state_table: str
    checkpoint_ms: int


def serve(consume: Callable[[Task], list[bytes]]) -> None:
    """Answer one task per line until stdin ends; `consume` returns the data of all records."""
    # What the consumer itself says on stdout (metrics, logs) is no answer.
    answers, nowhere = sys.stdout, Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - kept
    sys.stdout = nowhere
    for line in sys.stdin:
        task = Task(**json.loads(line))
        cpu_s, wall_s = time.process_time(), time.monotonic()
        seen = consume(task)
        answer = {
            "cpu_s": time.process_time() - cpu_s,
            "wall_s": time.monotonic() - wall_s,
            "records": len(seen),
            "digests": digests(seen),
        }
        print(json.dumps(answer), file=answers, flush=True)


def digests(seen: list[bytes]) -> dict[str, str]:
    """Return a digest of each shard's data in the order of arrival."""
    found: dict[str, list[bytes]] = {}
    for data in seen:
        found.setdefault(data[:SHARD_BYTES].decode(), []).append(data)
    return {shard: hashlib.sha256(b"|".join(parts)).hexdigest() for shard, parts in found.items()}
