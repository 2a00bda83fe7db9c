"""Whom a fault of a port befalls: an error that nobody foresaw is of a shard's consumer (H22)."""

from dataclasses import replace

import pytest

from shardfleet.records import Batch
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.simulation.actors import Actor, SimulationLoop
from shardfleet_testkit.simulation.dead_letters import RedrivenHandler
from shardfleet_testkit.simulation.faults import FaultMix, Faults
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.user_handler import UserHandler


@pytest.mark.parametrize(
    ("kind", "execution", "raises"), [(UserHandler, (1, 0), True), (RedrivenHandler, (0, 0), False)]
)
def test_an_error_that_nobody_foresaw_befalls_consumers_alone(kind, execution, raises):
    """Seed 381: a redrive, in which no consumer is, was ended by it, and held for unclean."""
    mix = replace(FaultMix.none(), consumer_raises=1.0)

    async def call():
        around = Surroundings(1, Faults(1, mix), renew_ms=3_333, checkers=())
        actor = Actor("one#1", now_ms=around.clock.monotonic_ms)
        actor.execution = execution
        handler = kind(actor, around, around.clock, overlaps=False, is_manual=False)
        batch = Batch(
            (), shard_id="s-0", stream_arn="a", millis_behind_latest=0, attempt=1, deadline_ms=5_000
        )
        return await handler.run(batch)

    if raises:
        with pytest.raises(RuntimeError, match="the port fails"):
            run_virtual(call(), loop_factory=SimulationLoop)
    else:
        assert run_virtual(call(), loop_factory=SimulationLoop).error is None
