"""
Chaos itself: feed, kills, reshards and failing calls side by side, then peace, and a verdict.

Trouble ends with the feed. From then on the fleet has a bounded time in which every record must
be handled and every closed shard's lease must be at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ShardfleetError
from shardfleet_local.chaos.faults import ERROR_RATE, FaultDice
from shardfleet_local.chaos.killer import Killer
from shardfleet_local.chaos.outcome import ChaosOutcome
from shardfleet_local.chaos.proxy import FaultyProxy
from shardfleet_local.rig.feed import FeedPace, SentRecord, feed_stream
from shardfleet_local.rig.fleet import FleetPlan, RunningFleet, handler_of, running_fleet
from shardfleet_local.rig.incidents import Incident, Troublemaker
from shardfleet_local.rig.source import click_stream
from shardfleet_local.rig.verdict import FirstDeliveries, unsettled_leases, verdict

RESHARD_EVERY_MS = 30_000
STREAM_FAULT_EVERY_MS = 10_000
SETTLE_MOST_MS = 420_000
"""
How long after the last fault everything must have been handled: longer than the longest wait of a
state machine whose worker has crashed many times in a row (hazard H9: five minutes).
"""

LOOK_EVERY_MS = 1_000
TOLD_EVERY_MS = 15_000
LEDGER_FILE = "ledger.jsonl"

SHORT_TURNS = {"SHARDFLEET_MAX_TURN_MS": "10000", "SHARDFLEET_HANDLER_TIMEOUT_MS": "5000"}
"""So that trouble also meets turns that begin and end; one that ends well forgives crashes."""

STREAM_FAULTS = (
    {"Kind": "EmptyReads", "Count": 5},
    {"Kind": "EndWithoutChildren", "Count": 2},
    {"Kind": "ChildrenWithoutEnd", "Count": 2},
)
"""What no proxy can do: answers of the stream that are wrong without being errors."""

_FEWEST_SHARDS, _FIRST_SHARDS, _MOST_SHARDS = 3, 4, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """
    What to do.

    Attributes:
        minutes: how long to feed and to make trouble.
        records_per_minute: how fast to feed.
        folder: where the ledger goes; an older one in it is replaced.
        seed: of all choices.
        error_rate: part of the calls to DynamoDB, Kinesis and Step Functions that go wrong.

    """

    minutes: float
    records_per_minute: int
    folder: Path
    seed: int = 1
    error_rate: float = ERROR_RATE

    @property
    def duration_ms(self) -> int:
        """Return how long the feed lasts."""
        return round(self.minutes * 60_000)


def reshards(duration_ms: int, *, seed: int) -> tuple[Incident, ...]:
    """Plan a reshard every 30 s; the number of open shards stays between three and six."""
    chance = random.Random(seed)
    shards, planned = _FIRST_SHARDS, []
    for at_ms in range(RESHARD_EVERY_MS // 2, duration_ms, RESHARD_EVERY_MS):
        may_split, may_merge = shards < _MOST_SHARDS, shards > _FEWEST_SHARDS
        splits = may_split and (not may_merge or chance.random() < 0.5)  # noqa: PLR2004 - a coin
        shards += 1 if splits else -1
        planned.append(Incident(at=at_ms / duration_ms, kind="split" if splits else "merge"))
    return tuple(planned)


def run_chaos(options: ChaosOptions, say: Callable[[str], None]) -> ChaosOutcome:
    """
    Run chaos to its end; the verdict may be good or bad.

    Raises:
        ConfigurationError, EmbeddedAwsFailed, DeploymentFailed: it did not begin.
        IncidentFailed: no reshard was possible for a minute.

    """
    began_ms = SystemClock().monotonic_ms()
    options.folder.mkdir(parents=True, exist_ok=True)
    ledger_file = options.folder.resolve() / LEDGER_FILE
    ledger_file.unlink(missing_ok=True)
    plan = FleetPlan(environment=SHORT_TURNS)
    dice = FaultDice(random.Random(options.seed), rate=options.error_rate)
    with (
        running_fleet(ledger_file, plan, say=say) as fleet,
        FaultyProxy(fleet.aws.endpoint_url, dice, key=fleet.aws.key) as proxy,
    ):
        variables = fleet.ledger.environment(handler_of(fleet.template))
        fleet.aws.set_lambda_environment({**plan.environment, **variables, **proxy.environment()})
        return asyncio.run(_Run(fleet, options, dice=dice, say=say).to_its_end(began_ms))


class _Run:
    def __init__(
        self,
        fleet: RunningFleet,
        options: ChaosOptions,
        *,
        dice: FaultDice,
        say: Callable[[str], None],
    ) -> None:
        self._fleet = fleet
        self._options = options
        self._dice = dice
        self._say = say
        self._clock = SystemClock()
        self._chance = random.Random(options.seed)
        self._deliveries = FirstDeliveries()
        self._sent = 0
        self._stream_faults: Counter[str] = Counter()
        self._began_ms = 0
        self._killer = Killer(fleet, clock=self._clock, seed=options.seed, say=self._tell)
        self._trouble = Troublemaker(
            fleet, clock=self._clock, seed=options.seed, say=lambda what: self._tell(what.text)
        )

    async def to_its_end(self, started_ms: int) -> ChaosOutcome:
        """Feed and disturb, wait until the fleet has settled, and judge."""
        await self._until_leased()
        self._began_ms = self._clock.monotonic_ms()
        await asyncio.to_thread(self._restart_everything)
        watching = asyncio.create_task(self._watch())
        try:
            sent = await self._feed_and_disturb()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        over_ms = self._clock.monotonic_ms()
        self._tell("peace: from now on nothing goes wrong any more")
        await self._until_settled(sent)
        return self._outcome(sent, started_ms=started_ms, over_ms=over_ms)

    def _restart_everything(self) -> None:
        """Kill the processes that were started before the proxy was in their way."""
        for process in (*self._fleet.workers(), *self._fleet.managers()):
            self._fleet.kill(process.pid)

    async def _feed_and_disturb(self) -> Sequence[SentRecord]:
        duration_ms = self._options.duration_ms
        count = round(self._options.minutes * self._options.records_per_minute)
        feeding = asyncio.create_task(
            feed_stream(
                click_stream(count, seed=self._options.seed).records,
                self._fleet.aws,
                stream_arn=self._fleet.stream_arn,
                pace=FeedPace(duration_ms),
                on_sent=self._note_sent,
            )
        )
        scenario = reshards(duration_ms, seed=self._options.seed)
        lasting: list[Coroutine[Any, Any, None]] = [
            self._trouble.run(scenario, duration_ms=duration_ms),
            self._disturb_stream(duration_ms),
        ]
        disturbing = [asyncio.create_task(each) for each in lasting]
        killing = asyncio.create_task(self._killer.run())
        try:
            await asyncio.gather(feeding, *disturbing)
        finally:
            for task in (feeding, *disturbing):
                task.cancel()
            self._dice.is_on = False
            self._killer.stop()
            await killing
        sent, _ = feeding.result()
        return sent

    async def _disturb_stream(self, duration_ms: int) -> None:
        """Order a wrong answer of the stream now and then."""
        until_ms = self._clock.monotonic_ms() + duration_ms - STREAM_FAULT_EVERY_MS
        while self._clock.monotonic_ms() < until_ms:
            await self._clock.sleep_ms(STREAM_FAULT_EVERY_MS)
            fault = self._chance.choice(STREAM_FAULTS)
            await asyncio.to_thread(self._fleet.inject, fault)
            self._stream_faults[str(fault["Kind"])] += 1

    def _note_sent(self, records: Sequence[SentRecord]) -> None:
        self._deliveries.sent(records)
        self._sent += len(records)

    async def _until_leased(self) -> None:
        """Wait for the deployment's first manager run: every shard's lease has an owner."""
        self._say("waiting for the fleet's first workers")
        deadline_ms = self._clock.monotonic_ms() + SETTLE_MOST_MS
        while self._clock.monotonic_ms() < deadline_ms:
            leases = await asyncio.to_thread(self._fleet.leases)
            if leases and all(lease.lease_owner for lease in leases):
                return
            await self._clock.sleep_ms(LOOK_EVERY_MS)

    async def _watch(self) -> None:
        """Tell how it goes, and keep the ledger read."""
        while True:
            await self._clock.sleep_ms(TOLD_EVERY_MS)
            with contextlib.suppress(BotoCoreError, ClientError, ShardfleetError):
                self._look()
                self._tell(self._state())

    def _look(self) -> int:
        """Read on in the ledger; return how many records wait to be handled."""
        for line in self._fleet.ledger.read():
            self._deliveries.handled(line)
        return self._sent - len(self._deliveries.first_ms)

    def _state(self) -> str:
        counts = self._killer.counts
        return (
            f"{self._sent:,} sent, {len(self._deliveries.first_ms):,} handled; killed "
            f"{counts['worker']} workers, {counts['manager']} managers; "
            f"{self._dice.errors:,} of {self._dice.calls:,} calls went wrong"
        )

    async def _until_settled(self, sent: Sequence[SentRecord]) -> None:
        # From the beginning: a record that was read back before its receipt had come counted as
        # foreign until now.
        self._deliveries = FirstDeliveries()
        self._deliveries.sent(sent)
        for line in self._fleet.ledger.lines:
            self._deliveries.handled(line)
        deadline_ms = self._clock.monotonic_ms() + SETTLE_MOST_MS
        while self._clock.monotonic_ms() < deadline_ms:
            with contextlib.suppress(BotoCoreError, ClientError, ShardfleetError):
                waiting = self._look()
                if waiting <= 0 and not await asyncio.to_thread(self._unsettled):
                    return
            await self._clock.sleep_ms(LOOK_EVERY_MS)
        self._tell(f"not settled: {self._look():,} of {len(sent):,} records are not handled")

    def _unsettled(self) -> dict[str, str]:
        shards = self._fleet.shards()
        return unsettled_leases(shards, self._fleet.leases())

    def _outcome(
        self, sent: Sequence[SentRecord], *, started_ms: int, over_ms: int
    ) -> ChaosOutcome:
        ended_ms = self._clock.monotonic_ms()
        self._look()
        lines = self._fleet.ledger.lines
        return ChaosOutcome(
            seed=self._options.seed,
            feed_ms=over_ms - self._began_ms,
            wall_ms=ended_ms - started_ms,
            settled_ms=ended_ms - over_ms,
            verdict=verdict(sent, lines, shards=self._fleet.shards()),
            unsettled=self._unsettled(),
            strikes=dict(self._killer.counts),
            reshards=self._trouble.log.reshards,
            calls=self._dice.calls,
            errors=self._dice.errors,
            faults={kind.value: count for kind, count in self._dice.drawn.items()},
            operations=dict(self._dice.operations),
            stream_faults=dict(self._stream_faults),
            workers_started=len({line.pid for line in lines}),
            template_sha256=self._fleet.stack.template_sha256,
        )

    def _tell(self, text: str) -> None:
        seconds = (self._clock.monotonic_ms() - self._began_ms) / 1000
        self._say(f"{seconds:6.1f} s  {text}")
