"""A slot in a process's hands: how it is given up, and by whose word."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from shardfleet.domain.slots.offers import Offer
from shardfleet.domain.slots.slot import SlotState, TurnOutcome, intend_start
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.fleet_state import FleetState, slot_body
from shardfleet.engine.state.kinds import SLOT
from shardfleet_processes.process import CarriedSlot, ProcessPorts
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryEvents, MemoryProcess, MemoryStateStore
from tests.virtual import virtual


class Turn:
    """One that goes on until it is asked to end."""

    def __init__(self):
        self.asked = Halt()

        self.outcome = TurnOutcome.DRAINED

    def leave(self):
        self.outcome = TurnOutcome.CONTINUE
        self.asked.set()

    def hand_over(self):
        self.asked.set()

    async def run(self):
        await self.asked.wait(600_000)
        return self.outcome


def started(before=None):
    return intend_start(before, slot_id="s1", worker_id="f-s1", name_prefix="f", now_ms=1)


def text_of(slot):
    return slot.slot_input().execution_text()


def carried_by(store, clock, turn, first):
    """Carry a slot's first start, with a turn for the engine's."""

    @asynccontextmanager
    async def turn_of(given):
        assert given.start_epoch == first.start_epoch
        yield turn

    ports = ProcessPorts(
        state=store,
        clock=clock,
        events=MemoryEvents(),
        process=MemoryProcess(),
        cpu=lambda: -1,
        manager=lambda _: None,
        turn=turn_of,
    )
    return CarriedSlot(Offer(name="f-s1-1-0", text=text_of(first)), ports, "host")


@virtual
@pytest.mark.parametrize("is_ours", [True, False])
async def test_only_the_start_that_is_carried_is_asked_to_drain(is_ours):
    """One that was frozen wakes: the slot has started anew, and another process carries it."""
    store, clock, turn = MemoryStateStore(), VirtualClock(), Turn()
    first = started()
    now = first if is_ours else started(first)
    await store.write("slot", "s1", slot_body(now), expected_version=None)
    carried = carried_by(store, clock, turn, first)
    await asyncio.sleep(0)
    await carried.hand_over(FleetState(store, clock))
    await carried.task

    assert SLOT.read(store.documents["slot", "s1"].body, "s1").drain is is_ours
    assert now.state is SlotState.STARTING


@virtual
@pytest.mark.parametrize("is_told_to_end", [True, False])
async def test_a_slot_that_is_passed_on_keeps_its_leases(is_told_to_end):
    """Another process goes on with them at once; given back, they would wait for a manager."""
    store, clock, turn = MemoryStateStore(), VirtualClock(), Turn()
    slot = started()
    await store.write("slot", "s1", slot_body(slot), expected_version=None)
    carried = carried_by(store, clock, turn, slot)
    await asyncio.sleep(0)

    carried.pass_on()
    if is_told_to_end:
        await carried.hand_over(FleetState(store, clock))
    await carried.task

    assert carried.is_passed_on
    assert turn.outcome is TurnOutcome.CONTINUE
    assert not SLOT.read(store.documents["slot", "s1"].body, "s1").drain


@virtual
async def test_a_slot_that_ends_while_it_is_passed_on_has_ended():
    turn = Turn()
    carried = carried_by(MemoryStateStore(), VirtualClock(), turn, started())
    await asyncio.sleep(0)
    carried.pass_on()
    turn.outcome = TurnOutcome.IDLE
    await carried.task
    assert not carried.is_passed_on
