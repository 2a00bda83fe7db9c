"""A run of a user's own handler over a user's own records, on the same machinery as the demo."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardfleet.adapters.dynamodb.leases import TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.system import SystemClock
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.slots.failure import CRASHES, FailureKind
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet_local.own.own_code import staged
from shardfleet_local.rig.assembly_cache import AssemblyCache
from shardfleet_local.rig.feed import SentRecord, feed_stream
from shardfleet_local.rig.fleet import FleetPlan, RunningFleet, running_fleet
from shardfleet_local.rig.source import Source
from shardfleet_local.rig.verdict import Deliveries, RunVerdict, verdict
from shardfleet_ops.explain.fleet_view import FailureRow, failures

SHARDS = 4
STILL_MOST_MS = 120_000
"""A run in which nothing is handled for so long is given up."""

DEATHS_MOST = 5
"""So many in a row: one record alone would have its stop one death earlier (H9)."""

CRASHING_MOST_MS = 4_000
"""So long for the other shards to go on once a record was charged with the deaths."""

HANGING_MOST_MS = 10_000
"""So long without a record when a call has outlived its time-out."""

LOOK_EVERY_MS = 500
PROGRESS_EVERY_MS = 2_000
"""How often is told how many records are handled, while it goes on."""

_LAMBDAS_OWN = ("START RequestId: ", "END RequestId: ", "REPORT RequestId: ")
_FLEETS_OWN = ('"service":"shardfleet"', '{"_aws"')


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRunOptions:
    """
    What to run.

    Attributes:
        handler: `module:function`.
        folder: where its top-level module or package lies.
        source: what to feed.
        shards: of the stream.
        enforce_iam: whether roles have only their own rights.
        cache: of synthesized assemblies.

    """

    handler: str
    folder: Path
    source: Source
    shards: int = SHARDS
    enforce_iam: bool = False
    cache: AssemblyCache | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedShard:
    """
    A shard that a failing record has stopped.

    Attributes:
        note: what the fleet wrote down.
        line: the record's line in the input; None if its position is none that was sent.

    """

    note: StopNote
    line: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRunResult:
    """
    What came of it.

    Attributes:
        verdict: what became of the records.
        stops: what was stopped.
        failures: what workers failed of at the end.
        took_ms: from the first record sent to the last one handled.

    """

    verdict: RunVerdict
    stops: Sequence[StoppedShard]
    failures: Sequence[FailureRow]
    took_ms: int

    @property
    def passed(self) -> bool:
        """Return whether every record was handled, in order."""
        return self.verdict.passed and not self.stops


class HandlerOutput:
    """
    Reads on in a log group; lines of Lambda and of shardfleet itself are left out.

    Args:
        logs: a boto3 client of CloudWatch Logs.
        group: the worker function's log group.

    """

    def __init__(self, logs: Any, group: str) -> None:
        self._logs = logs
        self._group = group
        self._tokens: dict[str, str] = {}

    def read(self) -> list[str]:
        """Return the lines that are new."""
        pages = self._logs.get_paginator("describe_log_streams").paginate(logGroupName=self._group)
        streams = [each["logStreamName"] for page in pages for each in page["logStreams"]]
        return [line for stream in sorted(streams) for line in self._new_lines(stream)]

    def _new_lines(self, stream: str) -> list[str]:
        lines: list[str] = []
        while True:
            token = self._tokens.get(stream)
            answer = self._logs.get_log_events(
                logGroupName=self._group,
                logStreamName=stream,
                startFromHead=True,
                **({"nextToken": token} if token else {}),
            )
            self._tokens[stream] = answer["nextForwardToken"]
            lines += [each["message"].rstrip("\n") for each in answer["events"]]
            if not answer["events"] or answer["nextForwardToken"] == token:
                return [
                    line
                    for line in lines
                    if not line.startswith(_LAMBDAS_OWN)
                    and not any(mark in line for mark in _FLEETS_OWN)
                ]


@dataclass(slots=True)
class HandledSoFar:
    """How many records of all are handled: told while it changes, and not too often."""

    records: int
    told_ms: int
    told: int = 0

    def news(self, handled: int, *, now_ms: int) -> str | None:
        """Return what to say, if anything: it is less than all, more than was told, and time."""
        if now_ms - self.told_ms < PROGRESS_EVERY_MS or not self.told < handled < self.records:
            return None
        self.told, self.told_ms = handled, now_ms
        return f"{handled:,} of {self.records:,} records handled"


def is_hopeless(failures: Sequence[FailureRow], *, stops: int, still_ms: int) -> bool:
    """
    Return whether nothing more will be handled.

    Args:
        failures: what workers fail of.
        stops: how many shards a failing record has stopped.
        still_ms: for how long nothing has been handled, and no shard was stopped.

    """
    for each in failures:
        if each.kind is FailureKind.TIME_OUT:
            return still_ms >= HANGING_MOST_MS
        if each.kind in CRASHES:
            deaths_most = DEATHS_MOST - bool(stops)
            return still_ms >= CRASHING_MOST_MS and each.times >= deaths_most
    return any(each.is_certain for each in failures)


def own_run(
    options: OwnRunOptions, *, say: Callable[[str], None], printed: Callable[[str], None]
) -> OwnRunResult:
    """
    Run a handler over records and wait until all are handled, or nothing moves any more.

    Args:
        options: what to run.
        say: told of each step.
        printed: given each line that the handler prints, while it runs.

    Raises:
        ConfigurationError: the handler does not import, or a setting is wrong.
        EmbeddedAwsFailed, DeploymentFailed: it did not begin.

    """
    with tempfile.TemporaryDirectory(prefix="shardfleet-") as folder:
        project = staged(options.folder, options.handler, target=Path(folder) / "project")
        plan = FleetPlan(
            project=project,
            context={
                "shardfleet:stream": {"shards": options.shards},
                "shardfleet:handler": ".",
                "shardfleet:function": options.handler,
                # On the developer's own machine, of the developer's own records.
                "shardfleet:config": {"log_errors": True},
            },
            enforce_iam=options.enforce_iam,
            cache=options.cache,
        )
        with running_fleet(Path(folder) / "ledger.jsonl", plan, say=say) as fleet:
            return asyncio.run(_run(fleet, options, say=say, printed=printed))


async def _run(
    fleet: RunningFleet,
    options: OwnRunOptions,
    *,
    say: Callable[[str], None],
    printed: Callable[[str], None],
) -> OwnRunResult:
    clock, ledger, records = SystemClock(), fleet.ledger, options.source.records
    began_ms = clock.now_ms()
    say(f"feeding {len(records):,} records of {options.source.name}")
    group = fleet.function("WorkerFunction")["LoggingConfig"]["LogGroup"]
    output = HandlerOutput(fleet.aws.client("logs"), group)
    sent, _ = await feed_stream(records, fleet.aws, stream_arn=fleet.stream_arn, duration_ms=0)
    moved_ms = clock.monotonic_ms()
    progress, before = HandledSoFar(len(records), moved_ms), (-1, 0)
    async with _opened_state(fleet) as state:
        while True:
            stops, slots = await asyncio.gather(state.stops(), state.slots())
            failing = failures((each.slot for each in slots), now_ms=clock.now_ms())
            ledger.read()
            for line in await asyncio.to_thread(output.read):
                printed(line)
            deliveries, now_ms = Deliveries.of(sent, ledger.lines), clock.monotonic_ms()
            if news := progress.news(len(deliveries.first_ms), now_ms=now_ms):
                say(news)
            after = (len(deliveries.first_ms), len(stops))
            if after != before:
                before, moved_ms = after, now_ms
            left = {shard_id for shard_id, waiting in deliveries.waiting.items() if waiting}
            if (
                left <= {note.lease_key for note in stops}
                or now_ms - moved_ms > STILL_MOST_MS
                or is_hopeless(failing, stops=len(stops), still_ms=now_ms - moved_ms)
            ):
                break
            await clock.sleep_ms(LOOK_EVERY_MS)
    return OwnRunResult(
        verdict=verdict(sent, ledger.lines, shards=await asyncio.to_thread(fleet.shards)),
        stops=[StoppedShard(note=note, line=_line_of(note, sent)) for note in stops],
        failures=failing,
        took_ms=max((line.at_ms for line in ledger.lines), default=began_ms) - began_ms,
    )


@contextlib.asynccontextmanager
async def _opened_state(fleet: RunningFleet) -> AsyncIterator[FleetState]:
    """Open a fleet's state table, and close what reaches it at the end."""
    client, pool = fleet.aws.client("dynamodb"), ThreadPool("tables", threads=2)
    pools = TablePools(writes=pool, reads=pool, write_client=client, read_client=client)
    try:
        table = DynamoDBStateStore(fleet.stack.outputs["StateTable"], pools)
        yield FleetState(table, SystemClock())
    finally:
        await pool.close(within_ms=10_000)


def _line_of(note: StopNote, sent: Sequence[SentRecord]) -> int | None:
    sequence_number, _, sub = note.position.partition(":")
    place = (note.lease_key, sequence_number, int(sub or 0))
    return next((each.number for each in sent if tuple(each.receipt)[:3] == place), None)
