"""What a simulated run looks like before anything goes wrong: the settings, and the world."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet_processes.process import OF_PROCESSES
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.java_taker import FAILOVER_MS
from shardfleet_testkit.simulation.wire import FREEZE_S

_MINUTE_S = 60.0
_SHARDS_LEAST = 8
# The stream grows for a while, then shrinks, so that slots are started and drained.
_TREND_MS = 150_000
# A worker's box leaves room for several turns per run, and so for what happens between turns.
_WORKER_BOX_MS = 90_000

# Which keys' records each lets through, told without the product's reading of it.
FILTERS: Mapping[str, Callable[[str], bool]] = {
    "": lambda _key: True,
    '[{"partitionKey": [{"anything-but": ["key-1", "key-20"]}]}]': (
        lambda key: key not in {"key-1", "key-20"}
    ),
    '[{"partitionKey": [{"suffix": "0"}]}, {"partitionKey": [{"prefix": "key-1"}]}]': (
        lambda key: key[-1] == "0" or key[:5] == "key-1"
    ),
    # What is put is no JSON.
    '[{"data": {"a": [1]}, "partitionKey": ["key-2"]}, {"partitionKey": [{"prefix": "key-3"}]}]': (
        lambda key: key[:5] == "key-3"
    ),
}
# What else decides about a record's path, or who has its shard: of a fleet most are as by default.
_CHANGED_ONE_IN = 6
OTHERWISE: Mapping[str, tuple[Any, ...]] = {
    "assignment": ("count",),
    "batch_window_ms": (300, 2_000),
    "busy_read_ms": (400, 1_000),
    "dampening_percent": (20, 100),
    "failover_ms": (3_000, 6_000, 30_000, 60_000),
    "filters": tuple(FILTERS)[1:],
    "graceful_handover": (False,),
    "handler_records_per_second": (20, 200),
    "handler_timeout_ms": (8_000,),
    "handover_timeout_ms": (5_000, 60_000),
    "idle_read_ms": (200, 3_000),
    "kcl_leads": (False,),
    "lag_objective_ms": (10_000, 60_000),
    "leases_to_acquire": (1, 2),
    "max_batch_bytes": (1, 40),
    "max_crashes": (4,),
    "max_open_bytes": (40, 400),
    "max_record_age_ms": (20_000, 120_000),
    "max_retry_ms": (1_000, 20_000),
    "max_workers": (9, 12),
    "misrouted": ("in-range", "kpl"),
    "on_failure": ("bisect",),
    "on_trimmed": ("jump",),
    "parent_poll_ms": (200, 3_000),
    "rebalance_percent": (5, 50),
    "rebalance_turns": (1, 2),
    "retry_first_ms": (20, 1_000),
    "scale_down_ms": (1_000, 60_000),
    "target_percent": (20, 95),
}
# What a fleet that is deployed again may be told anew, whatever goes on.
_TOLD_ANEW = (
    *("assignment", "batch_window_ms", "busy_read_ms", "checkpoint_ms", "cycle_ms"),
    *("graceful_handover", "handler_records_per_second", "idle_read_ms", "leases_per_worker"),
    *("max_attempts", "max_batch_records", "max_workers", "min_workers", "on_failure"),
    *("parallelism", "records_per_read", "max_open_records"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """
    What a run looks like before anything goes wrong.

    Attributes:
        config: the fleet's.
        shards: at the beginning.
        shards_least: never fewer are open.
        shards_most: never more are open.
        records_per_s: put on average.
        reshard_every_s: on average.
        max_loops: invocations before an execution continues as new.
        handlers_overlap: the user's handler is ``async def``.
        busy_s: how long faults happen.
        measures_quiet: wait for a quiet fleet and measure it.
        has_peer: a worker that behaves like the KCL for Java shares the stream.
        trend_ms: how long the stream grows before it shrinks, and the other way round.
        forget_most_s: the longest time after which a shard that is done leaves the stream.
        focus: calls, by how their names begin, that invocations freeze or die in; empty: all.
        freeze_s: the shortest and the longest freeze.
        drifts_most: a clock that is wrong is as wrong as it may be.
        schedule_s: time between the manager's invocations.
        box_ms: a worker function's time-out.
        peer_hurry: how many times as often a peer begins handovers.
        peer_is_old: a peer stores no hash ranges (KCL before 2.3.0).
        peers_lead: peers are of the KCL 3, with a leader, or of the KCL 2; None: it is drawn.
        rewinds_finished: an operator sets back finished leases only.
        pauses_every_s: how often a person pauses something; 0: never.
        recreated_s: when the stream is deleted and created again; 0: never.
        instant_s: for AT_TIMESTAMP: when the fleet is to begin; it is deployed soon after.
        anew: what the fleet is told when it is deployed again, for a while; None: it is not.
        processes: how many carry the fleet instead of Lambda; 0: Lambda does.
        is_left: after the busy time Lambda invokes nothing for longer than records are kept.

    """

    config: FleetConfig
    shards: int
    shards_least: int
    shards_most: int
    records_per_s: float
    reshard_every_s: float
    max_loops: int
    handlers_overlap: bool
    busy_s: float
    measures_quiet: bool
    has_peer: bool
    trend_ms: int = _TREND_MS
    forget_most_s: float = 60.0
    focus: tuple[str, ...] = ()
    freeze_s: tuple[float, float] = FREEZE_S
    drifts_most: bool = False
    schedule_s: float = _MINUTE_S
    box_ms: int = _WORKER_BOX_MS
    peer_hurry: float = 1.0
    peer_is_old: bool = False
    peers_lead: bool | None = None
    rewinds_finished: bool = False
    pauses_every_s: float = 0.0
    recreated_s: float = 0.0
    instant_s: float = 0.0
    anew: FleetConfig | None = None
    processes: int = 0
    is_left: bool = False

    @classmethod
    def drawn(cls, chance: random.Random, *, busy_s: float | None = None) -> Shape:
        """Draw a shape: 8 to 18 shards on at least 4 slots, small turns, small batches."""
        shards = chance.randint(_SHARDS_LEAST, 12)
        config = _config(chance, leases_per_worker=2)
        # A peer reads LATEST as a moving now (§5.1), and gives no record up.
        may_have_peer = config.initial_position == "TRIM_HORIZON" and config.policy_terms.stops
        return cls(
            config=config,
            shards=shards,
            shards_least=_SHARDS_LEAST,
            shards_most=18,
            records_per_s=chance.uniform(0.5, 4.0),
            reshard_every_s=chance.uniform(8.0, 60.0),
            max_loops=chance.randint(2, 8),
            handlers_overlap=chance.choice((True, False)),
            busy_s=busy_s or chance.uniform(200.0, 800.0),
            measures_quiet=chance.randrange(5) == 0 and not may_have_peer,
            has_peer=may_have_peer,
        )

    @classmethod
    def small(cls, chance: random.Random, *, busy_s: float | None = None) -> Shape:
        """Draw a cheap shape: 3 to 8 shards on at least 2 slots, for a minute or two."""
        drawn = cls.drawn(chance, busy_s=busy_s or chance.uniform(50.0, 120.0))
        config = replace(drawn.config, min_workers=chance.randint(2, 3), max_workers=6)
        return dataclasses.replace(
            drawn,
            config=config,
            shards=chance.randint(3, 5),
            shards_least=3,
            shards_most=8,
            reshard_every_s=chance.uniform(5.0, 30.0),
            measures_quiet=False,
            trend_ms=40_000,
        )

    def sleeping(self, chance: random.Random) -> Shape:
        """Let idle shards sleep, and let there be so few records that some are idle."""
        config = replace(
            self.config,
            sleep=True,
            sleep_after_ms=chance.choice((1_000, 3_000, 8_000)),
            max_wake_ms=chance.choice((10_000, 30_000, 60_000)),
        )
        # Shards that fall asleep and wake change hands in the quietest fleet.
        records_per_s = chance.choice((0.1, 0.3, 1.0))
        return dataclasses.replace(
            self, config=config, records_per_s=records_per_s, measures_quiet=False
        )

    def from_instant(self, chance: random.Random) -> Shape:
        """Let the fleet begin at an instant, in a stream that has been resharded since before."""
        instant_s = chance.uniform(5.0, 90.0)
        config = replace(
            self.config,
            initial_position="AT_TIMESTAMP",
            initial_timestamp_ms=VirtualClock().start_ms + round(instant_s * 1000),
        )
        return dataclasses.replace(
            self, config=config, instant_s=instant_s, has_peer=False, measures_quiet=False
        )

    def in_lanes(self, chance: random.Random) -> Shape:
        """Let records of a shard be handled side by side, and more of them be there to be so."""
        config = replace(
            self.config,
            parallelism=chance.choice((2, 4, 16)),
            max_open_records=chance.choice((5, 50, 100_000)),
            on_failure=chance.choice(("retry", "bisect")),
            max_batch_records=min(self.config.max_batch_records, 5),
        )
        records_per_s = self.records_per_s * chance.choice((1.0, 3.0))
        return dataclasses.replace(self, config=config, records_per_s=records_per_s)

    def in_windows(self, chance: random.Random) -> Shape:
        """Let each shard have tumbling windows; nobody else keeps their states."""
        length_ms = chance.choice((1_000, 5_000, 20_000))
        config = replace(self.config, tumbling_window_ms=length_ms, parallelism=1)
        return dataclasses.replace(self, config=config, has_peer=False, measures_quiet=False)

    def by_hand(self, chance: random.Random) -> Shape:
        """Let the handler buffer records, and checkpoint what it has written (manual)."""
        config = replace(
            self.config,
            checkpoint="manual",
            parallelism=1,
            max_open_records=chance.choice((3, 10, 50)),
            max_open_age_ms=chance.choice((2_000, 10_000, 60_000)),
        )
        return dataclasses.replace(self, config=config, measures_quiet=False)

    def otherwise(self, chance: random.Random) -> Shape:
        """Let the fleet be told something that few are told."""
        changed = {
            name: chance.choice(values)
            for name, values in OTHERWISE.items()
            if chance.randrange(_CHANGED_ONE_IN) == 0
        }
        if self.config.policy_terms.stops:
            # A shard that stops at an old record would stop there again.
            changed.pop("max_record_age_ms", None)
        config = replace(self.config, **changed)
        # Who shares a lease table agrees when a lease has expired.
        has_peer = self.has_peer and config.failover_ms == FAILOVER_MS
        return dataclasses.replace(self, config=config, has_peer=has_peer)

    def told_anew(self, chance: random.Random) -> Shape:
        """Deploy the fleet again, with other options, and then as it was."""
        other = Shape.drawn(chance).otherwise(chance)
        if chance.randrange(2):
            other = other.in_lanes(chance)
        told = {name: getattr(other.config, name) for name in _TOLD_ANEW}
        if self.config.tumbling_window_ms or self.config.way.handler_checkpoints:
            told["parallelism"] = 1
        told["min_workers"] = min(told["min_workers"], told["max_workers"])
        if self.processes and not self.config.spill:  # They are as many as there are.
            told |= {name: OF_PROCESSES[name] for name in OF_PROCESSES.keys() & told.keys()}
        if self.processes:
            told["min_workers"] = 1
        return dataclasses.replace(self, anew=replace(self.config, **told), measures_quiet=False)

    def in_processes(self, chance: random.Random) -> Shape:
        """
        Let processes carry the fleet, with a slot each, as `shardfleet work` does.

        In half of the fleets they have joined a stack: there are fewer than it has slots, and
        Lambda runs what is left over.
        """
        config = replace(
            self.config,
            min_workers=1,  # There are as many as processes.
            # A death takes that time to be seen, and what kills does so four times.
            failover_ms=min(self.config.failover_ms, FAILOVER_MS),
            max_turn_ms=chance.choice((70_000, OF_PROCESSES["max_turn_ms"])),
        )
        processes = self.config.min_workers
        if chance.randrange(2):
            processes = chance.randint(1, processes)
            after_ms = chance.choice((3_000, 10_000, 20_000))
            config = replace(config, spill=True, spill_after_ms=after_ms)
        else:
            alone = ("leases_per_worker", "max_workers", "target_percent")
            config = replace(config, **{name: OF_PROCESSES[name] for name in alone})
        return dataclasses.replace(self, config=config, processes=processes, measures_quiet=False)

    def left(self) -> Shape:
        """Let nothing be invoked for a day, so that what is unread then is trimmed."""
        return dataclasses.replace(self, is_left=True, has_peer=False, measures_quiet=False)


def _config(chance: random.Random, *, leases_per_worker: int) -> FleetConfig:
    on_exhausted = chance.choice(("stop", "sqs"))
    return FleetConfig(
        fleet="fleet",
        stream_arn=MEMORY_STREAM_ARN,
        lease_table="leases",
        state_table="state",
        cycle_ms=chance.choice((5_000, 20_000)),
        assignment=chance.choice(("balanced", "balanced", "greedy")),
        leases_per_worker=leases_per_worker + chance.randint(0, 2),
        min_workers=chance.randint(4, 6),
        max_workers=16,
        scale_down_ms=10_000,
        records_per_read=chance.choice((3, 20, 200)),
        max_batch_records=chance.choice((1, 5, 50)),
        handler_timeout_ms=5_000,
        initial_position=chance.choice(("TRIM_HORIZON", "TRIM_HORIZON", "LATEST")),
        on_exhausted=on_exhausted,
        failed_queue_url="queue",
        max_attempts=chance.choice((0, 3, 10)),
        checkpoint_ms=chance.choice((0, 1_000, 5_000)),
        turn_margin_ms=6_000,
        max_turn_ms=chance.choice((20_000, 40_000, 70_000)),
    )
