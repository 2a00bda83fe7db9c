"""What the steps of a run work on: the deployed fleet, its feed, its notes, the command line."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import Clock
from shardfleet.errors import ShardfleetError
from shardfleet_local.acceptance.deployment import Deployment
from shardfleet_local.acceptance.notes import BatchNotes
from shardfleet_local.acceptance.plan import AcceptanceSize
from shardfleet_local.aws.deploy import StackOutputs
from shardfleet_local.rig.feed import Feeder, SentRecord
from shardfleet_local.rig.verdict import Deliveries, RunVerdict, verdict

_LOOK_EVERY_MS = 500
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
        stack: its outputs.
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

    @property
    def sent(self) -> Sequence[SentRecord]:
        """What was sent so far."""
        return self.feeder.sent

    def client(self, service: str) -> Any:
        """Make a boto3 client of the account."""
        return self.deployment.account.client(service)

    def output(self, name: str) -> str:
        """Return an output of the stack."""
        return self.stack.outputs[name]

    def first_ms(self) -> dict[int, int]:
        """Return when each record was first handled, by its number, as far as is noted."""
        return Deliveries.of(self.sent, self.notes.lines).first_ms

    async def verdict(self) -> RunVerdict:
        """Judge everything so far."""
        shards = await self.shards()
        return verdict(list(self.sent), self.notes.lines, shards=shards)

    async def shards(self) -> list[Shard]:
        """List all shards, closed ones too."""
        client = self.client("kinesis")
        return await asyncio.to_thread(list_shards, client, self.output("StreamArn"))

    async def open_shards(self) -> list[Shard]:
        """List those that take records, in the order of their hash ranges."""
        found = [each for each in await self.shards() if each.is_open]
        return sorted(found, key=lambda each: each.hash_key_range)

    async def handled(self, *, sent_by_ms: int, within_ms: int, what: str) -> dict[int, int]:
        """
        Wait until all that was sent by an instant is handled, and return when each first was.

        Raises:
            StepFailed: it was not in time.

        """
        deadline_ms = self.clock.monotonic_ms() + within_ms
        while True:
            await asyncio.to_thread(self.notes.read)
            first = self.first_ms()
            left = [r for r in self.sent if r.sent_ms <= sent_by_ms and r.number not in first]
            if not left:
                return first
            if self.clock.monotonic_ms() > deadline_ms:
                raise StepFailed(
                    f"{what}: {len(left)} records were not handled within "
                    f"{within_ms // 1000} s, the first of them number {left[0].number} of "
                    f"{left[0].receipt.shard_id}"
                )
            await self.clock.sleep_ms(_LOOK_EVERY_MS)

    async def running(self) -> dict[str, int]:
        """Return when each running execution was started, epoch milliseconds, by its ARN."""

        def ask() -> dict[str, int]:
            pages = self.client("stepfunctions").get_paginator("list_executions")
            found = pages.paginate(
                stateMachineArn=self.output("StateMachineArn"), statusFilter="RUNNING"
            )
            return {
                each["executionArn"]: round(each["startDate"].timestamp() * 1000)
                for page in found
                for each in page["executions"]
            }

        return await asyncio.to_thread(ask)

    async def shardfleet(self, *arguments: str) -> Any:
        """
        Run the command line as a person would, and return what it answers as JSON.

        Raises:
            StepFailed: it did not exit with 0.

        """
        words = [*arguments, "--json", "--stack", self.deployment.name]

        def call() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-P", "-c", _COMMAND, *words],
                env=self.deployment.account.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_COMMAND_LIMIT_S,
                check=False,
            )

        done = await asyncio.to_thread(call)
        if done.returncode:
            told = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise StepFailed(
                f"shardfleet {' '.join(arguments)}: exit code {done.returncode}: {' '.join(told)}"
            )
        return json.loads(done.stdout) if done.stdout.strip() else None
