"""What is done about each slot: how many are wanted, who starts, who is examined, who drains."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.reasons import HeartbeatAhead, Quoted
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.domain.slots.sizing import Pace, Sizing
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotFacts, SlotTask, plan_slots

NOW = 1_000_000
LEAVE_MOST_MS = 60_000


def a_slot(number, state=SlotState.RUNNING, heartbeat_ms=NOW, *, drain=False, leaving_ms=0):
    slot_id = f"s{number:04}"
    return Slot(
        slot_id=slot_id,
        worker_id=f"fleet-{slot_id}",
        state=state,
        name=f"fleet-{slot_id}-1",
        start_epoch=1,
        heartbeat_ms=heartbeat_ms,
        drain=drain,
        leaving_ms=leaving_ms,
    )


def plan(slots, wanted, *, held=None, lost=(), slots_most=10, bought=()):
    sizing = Sizing(wanted=wanted, reason=Quoted("so the test says"), pace=Pace())
    facts = SlotFacts(
        now_ms=NOW,
        silent_ms=20_000,
        leave_most_ms=LEAVE_MOST_MS,
        slots_most=slots_most,
        held={f"fleet-s{number:04}": count for number, count in (held or {}).items()},
        lost=lost,
        bought=bought,
    )
    return plan_slots(slots, sizing=sizing, facts=facts)


def tasks(slots, wanted, **facts):
    decisions = plan(slots, wanted, **facts).decisions
    assert all(decision.reason for decision in decisions)
    return {decision.slot_id: decision.task.value for decision in decisions}


def test_missing_slots_start_ended_ones_first_then_the_lowest_free_numbers():
    slots = [a_slot(1), a_slot(3, SlotState.ENDED), a_slot(4, SlotState.ENDED)]

    assert tasks(slots, 3) == {"s0001": "NOTHING", "s0003": "START", "s0004": "START"}
    assert tasks(slots[:2], 3) == {"s0001": "NOTHING", "s0002": "START", "s0003": "START"}
    assert tasks([], 3) == {"s0001": "START", "s0002": "START", "s0003": "START"}


def test_every_decision_says_how_many_are_wanted_and_why():
    (start,) = plan([], 1).decisions

    assert str(start.reason) == "the fleet needs 1 worker: so the test says"
    assert plan([], 1).reason == start.reason


def test_a_slot_on_its_way_counts_and_its_start_is_repeated():
    assert tasks([a_slot(1, SlotState.STARTING, 0)], 1) == {"s0001": "REPEAT_START"}


def test_a_slot_silent_for_longer_than_allowed_is_examined_and_still_counts():
    assert tasks([a_slot(1, heartbeat_ms=NOW - 20_000)], 1) == {"s0001": "NOTHING"}
    assert tasks([a_slot(1, heartbeat_ms=NOW - 20_001)], 1) == {"s0001": "EXAMINE"}
    assert tasks([a_slot(1, SlotState.ENDING, NOW - 20_001)], 0) == {"s0001": "EXAMINE"}


def test_a_slot_whose_heartbeat_is_dated_further_ahead_than_clocks_may_differ_is_verified():
    assert tasks([a_slot(1, heartbeat_ms=NOW + 20_000)], 1) == {"s0001": "NOTHING"}
    (ahead,) = plan([a_slot(1, heartbeat_ms=NOW + 20_001)], 1).decisions
    assert (ahead.task.value, ahead.reason) == ("VERIFY", HeartbeatAhead(20_001))
    assert not ahead.stand_in


def test_a_slot_whose_leases_have_expired_is_examined_at_once():
    slots = [a_slot(1), a_slot(2)]

    assert tasks(slots, 2, lost={"fleet-s0002"}) == {"s0001": "NOTHING", "s0002": "EXAMINE"}


def test_what_is_too_much_leaves_the_least_burdened_first_and_of_equals_the_last():
    slots = [a_slot(1), a_slot(2), a_slot(3)]

    assert tasks(slots, 1) == {"s0001": "NOTHING", "s0002": "LEAVE", "s0003": "LEAVE"}
    assert tasks(slots, 2, held={1: 1, 2: 5, 3: 4})["s0001"] == "LEAVE"
    leaves = plan(slots, 2, held={2: 1, 3: 1}).decisions[0]
    assert leaves.task is SlotTask.LEAVE
    assert (
        str(leaves.reason) == "there are 3 workers and the fleet needs 2 workers: so the test says"
    )


def test_what_lambda_runs_beside_processes_leaves_first_whatever_it_holds():
    slots, held = [a_slot(1), a_slot(2), a_slot(3)], {1: 1, 2: 9, 3: 5}
    assert tasks(slots, 2, held=held, bought=["s0002"])["s0002"] == "LEAVE"
    leaving = tasks(slots, 1, held=held, bought=["s0002", "s0003"])
    assert leaving == {"s0001": "NOTHING", "s0002": "LEAVE", "s0003": "LEAVE"}


@pytest.mark.parametrize(
    ("hosts", "offered", "bought", "leases", "least"),
    [
        (0, 0, 0, 8, 0),  # nobody but Lambda, which is sized by leases and load
        (2, 2, 0, 8, 2),  # a slot for each process
        (2, 0, 0, 8, 2),
        (3, 3, 0, 2, 2),  # but for no more than there are leases
        (2, 2, 3, 8, 2),  # what Lambda runs may go, as far as load allows
        (3, 2, 3, 8, 6),  # a process that has none gets one before any of Lambda's leaves
        (3, 2, 3, 2, 2),
    ],
)
def test_there_are_as_many_slots_as_processes_and_one_for_who_has_none(
    hosts, offered, bought, leases, least
):
    slots = [a_slot(number) for number in range(1, offered + bought + 1)]
    slots += [a_slot(90, SlotState.ENDED), a_slot(91, drain=True), a_slot(92, leaving_ms=1)]
    rooms = Rooms(
        hosts=frozenset(f"pod-{number}" for number in range(hosts)),
        carried=frozenset(slot.worker_id for slot in slots[:offered]),
    )
    assert rooms.least(slots, unfinished=leases) == least
    assert rooms.bought(slots) == {slot.slot_id for slot in slots[offered : offered + bought]}


def test_where_all_is_lambda_s_or_all_is_the_processes_nothing_is_bought():
    assert Rooms().bought([a_slot(1)]) == frozenset()
    assert Rooms(carried=frozenset()).bought([a_slot(1)]) == frozenset()
    assert Rooms(hosts=frozenset({"pod"})).least([a_slot(1)], unfinished=4) == 1


def test_a_slot_that_leaves_is_drained_once_it_has_handed_over_or_after_its_time():
    def task(held, since_ms):
        slots = [a_slot(1), a_slot(2, leaving_ms=NOW - since_ms)]
        return tasks(slots, 1, held={2: held})["s0002"]

    assert task(0, 1) == "DRAIN"
    assert task(3, LEAVE_MOST_MS) == "NOTHING"
    assert task(3, LEAVE_MOST_MS + 1) == "DRAIN"


def test_a_slot_that_leaves_stays_when_it_is_needed_after_all_before_another_starts():
    slots = [a_slot(1), a_slot(2, leaving_ms=NOW - 5)]

    assert tasks(slots, 2, held={2: 1}) == {"s0001": "NOTHING", "s0002": "STAY"}
    assert tasks(slots, 3, held={2: 1})["s0003"] == "START"


def test_a_draining_slot_counts_no_more_and_is_replaced_when_it_is_needed_after_all():
    slots = [a_slot(1, drain=True), a_slot(2, SlotState.ENDING)]

    assert tasks(slots, 1) == {"s0001": "NOTHING", "s0002": "NOTHING", "s0003": "START"}


def test_a_silent_surplus_slot_is_examined_and_not_asked():
    slots = [a_slot(1), a_slot(2, heartbeat_ms=0)]

    assert tasks(slots, 1) == {"s0001": "NOTHING", "s0002": "EXAMINE"}


def test_with_nothing_to_read_slots_end_by_themselves():
    assert tasks([a_slot(1), a_slot(2, SlotState.ENDED)], 0) == {"s0001": "NOTHING"}


SLOTS = st.lists(
    st.builds(
        a_slot,
        st.integers(1, 6),
        st.sampled_from(SlotState),
        st.sampled_from([0, NOW - 20_001, NOW]),
        drain=st.booleans(),
        leaving_ms=st.sampled_from([0, 1, NOW - 5]),
    ),
    unique_by=lambda slot: slot.slot_id,
    max_size=6,
)


@given(SLOTS, st.integers(0, 8), st.randoms())
def test_any_slots_come_to_the_wanted_number_and_not_beyond(slots, wanted, shuffler):
    held = {number: number % 3 for number in range(1, 7)}
    found = tasks(slots, wanted, held=held)

    staying = sum(
        slot.state in (SlotState.STARTING, SlotState.RUNNING)
        and not slot.drain
        and not slot.leaving_ms
        for slot in slots
    )
    more = sum(task in ("START", "STAY") for task in found.values())
    fewer = sum(task == "LEAVE" for task in found.values())
    assert more == max(0, wanted - staying)
    assert staying - fewer >= min(wanted, staying)
    assert not (more and fewer)
    assert {slot.slot_id for slot in slots if slot.state is not SlotState.ENDED} <= found.keys()
    shuffler.shuffle(slots)
    assert tasks(slots, wanted, held=held) == found


def stand_ins(slots, wanted, **facts):
    return {d.slot_id: d.stand_in for d in plan(slots, wanted, **facts).decisions if d.stand_in}


def test_a_silent_slot_has_a_stand_in_in_case_that_its_execution_runs():
    slots = [a_slot(1, heartbeat_ms=NOW - 20_001), a_slot(2)]

    assert stand_ins(slots, 2) == {"s0001": "s0003"}
    assert stand_ins([*slots, a_slot(5, SlotState.ENDED)], 2) == {"s0001": "s0005"}
    assert tasks(slots, 2) == {"s0001": "EXAMINE", "s0002": "NOTHING"}


def test_a_stand_in_is_no_slot_that_is_started_anyway():
    slots = [a_slot(1, heartbeat_ms=NOW - 20_001), a_slot(2)]

    assert stand_ins(slots, 3) == {"s0001": "s0004"}
    assert tasks(slots, 3) == {"s0001": "EXAMINE", "s0002": "NOTHING", "s0003": "START"}


def test_no_stand_in_for_what_the_others_suffice_for_or_what_is_too_many():
    silent, alive = a_slot(1, heartbeat_ms=NOW - 20_001), a_slot(2)

    assert stand_ins([silent, alive], 1) == {}
    assert stand_ins([silent, alive, a_slot(3)], 2) == {}  # the third one is the stand-in
    assert stand_ins([silent, alive], 2, slots_most=2) == {}


def test_no_stand_in_for_a_slot_that_was_heard_of_a_moment_ago():
    """Its leases have expired, but it may be about to be started again: two turns decide."""
    assert stand_ins([a_slot(1)], 1, lost={"fleet-s0001"}) == {}


@given(
    st.lists(st.sampled_from([NOW, NOW - 20_001]), max_size=6),
    st.integers(0, 8),
    st.integers(1, 8),
)
def test_with_all_stand_ins_there_are_never_more_slots_than_allowed(heartbeats, wanted, most):
    slots = [a_slot(n, heartbeat_ms=at) for n, at in enumerate(heartbeats, 1)]
    wanted = min(wanted, most)
    chosen = list(stand_ins(slots, wanted, slots_most=most).values())
    started = [name for name, task in tasks(slots, wanted).items() if task == "START"]
    alive = heartbeats.count(NOW)

    assert len({*chosen, *started}) == len(chosen) + len(started)
    assert not {*chosen} & {each.slot_id for each in slots}
    assert not chosen or alive + len(started) + len(chosen) <= wanted
    assert len(slots) + len(started) + len(chosen) <= max(most, len(slots) + len(started))
