"""Every policy, a failing record anywhere, a death at any effect: nothing lost, nothing passed."""

import re

import pytest

from shardfleet.domain.delivery.attempts import RETRIES
from shardfleet.kpl.aggregate import aggregate
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.testing.clock import run_virtual
from tests.engine.worker_side.steps_kit import Stepped, Steps, process
from tests.engine.worker_side.worker_kit import World, key

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "batch_records_most": 5}
POLICIES = {
    "stop": {"on_exhausted": "stop"},
    "sqs": {"on_exhausted": "sqs", "failed_queue_url": "q"},
    "sns": {"on_exhausted": "sns", "failed_bucket": "b", "failed_topic_arn": "t"},
}
ATTEMPTS = 2
COUNT = 9
# Records 3 to 6 are of one aggregate.
POSITIONS = {"first": 1, "inside an aggregate": 4, "middle": 7, "last": COUNT}
# Where the world has changed, or is about to for a record that is given up.
EFFECTS = re.compile(r"after (handler.run|leases.apply checkpoint|state.write)|\w+ dead_letters")


def a_world(bad, **config):
    world = World(**SHORT, **config, max_attempts=ATTEMPTS)
    alone = []

    async def fail(batch):
        if str(bad).encode() in [record.data for record in batch]:
            if len(batch) == 1:
                alone.append(batch.attempt)
            raise ValueError(f"cannot handle {bad}")

    world.handler._script = fail
    world.put(1, 2)
    inside = [OutgoingRecord("k", str(n).encode()) for n in range(3, 7)]
    world.stream.put(aggregate(inside), shard_id=key(0))
    world.put(7, COUNT)
    return world, alone


def check(world, bad, *, where):
    """Nothing is lost, passed or out of order; what is given up is kept, or stands at the stop."""
    kept = {int(record.data) for failed in world.dead_letters.kept for record in failed.records}
    handled = world.numbers
    firsts = [handled.index(n) for n in sorted(set(handled))]
    assert firsts == sorted(firsts), where
    if world.config.on_exhausted == "stop":
        assert set(handled) == set(range(1, bad)), where
        assert ("stop", key(0)) in world.state.documents, where
        return
    assert kept == {bad}, where
    assert set(handled) == set(range(1, COUNT + 1)) - {bad}, where
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


@pytest.mark.parametrize("bad", POSITIONS.values(), ids=POSITIONS)
@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_death_at_any_effect_of_any_policy_loses_nothing(policy, retry, bad):
    async def once(act_at):
        world, alone = a_world(bad, on_failure=retry, **POLICIES[policy])
        steps = Steps(act_at=act_at, only=EFFECTS.match)
        letters = Stepped(world.dead_letters, steps, "dead_letters")
        await process(world, steps, turn_ms=13_000, dead_letters=letters)
        await world.turn(turn_ms=20_000)
        return world, steps, alone

    world, steps, alone = run_virtual(once(None))
    check(world, bad, where="no death")
    assert alone[-1] == ATTEMPTS
    for act_at in range(len(steps.names)):
        world, steps, _ = run_virtual(once(act_at))
        check(world, bad, where=f"step {act_at}: {steps.names[act_at]}")
