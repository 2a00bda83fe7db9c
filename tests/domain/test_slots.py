"""The life of a worker slot: who may claim it, be given leases, drain and end (H1, H2, H3, H9)."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import (
    LIFE,
    ClaimRefused,
    Slot,
    SlotEvent,
    SlotInput,
    SlotState,
    announce_assignment,
    ask_to_drain,
    ask_to_leave,
    ask_to_stay,
    claim,
    close_turn,
    end,
    end_of_dead,
    heartbeat,
    intend_start,
)
from shardfleet.engine.state.fleet_state import slot_body
from shardfleet.engine.state.kinds import SLOT
from shardfleet.errors import ConfigurationError, ProtocolError

SPANS = {"slot_id": "s0001", "worker_id": "fleet-s0001", "name_prefix": "fleet"}


def read_slot(body):
    return SLOT.read(body, body["slot_id"])


def started(slot=None, now_ms=1_000):
    return intend_start(slot, now_ms=now_ms, **SPANS)


def running(**more):
    """Return a slot whose first invocation has claimed it."""
    intended = started()
    claimed = claim(intended, intended.slot_input(), now_ms=2_000)
    assert isinstance(claimed, Slot)
    return replace(claimed, **more)


# --- starting (H3) ---


def test_a_new_slot_is_written_down_before_it_is_started():
    slot = started()

    assert slot.state is SlotState.STARTING
    assert (slot.name, slot.start_epoch, slot.generation) == ("fleet-s0001-1", 1, 0)
    assert (slot.started_ms, slot.heartbeat_ms) == (1_000, 0)


def test_the_same_intent_gives_the_same_name_and_the_same_bytes():
    slot = started()
    again = read_slot(json.loads(json.dumps(slot_body(slot))))

    assert again.slot_input().execution_name() == "fleet-s0001-1-0"
    assert again.slot_input().execution_text() == slot.slot_input().execution_text()
    assert slot.slot_input().execution_text() == (
        '{"version":1,"slot":"s0001","name":"fleet-s0001-1","start_epoch":1,"generation":0}'
    )


def test_every_intent_has_a_new_name_and_the_same_worker_id():
    first = started()
    second = started(replace(first, state=SlotState.ENDED))

    assert second.slot_input().execution_name() == "fleet-s0001-2-0"
    assert second.worker_id == first.worker_id


def test_a_new_intent_keeps_the_assignments_that_nobody_served():
    slot = announce_assignment(running(), ["7"])
    restarted = started(slot)

    assert (restarted.assigned, restarted.assign_seq, restarted.served_seq) == (("7",), 1, 0)


def test_a_new_intent_takes_back_a_request_to_drain():
    assert not started(ask_to_drain(running())).drain


def test_an_invocation_of_the_closed_execution_finds_itself_outdated():
    zombie = running()
    restarted = started(zombie)

    assert restarted.epoch > zombie.epoch
    claimed = claim(restarted, restarted.slot_input(), now_ms=3_000)
    assert claimed.epoch > restarted.epoch


def test_a_fleet_name_too_long_for_an_execution_name_is_refused():
    with pytest.raises(ConfigurationError, match="80 characters"):
        intend_start(None, slot_id="s0001", worker_id="w", name_prefix="f" * 67, now_ms=0)


def test_the_longest_allowed_fleet_name_has_room_for_the_generation():
    slot = intend_start(None, slot_id="s0001", worker_id="w", name_prefix="f" * 66, now_ms=0)

    assert len(replace(slot, generation=99_999).slot_input().execution_name()) == 80


# --- claiming (H1) ---


def test_an_invocation_claims_the_next_epoch():
    slot = running()
    again = claim(slot, slot.slot_input(), now_ms=9_000)

    assert again.epoch == slot.epoch + 1
    assert (again.state, again.heartbeat_ms, again.turn_open) == (SlotState.RUNNING, 9_000, True)


def test_two_invocations_never_have_the_same_epoch():
    slot = started()
    a = claim(slot, slot.slot_input(), now_ms=1)
    b = claim(a, slot.slot_input(), now_ms=1)

    assert (a.epoch, b.epoch) == (1, 2)


def test_the_next_generation_may_claim_and_the_one_before_it_no_more():
    slot = running()
    successor = replace(slot.slot_input(), generation=1)
    claimed = claim(slot, successor, now_ms=3_000)

    assert claimed.generation == 1
    assert "generation 0, on record 1" in claim(claimed, slot.slot_input(), now_ms=4_000).reason


@pytest.mark.parametrize(
    ("slot", "given", "reason"),
    [
        (None, {}, "no slot s0001 on record"),
        (started(started()), {}, "start epoch 1, on record 2"),
        (started(), {"start_epoch": 2}, "start epoch 2, on record 1"),
        (started(), {"generation": 2}, "generation 2, on record 0"),
        (replace(started(), state=SlotState.ENDED), {}, "the slot has ended"),
    ],
)
def test_an_outdated_invocation_is_refused(slot, given, reason):
    asked = replace(started().slot_input(), **given)

    assert claim(slot, asked, now_ms=5_000) == ClaimRefused(reason)


def test_a_draining_slot_stays_draining_when_it_is_claimed():
    slot = running(state=SlotState.ENDING, drain=True)

    assert claim(slot, slot.slot_input(), now_ms=3_000).state is SlotState.ENDING


# --- crashes (H9) ---


def test_a_turn_that_was_not_closed_is_charged_and_a_closed_one_is_not():
    slot = running()
    assert slot.open_turns == 0
    crashed = claim(slot, slot.slot_input(), now_ms=3_000)
    again = claim(crashed, slot.slot_input(), now_ms=4_000)
    assert (crashed.open_turns, again.open_turns) == (1, 2)

    assert end(again, served_seq=0, now_ms=5_000).open_turns == 0
    closed = close_turn(again, now_ms=5_000, lags_ms={"7": 40})
    assert (closed.turn_open, closed.open_turns, closed.heartbeat_ms) == (False, 0, 5_000)
    assert closed.lags_ms == {"7": 40}
    assert claim(closed, slot.slot_input(), now_ms=6_000).open_turns == 0


# --- assignments (H2) ---


def test_an_assignment_is_announced_under_a_new_number():
    slot = announce_assignment(running(), ["7", "8"])

    assert (slot.assign_seq, slot.assigned) == (1, ("7", "8"))


def test_announcements_that_are_not_served_yet_add_up():
    slot = announce_assignment(announce_assignment(running(), ["7"]), ["8", "7"])

    assert (slot.assign_seq, slot.assigned) == (2, ("7", "8"))


def test_what_was_served_is_forgotten_by_the_next_announcement():
    slot = announce_assignment(running(), ["7"])
    served = heartbeat(slot, now_ms=3_000, served_seq=1, lags_ms={})

    assert served.assigned == ()
    assert announce_assignment(served, ["8"]).assigned == ("8",)


@pytest.mark.parametrize(
    "slot",
    [
        started(),
        running(state=SlotState.ENDING),
        running(state=SlotState.ENDED),
        ask_to_drain(running()),
    ],
)
def test_only_a_running_slot_that_is_to_stay_is_given_leases(slot):
    assert announce_assignment(slot, ["7"]) is None


# --- heartbeats ---


def test_a_heartbeat_keeps_assignments_that_came_meanwhile():
    slot = announce_assignment(announce_assignment(running(), ["7"]), ["8"])
    after = heartbeat(slot, now_ms=3_000, served_seq=1, lags_ms={"7": 12})

    assert (after.served_seq, after.assigned, after.lags_ms) == (1, ("7", "8"), {"7": 12})


def test_a_late_heartbeat_does_not_take_back_what_was_served():
    slot = running(assign_seq=3, served_seq=3)

    assert heartbeat(slot, now_ms=3_000, served_seq=2, lags_ms={}).served_seq == 3


def test_nothing_is_served_before_it_was_announced():
    slot = heartbeat(running(), now_ms=3_000, served_seq=9, lags_ms={})
    announced = announce_assignment(slot, ["7"])

    assert slot.served_seq == 0
    assert heartbeat(announced, now_ms=4_000, served_seq=0, lags_ms={}).assigned == ("7",)


def test_a_slot_that_is_asked_to_drain_says_so_with_its_next_heartbeat():
    slot = ask_to_drain(running())

    assert heartbeat(slot, now_ms=3_000, served_seq=0, lags_ms={}).state is SlotState.ENDING


@pytest.mark.parametrize("drain", [False, True])
@pytest.mark.parametrize("state", [SlotState.STARTING, SlotState.ENDED])
def test_a_heartbeat_revives_nothing(state, drain):
    slot = running(state=state, drain=drain)

    assert heartbeat(slot, now_ms=3_000, served_seq=0, lags_ms={}) is None


# --- ending (H2) ---


def test_a_slot_ends_on_the_assignments_it_has_served():
    slot = announce_assignment(running(lags_ms={"7": 1}), ["7"])
    ended = end(slot, served_seq=1, now_ms=9_000)

    assert (ended.state, ended.served_seq, ended.assigned) == (SlotState.ENDED, 1, ())
    assert (ended.turn_open, ended.lags_ms, ended.heartbeat_ms) == (False, {}, 9_000)


def test_a_slot_does_not_end_on_an_assignment_it_has_not_served():
    assert end(announce_assignment(running(), ["7"]), served_seq=0, now_ms=9_000) is None


def test_an_ended_slot_serves_what_is_announced_after_its_next_start():
    ended = end(running(), served_seq=9, now_ms=9_000)
    assert ended.served_seq == 0
    restarted = started(ended)
    slot = announce_assignment(claim(restarted, restarted.slot_input(), now_ms=1), ["7"])

    assert slot.assigned == ("7",)
    assert slot.served_seq < slot.assign_seq


@pytest.mark.parametrize("state", [SlotState.STARTING, SlotState.ENDED])
def test_only_a_slot_that_runs_can_end(state):
    assert end(running(state=state), served_seq=0, now_ms=9_000) is None


def test_a_draining_slot_ends():
    assert end(running(state=SlotState.ENDING), served_seq=0, now_ms=1).state is SlotState.ENDED


def test_a_slot_found_dead_holds_nothing_and_outdates_who_may_still_run():
    slot = announce_assignment(running(lags_ms={"7": 1}, busy=5, cpu=5), ["7"])
    ended = end_of_dead(slot)

    assert (ended.state, ended.epoch) == (SlotState.ENDED, slot.epoch + 1)
    assert (ended.assigned, ended.lags_ms, ended.busy, ended.cpu) == ((), {}, -1, -1)
    assert not ended.turn_open
    assert ended.served_seq < ended.assign_seq


# --- leaving ---


def test_a_slot_that_is_to_leave_is_given_nothing_until_it_is_to_stay():
    leaving = ask_to_leave(running(), now_ms=5_000)
    staying = ask_to_stay(leaving)

    assert (leaving.leaving_ms, leaving.state) == (5_000, SlotState.RUNNING)
    assert announce_assignment(leaving, ["7"]) is None
    assert staying.leaving_ms == 0
    assert announce_assignment(staying, ["7"]).assigned == ("7",)


# --- the whole life ---

HAPPENINGS = {
    SlotEvent.INTENDED: started,
    SlotEvent.CLAIMED: lambda slot: claim(slot, slot.slot_input(), now_ms=1),
    SlotEvent.HEARTBEAT: lambda slot: heartbeat(slot, now_ms=1, served_seq=0, lags_ms={}),
    SlotEvent.DRAINING: lambda slot: heartbeat(
        replace(slot, drain=True), now_ms=1, served_seq=0, lags_ms={}
    ),
    SlotEvent.CLOSED: lambda slot: close_turn(slot, now_ms=1, lags_ms={}),
    SlotEvent.ANNOUNCED: lambda slot: announce_assignment(slot, ["7"]),
    SlotEvent.TO_LEAVE: lambda slot: ask_to_leave(slot, now_ms=1),
    SlotEvent.TO_STAY: ask_to_stay,
    SlotEvent.TO_DRAIN: ask_to_drain,
    SlotEvent.SERVED: lambda slot: end(slot, served_seq=0, now_ms=1),
    SlotEvent.FOUND_DEAD: end_of_dead,
}


def state_after(state, event):
    """Return the state that comes of an event, None when it is refused."""
    try:
        found = HAPPENINGS[event](running(state=state))
    except ProtocolError:
        return None
    return found.state if isinstance(found, Slot) else None


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("event", SlotEvent)
def test_what_happens_to_a_slot_is_what_the_table_says_and_nothing_else(state, event):
    assert state_after(state, event) is LIFE[state].get(event)


def test_the_diagram_of_the_page_is_the_table():
    drawn = ["stateDiagram-v2", "    [*] --> ENDED: no record"]
    for state, events in LIFE.items():
        for after in dict.fromkeys(events.values()):
            words = " / ".join(event for event, to in events.items() if to is after)
            drawn.append(f"    {state} --> {after}: {words}")
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    assert "```mermaid\n" + "\n".join(drawn) + "\n```" in page


# --- documents and inputs (H19) ---


def test_a_slot_reads_back_from_its_document():
    slot = announce_assignment(running(lags_ms={"7": -1}), ["7"])

    assert read_slot(json.loads(json.dumps(slot_body(slot)))) == slot


def test_a_document_of_a_later_version_is_read_for_what_is_known():
    assert read_slot({**slot_body(running()), "colour": "blue"}) == running()


def test_a_document_of_an_earlier_version_gets_the_defaults():
    body = slot_body(running(lags_ms={"7": 1}))
    for name in ("lags_ms", "open_turns"):
        del body[name]

    assert read_slot(body) == running()


def test_an_invocation_reads_its_payload():
    given = SlotInput.from_payload(
        {**json.loads(started().slot_input().execution_text()), "fault": "X: y", "more": 1}
    )

    assert given == replace(started().slot_input(), fault="X: y")


def test_the_previous_version_of_the_input_is_accepted():
    payload = json.loads(started().slot_input().execution_text())

    assert SlotInput.from_payload({**payload, "version": 0}) == started().slot_input()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 found, 1 expected"),
        ({"version": None}, "version None found"),
        ({"start_epoch": "soon"}, "start_epoch 'soon' found, a whole number expected"),
        ({"generation": None}, "generation None found"),
    ],
)
def test_a_payload_that_cannot_be_read_is_refused_by_field(change, message):
    payload = json.loads(started().slot_input().execution_text())

    with pytest.raises(ConfigurationError, match=message):
        SlotInput.from_payload({**payload, **change})


def test_a_payload_that_lacks_fields_names_them():
    with pytest.raises(ConfigurationError, match="missing name, slot"):
        SlotInput.from_payload({"version": 1, "start_epoch": 1, "generation": 0})
