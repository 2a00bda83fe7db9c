"""
A run: feed and trouble side by side, a table to look at, and a verdict at the end.

It ends when every record has been handled and every closed shard's lease is at its end, or when
nothing of that has come true long after the feed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
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
from shardfleet_local.rig.incidents import Troublemaker
from shardfleet_local.rig.live import Display, RunSnapshot
from shardfleet_local.rig.outcome import Outcome
from shardfleet_local.rig.profiles import RunOptions
from shardfleet_local.rig.proxy import FaultDice
from shardfleet_local.rig.spark_part import run_spark
from shardfleet_local.rig.tables import explained_leases
from shardfleet_local.rig.verdict import Deliveries, recoveries, unsettled_leases, verdict
from shardfleet_local.rig.waiting import until

LOOK_EVERY_MS = 500
LEDGER_FILE = "ledger.jsonl"


def run_rig(options: RunOptions, display: Display) -> Outcome:
    """
    Do a run to its end; the verdict may be good or bad.

    Raises:
        ConfigurationError, EmbeddedAwsFailed, DeploymentFailed: it did not begin.
        IncidentFailed: the fleet never came into the state that an incident needs.

    """
    started_ms = SystemClock().monotonic_ms()
    options.folder.mkdir(parents=True, exist_ok=True)
    ledger_file = options.folder.resolve() / LEDGER_FILE
    ledger_file.unlink(missing_ok=True)
    with running_fleet(ledger_file, options.plan, say=display.say) as fleet:
        outcome = asyncio.run(_Run(fleet, options, display).to_its_end(started_ms))
        if options.spark:
            spark = run_spark(
                fleet.aws,
                options.source.records,
                stream_name=fleet.stream_name,
                say=display.say,
            )
            outcome = replace(outcome, spark=spark, wall_ms=outcome.wall_ms + spark.wall_ms)
        if options.explains:
            display.say("asking why each shard is where it is")
            outcome = replace(outcome, explained=asyncio.run(explained_leases(fleet)))
        return outcome


class _Run:
    def __init__(self, fleet: RunningFleet, options: RunOptions, display: Display) -> None:
        self._fleet = fleet
        self._options = options
        self._display = display
        self._clock = SystemClock()
        self._trouble = Troublemaker(
            fleet, clock=self._clock, seed=options.seed, say=display.happened
        )
        self._deliveries = Deliveries()
        self._shards: Sequence[Shard] = ()
        self._leases: Sequence[Lease] = ()
        self._worker_pids: set[int] = set()
        self._began_ms = 0

    async def to_its_end(self, started_ms: int) -> Outcome:
        """Feed and disturb the fleet, wait until it has settled, and judge."""
        options, ledger = self._options, self._fleet.ledger
        self._display.say("waiting for the fleet's first workers")
        await until(self._is_leased, clock=self._clock, within_ms=options.settle_ms)
        self._began_ms = self._clock.now_ms()
        self._display.say(
            f"feeding {options.source.name} for {options.duration_ms // 1000} s, with "
            f"{len(options.scenario)} incidents on the way"
        )
        with self._display.watching(self._began_ms):
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
            ended_ms=max((line.at_ms for line in ledger.lines), default=fed_ms),
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
        """Look at everything, show it, and return whether nothing is left to be done."""
        fleet, deliveries = self._fleet, self._deliveries
        # A look that fails is one look less; what matters is judged at the end.
        with suppress(BotoCoreError, ClientError, ShardfleetError):
            deliveries.note_handled(fleet.ledger.read())
            self._shards = await asyncio.to_thread(fleet.shards)
            self._leases = await asyncio.to_thread(fleet.leases)
            workers = await asyncio.to_thread(fleet.workers)
            self._worker_pids |= {each.pid for each in workers}
            self._display.update(
                RunSnapshot(
                    total=len(self._options.source.records),
                    elapsed_ms=self._clock.now_ms() - self._began_ms,
                    now_ms=self._clock.now_ms(),
                    deliveries=deliveries,
                    shards=sorted(self._shards, key=lambda shard: shard.shard_id),
                    leases={lease.lease_key: lease for lease in self._leases},
                    workers=len(workers),
                    dice=self._options.plan.dice,
                )
            )
            return not (deliveries.lost or unsettled_leases(self._shards, self._leases))
        return False
