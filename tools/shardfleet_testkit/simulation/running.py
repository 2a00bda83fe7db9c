"""Running one seed, telling what happened, and making a failing run simpler."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet_testkit.checkers import CHECKERS, Checker, Violation
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.simulation.actors import SimulationLoop
from shardfleet_testkit.simulation.faults import FaultMix, Faults, often_in
from shardfleet_testkit.simulation.pairs import Pairs
from shardfleet_testkit.simulation.play import Play
from shardfleet_testkit.simulation.played_world import PlayedWorld, muted_in, shape_of
from shardfleet_testkit.simulation.shapes import Shape
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable
from shardfleet_testkit.simulation.world import World

_STORY_LINES = 40
_SLEEPS_ONE_IN = 8  # seeds: in their fleets idle shards sleep
_LEFT_ONE_IN = 11  # seeds: their fleets stand still for a day
_WIRED_ONE_IN, _WIRED = 20, 7  # seeds: their lease tables are behind the real adapter
_WIRED_BUSY_S = 150.0  # at most: a call through the SDK costs as much as ten in memory
_INSTANT_ONE_IN = 9  # seeds: their fleets begin at an instant, in streams resharded before it
_PUSHED_ONE_IN = 2  # seeds: their records are pushed
_LANES_ONE_IN, _LANES = 5, 2  # seeds: records of a shard are handled side by side
_ANEW_ONE_IN, _ANEW = 4, 1  # seeds: their fleets are deployed again, with other options
_PROCESSES_ONE_IN, _PROCESSES = 3, 2  # seeds: processes carry their fleets, and no Lambda
_THREADS_ONE_IN, _THREADS = 7, 3  # seeds: their handlers run in threads
# Seeds without lanes: their shards have tumbling windows, or their checkpoints are manual.
_WINDOWS_ONE_IN, _WINDOWS, _BY_HAND = 6, 4, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """
    How to run a seed.

    Attributes:
        seed: everything is drawn from it.
        keeps_log: keep the event log.
        muted: kinds of faults that do not happen.
        busy_s: how long faults happen, virtual seconds; None: drawn from the seed.
        checkers: the invariants.
        mix: of faults; None: drawn from the seed.
        rates: probabilities of kinds of faults, instead of those of the mix.
        is_small: a small fleet for a short time: many seeds in little time.
        reshape: changes the shape that was drawn.
        play: a user's handler and records, instead of ours; it says how long faults happen.

    """

    seed: int
    keeps_log: bool = False
    muted: frozenset[str] = frozenset()
    busy_s: float | None = None
    checkers: tuple[type[Checker], ...] = CHECKERS
    mix: FaultMix | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    is_small: bool = False
    reshape: Callable[[Shape], Shape] | None = None
    play: Play | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """
    What a run came to.

    Attributes:
        seed: of the run.
        violations: none if all is well.
        virtual_ms: how long the fleet lived.
        calls: port calls by operation.
        faults: by kind.
        commands: an operator's that were begun, by name.
        config: of the fleet.
        records: user records put.
        repetitions: records handled again.
        reshards: splits and merges.
        turns: worker turns begun.
        ended_hard: invocations killed, cut off or that ended their process.
        freezes: how many times an invocation was frozen.
        lines: the event log, if kept.
        pairs: kinds of faults that met on a lease or a worker; see :class:`Pairs`.
        requests: what the lease table's adapter sent over the wire, by operation; empty where all
            is in memory.

    """

    seed: int
    violations: tuple[Violation, ...]
    virtual_ms: int
    calls: dict[str, int]
    faults: dict[str, int]
    commands: dict[str, int]
    config: FleetConfig
    records: int
    repetitions: int
    reshards: int
    turns: int
    ended_hard: int
    freezes: int
    lines: tuple[str, ...]
    pairs: frozenset[tuple[str, str]]
    requests: dict[str, int] = field(default_factory=dict)


def run_seed(options: Options) -> RunResult:
    """Run one seed to its end, or to the first violation."""
    return run_virtual(_run(options), loop_factory=SimulationLoop)


def config_of(options: Options) -> FleetConfig:
    """Return what the fleet of a seed is told, without running it."""
    return _shape(options, random.Random(f"{options.seed}/shape")).config


def _shape(options: Options, chance: random.Random) -> Shape:
    """Draw the fleet; of some seeds it has lanes, sleeps, begins late, or rests for a day."""
    seed, play = options.seed, options.play
    draw = Shape.small if options.is_small else Shape.drawn
    shape = shape_of(play, chance) if play else draw(chance, busy_s=options.busy_s)
    if options.reshape is not None:
        return options.reshape(shape)
    if play is not None or options.mix is not None:
        return shape
    if _is_wired(options) and options.busy_s is None:
        shape = dataclasses.replace(shape, busy_s=min(shape.busy_s, _WIRED_BUSY_S))
    if not shape.config.policy_terms.stops:
        shape = _giving_up(shape, random.Random(f"{seed}/giving up"))
    shape = _handling(shape.otherwise(random.Random(f"{seed}/otherwise")), seed)
    # Where shards sleep no records are pushed: the construct refuses that, a consumer is paid for.
    if seed % _SLEEPS_ONE_IN and seed // _SLEEPS_ONE_IN % _PUSHED_ONE_IN:
        config = replace(shape.config, consumer_arn=f"{shape.config.stream_arn}/consumer/fleet:1")
        shape = dataclasses.replace(shape, config=config)
    if seed % _SLEEPS_ONE_IN == 0:
        shape = shape.sleeping(random.Random(f"{seed}/sleep"))
    elif seed % _INSTANT_ONE_IN == 0:
        shape = shape.from_instant(random.Random(f"{seed}/instant"))
    elif seed % _LEFT_ONE_IN == 0:
        shape = shape.left()
    if seed % _PROCESSES_ONE_IN == _PROCESSES:
        shape = shape.in_processes(random.Random(f"{seed}/processes"))
    is_anew = seed % _ANEW_ONE_IN == _ANEW
    return shape.told_anew(random.Random(f"{seed}/anew")) if is_anew else shape


def _handling(shape: Shape, seed: int) -> Shape:
    """Let records of some fleets be handled in lanes, windows, threads, or be buffered."""
    if seed % _LANES_ONE_IN == _LANES:
        shape = shape.in_lanes(random.Random(f"{seed}/lanes"))
    elif seed % _WINDOWS_ONE_IN == _WINDOWS:
        shape = shape.in_windows(random.Random(f"{seed}/windows"))
    elif seed % _WINDOWS_ONE_IN == _BY_HAND:
        shape = shape.by_hand(random.Random(f"{seed}/by hand"))
    if seed % _THREADS_ONE_IN == _THREADS:
        shape = _in_threads(shape, random.Random(f"{seed}/threads"))
    return shape


def _giving_up(shape: Shape, chance: random.Random) -> Shape:
    """Give up records in any of the ways that do not stop their shard."""
    policy = chance.choice(("sqs", "s3", "skip", "sns"))
    config = replace(
        shape.config, on_exhausted=policy, failed_bucket="bucket", failed_topic_arn="topic"
    )
    return dataclasses.replace(shape, config=config)


def _in_threads(shape: Shape, chance: random.Random) -> Shape:
    """Let calls of a handler that is no coroutine function run side by side."""
    config = replace(shape.config, handler_threads=chance.choice((2, 4, 16)))
    return dataclasses.replace(shape, config=config, handlers_overlap=False)


def _muted_of(config: FleetConfig) -> set[str]:
    muted = set()
    if config.policy_terms.stops or config.way.handler_checkpoints:
        # A shard stopped for a record that kills would rest until somebody removes the record; a
        # buffered one kills in a later call, of other records.
        muted.add("poison")
    if config.tumbling_window_ms:
        # A tool knows what was handled, not what is in a result.
        muted.add("foreign_checkpoint")
    return muted


async def _run(options: Options) -> RunResult:
    seed, play, muted = options.seed, options.play, options.muted
    chance = random.Random(f"{seed}/shape")
    shape = _shape(options, chance)
    if play is not None:
        muted |= muted_in(play)
    muted |= _muted_of(shape.config)
    drawn = options.mix or FaultMix.drawn(chance, often=often_in(seed))
    if shape.processes:  # A death is seen after the failover time only, and a record kills four.
        drawn = dataclasses.replace(drawn, poison=drawn.poison / 8)
    mix = dataclasses.replace(drawn, **options.rates)
    faults = Faults(seed, mix, muted=muted)
    around = Surroundings(
        seed,
        faults,
        renew_ms=shape.config.renew_ms,
        keeps_log=options.keeps_log,
        checkers=options.checkers,
    )
    around.log("world", "shape", shape)
    around.log("world", "mix", faults.mix)
    table = _table_of(options)
    world = PlayedWorld(around, shape, play) if play else World(around, shape, table=table)
    pairs = Pairs(lambda: around.now_ms, world.leases, within_ms=shape.config.failover_ms)
    faults.struck = pairs.struck
    await world.run()
    if isinstance(world, PlayedWorld):
        world.judge()
    return RunResult(
        seed=seed,
        violations=tuple(around.violations),
        virtual_ms=around.now_ms - world.left_ms,
        calls=dict(sorted(around.calls.items())),
        faults=dict(sorted(faults.counts.items())),
        commands=dict(sorted(around.commands.items())),
        config=shape.config,
        records=around.ledger.records,
        repetitions=around.ledger.repetitions,
        reshards=world.stream.reshards,
        turns=world.functions.turns,
        ended_hard=world.functions.killed,
        freezes=around.freezes,
        lines=tuple(around.lines),
        pairs=frozenset(pairs.met),
        requests=dict(sorted(world.leases.requests.items())),
    )


def _is_wired(options: Options) -> bool:
    is_drawn = options.play is None and options.mix is None and options.reshape is None
    return is_drawn and options.seed % _WIRED_ONE_IN == _WIRED


def _table_of(options: Options) -> type[LeaseTable]:
    """Return what holds the leases: of one seed in twenty a table behind the real adapter."""
    if not _is_wired(options):
        return LeaseTable
    # The SDK takes longer to load than a small run lasts.
    from shardfleet_testkit.simulation.wired_leases import WiredTable  # noqa: PLC0415

    return WiredTable


def shrink(
    options: Options,
    say: Callable[[str], None],
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Options:
    """
    Mute one kind of fault after another as long as the same checker still complains.

    Args:
        options: of a run that fails.
        say: is told what could be left out.
        is_over: asked before each run; True ends the search with what was found so far.

    Returns:
        Options of a run that fails with fewer kinds of faults, and keeps its log.

    """
    whole = run_seed(options)
    first = whole.violations[0]
    muted = options.muted | {k.name for k in fields(FaultMix) if k.name not in whole.faults}
    for kind in fields(FaultMix):
        if kind.name in muted:
            continue
        if is_over():
            break
        simpler = dataclasses.replace(options, muted=muted | {kind.name}, keeps_log=False)
        found = run_seed(simpler).violations
        if found and found[0].checker == first.checker:
            muted |= {kind.name}
            say(f"fails without {kind.name}, too")
    return dataclasses.replace(options, muted=muted, keeps_log=True)


def story(result: RunResult) -> list[str]:
    """Return the last lines of the log that concern the violation's subject, for one screen."""
    if not result.violations:
        return []
    subject = result.violations[0].subject
    about = [line for line in result.lines if subject in line or " world " in line[9:20]]
    return about[-_STORY_LINES:]
