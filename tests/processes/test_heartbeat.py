"""A process shows that it lives often enough that one lost answer does not take it for dead."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import TurnOutcome, intend_start
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import OutcomeUnknown
from shardfleet_processes.offers import OfferLauncher
from shardfleet_processes.process import FleetProcess, ProcessPorts
from shardfleet_testkit.memory import MemoryEvents, MemoryProcess, MemoryStateStore
from tests.engine.manager_side.fleet_kit import Fleet
from tests.virtual import virtual

FAILOVER_MS = 10_000
# As long as an adapter waits for an answer (hazard H1).
UNANSWERED_MS = 2_000


class Slow(MemoryStateStore):
    """Each call takes its time; one sign of life never arrives."""

    def __init__(self, clock, *, lost):
        super().__init__()
        self.clock, self.lost = clock, lost
        self.sent, self.landed_ms = 0, []

    async def list(self, kind):
        await self.clock.sleep_ms(20)
        return await super().list(kind)

    async def write(self, kind, name, body, **version):
        if kind == "host":
            self.sent += 1
            if self.sent == self.lost:
                await self.clock.sleep_ms(UNANSWERED_MS)
                raise OutcomeUnknown("host")
            self.landed_ms.append(self.clock.now_ms())
        await self.clock.sleep_ms(20)
        return await super().write(kind, name, body, **version)


class Turn:
    """One that needs long to end when it is asked to."""

    def __init__(self, clock):
        self.clock, self.asked = clock, Halt()

    def hand_over(self):
        self.asked.set()

    async def run(self):
        await self.asked.wait(600_000)
        await self.clock.sleep_ms(7_000)
        return TurnOutcome.DRAINED


async def signs_of_life(*, offered_ms, lost):
    """Return when a process has shown that it lives, from its start to its end."""
    fleet = Fleet(failover_ms=FAILOVER_MS)
    clock, store, taken = fleet.clock, Slow(fleet.clock, lost=lost), asyncio.Event()
    state = FleetState(store, clock)

    async def lead():
        """Be another manager, which offers a slot."""
        while True:
            await state.take_lock("other", duration_ms=FAILOVER_MS, longest_ms=FAILOVER_MS)
            await clock.sleep_ms(1_000)

    @asynccontextmanager
    async def turn(given):
        taken.set()
        yield Turn(clock)

    ports = ProcessPorts(
        state=store,
        clock=clock,
        events=MemoryEvents(),
        process=MemoryProcess(),
        cpu=lambda: -1,
        manager=lambda offers: replace(fleet.ports(), state=state, launcher=offers),
        turn=turn,
    )
    leading, halt = asyncio.create_task(lead()), Halt()
    await clock.sleep_ms(1)
    process = asyncio.create_task(FleetProcess(fleet.config, ports, "a").run(halt))
    await clock.sleep_ms(offered_ms)
    leader = OfferLauncher(store, host="other", clock=clock, failover_ms=FAILOVER_MS)
    slot = intend_start(None, slot_id="s1", worker_id="f-s1", name_prefix="f", now_ms=1)
    await leader.start("f-s1-1-0", slot.slot_input().execution_text())
    await taken.wait()
    await clock.sleep_ms(25_000)
    halt.set()
    await process
    leading.cancel()
    return store.landed_ms


# From one sign of life to the next, as long as it has no slot: it is offered one at any moment.
@pytest.mark.parametrize("offered_ms", range(0, FAILOVER_MS // 3 + 300, 300))
@virtual
async def test_one_lost_answer_leaves_no_gap_of_a_failover_time(offered_ms):
    for lost in range(2, 12):
        landed_ms = await signs_of_life(offered_ms=offered_ms, lost=lost)

        assert len(landed_ms) > 10
        assert max(after - before for before, after in pairwise(landed_ms)) < FAILOVER_MS
