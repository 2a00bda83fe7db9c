"""
Kinds of runs in which mutants are looked for.

``drawn`` is a small fleet whose faults are drawn from the seed, as in ``make sim``. The others fix
some of the faults, and leave the rest to the seed or to nobody: a bug that needs one kind of fault
undisturbed is found sooner there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

from shardfleet.testing.simulation import Options
from shardfleet.testing.simulation.faults import FaultMix
from shardfleet.testing.simulation.world import Shape


def _only(**probabilities: float) -> Callable[[int], Options]:
    """Return runs in which nothing goes wrong but these."""
    mix = replace(FaultMix.none(), **probabilities)
    return lambda seed: Options(seed=seed, is_small=True, mix=mix)


def _drawn(reshape: Callable[[Shape], Shape], **probabilities: float) -> Callable[[int], Options]:
    """Return runs with drawn faults, these excepted, in fleets of another shape."""

    def options(seed: int) -> Options:
        chance = random.Random(f"{seed}/arena")
        mix = replace(FaultMix.drawn(chance), **probabilities)
        return Options(seed=seed, is_small=True, mix=mix, reshape=reshape)

    return options


def _with_peer(shape: Shape) -> Shape:
    """Let a worker like Java's share the stream."""
    config = replace(shape.config, initial_position="TRIM_HORIZON", on_exhausted="stop")
    return replace(shape, config=config, has_peer=True)


def _swaying(shape: Shape) -> Shape:
    """Grow and shrink, so that slots are drained."""
    config = replace(shape.config, cycle_ms=2_000, leases_per_worker=1)
    return replace(shape, config=config, reshard_every_s=2.0, trend_ms=20_000, shards_most=6)


def _restless(shape: Shape) -> Shape:
    """Reshard every few seconds, and let managers look often."""
    config = replace(shape.config, cycle_ms=2_000, checkpoint_ms=0)
    return replace(shape, config=config, reshard_every_s=3.0, records_per_s=8.0)


def _reshaped(
    reshape: Callable[[Shape], Shape], **probabilities: float
) -> Callable[[int], Options]:
    """Return runs in which nothing goes wrong but these, in fleets of another shape."""
    mix = replace(FaultMix.none(), **probabilities)
    return lambda seed: Options(seed=seed, is_small=True, mix=mix, reshape=reshape)


def _gives_up(shape: Shape) -> Shape:
    """Keep records elsewhere that cannot be handled."""
    return replace(shape, config=replace(shape.config, on_exhausted="sqs"), has_peer=False)


def _at_the_tip(shape: Shape) -> Shape:
    """Begin at the tip of a busy stream."""
    config = replace(shape.config, initial_position="LATEST")
    return replace(shape, config=config, has_peer=False, records_per_s=8.0)


def _busy(shape: Shape) -> Shape:
    """Let there be records all the time, and checkpoints seldom."""
    config = replace(shape.config, checkpoint_ms=5_000, turn_most_ms=20_000)
    return replace(shape, config=config, records_per_s=8.0)


def _forgetful(shape: Shape) -> Shape:
    """Let shards leave the stream as soon as their records are done."""
    return replace(shape, forget_most_s=0.5, has_peer=False)


def _watchful(shape: Shape) -> Shape:
    """Let managers look each second."""
    return replace(shape, config=replace(shape.config, cycle_ms=1_000))


def _many_shards(shape: Shape) -> Shape:
    """Begin with many shards, and a manager that looks seldom."""
    config = replace(shape.config, cycle_ms=20_000)
    return replace(shape, config=config, shards=8)


def _long_turns(shape: Shape) -> Shape:
    """Let turns last as long as they may here, of few shards that stay."""
    config = replace(shape.config, turn_most_ms=75_000, turn_margin_ms=6_000)
    return replace(shape, config=config, reshard_every_s=60.0, has_peer=False)


ARENAS: Mapping[str, Callable[[int], Options]] = {
    "drawn": lambda seed: Options(seed=seed, is_small=True),
    "perfect": _only(),
    "kills": _only(kill_between=0.03, handler_slow=0.3, handler_partial=0.3),
    "failures": _only(handler_raises=0.1, handler_slow=0.3, kill_between=0.02),
    "twins": _only(duplicate_call=0.5, connection_lost=0.3, request_lost=0.02, reply_lost=0.03),
    "pauses": _only(freeze=0.02, freeze_in_call=0.01, clock_drift=1.0, stale_read=0.3),
    "slow starts": _only(cold_start=0.7, slow_import=0.7),
    "contradictions": _only(false_end=0.05, empty_with_lag=0.1, stale_listing=0.4),
    "lost answers": _only(reply_lost=0.1, request_lost=0.05, late_write=0.05, throttle=0.05),
    "other hands": _only(
        foreign_checkpoint=0.02, rewind=0.02, handler_slow=0.5, handler_raises=0.1
    ),
    "late twins": _only(
        duplicate_call=0.3, connection_lost=0.3, freeze_in_call=0.03, freeze=0.02, cold_start=0.3
    ),
    "handovers": _reshaped(_with_peer),
    "poison": _reshaped(_gives_up, poison=0.004),
    "busy": _reshaped(_busy, throttle=0.15, slow_call=0.3, reply_lost=0.02),
    "at the tip": _reshaped(
        _at_the_tip,
        late_start=0.9,
        kill_between=0.03,
        clock_drift=1.0,
        stale_listing=0.3,
        handler_slow=0.3,
    ),
    "drifting managers": _reshaped(
        _watchful,
        clock_drift=1.0,
        freeze_in_call=0.005,
        slow_call=0.3,
        kill_between=0.02,
        manager_twice=0.5,
    ),
    "laggards": _only(handler_slow=0.9, handler_raises=0.3, stale_read=0.3),
    "holes": _only(stale_listing=0.9, handler_slow=0.9, manager_missing=0.5),
    "short retention": _reshaped(_forgetful, handler_slow=0.3, kill_between=0.02, slow_call=0.2),
    "many shards": _reshaped(_many_shards),
    "long turns": _reshaped(_long_turns, freeze_in_call=0.003, rewind=0.05),
    "java": _drawn(_with_peer, freeze_in_call=0.01),
    "ghosts": _reshaped(_restless, freeze_in_call=0.003, stale_read=0.3),
    "drains": _reshaped(_swaying, freeze_in_call=0.01),
    "hands and pauses": _reshaped(
        _restless, rewind=0.05, foreign_checkpoint=0.02, freeze_in_call=0.004, stale_read=0.5
    ),
    "dead managers": _only(kill_between=0.05, manager_missing=0.2, manager_twice=0.5),
}
"""Name → the options of a seed."""
