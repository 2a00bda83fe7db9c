"""
A run: feed and trouble side by side, a line now and then, and a verdict at the end.

It ends when every record has been handled and every closed shard's lease is at its end, or when
nothing of that has come true long after the feed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.system import SystemClock
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import ShardfleetError
from shardfleet.producer.settings import ProducerCounts
from shardfleet_local.rig.feed import SentRecord, feed_stream
from shardfleet_local.rig.fleet import RunningFleet, running_fleet
from shardfleet_local.rig.incidents import Troublemaker, clock_text
from shardfleet_local.rig.outcome import PROCESS, Outcome, RunOptions
from shardfleet_local.rig.processes import running_processes
from shardfleet_local.rig.proxy import FaultDice
from shardfleet_local.rig.spark_part import run_spark
from shardfleet_local.rig.verdict import Deliveries, recoveries, unsettled_leases, verdict
from shardfleet_local.rig.waiting import until
from shardfleet_ops.explain.spoken import spoken_duration

LOOK_EVERY_MS = 500
LINE_EVERY_MS = 5_000
"""How often it is said how far the run is."""

LEDGER_FILE = "ledger.jsonl"


def run_rig(options: RunOptions, say: Callable[[str], None]) -> Outcome:
    """
    Do a run to its end; the verdict may be good or bad.

    Args:
        options: what to do.
        say: told of each step, of what is done to the fleet, and how far it is.

    Raises:
        ConfigurationError, EmbeddedAwsFailed, DeploymentFailed: it did not begin.
        IncidentFailed: the fleet never came into the state that an incident needs.

    """
    started_ms = SystemClock().monotonic_ms()
    options.folder.mkdir(parents=True, exist_ok=True)
    ledger_file = options.folder.resolve() / LEDGER_FILE
    ledger_file.unlink(missing_ok=True)
    runs = running_processes if options.driver == PROCESS else running_fleet
    with runs(ledger_file, options.plan, say=say) as fleet:
        outcome = asyncio.run(_Run(fleet, options, say).to_its_end(started_ms))
        if options.spark:
            spark = run_spark(
                fleet.aws,
                options.source.records,
                stream_name=fleet.stream_name,
                say=say,
            )
            outcome = replace(outcome, spark=spark, wall_ms=outcome.wall_ms + spark.wall_ms)
        return outcome


class _Run:
    def __init__(
        self, fleet: RunningFleet, options: RunOptions, say: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._options = options
        self._say = say
        self._clock = SystemClock()
        self._trouble = Troublemaker(
            fleet,
            clock=self._clock,
            seed=options.seed,
            say=lambda each: self._say(f"{clock_text(each.at_ms - self._began_ms)}  {each.text}"),
        )
        self._deliveries = Deliveries()
        self._shards: Sequence[Shard] = ()
        self._leases: Sequence[Lease] = ()
        self._worker_pids: set[int] = set()
        self._began_ms = 0
        self._next_line_ms = 0

    async def to_its_end(self, started_ms: int) -> Outcome:
        """Feed and disturb the fleet, wait until it has settled, and judge."""
        options, ledger = self._options, self._fleet.ledger
        self._say("waiting for the fleet's first workers")
        await until(self._is_leased, clock=self._clock, within_ms=options.settle_ms)
        self._began_ms = self._clock.now_ms()
        self._say(
            f"feeding {options.source.name} for {options.duration_ms // 1000} s, with "
            f"{len(options.scenario)} incidents on the way"
        )
        work = asyncio.create_task(self._feed_and_disturb())
        try:
            while not work.done():
                await self._look()
                await asyncio.wait({work}, timeout=LOOK_EVERY_MS / 1000)
        finally:
            work.cancel()
        sent, counts = await work
        fed_ms = self._clock.now_ms()
        # From the beginning: a record that came back before its receipt may have been taken
        # for another one.
        self._deliveries = Deliveries.of(sent, ledger.lines)
        await until(self._look, clock=self._clock, within_ms=options.settle_ms)
        return Outcome(
            options=options,
            verdict=verdict(sent, ledger.lines, shards=self._shards),
            unsettled=unsettled_leases(self._shards, self._leases),
            recoveries=recoveries(self._trouble.happenings, ledger.lines, sent=sent),
            happenings=self._trouble.happenings,
            sent=sent,
            first_handled_ms=self._deliveries.first_ms,
            counts=counts,
            shards=self._shards,
            leases=self._leases,
            worker_pids=frozenset(self._worker_pids | {line.pid for line in ledger.lines}),
            template_sha256=self._fleet.stack.template_sha256,
            began_ms=self._began_ms,
            fed_ms=fed_ms,
            ended_ms=max([fed_ms, *(line.at_ms for line in ledger.lines)]),
            settled_ms=self._clock.now_ms(),
            wall_ms=self._clock.monotonic_ms() - started_ms,
        )

    async def _feed_and_disturb(self) -> tuple[list[SentRecord], ProducerCounts]:
        """Do both to the end of both, while calls fail; the failure of one ends the other."""
        options = self._options
        dice = options.plan.dice or FaultDice(random.Random())
        feeding = asyncio.create_task(
            feed_stream(
                options.source.records,
                self._fleet.aws,
                stream_arn=self._fleet.stream_arn,
                duration_ms=options.duration_ms,
                on_sent=self._deliveries.note_sent,
            )
        )
        disturbing = asyncio.create_task(
            self._trouble.run(options.scenario, duration_ms=options.duration_ms)
        )
        dice.is_on = True
        try:
            fed, _ = await asyncio.gather(feeding, disturbing)
        finally:
            dice.is_on = False
            feeding.cancel()
            disturbing.cancel()
        return fed

    def _is_leased(self) -> bool:
        """Return whether the first manager has run: every shard's lease has an owner."""
        leases = self._fleet.leases()
        return bool(leases) and all(lease.lease_owner for lease in leases)

    async def _look(self) -> bool:
        """Look at everything, say how far it is, and return whether nothing is left to be done."""
        fleet, deliveries = self._fleet, self._deliveries
        # A look that fails is one look less; what matters is judged at the end.
        with suppress(BotoCoreError, ClientError, ShardfleetError):
            deliveries.note_handled(fleet.ledger.read())
            self._shards = await asyncio.to_thread(fleet.shards)
            self._leases = await asyncio.to_thread(fleet.leases)
            workers = await asyncio.to_thread(fleet.workers)
            self._worker_pids |= {each.pid for each in workers}
            self._say_how_far(len(workers))
            return not (deliveries.lost or unsettled_leases(self._shards, self._leases))
        return False

    def _say_how_far(self, workers: int) -> None:
        now_ms, dice = self._clock.now_ms(), self._options.plan.dice
        total = len(self._options.source.records)
        if now_ms < self._next_line_ms:
            return
        self._next_line_ms = now_ms + LINE_EVERY_MS
        wrong = f", {dice.errors:,} of {dice.calls:,} calls went wrong" if dice else ""
        done = how_far(self._deliveries, self._shards, total=total, workers=workers, now_ms=now_ms)
        self._say(f"{clock_text(now_ms - self._began_ms)}  {done}{wrong}")


def how_far(
    deliveries: Deliveries, shards: Sequence[Shard], *, total: int, workers: int, now_ms: int
) -> str:
    """Return in words what of all records was handled and sent, and how long the oldest waits."""
    lag_ms = max((deliveries.lag_ms(each.shard_id, now_ms=now_ms) for each in shards), default=0)
    return (
        f"{len(deliveries.first_ms):,} of {total:,} handled, {deliveries.sent:,} sent, "
        f"{sum(each.is_open for each in shards)} open shards, {workers} workers, greatest lag "
        f"{spoken_duration(lag_ms)}"
    )
