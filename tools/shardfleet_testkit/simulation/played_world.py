"""A fleet that runs a user's handler on a user's records: its shape, its faults, its judgement."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import fields, replace

from msgspec import structs

from shardfleet.config import FleetConfig
from shardfleet.engine.ports import Clock, HandlerRunner
from shardfleet_testkit.checkers import Violation
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import Actor
from shardfleet_testkit.simulation.faults import FaultMix
from shardfleet_testkit.simulation.play import Play
from shardfleet_testkit.simulation.shapes import Shape
from shardfleet_testkit.simulation.sink import Effect, begin_with
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.user_code import PlayedHandler
from shardfleet_testkit.simulation.world import World

# What our own handler does wrong, and what only we can do to a record, is not the user's business.
_NOT_THE_USERS = frozenset(
    (
        *("handler_raises", "handler_partial", "handler_hangs", "poison"),
        *("import_kills", "call_kills"),
        *("foreign_checkpoint", "rewind", "position_import"),
    )
)
# So many records are put at once, and those of one key as one aggregate.
_BURSTS = (1, 1, 1, 2, 5)
# Room for the sequence numbers that splits and merges take between two records.
_SEQUENCES_PER_RECORD = 1_000
# So often in a row no call of the sink fails; who dies here dies of the simulation, not of what a
# record is.
_ATTEMPTS_MOST, _CRASHES_MOST = 5, 100
# The rest of the busy time is for reading what was put last, with faults still on.
_FLOW_PART = 0.9


def muted_in(play: Play) -> frozenset[str]:
    """Return the kinds of faults that do not happen in a play."""
    if play.has_faults:
        return _NOT_THE_USERS
    return frozenset(kind.name for kind in fields(FaultMix))


def shape_of(play: Play, chance: random.Random) -> Shape:
    """Draw the shape of a play: small batches, so that a crash leaves something half done."""
    drawn = Shape.drawn(chance, busy_s=play.busy_s)
    shape = replace(
        drawn,
        config=FleetConfig(
            fleet="fleet",
            stream_arn=MEMORY_STREAM_ARN,
            lease_table="leases",
            state_table="state",
            leases_per_worker=3,
            min_workers=2,
            records_per_read=chance.choice((10, 100)),
            max_batch_records=chance.choice((1, 5, 50)),
            handler_timeout_ms=10_000,
            idle_read_ms=2_000,
            max_attempts=0,
            checkpoint_ms=chance.choice((0, 1_000, 5_000)),
            turn_margin_ms=6_000,
            max_turn_ms=chance.choice((20_000, 70_000)),
        ),
        shards=play.shards,
        shards_least=play.shards,
        shards_most=2 * play.shards,
        reshard_every_s=max(30.0, play.busy_s / 20),
        measures_quiet=False,
        has_peer=False,
    )
    if play.policy is None:
        return shape
    config = structs.replace(shape.config, max_attempts=_ATTEMPTS_MOST, max_crashes=_CRASHES_MOST)
    return replace(shape, config=config)


class PlayedWorld(World):
    """One run of a user's handler."""

    def __init__(self, around: Surroundings, shape: Shape, play: Play) -> None:
        """Deploy the user's handler; the outside world is empty."""
        super().__init__(around, shape)
        begin_with(play.sink)
        self._play = play
        self._overlaps = play.load().is_async
        self.functions.handler_of = self._handler
        if play.policy is not None:
            self.functions.policy, around.ledger.terms = play.policy, play.policy.terms
            around.ledger.keeps = False

    def _handler(self, actor: Actor, clock: Clock) -> HandlerRunner:
        play, around = self._play, self._around
        return PlayedHandler(actor, around, clock, handler=play.load, overlaps=self._overlaps)

    async def _produce(self) -> None:
        """
        Put the user's records, evenly over the busy time, now and then several at once.

        A record has the same sequence number in every run, so that what a handler makes of it can
        be compared.
        """
        left = list(reversed(self._play.records))
        bursts = random.Random(len(left))
        pause_s = self._play.busy_s * _FLOW_PART / len(left)
        while left:
            number = len(self._play.records) - len(left)
            self.stream.memory.skip_to((number + 1) * _SEQUENCES_PER_RECORD)
            burst = [left.pop() for _ in range(min(len(left), bursts.choice(_BURSTS)))]
            by_key: dict[str, list[bytes]] = {}
            for key, data in burst:
                by_key.setdefault(key, []).append(data)
            for key, payloads in by_key.items():
                self.stream.send(key, payloads)
            await asyncio.sleep(pause_s * len(burst))

    async def _reshard(self) -> None:
        if self._play.has_faults:
            await super()._reshard()

    def judge(self) -> None:
        """Look at the outside world at the end."""
        play, now_ms = self._play, self._around.now_ms
        if self._around.violations:
            return
        if play.expected is not None and dict(play.sink.values) != dict(play.expected):
            self._around.violated(_difference(play, now_ms))
        if play.check is not None:
            try:
                play.check(play.sink)
            except AssertionError as error:
                text = str(error) or "an assertion without a message"
                self._around.violated(Violation(now_ms, "Check", "the sink", text))


def _difference(play: Play, now_ms: int) -> Violation:
    """Describe the first value that is not as without faults, and since when."""
    assert play.expected is not None
    found, name = play.sink.values, "EffectsAsWithoutFaults"
    wrong = [
        key
        for key in sorted({*found, *play.expected})
        if key not in found or key not in play.expected or found[key] != play.expected[key]
    ]
    key = wrong[0]
    more = f" ({len(wrong) - 1} more values differ)" if len(wrong) > 1 else ""
    is_, should = found.get(key, "nothing"), play.expected.get(key, "nothing")
    what = f"{key!r} is {_short(is_)}, without faults it is {_short(should)}{more}"
    twice = _first_overlap(play.sink.history(key))
    if twice is None:
        return Violation(now_ms, name, key, what)
    before, again = twice
    text = (
        f"{what}; {before.by} had changed it at {before.at_ms} ms for records "
        f"{_range(before)} of {before.shard_id}, {again.by} did so at {again.at_ms} ms for "
        f"{_range(again)}"
    )
    return Violation(again.at_ms, name, again.shard_id, text)


def _first_overlap(history: Sequence[Effect]) -> tuple[Effect, Effect] | None:
    """Return the first two changes of a value by different calls for the same records."""
    for index, again in enumerate(history):
        for before in reversed(history[:index]):
            if before.shard_id != again.shard_id or before.call == again.call:
                continue
            if before.records[1] >= again.records[0] and again.records[1] >= before.records[0]:
                return before, again
            break
    return None


def _range(effect: Effect) -> str:
    first, last = (f"{sequence}:{sub}" for sequence, sub in effect.records)
    return first if first == last else f"{first} to {last}"


def _short(value: object, most: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 2]} …"
