"""
The demo itself: feed and trouble side by side, a table to look at, and a verdict at the end.

It ends when every record has been handled and every closed shard's lease is at its end, or when
nothing of that has come true long after the feed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.system import SystemClock
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import ShardfleetError
from shardfleet.producer.settings import ProducerCounts
from shardfleet_local.rig.explained import explained_leases
from shardfleet_local.rig.feed import FeedPace, SentRecord, feed_stream
from shardfleet_local.rig.fleet import FleetPlan, RunningFleet, running_fleet
from shardfleet_local.rig.incidents import FULL_SCENARIO, Incident, Troublemaker
from shardfleet_local.rig.live import Display, RunSnapshot
from shardfleet_local.rig.outcome import Outcome
from shardfleet_local.rig.progress import Progress, shard_views
from shardfleet_local.rig.recovery import recoveries
from shardfleet_local.rig.source import Source
from shardfleet_local.rig.spark_part import run_spark
from shardfleet_local.rig.verdict import FirstDeliveries, unsettled_leases, verdict

FEED_MS = 110_000
"""How long the feed lasts: long enough for the throttled minute and what comes around it."""

RECORDS_PER_S_MOST = 2_000
"""A longer input is fed for longer: half of what four shards take."""

SETTLE_MOST_MS = 120_000
"""How long after the feed and the last incident everything must have been handled."""

LOOK_EVERY_MS = 500
LEDGER_FILE = "ledger.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """
    What to do.

    Attributes:
        source: what to feed.
        folder: where the ledger goes; it is made, an older ledger in it is replaced.
        seed: of all choices.
        plan: the fleet.
        scenario: what is done to it.
        feed_ms: how long the feed lasts, at least.
        spark: whether the stream goes through Spark, too, when the fleet is done.

    """

    source: Source
    folder: Path
    seed: int = 1
    plan: FleetPlan = field(default_factory=FleetPlan)
    scenario: tuple[Incident, ...] = FULL_SCENARIO
    feed_ms: int = FEED_MS
    spark: bool = False

    @property
    def duration_ms(self) -> int:
        """Return how long the feed lasts."""
        return max(self.feed_ms, len(self.source.records) * 1000 // RECORDS_PER_S_MOST)


def run_demo(options: DemoOptions, display: Display) -> Outcome:
    """
    Run a demo to its end; the verdict may be good or bad.

    Raises:
        ConfigurationError, EmbeddedAwsFailed, DeploymentFailed: it did not begin.
        IncidentFailed: the fleet never came into the state that an incident needs.

    """
    started_ms = SystemClock().monotonic_ms()
    options.folder.mkdir(parents=True, exist_ok=True)
    ledger_file = options.folder.resolve() / LEDGER_FILE
    ledger_file.unlink(missing_ok=True)
    with running_fleet(ledger_file, options.plan, say=display.say) as fleet:
        run = _Run(fleet, options, display=display)
        outcome = asyncio.run(run.to_its_end(started_ms))
        if options.spark:
            outcome = _through_spark(fleet, outcome, display=display)
        display.say("asking why each shard is where it is")
        return replace(outcome, explained=asyncio.run(explained_leases(fleet)))


def _through_spark(fleet: RunningFleet, outcome: Outcome, *, display: Display) -> Outcome:
    """Run the demo's second half, and add what came of it."""
    spark = run_spark(
        fleet.aws,
        outcome.source.records,
        stream_name=fleet.stream_name,
        now_ms=SystemClock().now_ms,
        say=display.say,
    )
    return replace(outcome, spark=spark, wall_ms=outcome.wall_ms + spark.wall_ms)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was there at the last look."""

    shards: Sequence[Shard]
    leases: Sequence[Lease]


class _Run:
    def __init__(self, fleet: RunningFleet, options: DemoOptions, *, display: Display) -> None:
        self._fleet = fleet
        self._options = options
        self._display = display
        self._clock = SystemClock()
        self._progress = Progress(total=len(options.source.records))
        self._trouble = Troublemaker(
            fleet, clock=self._clock, seed=options.seed, say=display.happened
        )
        self._worker_pids: set[int] = set()
        self._began_ms = 0

    async def to_its_end(self, started_ms: int) -> Outcome:
        """Feed and disturb the fleet, wait until it has settled, and judge."""
        await self._until_leased()
        self._began_ms = self._clock.now_ms()
        duration_ms = self._options.duration_ms
        self._display.say(
            f"feeding {self._options.source.name} for {duration_ms // 1000} s, with "
            f"{len(self._options.scenario)} incidents on the way"
        )
        with self._display.watching(self._began_ms):
            watching = asyncio.create_task(self._watch())
            try:
                sent, counts = await self._feed_and_disturb(duration_ms)
                fed_ms = self._clock.now_ms()
                seen = await self._until_settled(sent)
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
        return self._outcome(sent, counts, seen=seen, fed_ms=fed_ms, started_ms=started_ms)

    async def _feed_and_disturb(self, duration_ms: int) -> tuple[list[SentRecord], ProducerCounts]:
        """Do both to the end of both; the failure of one ends the other."""
        records = self._options.source.records
        feeding = asyncio.create_task(
            feed_stream(
                records,
                self._fleet.aws,
                stream_arn=self._fleet.stream_arn,
                pace=FeedPace(duration_ms),
                on_sent=self._progress.note_sent,
            )
        )
        disturbing = asyncio.create_task(
            self._trouble.run(self._options.scenario, duration_ms=duration_ms)
        )
        try:
            fed, _ = await asyncio.gather(feeding, disturbing)
        finally:
            feeding.cancel()
            disturbing.cancel()
        return fed

    async def _until_leased(self) -> None:
        """Wait for the deployment's first manager run: every shard's lease has an owner."""
        self._display.say("waiting for the fleet's first workers")
        deadline_ms = self._clock.monotonic_ms() + SETTLE_MOST_MS
        while self._clock.monotonic_ms() < deadline_ms:
            leases = await asyncio.to_thread(self._fleet.leases)
            if leases and all(lease.lease_owner for lease in leases):
                return
            await self._clock.sleep_ms(LOOK_EVERY_MS)

    async def _watch(self) -> None:
        """Keep the display, the progress and the set of processes up to date."""
        while True:
            # A look that fails is one look less; what matters is judged at the end.
            with contextlib.suppress(BotoCoreError, ClientError, ShardfleetError):
                self._display.update(await self._snapshot())
            await self._clock.sleep_ms(LOOK_EVERY_MS)

    async def _snapshot(self) -> RunSnapshot:
        seen = await self._look()
        workers = await asyncio.to_thread(self._fleet.workers)
        self._worker_pids |= {each.pid for each in workers}
        now_ms = self._clock.now_ms()
        return RunSnapshot(
            elapsed_ms=now_ms - self._began_ms,
            total=self._progress.total,
            sent=self._progress.sent,
            handled=self._progress.handled,
            workers=len(workers),
            views=shard_views(self._progress, seen.shards, leases=seen.leases, now_ms=now_ms),
        )

    async def _look(self) -> _Seen:
        self._progress.note_handled(self._fleet.ledger.read())
        shards = await asyncio.to_thread(self._fleet.shards)
        return _Seen(shards, await asyncio.to_thread(self._fleet.leases))

    async def _until_settled(self, sent: Sequence[SentRecord]) -> _Seen:
        deadline_ms = self._clock.monotonic_ms() + SETTLE_MOST_MS
        while True:
            seen = await self._look()
            lines = self._fleet.ledger.lines
            settled = not unsettled_leases(seen.shards, seen.leases)
            if settled and not verdict(sent, lines, shards=seen.shards).lost:
                return seen
            if self._clock.monotonic_ms() > deadline_ms:
                return seen
            await self._clock.sleep_ms(LOOK_EVERY_MS)

    def _outcome(
        self,
        sent: Sequence[SentRecord],
        counts: ProducerCounts,
        *,
        seen: _Seen,
        fed_ms: int,
        started_ms: int,
    ) -> Outcome:
        lines = self._fleet.ledger.lines
        deliveries = FirstDeliveries()
        deliveries.sent(sent)
        for line in lines:
            deliveries.handled(line)
        log = self._trouble.log
        return Outcome(
            source=self._options.source,
            seed=self._options.seed,
            enforce_iam=self._options.plan.enforce_iam,
            verdict=verdict(sent, lines, shards=seen.shards),
            unsettled=unsettled_leases(seen.shards, seen.leases),
            recoveries=recoveries(log.kills, lines, sent=sent, blackouts=log.blackouts),
            log=log,
            sent=sent,
            first_handled_ms=deliveries.first_ms,
            counts=counts,
            shards=seen.shards,
            leases=seen.leases,
            worker_pids=frozenset(self._worker_pids | {line.pid for line in lines}),
            template_sha256=self._fleet.stack.template_sha256,
            began_ms=self._began_ms,
            fed_ms=fed_ms,
            ended_ms=max((line.at_ms for line in lines), default=fed_ms),
            wall_ms=self._clock.monotonic_ms() - started_ms,
        )
