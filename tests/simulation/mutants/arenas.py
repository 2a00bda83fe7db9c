"""
Kinds of runs in which mutants are looked for.

``drawn`` is a small fleet whose faults are drawn from the seed, as in ``make sim``. The others fix
some of the faults, and leave the rest to the seed or to nobody: a bug that needs one kind of fault
undisturbed is found sooner there.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import fields

from msgspec.structs import replace

from shardfleet_testkit.simulation import Options
from shardfleet_testkit.simulation.faults import FaultMix
from shardfleet_testkit.simulation.shapes import Shape

_OF_SHAPES = frozenset(field.name for field in fields(Shape))
_RESTLESS: dict[str, object] = {
    "cycle_ms": 2_000,
    "checkpoint_ms": 0,
    "reshard_every_s": 3.0,
    "records_per_s": 8.0,
}
_PEER: dict[str, object] = {
    "initial_position": "TRIM_HORIZON",
    "on_exhausted": "stop",
    "has_peer": True,
}
_LONG = (15.0, 45.0)


def _only(**probabilities: float) -> Callable[[int], Options]:
    """Return runs in which nothing goes wrong but these."""
    mix = dataclasses.replace(FaultMix.none(), **probabilities)
    return lambda seed: Options(seed=seed, is_small=True, mix=mix)


def _drawn(reshape: Callable[[Shape], Shape], **probabilities: float) -> Callable[[int], Options]:
    """Return runs with drawn faults, these excepted, in fleets of another shape."""

    def options(seed: int) -> Options:
        chance = random.Random(f"{seed}/arena")
        mix = dataclasses.replace(FaultMix.drawn(chance), **probabilities)
        return Options(seed=seed, is_small=True, mix=mix, reshape=reshape)

    return options


def _focused(
    *focus: str, shape: dict[str, object], **probabilities: float
) -> Callable[[int], Options]:
    """Return runs in which invocations freeze or die in some calls only; see :class:`Shape`."""
    mix = dataclasses.replace(FaultMix.none(), **probabilities)

    def reshape(drawn: Shape) -> Shape:
        own = {k: v for k, v in shape.items() if k not in _OF_SHAPES}
        of_shape = {k: v for k, v in shape.items() if k in _OF_SHAPES}
        config = replace(drawn.config, **own)  # type: ignore[arg-type]
        return dataclasses.replace(drawn, config=config, focus=focus, **of_shape)  # type: ignore[arg-type]

    return lambda seed: Options(seed=seed, is_small=True, mix=mix, reshape=reshape)


def _with_peer(shape: Shape) -> Shape:
    """Let a worker like Java's share the stream."""
    config = replace(shape.config, initial_position="TRIM_HORIZON", on_exhausted="stop")
    return dataclasses.replace(shape, config=config, has_peer=True)


def _restless(shape: Shape) -> Shape:
    """Reshard every few seconds, and let managers look often."""
    config = replace(shape.config, cycle_ms=2_000, checkpoint_ms=0)
    return dataclasses.replace(shape, config=config, reshard_every_s=3.0, records_per_s=8.0)


def _reshaped(
    reshape: Callable[[Shape], Shape], **probabilities: float
) -> Callable[[int], Options]:
    """Return runs in which nothing goes wrong but these, in fleets of another shape."""
    mix = dataclasses.replace(FaultMix.none(), **probabilities)
    return lambda seed: Options(seed=seed, is_small=True, mix=mix, reshape=reshape)


def _gives_up(shape: Shape) -> Shape:
    """Keep records elsewhere that cannot be handled."""
    return dataclasses.replace(
        shape, config=replace(shape.config, on_exhausted="sqs"), has_peer=False
    )


def _at_the_tip(shape: Shape) -> Shape:
    """Begin at the tip of a busy stream."""
    config = replace(shape.config, initial_position="LATEST")
    return dataclasses.replace(shape, config=config, has_peer=False, records_per_s=8.0)


def _busy(shape: Shape) -> Shape:
    """Let there be records all the time, and checkpoints seldom."""
    config = replace(shape.config, checkpoint_ms=5_000, max_turn_ms=20_000)
    return dataclasses.replace(shape, config=config, records_per_s=8.0)


def _forgetful(shape: Shape) -> Shape:
    """Let shards leave the stream as soon as their records are done."""
    return dataclasses.replace(shape, forget_most_s=0.5, has_peer=False)


def _watchful(shape: Shape) -> Shape:
    """Let managers look each second."""
    return dataclasses.replace(shape, config=replace(shape.config, cycle_ms=1_000))


def _sleeping(shape: Shape) -> Shape:
    """Let idle shards sleep, in a fleet of its own."""
    return dataclasses.replace(shape.sleeping(random.Random(shape.records_per_s)), has_peer=False)


def _light_sleepers(shape: Shape) -> Shape:
    """Let shards sleep after a second, for a long while, and be looked at often."""
    found = _sleeping(shape)
    config = replace(found.config, sleep_after_ms=1_000, max_wake_ms=10_000, idle_end_ms=10_000)
    return dataclasses.replace(found, config=config, busy_s=200.0)


def _many_shards(shape: Shape) -> Shape:
    """Begin with many shards, and a manager that looks seldom."""
    config = replace(shape.config, cycle_ms=20_000)
    return dataclasses.replace(shape, config=config, shards=8)


def _long_turns(shape: Shape) -> Shape:
    """Let turns last as long as they may here, of few shards that stay."""
    config = replace(shape.config, max_turn_ms=75_000, turn_margin_ms=6_000)
    return dataclasses.replace(shape, config=config, reshard_every_s=60.0, has_peer=False)


def _pushed(shape: Shape) -> Shape:
    """Have records pushed, many of them, of shards that are resharded."""
    config = replace(shape.config, consumer_arn=f"{shape.config.stream_arn}/consumer/fleet:1")
    return dataclasses.replace(shape, config=config, records_per_s=8.0, reshard_every_s=20.0)


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
    "pushed": _reshaped(_pushed, handler_slow=0.3, false_end=0.03, throttle=0.05),
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
    "holes": _focused(
        shape={"initial_position": "LATEST", "has_peer": False, "reshard_every_s": 8.0},
        lease_vanishes=0.05,
        handler_slow=0.5,
    ),
    "short retention": _reshaped(_forgetful, handler_slow=0.3, kill_between=0.02, slow_call=0.2),
    "many shards": _reshaped(_many_shards),
    "long turns": _reshaped(_long_turns, freeze_in_call=0.003, rewind=0.05),
    "java": _drawn(_with_peer, freeze_in_call=0.01),
    "ghosts": _reshaped(_restless, freeze_in_call=0.003, stale_read=0.3),
    "hands and pauses": _reshaped(
        _restless, rewind=0.05, foreign_checkpoint=0.02, freeze_in_call=0.004, stale_read=0.5
    ),
    "frozen assigns": _focused(
        "lease.apply assign",
        shape={**_RESTLESS, "freeze_s": _LONG, "has_peer": False, "idle_end_ms": 3_000},
        freeze_in_call=0.3,
        manager_twice=1.0,
    ),
    "frozen gifts": _focused(
        "lease.apply assign",
        shape={
            **_PEER,
            "peer_hurry": 4.0,
            "peers_lead": True,
            "freeze_s": _LONG,
            "cycle_ms": 2_000,
        },
        freeze_in_call=0.5,
        connection_lost=0.5,
        manager_twice=1.0,
    ),
    "frozen leaders": _focused(
        "lease.apply initiate_handover",
        shape={
            **_PEER,
            "peer_hurry": 4.0,
            "peers_lead": True,
            "cycle_ms": 2_000,
            "freeze_s": _LONG,
        },
        freeze_in_call=0.5,
        execution_dies=0.2,
        kill_between=0.02,
    ),
    "frozen balancers": _focused(
        "lease.apply initiate_handover",
        shape={
            **_RESTLESS,
            "assignment": "count",
            "freeze_s": (5.0, 30.0),
            "leases_per_worker": 4,
            "has_peer": False,
        },
        freeze_in_call=0.7,
        manager_twice=1.0,
    ),
    "frozen ends": _focused(
        "lease.apply set_children",
        shape={**_RESTLESS, "freeze_s": (25.0, 45.0), "has_peer": False},
        freeze_in_call=0.3,
        manager_twice=0.5,
    ),
    "frozen ranges": _focused(
        "lease.apply set_hash_range",
        shape={
            **_PEER,
            **_RESTLESS,
            "peer_is_old": True,
            "peers_lead": False,
            "freeze_s": (25.0, 45.0),
        },
        freeze_in_call=0.5,
        manager_twice=1.0,
    ),
    "frozen deletions": _focused(
        "lease.apply delete",
        shape={**_RESTLESS, "has_peer": False, "rewinds_finished": True},
        freeze_in_call=0.5,
        manager_twice=1.0,
        rewind=0.1,
    ),
    "frozen looks": _focused(
        "lease.query",
        shape={
            **_RESTLESS,
            "cycle_ms": 1_000,
            "reshard_every_s": 1.0,
            "has_peer": False,
            # Ends at its third look, which asks the index: whoever freezes there knows nothing new.
            "idle_end_ms": 6_300,
            "freeze_s": (1.0, 6.0),
            "leases_per_worker": 1,
            "min_workers": 12,
            "max_workers": 16,
            "records_per_s": 2.0,
        },
        freeze_in_call=0.8,
    ),
    "frozen releases": _focused(
        "lease.apply evict",
        shape={
            "pauses_every_s": 2.0,
            "cycle_ms": 1_000,
            "min_workers": 4,
            "has_peer": False,
            "freeze_s": _LONG,
        },
        freeze_in_call=0.5,
    ),
    "forgetful": _focused(
        shape={
            "max_turn_ms": 20_000,
            "checkpoint_ms": 5_000,
            "records_per_s": 8.0,
            "busy_s": 150.0,
            "cycle_ms": 5_000,
            "has_peer": False,
        },
        throttle=0.15,
    ),
    "frozen scans": _focused(
        "lease.scan", shape={"cycle_ms": 2_000}, freeze_in_call=0.2, manager_twice=0.5
    ),
    "changing managers": _focused(
        shape={
            "cycle_ms": 300,
            "manager_run_ms": 3_000,
            "schedule_s": 1.5,
            "drifts_most": True,
            "freeze_s": (9.0, 20.0),
            "leases_per_worker": 6,
            "has_peer": False,
        },
        clock_drift=1.0,
        freeze=0.02,
    ),
    "rewinds over ends": _focused(
        shape={
            "checkpoint_ms": 5_000,
            "reshard_every_s": 4.0,
            "rewinds_finished": True,
            "has_peer": False,
            "cycle_ms": 20_000,
        },
        foreign_checkpoint=0.3,
        rewind=0.4,
        handler_slow=0.9,
    ),
    "rewound parents": _focused(
        shape={**_RESTLESS, "has_peer": False, "rewinds_finished": True},
        rewind=0.3,
        handler_slow=0.2,
    ),
    "merges of the unread": _focused(
        shape={
            "has_peer": False,
            "on_exhausted": "stop",
            "max_attempts": 3,
            "reshard_every_s": 2.0,
            "initial_position": "TRIM_HORIZON",
        },
        handler_raises=0.4,
        handler_slow=0.5,
    ),
    "a place per open shard": _focused(
        shape={
            "cycle_ms": 2_000,
            "leases_per_worker": 1,
            "min_workers": 1,
            "max_workers": 3,
            "scale_down_ms": 4_000,
            "shards": 3,
            "shards_least": 2,
            "shards_most": 3,
            "reshard_every_s": 0.5,
            "trend_ms": 8_000,
            "has_peer": False,
        },
        handler_slow=0.9,
        handler_raises=0.3,
        freeze=0.02,
        freeze_in_call=0.01,
        execution_dies=0.1,
        kill_between=0.03,
    ),
    "lanes": _focused(
        shape={
            "parallelism": 4,
            "max_batch_records": 2,
            "checkpoint_ms": 0,
            "records_per_s": 8.0,
            "reshard_every_s": 10.0,
            "has_peer": False,
        },
        handler_slow=0.3,
        handler_raises=0.1,
    ),
    "paused": _focused(shape={"pauses_every_s": 5.0, "has_peer": False}, handler_slow=0.3),
    "one worker": _focused(
        shape={
            "min_workers": 1,
            "max_workers": 1,
            "leases_per_worker": 12,
            "max_turn_ms": 400_000,
            "box_ms": 420_000,
            "reshard_every_s": 60.0,
            "busy_s": 60.0,
            "has_peer": False,
        },
        rewind=0.02,
    ),
    "empty restarts": _focused(
        shape={"records_per_s": 8.0, "has_peer": False, "max_turn_ms": 20_000},
        empty_with_lag=0.5,
        kill_between=0.03,
    ),
    "outdated twins": _focused(
        shape={"max_loops": 2, "max_turn_ms": 20_000, "cycle_ms": 2_000, "has_peer": False},
        late_twin=0.7,
        execution_dies=0.3,
        handler_slow=0.5,
        duplicate_call=0.3,
    ),
    "stillborn": _focused(
        shape={"min_workers": 1, "max_workers": 2, "leases_per_worker": 4, "has_peer": False},
        stillborn=0.3,
        execution_dies=0.2,
    ),
    "false news": _focused(shape={"has_peer": False}, false_gone=0.02),
    "false and old news": _focused(
        shape={"has_peer": False, "reshard_every_s": 3.0}, false_gone=0.03, stale_listing=0.2
    ),
    "created again": _focused(shape={"has_peer": False, "recreated_s": 30.0}),
    "rare managers": _focused(
        shape={
            "manager_run_ms": 10_000,
            "min_workers": 8,
            "max_workers": 12,
            "leases_per_worker": 1,
            "reshard_every_s": 5.0,
            "has_peer": False,
        }
    ),
    "one at a time": _focused(
        shape={
            "handlers_overlap": False,
            "leases_per_worker": 6,
            "min_workers": 1,
            "max_workers": 2,
            "max_batch_records": 1,
            "records_per_read": 20,
            "records_per_s": 8.0,
            "has_peer": False,
        },
        handler_slow=0.5,
    ),
    "hasty peers": _focused(
        "lease.apply checkpoint",
        shape={**_PEER, **_RESTLESS, "peer_hurry": 8.0, "peers_lead": True, "freeze_s": (1.0, 6.0)},
        freeze_in_call=0.1,
    ),
    "long imports": _focused(
        shape={"max_turn_ms": 20_000, "busy_s": 150.0, "has_peer": False, "cycle_ms": 2_000},
        cold_start=0.7,
        slow_import=0.9,
    ),
    "one death is enough": _focused(
        shape={"on_exhausted": "sqs", "has_peer": False, "max_crashes": 1, "records_per_s": 6.0},
        poison=0.01,
    ),
    "long handovers": _focused(
        shape={
            **_PEER,
            "peer_hurry": 4.0,
            "peers_lead": True,
            "max_turn_ms": 70_000,
            "cycle_ms": 20_000,
            "reshard_every_s": 40.0,
            "busy_s": 120.0,
        }
    ),
    "restarted owners": _focused(
        shape={
            **_PEER,
            "peer_hurry": 6.0,
            "peers_lead": True,
            "max_turn_ms": 20_000,
            "cycle_ms": 5_000,
        },
        kill_between=0.04,
    ),
    "asleep": _focused(
        shape={
            "sleep": True,
            "sleep_after_ms": 1_000,
            "max_wake_ms": 60_000,
            "cycle_ms": 3_000,
            "records_per_s": 0.05,
            "reshard_every_s": 60.0,
            "has_peer": False,
        }
    ),
    "sleepers": _reshaped(_sleeping),
    "slow sleepers": _reshaped(_light_sleepers, empty_with_lag=0.9),
    "sleepers without iterators": _reshaped(_light_sleepers, iterator_expired=0.6),
    "dead managers": _only(kill_between=0.05, manager_missing=0.2, manager_twice=0.5),
}
"""Name → the options of a seed."""
