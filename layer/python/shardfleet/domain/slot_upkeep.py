"""
What to do about each worker slot: start, start again, examine, drain, or leave alone.

Rules: hazards H2 and H3. The plan only says what to do; the manager carries it out by
compare-and-set on the slot record, with Step Functions' answers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardfleet.domain.slots import Slot, SlotState


class SlotTask(StrEnum):
    """What the manager does about one slot."""

    START = "START"  # intend a new execution of an ended or unknown slot
    REPEAT_START = "REPEAT_START"  # intended, no heartbeat yet: start the same name again
    EXAMINE = "EXAMINE"  # silent for too long: describe its execution
    DRAIN = "DRAIN"  # one more than needed: ask it to hand over and end
    NOTHING = "NOTHING"


@dataclass(frozen=True, slots=True)
class SlotDecision:
    """One decision about one slot, and why."""

    slot_id: str
    task: SlotTask
    reason: str


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Decisions ordered by slot id, and how many slots the fleet wants."""

    wanted: int
    decisions: tuple[SlotDecision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLimits:
    """
    The part of the configuration that sizes the fleet.

    Attributes:
        leases_per_worker: most leases one slot holds.
        workers_min: slots kept while there is anything to read.
        workers_max: most slots at once.
        silent_ms: a heartbeat older than this makes a slot silent.

    """

    leases_per_worker: int
    workers_min: int
    workers_max: int
    silent_ms: int


def slots_wanted(unfinished: int, limits: SlotLimits) -> int:
    """Return how many slots that many unfinished leases need; none for none."""
    if unfinished == 0:
        return 0
    needed = -(-unfinished // limits.leases_per_worker)
    return max(limits.workers_min, min(needed, limits.workers_max))


def plan_slots(
    slots: Sequence[Slot],
    *,
    unfinished: int,
    limits: SlotLimits,
    now_ms: int,
    surplus_turns: int,
    lost: Collection[str] = (),
) -> SlotPlan:
    """
    Decide about every slot.

    Args:
        slots: all slot records.
        unfinished: leases that are not at SHARD_END.
        limits: the sizing limits.
        now_ms: epoch milliseconds.
        surplus_turns: consecutive turns, this one included, with more slots than wanted.
        lost: worker ids whose leases have expired.

    """
    wanted = slots_wanted(unfinished, limits)
    ordered = sorted(slots, key=lambda s: s.slot_id)
    alive = [s for s in ordered if s.state in (SlotState.STARTING, SlotState.RUNNING)]
    staying = [s for s in alive if not s.drain]
    decisions = [
        _upkeep(s, limits, now_ms=now_ms, is_lost=s.worker_id in lost)
        for s in ordered
        if s.state is not SlotState.ENDED
    ]
    missing = wanted - len(staying)
    if missing > 0:
        decisions += _starts(ordered, missing, wanted=wanted)
    elif missing < 0 and wanted and surplus_turns >= DRAIN_AFTER_TURNS:
        running = [s for s in staying if s.state is SlotState.RUNNING]
        last = {s.slot_id for s in running[missing:]}
        reason = f"{len(staying)} slots for {unfinished} unfinished leases, {wanted} wanted"
        decisions = [
            SlotDecision(d.slot_id, SlotTask.DRAIN, reason)
            if d.slot_id in last and d.task is SlotTask.NOTHING
            else d
            for d in decisions
        ]
    return SlotPlan(wanted, tuple(sorted(decisions, key=lambda d: d.slot_id)))


# Scale down slowly: a surplus must last, or a reshard would drain slots it needs again at once.
DRAIN_AFTER_TURNS = 3


def _upkeep(slot: Slot, limits: SlotLimits, *, now_ms: int, is_lost: bool) -> SlotDecision:
    if slot.state is SlotState.STARTING:
        return SlotDecision(slot.slot_id, SlotTask.REPEAT_START, "no heartbeat yet")
    silence_ms = now_ms - slot.heartbeat_ms
    if is_lost:
        reason = f"its leases have expired, heartbeat {silence_ms} ms ago"
        return SlotDecision(slot.slot_id, SlotTask.EXAMINE, reason)
    if silence_ms > limits.silent_ms:
        return SlotDecision(slot.slot_id, SlotTask.EXAMINE, f"silent for {silence_ms} ms")
    return SlotDecision(slot.slot_id, SlotTask.NOTHING, f"heartbeat {silence_ms} ms ago")


def _starts(slots: Sequence[Slot], missing: int, *, wanted: int) -> list[SlotDecision]:
    """Re-use ended slots first, by id, then open new ones with the lowest free numbers."""
    ended = [s.slot_id for s in slots if s.state is SlotState.ENDED]
    taken = {s.slot_id for s in slots}
    numbers = range(1, len(taken) + missing + 1)
    fresh = [name for n in numbers if (name := f"s{n:04d}") not in taken]
    reason = f"{wanted} slots wanted"
    return [SlotDecision(s, SlotTask.START, reason) for s in (*ended, *fresh)[:missing]]
