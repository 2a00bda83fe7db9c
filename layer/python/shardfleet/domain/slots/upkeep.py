"""
What to do about each worker slot: start, start again, examine, let go, drain, or leave alone.

Rules: hazards H2 and H3; how many there should be: :mod:`shardfleet.domain.slots.sizing`. The plan
only says what to do; the manager carries it out by compare-and-set on the slot record, with Step
Functions' answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from shardfleet.domain.reasons import (
    HandedOver,
    HandsOverTooLong,
    HeartbeatAhead,
    LeasesExpired,
    NoHeartbeatYet,
    Reason,
    SlotAlive,
    SlotSilent,
    SlotsTooMany,
    SlotsWanted,
)
from shardfleet.domain.slots.sizing import Sizing
from shardfleet.domain.slots.slot import (
    Slot,
    SlotState,
    ask_to_drain,
    ask_to_leave,
    ask_to_stay,
)


class SlotTask(StrEnum):
    """What the manager does about one slot."""

    START = "START"  # intend a new execution of an ended or unknown slot
    REPEAT_START = "REPEAT_START"  # intended, no heartbeat yet: start the same name again
    EXAMINE = "EXAMINE"  # silent for too long: describe its execution
    VERIFY = "VERIFY"  # its last word is dated ahead: describe its execution, too
    LEAVE = "LEAVE"  # one more than needed: its leases are handed over to the others
    STAY = "STAY"  # it was to leave, and is needed after all
    DRAIN = "DRAIN"  # it has handed over: ask it to end
    NOTHING = "NOTHING"


class SlotDecision(Struct, frozen=True):
    """
    One decision about one slot, and why.

    Attributes:
        stand_in: slot to start beside it if it is examined and its execution runs; empty: none.

    """

    slot_id: str
    task: SlotTask
    reason: Reason
    stand_in: str = ""


class SlotPlan(Struct, frozen=True):
    """Decisions ordered by slot id, and how many slots the fleet wants, and why."""

    wanted: int
    decisions: tuple[SlotDecision, ...]
    reason: SlotsWanted


class SlotFacts(Struct, frozen=True, kw_only=True):
    """
    What is known of slots beside their records.

    Attributes:
        now_ms: epoch milliseconds.
        silent_ms: a heartbeat older than this makes a slot silent.
        leave_most_ms: a slot that was to leave is drained after this long, whatever it still holds.
        slots_most: how many may stay at once, those that stand still among them.
        held: worker id to the number of unfinished leases that it holds or is to get.
        lost: worker ids whose leases have expired.
        taken: ids of slots whose record cannot be read: none of them is started.
        bought: ids of slots that Lambda runs beside processes: these leave first.

    """

    now_ms: int
    silent_ms: int
    leave_most_ms: int = 0
    slots_most: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    lost: Collection[str] = ()
    taken: Collection[str] = ()
    bought: Collection[str] = ()


def asked(slot: Slot, task: SlotTask, *, now_ms: int) -> Slot | None:
    """Return the slot as it is asked to leave, to stay or to drain; None: it is not, or refuses."""
    match task:
        case SlotTask.LEAVE:
            return ask_to_leave(slot, now_ms=now_ms)
        case SlotTask.STAY:
            return ask_to_stay(slot)
        case SlotTask.DRAIN:
            return ask_to_drain(slot)
        case _:
            return None


def stays(slot: Slot) -> bool:
    """Return whether a slot counts: it starts or runs, and is not asked to leave or to end."""
    is_alive = slot.state in (SlotState.STARTING, SlotState.RUNNING)
    return is_alive and not slot.drain and not slot.leaving_ms


def stands_still(slot: Slot, *, now_ms: int, silent_ms: int) -> bool:
    """Return whether a slot that runs has not been heard of for longer than ``silent_ms``."""
    return slot.state is SlotState.RUNNING and now_ms - slot.heartbeat_ms > silent_ms


def plan_slots(slots: Sequence[Slot], *, sizing: Sizing, facts: SlotFacts) -> SlotPlan:
    """
    Decide about every slot.

    A slot that stands still keeps its place until the function's time-out; where the others are
    full its leases would wait as long. So it gets a stand-in, should its execution run (Z8); of one
    whose execution is over none is needed, for it starts again itself.

    Args:
        slots: all slot records.
        sizing: how many there should be.
        facts: what else is known.

    """
    ordered = sorted(slots, key=lambda s: s.slot_id)
    decisions = {s.slot_id: _upkeep(s, facts) for s in ordered if s.state is not SlotState.ENDED}
    staying = [s for s in ordered if stays(s)]
    silent = {s.slot_id for s in staying if _is_silent(s, facts)}
    missing = sizing.wanted - len(staying)
    reason = SlotsWanted(sizing.wanted, sizing.reason)
    if missing > 0:
        back = [s.slot_id for s in ordered if s.leaving_ms and _may_stay(s)][:missing]
        for slot_id in back:
            decisions[slot_id] = SlotDecision(slot_id, SlotTask.STAY, reason)
        for slot_id in _to_start(ordered, missing - len(back), facts.taken):
            decisions[slot_id] = SlotDecision(slot_id, SlotTask.START, reason)
    elif (surplus := len(staying) - len(silent) - sizing.wanted) > 0 and sizing.wanted:
        at_work = [s for s in staying if s.slot_id not in silent]
        for slot in _least_burdened(at_work, facts)[:surplus]:
            if decisions[slot.slot_id].task is SlotTask.NOTHING:
                why = SlotsTooMany(sizing.wanted, sizing.reason, len(at_work))
                decisions[slot.slot_id] = SlotDecision(slot.slot_id, SlotTask.LEAVE, why)
    starts = sorted(each for each, it in decisions.items() if it.task is SlotTask.START)
    present = max(len(staying), sizing.wanted)
    lacking = min(sizing.wanted - present + len(silent), facts.slots_most - present)
    fresh = _to_start(ordered, len(starts) + max(0, lacking), facts.taken)[len(starts) :]
    for slot_id, stand_in in zip(sorted(silent), fresh, strict=False):
        decisions[slot_id] = replace(decisions[slot_id], stand_in=stand_in)
    by_id = tuple(decisions[slot_id] for slot_id in sorted(decisions))
    return SlotPlan(sizing.wanted, by_id, reason)


def _upkeep(slot: Slot, facts: SlotFacts) -> SlotDecision:
    def decided(task: SlotTask, reason: Reason) -> SlotDecision:
        return SlotDecision(slot.slot_id, task, reason)

    if slot.state is SlotState.STARTING:
        return decided(SlotTask.REPEAT_START, NoHeartbeatYet())
    silence_ms = facts.now_ms - slot.heartbeat_ms
    if slot.worker_id in facts.lost:
        return decided(SlotTask.EXAMINE, LeasesExpired(silence_ms))
    if silence_ms > facts.silent_ms:
        return decided(SlotTask.EXAMINE, SlotSilent(silence_ms))
    # By a clock that was ahead a dead worker's last word stays news until ours is there.
    if silence_ms < -facts.silent_ms:
        return decided(SlotTask.VERIFY, HeartbeatAhead(-silence_ms))
    if slot.leaving_ms and not slot.drain:
        held = facts.held.get(slot.worker_id, 0)
        if not held:
            return decided(SlotTask.DRAIN, HandedOver())
        if facts.now_ms - slot.leaving_ms > facts.leave_most_ms:
            return decided(SlotTask.DRAIN, HandsOverTooLong(held))
    return decided(SlotTask.NOTHING, SlotAlive(silence_ms))


def _is_silent(slot: Slot, facts: SlotFacts) -> bool:
    return stands_still(slot, now_ms=facts.now_ms, silent_ms=facts.silent_ms)


def _may_stay(slot: Slot) -> bool:
    return slot.state is SlotState.RUNNING and not slot.drain


def _least_burdened(staying: Sequence[Slot], facts: SlotFacts) -> list[Slot]:
    """Return the running slots, Lambda's first, then by fewest leases, of equal ones the last."""
    running = [s for s in staying if s.state is SlotState.RUNNING]
    last_first = sorted(running, key=lambda s: s.slot_id, reverse=True)
    return sorted(
        last_first,
        key=lambda s: (s.slot_id not in facts.bought, facts.held.get(s.worker_id, 0)),
    )


def _to_start(slots: Sequence[Slot], missing: int, taken: Collection[str]) -> list[str]:
    """Re-use ended slots first, by id, then open new ones with the lowest free numbers."""
    ended = [s.slot_id for s in slots if s.state is SlotState.ENDED]
    taken = {*taken, *(s.slot_id for s in slots)}
    numbers = range(1, len(taken) + missing + 1)
    fresh = [name for n in numbers if (name := f"s{n:04d}") not in taken]
    return [*ended, *fresh][:missing]
