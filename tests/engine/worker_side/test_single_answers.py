"""
One answer to one call of a worker's costs the shard or the call that it is about a moment (H22).

Which calls there are is seen by a turn without a fault: four shards, one of which ends, one whose
records are given up. Each call is given each kind of answer once, the first one of the turn, and
the first one once all is under way. The turn never fails, no record is lost, and no neighbour's
record waits.
"""

import asyncio
from functools import cache

import pytest

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.refusals import DOUBTED_MS, RefusalKind
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.events.delivery import ConsumerFailed
from shardfleet.events.worker import TurnFailed
from tests.engine.single_answers import KINDS, LANDED, Fault
from tests.engine.worker_side.worker_kit import MEMORY_STREAM_ARN, World, key
from tests.virtual import virtual

SHARDS, ILL, ENDING = 4, 1, 3
SECONDS, ENDS, UNDER_WAY_MS = 14, 10, 5_000
TURN_MS = 44_000  # As long as it takes for each call to be made.
SETTINGS = {
    "max_attempts": 2,
    "on_exhausted": "sqs",
    "failed_queue_url": "q",
    "handler_timeout_ms": 5_000,
}
# A record waits for a read each second, and for one more where that one was refused.
WAITS_MOST_MS = 2_000


class Life:
    """A turn, its records, and how long each of them waited."""

    def __init__(self, fault):
        self.fault = fault
        self.world = World(shards=SHARDS, script=self.handled, **SETTINGS)
        self.waits = {}

    async def handled(self, batch):
        for record in batch:
            number, now_ms = int(record.data), self.world.clock.now_ms()
            self.waits[number] = now_ms - self.put_ms[number]
            if number % 100 == ILL and number // 100 % 7 == 5:
                raise ValueError("given up, and kept")

    async def feed(self):
        clock, self.put_ms = self.world.clock, {}
        for second in range(SECONDS):
            await clock.sleep_ms(1_000)
            if second == ENDS:
                self.world.stream.split(key(ENDING))
            for number in range(SHARDS):
                if number != ENDING or second < ENDS:
                    self.put_ms[100 * second + number] = clock.now_ms()
                    self.world.put(100 * second + number, number=number)
        await clock.sleep_ms(WAITS_MOST_MS)

    async def run(self, turn_ms):
        """Run the turn to its end; return its outcome."""
        world = self.world
        names = ("leases", "state", "stream", "source", "policy")
        real = world.ports()
        ports = {n: self.fault.port(getattr(real, n), n, world.clock) for n in names}
        turn = asyncio.create_task(world.turn(turn_ms=turn_ms, **ports))
        await self.feed()
        outcome, self.ended_ms = await turn, world.clock.monotonic_ms()
        return outcome


@virtual
async def played(fault, *, turn_ms=TURN_MS):
    """Play a life; return it and its outcome."""
    life = Life(fault)
    return life, await life.run(turn_ms)


@cache
def calls(from_ms):
    """Return each call that a turn makes from a moment on."""
    fault = Fault(from_ms=from_ms)
    life, outcome = played(fault)
    assert outcome is TurnOutcome.CONTINUE
    assert life.waits.keys() == life.put_ms.keys()
    assert life.world.dead_letters.kept
    return sorted(fault.seen)


CELLS = [
    (call, kind, from_ms)
    for from_ms in (0, UNDER_WAY_MS)
    for call in calls(from_ms)
    for kind in KINDS
]


def test_the_cells_are_of_every_call_and_every_kind_of_answer():
    assert set(KINDS) == {*RefusalKind, LANDED}
    assert len(CELLS) >= 36 * len(KINDS)


@pytest.mark.parametrize(("call", "kind", "from_ms"), CELLS)
def test_one_answer_to_one_call_fails_no_turn_and_delays_no_neighbour(call, kind, from_ms):
    fault = Fault(call, kind, from_ms=from_ms)
    life, outcome = played(fault)
    assert fault.given == 1
    assert outcome is TurnOutcome.CONTINUE
    assert not life.world.told(TurnFailed)
    assert life.waits.keys() == life.put_ms.keys()
    assert max(life.waits.values()) < WAITS_MOST_MS


@pytest.mark.parametrize("call", ["source.page", "leases.apply checkpoint", "leases.keys_owned_by"])
def test_a_right_that_stays_missing_ends_the_turn_with_its_name_once_it_is_believed(call):
    fault = Fault(call, RefusalKind.DENIED, lasts=True, from_ms=UNDER_WAY_MS)

    life, outcome = played(fault, turn_ms=200_000)
    assert outcome is TurnOutcome.FAILED
    (end,) = life.world.told(TurnFailed)
    assert "AccessDenied" in str(end)
    assert life.ended_ms > UNDER_WAY_MS + DOUBTED_MS
    assert life.world.slot().failure.kind is FailureKind.RIGHT


def test_an_answer_that_stays_stops_its_shard_and_no_other():
    """No table knows the code: after a minute the shard rests, longer each time, and is told."""
    ill = ShardRef(MEMORY_STREAM_ARN, key(ILL))
    fault = Fault(f"source.page {ill}", RefusalKind.ODD, lasts=True, from_ms=UNDER_WAY_MS)
    life, outcome = played(fault, turn_ms=150_000)
    assert outcome is TurnOutcome.CONTINUE
    assert life.world.told(ConsumerFailed)
    waits = {n: wait for n, wait in life.waits.items() if n % 100 != ILL}
    assert len(waits) == sum(1 for n in life.put_ms if n % 100 != ILL)
    assert max(waits.values()) < WAITS_MOST_MS
