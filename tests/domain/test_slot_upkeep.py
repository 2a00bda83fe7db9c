"""What is done about each slot: how many are wanted, who starts, who is examined, who drains."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.slot_upkeep import DRAIN_AFTER_TURNS, SlotLimits, plan_slots, slots_wanted
from shardfleet.domain.slots import Slot, SlotState

LIMITS = SlotLimits(leases_per_worker=4, workers_min=1, workers_max=3, silent_ms=20_000)
NOW = 1_000_000


def a_slot(number, state=SlotState.RUNNING, heartbeat_ms=NOW, *, drain=False):
    slot_id = f"s{number:04}"
    return Slot(
        slot_id=slot_id,
        worker_id=f"fleet-{slot_id}",
        state=state,
        name=f"fleet-{slot_id}-1",
        start_epoch=1,
        heartbeat_ms=heartbeat_ms,
        drain=drain,
    )


def tasks(slots, unfinished, surplus_turns=0, limits=LIMITS):
    plan = plan_slots(
        slots, unfinished=unfinished, limits=limits, now_ms=NOW, surplus_turns=surplus_turns
    )
    assert all(decision.reason for decision in plan.decisions)
    return {decision.slot_id: decision.task.value for decision in plan.decisions}


@pytest.mark.parametrize(
    ("unfinished", "wanted"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (12, 3), (1000, 3)]
)
def test_wanted_are_as_many_as_the_leases_need_within_the_limits(unfinished, wanted):
    assert slots_wanted(unfinished, LIMITS) == wanted


def test_the_least_number_is_kept_while_there_is_anything_to_read():
    limits = replace(LIMITS, workers_min=2)

    assert (slots_wanted(1, limits), slots_wanted(0, limits)) == (2, 0)


def test_missing_slots_start_ended_ones_first_then_the_lowest_free_numbers():
    slots = [a_slot(1), a_slot(3, SlotState.ENDED), a_slot(4, SlotState.ENDED)]

    assert tasks(slots, 9) == {"s0001": "NOTHING", "s0003": "START", "s0004": "START"}
    assert tasks(slots[:2], 9) == {"s0001": "NOTHING", "s0002": "START", "s0003": "START"}
    assert tasks([], 9) == {"s0001": "START", "s0002": "START", "s0003": "START"}


def test_a_slot_on_its_way_counts_and_its_start_is_repeated():
    assert tasks([a_slot(1, SlotState.STARTING, 0)], 4) == {"s0001": "REPEAT_START"}


def test_a_slot_silent_for_longer_than_allowed_is_examined_and_still_counts():
    assert tasks([a_slot(1, heartbeat_ms=NOW - 20_000)], 4) == {"s0001": "NOTHING"}
    assert tasks([a_slot(1, heartbeat_ms=NOW - 20_001)], 4) == {"s0001": "EXAMINE"}
    assert tasks([a_slot(1, SlotState.ENDING, NOW - 20_001)], 0) == {"s0001": "EXAMINE"}


def test_a_surplus_must_last_before_the_last_slots_are_asked_to_drain():
    slots = [a_slot(1), a_slot(2), a_slot(3)]

    assert set(tasks(slots, 4, DRAIN_AFTER_TURNS - 1).values()) == {"NOTHING"}
    assert tasks(slots, 4, DRAIN_AFTER_TURNS) == {
        "s0001": "NOTHING",
        "s0002": "DRAIN",
        "s0003": "DRAIN",
    }


def test_a_draining_slot_counts_no_more_and_is_replaced_when_it_is_needed_after_all():
    slots = [a_slot(1, drain=True), a_slot(2, SlotState.ENDING)]

    assert tasks(slots, 4) == {"s0001": "NOTHING", "s0002": "NOTHING", "s0003": "START"}


def test_a_silent_surplus_slot_is_examined_and_not_asked():
    slots = [a_slot(1), a_slot(2, heartbeat_ms=0)]

    assert tasks(slots, 4, DRAIN_AFTER_TURNS) == {"s0001": "NOTHING", "s0002": "EXAMINE"}


def test_with_nothing_to_read_slots_end_by_themselves():
    assert tasks([a_slot(1), a_slot(2, SlotState.ENDED)], 0, 99) == {"s0001": "NOTHING"}


SLOTS = st.lists(
    st.builds(
        a_slot,
        st.integers(1, 6),
        st.sampled_from(SlotState),
        st.sampled_from([0, NOW - 20_001, NOW]),
        drain=st.booleans(),
    ),
    unique_by=lambda slot: slot.slot_id,
    max_size=6,
)


@given(SLOTS, st.integers(0, 40), st.integers(0, 5), st.randoms())
def test_any_slots_come_to_the_wanted_number_and_not_beyond(slots, unfinished, turns, shuffler):
    found = tasks(slots, unfinished, turns)

    staying = sum(
        slot.state in (SlotState.STARTING, SlotState.RUNNING) and not slot.drain for slot in slots
    )
    starts = sum(task == "START" for task in found.values())
    drains = sum(task == "DRAIN" for task in found.values())
    wanted = slots_wanted(unfinished, LIMITS)
    assert starts == max(0, wanted - staying)
    assert staying - drains >= min(wanted, staying)
    assert not (starts and drains)
    assert {slot.slot_id for slot in slots if slot.state is not SlotState.ENDED} <= found.keys()
    shuffler.shuffle(slots)
    assert tasks(slots, unfinished, turns) == found
