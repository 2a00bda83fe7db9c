"""Every policy, a failing record anywhere, a death at any effect: nothing lost, nothing passed."""

import asyncio
import re

import pytest

from shardfleet.domain.delivery.attempts import RETRIES
from shardfleet.domain.delivery.lanes import lane_of
from shardfleet.domain.delivery.policies import POLICIES, Destination
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.events.delivery import RecordSkipped
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.steps_kit import Stepped, Steps, process
from tests.engine.worker_side.worker_kit import World, key

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "max_batch_records": 5}
KEPT_IN = {"failed_queue_url": "q", "failed_bucket": "b", "failed_topic_arn": "t"}
ATTEMPTS = 2
COUNT = 9
# Records 3 to 6 are of one aggregate.
POSITIONS = {
    "first": 1,
    "first of an aggregate": 3,
    "inside an aggregate": 4,
    "last of an aggregate": 6,
    "middle": 7,
    "last": COUNT,
}
PARALLELISM = (1, 3)
# Where the world has changed, or is about to for a record that is given up.
EFFECTS = re.compile(r"after (handler.run|leases.apply checkpoint|state.write)|\w+ dead_letters")


def key_of(n):
    return f"k{n % 4}"


def a_world(bad, **config):
    world = World(**SHORT, **config, **KEPT_IN, max_attempts=ATTEMPTS, overlaps=True)
    alone = []

    async def fail(batch):
        await asyncio.sleep(0.01 * int(batch[0].data))  # Lanes end in another order.
        if str(bad).encode() in [record.data for record in batch]:
            if len(batch) == 1:
                alone.append(batch.attempt)
            raise ValueError(f"cannot handle {bad}")

    world.handler._script = fail
    world.put(1, 2, key_of=key_of)
    inside = [OutgoingRecord(key_of(n), str(n).encode()) for n in range(3, 7)]
    world.stream.put(aggregate(inside), shard_id=key(0))
    world.put(7, COUNT, key_of=key_of)
    return world, alone


def same_lane(n, other, lanes):
    return lane_of(key_of(n), lanes) == lane_of(key_of(other), lanes)


def stands_before(world, bad):
    """Tell whether the lease's checkpoint is before a record."""
    return world.lease().checkpoint < place_of_number(world, bad)


def place_of_number(world, n):
    first, second, middle, *rest = world.stream.sequence_numbers(key(0))
    places = [(first, 0), (second, 0), *((middle, sub) for sub in range(4))]
    return ExtendedSequenceNumber(*[*places, *((number, 0) for number in rest)][n - 1])


def check(world, bad, *, where):
    """Nothing is lost, passed or out of order; what is given up is kept, or stands at the stop."""
    kept = {int(record.data) for failed in world.dead_letters.kept for record in failed.records}
    handled, lanes = world.numbers, world.config.parallelism
    for lane in range(lanes):
        of_lane = [n for n in handled if lane_of(key_of(n), lanes) == lane]
        firsts = [of_lane.index(n) for n in sorted(set(of_lane))]
        assert firsts == sorted(firsts), where
    terms = world.config.policy_terms
    if terms.stops:
        behind = {n for n in range(bad, COUNT + 1) if same_lane(n, bad, lanes)}
        assert not set(handled) & behind, where
        assert set(range(1, bad)) <= set(handled), where
        assert ("stop", key(0)) in world.state.documents, where
        assert stands_before(world, bad), where
        return
    assert kept == (set() if terms.destination is Destination.NOTHING else {bad}), where
    told = {event.position for event in world.told(RecordSkipped)}
    assert told == {str(place_of_number(world, bad))}, where
    assert set(handled) == set(range(1, COUNT + 1)) - {bad}, where
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


# The engine asks a policy whether it stops, and whether it keeps: what is kept elsewhere, by the
# same step, has one position.
def told_apart_by(terms):
    return terms.stops, terms.destination is not Destination.NOTHING


TOLD_APART = {told_apart_by(terms): name for name, terms in POLICIES.items()}
CELLS = [
    (policy, position)
    for policy in POLICIES
    for position in (POSITIONS if policy in TOLD_APART.values() else ["inside an aggregate"])
]


def test_every_policy_and_every_position_is_there():
    assert {policy for policy, _ in CELLS} == POLICIES.keys()
    for told_apart in TOLD_APART:
        same = [name for name, terms in POLICIES.items() if told_apart_by(terms) == told_apart]
        assert {position for policy, position in CELLS if policy in same} == POSITIONS.keys()


@pytest.mark.parametrize("parallelism", PARALLELISM)
@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize(("policy", "position"), CELLS)
def test_a_death_at_any_effect_of_any_policy_loses_nothing(policy, retry, position, parallelism):
    bad = POSITIONS[position]

    async def once(act_at):
        world, alone = a_world(bad, on_failure=retry, on_exhausted=policy, parallelism=parallelism)
        steps = Steps(act_at=act_at, only=EFFECTS.match)
        letters = Stepped(world.dead_letters, steps, "dead_letters")
        await process(world, steps, turn_ms=13_000, dead_letters=letters)
        await world.turn(turn_ms=20_000)
        return world, steps, alone

    world, steps, alone = run_virtual(once(None))
    check(world, bad, where="no death")
    assert alone[-1] == ATTEMPTS
    for act_at in range(len(steps.names)):
        world, _, _ = run_virtual(once(act_at))
        check(world, bad, where=f"step {act_at}: {steps.names[act_at]}")
