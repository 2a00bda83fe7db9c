"""What the steps of a run work on: the deployed fleet, its feed, its notes, the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import Clock
from shardfleet.errors import ShardfleetError
from shardfleet_local.acceptance.deployment import Deployment
from shardfleet_local.acceptance.plan import AcceptanceSize
from shardfleet_local.aws.deploy import StackOutputs
from shardfleet_local.rig.feed import Feeder, SentRecord
from shardfleet_local.rig.ledger import BatchNotes
from shardfleet_local.rig.verdict import Deliveries, RunVerdict, verdict
from shardfleet_local.rig.waiting import until

STEP_MS = 180_000
"""Longest wait for anything that a step waits for."""

_COMMAND_LIMIT_S = 240
_COMMAND = "from shardfleet_ops.cli import main; raise SystemExit(main())"


class StepFailed(ShardfleetError):
    """A step could not be done; the message says what did not come about."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """
    A deployed fleet under test.

    Attributes:
        deployment: what it is.
        size: how much is done.
        stack: as it was deployed last.
        folder: for what is synthesized.
        feeder: records in.
        notes: what was handled.
        clock: this machine's.

    """

    deployment: Deployment
    size: AcceptanceSize
    stack: StackOutputs
    folder: Path
    feeder: Feeder
    notes: BatchNotes
    clock: Clock

    def output(self, name: str) -> str:
        """Return an output of the stack."""
        return self.stack.outputs[name]

    def client(self, service: str) -> Any:
        """Return a boto3 client of the account."""
        return self.deployment.account.client(service)

    def first_ms(self) -> dict[int, int]:
        """Return when each record was first handled, by its number, as far as is noted."""
        return Deliveries.of(list(self.feeder.sent), self.notes.lines).first_ms

    async def verdict(self) -> RunVerdict:
        """Judge everything so far."""
        shards = await self.shards()
        return verdict(list(self.feeder.sent), self.notes.lines, shards=shards)

    async def shards(self) -> list[Shard]:
        """List all shards, closed ones too."""
        return await asyncio.to_thread(
            list_shards, self.client("kinesis"), self.output("StreamArn")
        )

    async def until(self, look: Callable[[], Any], *, what: str) -> Any:
        """
        Wait until a look answers something true, and return it.

        Raises:
            StepFailed: it was not in time.

        """
        answer = await until(look, clock=self.clock, within_ms=STEP_MS)
        if not answer:
            raise StepFailed(f"{what}: not within {STEP_MS // 1000} s")
        return answer

    async def slowest_ms(self, *, since_ms: int = 0, what: str) -> int:
        """
        Wait until all that was sent so far is handled.

        Returns:
            How long the slowest record waited, of those sent since an instant (epoch
            milliseconds); 0 if there is none.

        Raises:
            StepFailed: it was not in time.

        """
        due = list(self.feeder.sent)
        first_ms: dict[int, int] = {}
        left: list[SentRecord] = []

        def is_handled() -> bool:
            self.notes.read()
            first_ms.update(self.first_ms())
            left[:] = [record for record in due if record.number not in first_ms]
            return not left

        if not await until(is_handled, clock=self.clock, within_ms=STEP_MS):
            raise StepFailed(
                f"{what}: {len(left)} records were not handled within {STEP_MS // 1000} s, the "
                f"first of them number {left[0].number} of {left[0].receipt.shard_id}"
            )
        since = (record for record in due if record.sent_ms >= since_ms)
        return max((first_ms[r.number] - r.sent_ms for r in since), default=0)

    async def noted(self) -> int:
        """Return how many records were noted as handled so far, those that came again included."""
        await asyncio.to_thread(self.notes.read)
        return sum(len(line.records) for line in self.notes.lines)

    async def running(self) -> set[str]:
        """Return the ARNs of the running executions."""

        def ask() -> set[str]:
            listing = self.client("stepfunctions").get_paginator("list_executions")
            machine = self.output("StateMachineArn")
            pages = listing.paginate(stateMachineArn=machine, statusFilter="RUNNING")
            return {each["executionArn"] for page in pages for each in page["executions"]}

        return await asyncio.to_thread(ask)

    async def shardfleet(self, *arguments: str) -> Any:
        """
        Run the command line as a person would, and return what it answers as JSON.

        Raises:
            StepFailed: it did not exit with 0.

        """
        words = [*arguments, "--json", "--stack", self.deployment.name]
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-P", "-c", _COMMAND, *words],
            env=self.deployment.account.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_LIMIT_S,
            check=False,
        )
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise StepFailed(
                f"shardfleet {' '.join(arguments)}: exit code {done.returncode}: {' '.join(told)}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else None
