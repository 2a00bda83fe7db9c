"""
A worker slot: a record with states, changed only by compare-and-set (hazards H1, H2, H3).

A slot is one Step Functions execution with a stable worker id. Two numbers fence it:
``start_epoch`` rises with each *execution* that a manager intends, ``epoch`` with that and with
each *invocation* of the worker Lambda.

Two rules. Everything that may happen to a slot is a row of :data:`LIFE`, and no other module
changes a state; the diagram of docs/protocol.md is drawn from that table. And no function here
knows whether its write will go through: each maps a slot to the one that should be written next, or
refuses (None, or a reason) what the table or a guard does not allow; writing is the engine's
business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from shardfleet.domain.slots.failure import (
    WELL_AFTER_MS,
    Failure,
    FailureKind,
    LastFailure,
    again,
    failure_of_fault,
)
from shardfleet.domain.slots.usage import UNKNOWN, HandlerSigns, Usage
from shardfleet.errors import ConfigurationError, ProtocolError

INPUT_VERSION = 1  # a worker accepts this and the previous version (hazard H19)
_UNKNOWN_USAGE = Usage()
_NO_SIGNS = HandlerSigns()
EXECUTION_NAME_LIMIT = 80  # Step Functions: execution names have at most 80 characters


class SlotState(StrEnum):
    """The life of a slot."""

    STARTING = "STARTING"  # an execution is intended; repeated until the first heartbeat
    RUNNING = "RUNNING"  # heartbeats; leases may be assigned
    ENDING = "ENDING"  # draining: hands over what it holds, takes nothing
    ENDED = "ENDED"  # no execution needed


class SlotEvent(StrEnum):
    """What happens to a slot, in the words of the diagram."""

    INTENDED = "an execution is intended"
    CLAIMED = "claimed by an invocation"
    HEARTBEAT = "heartbeat"
    DRAINING = "heartbeat, asked to drain"
    CLOSED = "an invocation ends in good order"
    ANNOUNCED = "leases are announced"
    TO_LEAVE = "to hand over its leases"
    TO_STAY = "needed after all"
    TO_DRAIN = "asked to drain"
    SERVED = "holds nothing, all served"
    FOUND_DEAD = "silent, its execution over"


# What may happen in which state, and which state comes of it. What is not here is refused.
LIFE: Mapping[SlotState, Mapping[SlotEvent, SlotState]] = {
    SlotState.STARTING: {
        SlotEvent.INTENDED: SlotState.STARTING,
        SlotEvent.CLAIMED: SlotState.RUNNING,
        SlotEvent.TO_DRAIN: SlotState.STARTING,
    },
    SlotState.RUNNING: {
        SlotEvent.INTENDED: SlotState.STARTING,
        SlotEvent.CLAIMED: SlotState.RUNNING,
        SlotEvent.HEARTBEAT: SlotState.RUNNING,
        SlotEvent.DRAINING: SlotState.ENDING,
        SlotEvent.CLOSED: SlotState.RUNNING,
        SlotEvent.ANNOUNCED: SlotState.RUNNING,
        SlotEvent.TO_LEAVE: SlotState.RUNNING,
        SlotEvent.TO_STAY: SlotState.RUNNING,
        SlotEvent.TO_DRAIN: SlotState.RUNNING,
        SlotEvent.SERVED: SlotState.ENDED,
        SlotEvent.FOUND_DEAD: SlotState.ENDED,
    },
    SlotState.ENDING: {
        SlotEvent.CLAIMED: SlotState.ENDING,
        SlotEvent.HEARTBEAT: SlotState.ENDING,
        SlotEvent.DRAINING: SlotState.ENDING,
        SlotEvent.CLOSED: SlotState.ENDING,
        SlotEvent.TO_DRAIN: SlotState.ENDING,
        SlotEvent.SERVED: SlotState.ENDED,
        SlotEvent.FOUND_DEAD: SlotState.ENDED,
    },
    SlotState.ENDED: {SlotEvent.INTENDED: SlotState.STARTING},
}
_HOLDS_NOTHING: Mapping[str, Any] = {
    "assigned": (),
    "lags_ms": {},
    "busy": UNKNOWN,
    "cpu": UNKNOWN,
    "turn_open": False,
}


class TurnOutcome(StrEnum):
    """What a worker turn tells the state machine."""

    CONTINUE = "CONTINUE"
    IDLE = "IDLE"
    DRAINED = "DRAINED"
    FAILED = "FAILED"


class LeaseOutcome(StrEnum):
    """What became of a lease in a worker turn."""

    SHARD_END = "SHARD_END"
    HANDED_OVER = "HANDED_OVER"
    LEASE_LOST = "LEASE_LOST"
    HELD = "HELD"


class SlotInput(Struct, frozen=True, kw_only=True):
    """
    The input of a slot's execution and of its worker invocations.

    Attributes:
        slot_id: e.g. ``"s0003"``.
        name: ``<fleet>-<slot>-<start epoch>``; an execution's name adds ``-<generation>``.
        start_epoch: of the execution.
        generation: how often the execution has continued as new.
        fault: of what the state machine saw the invocation before end, its name and cause; empty
            after one that answered (not part of the execution's own input).

    """

    slot_id: str
    name: str
    start_epoch: int
    generation: int
    fault: str = ""

    def execution_name(self) -> str:
        """Return the execution's name: derived, so that a start happens once (H3)."""
        return f"{self.name}-{self.generation}"

    def execution_text(self) -> str:
        """Return the exact bytes of the execution's input: same name, same input (H3)."""
        body = {
            "version": INPUT_VERSION,
            "slot": self.slot_id,
            "name": self.name,
            "start_epoch": self.start_epoch,
            "generation": self.generation,
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_payload(cls, payload: object) -> SlotInput:
        """
        Read an invocation's payload, which may be any JSON value that somebody sent.

        Raises:
            ConfigurationError: it is no object, its version is unknown, a field is missing, or a
                number is none.

        """
        if not isinstance(payload, Mapping):
            raise ConfigurationError(
                f"worker input: {str(payload)[:80]!r} found, an object expected"
            )
        version = payload.get("version")
        if version not in (INPUT_VERSION, INPUT_VERSION - 1):
            raise ConfigurationError(
                f"worker input: version {version!r} found, {INPUT_VERSION} expected"
            )
        missing = {"slot", "name", "start_epoch", "generation"} - payload.keys()
        if missing:
            raise ConfigurationError(f"worker input: missing {', '.join(sorted(missing))}")
        return cls(
            slot_id=str(payload["slot"]),
            name=str(payload["name"]),
            start_epoch=_number(payload, "start_epoch"),
            generation=_number(payload, "generation"),
            fault=str(payload.get("fault") or ""),
        )


def _number(payload: Mapping[str, Any], name: str) -> int:
    try:
        return int(payload.get(name, 0))
    except (TypeError, ValueError, OverflowError) as error:  # Overflow: int(float('inf'))
        raise ConfigurationError(
            f"worker input: {name} {payload[name]!r} found, a whole number expected"
        ) from error


class Slot(Struct, frozen=True, kw_only=True):
    """
    One slot record of the fleet-state table.

    Attributes:
        slot_id: e.g. ``"s0003"``.
        worker_id: the stable ``leaseOwner`` of everything this slot holds.
        state: see :class:`SlotState`.
        name: base of the execution names of the current start epoch.
        start_epoch: raised by the manager with each execution it intends (H3).
        generation: of the execution that last ran (continue as new).
        epoch: raised by each invocation and by each intended start (H1).
        assign_seq: raised by the manager before it assigns leases (H2).
        served_seq: the ``assign_seq`` that the worker has last served.
        assigned: lease keys of the assignments not yet served.
        drain: the manager asks the slot to hand over and end.
        claimed_by: what only the invocation of this epoch knows. Two may claim an epoch in the same
            millisecond, and the one whose write is lost must not take the other's for its own.
        leaving_ms: since when the manager moves its leases to others, epoch ms; 0: it stays.
        started_ms: when the current start was intended, epoch milliseconds.
        heartbeat_ms: the worker's last sign of life, epoch milliseconds; 0 before the first.
        turn_open: an invocation has begun and not ended in order; found set, it crashed (H9).
        open_turns: consecutive invocations that did not end in order (H9).
        lags_ms: lease key to ``MillisBehindLatest`` at the last heartbeat; -1 unknown (H18).
        busy: thousandths of the time in which its handler is at work; -1 unknown.
        cpu: thousandths of its CPU in use; -1 unknown.
        failure: why its last invocations failed; None since it works.
        loading: the invocation of this epoch imports its handler, after one that crashed: if it
            dies, no record is the reason (H21).
        signs: of its handler, at the last heartbeat.

    """

    slot_id: str
    worker_id: str
    state: SlotState
    name: str
    start_epoch: int
    generation: int = 0
    epoch: int = 0
    assign_seq: int = 0
    served_seq: int = 0
    assigned: tuple[str, ...] = ()
    drain: bool = False
    started_ms: int = 0
    heartbeat_ms: int = 0
    turn_open: bool = False
    open_turns: int = 0
    lags_ms: Mapping[str, int] = field(default_factory=dict)
    busy: int = UNKNOWN
    cpu: int = UNKNOWN
    leaving_ms: int = 0
    claimed_by: str = ""
    failure: LastFailure | None = None
    loading: bool = False
    signs: HandlerSigns = _NO_SIGNS

    @property
    def usage(self) -> Usage:
        """Return what it uses of what it can have."""
        return Usage(self.busy, self.cpu)

    def slot_input(self) -> SlotInput:
        """Return the input of the execution that this record asks for."""
        return SlotInput(
            slot_id=self.slot_id,
            name=self.name,
            start_epoch=self.start_epoch,
            generation=self.generation,
        )


def _after(slot: Slot, event: SlotEvent, **changes: Any) -> Slot | None:
    """Return the slot after an event; None when the event is none of its state's."""
    state = LIFE[slot.state].get(event)
    return None if state is None else replace(slot, state=state, **changes)


def intend_start(
    slot: Slot | None, *, slot_id: str, worker_id: str, name_prefix: str, now_ms: int
) -> Slot:
    """
    Write down the intent to start an execution, before starting it (H3).

    The start epoch rises, so the name is new and its input is fixed. The epoch rises with it, so
    that an invocation of the closed execution that still runs somewhere finds itself outdated.
    What has no record has ended before its first epoch.

    Raises:
        ConfigurationError: the execution name would be too long.
        ProtocolError: the slot is about to end.

    """
    before = slot or Slot(
        slot_id=slot_id,
        worker_id=worker_id,
        state=SlotState.ENDED,
        name="",
        start_epoch=0,
        epoch=-1,
    )
    start_epoch = before.start_epoch + 1
    name = f"{name_prefix}-{slot_id}-{start_epoch}"
    if len(name) > EXECUTION_NAME_LIMIT - 6:
        raise ConfigurationError(
            f"fleet name {name_prefix!r}: execution names such as {name!r} would pass Step "
            f"Functions' limit of {EXECUTION_NAME_LIMIT} characters; shorten the fleet's name"
        )
    intended = _after(
        before,
        SlotEvent.INTENDED,
        name=name,
        start_epoch=start_epoch,
        generation=0,
        epoch=before.epoch + 1,
        drain=False,
        leaving_ms=0,
        started_ms=now_ms,
        heartbeat_ms=0,
    )
    if intended is None:
        raise ProtocolError(f"slot {slot_id} is {before.state}: no execution can be intended")
    return intended


class ClaimRefused(Struct, frozen=True):
    """This invocation must do nothing; ``reason`` says why."""

    reason: str


def claim(
    slot: Slot | None, given: SlotInput, *, now_ms: int, token: str = ""
) -> Slot | ClaimRefused:
    """
    Claim the next epoch for an invocation (H1), or refuse an outdated one (H3).

    Accepted are the generation on record and its successor (continue as new).
    """
    if slot is None:
        return ClaimRefused(f"no slot {given.slot_id} on record")
    if slot.start_epoch != given.start_epoch:
        return ClaimRefused(f"start epoch {given.start_epoch}, on record {slot.start_epoch}")
    if given.generation not in (slot.generation, slot.generation + 1):
        return ClaimRefused(f"generation {given.generation}, on record {slot.generation}")
    claimed = _after(
        slot,
        SlotEvent.CLAIMED,
        generation=given.generation,
        epoch=slot.epoch + 1,
        heartbeat_ms=now_ms,
        turn_open=True,
        open_turns=slot.open_turns + 1 if slot.turn_open else 0,
        claimed_by=token,
        failure=_cut_off(slot, given.fault, now_ms=now_ms),
        loading=False,
        signs=_NO_SIGNS,
    )
    return claimed or ClaimRefused("the slot has ended")


def _cut_off(slot: Slot, fault: str, *, now_ms: int) -> LastFailure | None:
    """Return the last failure, which may be what the state machine saw of the invocation before."""
    failure = slot.failure
    if not (fault and slot.turn_open) or (failure and failure.epoch == slot.epoch):
        return failure  # It ended in order, or has said itself what was wrong.
    found = failure_of_fault(fault)
    if slot.loading:
        found = Failure(FailureKind.IMPORT, f"while it was imported, {found.message}")
    return again(failure, found, epoch=slot.epoch, now_ms=now_ms)


def fail_turn(slot: Slot, failure: Failure, *, now_ms: int) -> Slot:
    """Record what the invocation of this epoch fails of; the turn stays open (H9)."""
    return replace(slot, failure=again(slot.failure, failure, epoch=slot.epoch, now_ms=now_ms))


def loads(slot: Slot, *, is_over: bool) -> Slot:
    """Record that the invocation begins to import its handler, or has done so."""
    return replace(slot, loading=not is_over)


def worked(slot: Slot, *, loaded_for_ms: int) -> Slot:
    """
    Take the last failure off a slot that works again.

    Args:
        slot: as it is.
        loaded_for_ms: for how long this invocation has had the handler loaded, less the time that
            a handler call may take.

    """
    if slot.failure is None:
        return slot
    is_over = slot.failure.is_until_loaded or loaded_for_ms >= WELL_AFTER_MS
    return replace(slot, failure=None) if is_over else slot


def heartbeat(
    slot: Slot,
    *,
    now_ms: int,
    served_seq: int,
    lags_ms: Mapping[str, int],
    usage: Usage = _UNKNOWN_USAGE,
    signs: HandlerSigns = _NO_SIGNS,
) -> Slot | None:
    """Record a sign of life: assignments served, the lag of each lease held, what is in use."""
    served = max(slot.served_seq, min(served_seq, slot.assign_seq))
    return _after(
        slot,
        SlotEvent.DRAINING if slot.drain else SlotEvent.HEARTBEAT,
        heartbeat_ms=now_ms,
        served_seq=served,
        assigned=() if served >= slot.assign_seq else slot.assigned,
        lags_ms=dict(lags_ms),
        busy=usage.busy,
        cpu=usage.cpu,
        signs=signs,
    )


def close_turn(slot: Slot, *, now_ms: int, lags_ms: Mapping[str, int]) -> Slot | None:
    """
    Record that the invocation ended in good order (nothing is charged, H9), holding these leases.

    The next one finds there also what was taken in the last moment: a lease that a leader has
    begun to hand over right then is in the index under its next owner only.
    """
    return _after(
        slot,
        SlotEvent.CLOSED,
        turn_open=False,
        open_turns=0,
        heartbeat_ms=now_ms,
        lags_ms=dict(lags_ms),
        failure=None,
    )


def announce_assignment(slot: Slot, lease_keys: Iterable[str]) -> Slot | None:
    """Bump ``assign_seq`` before leases are written; None when the slot cannot take any (H2)."""
    if slot.drain or slot.leaving_ms:
        return None
    waiting = slot.assigned if slot.served_seq < slot.assign_seq else ()
    return _after(
        slot,
        SlotEvent.ANNOUNCED,
        assign_seq=slot.assign_seq + 1,
        assigned=tuple(dict.fromkeys((*waiting, *lease_keys))),
    )


def ask_to_leave(slot: Slot, *, now_ms: int) -> Slot | None:
    """Begin to move its leases to others."""
    return _after(slot, SlotEvent.TO_LEAVE, leaving_ms=now_ms)


def ask_to_stay(slot: Slot) -> Slot | None:
    """Move no more of its leases to others: it is needed."""
    return _after(slot, SlotEvent.TO_STAY, leaving_ms=0)


def ask_to_drain(slot: Slot) -> Slot | None:
    """Ask the slot to hand over and end."""
    return _after(slot, SlotEvent.TO_DRAIN, drain=True)


def end(slot: Slot, *, served_seq: int, now_ms: int) -> Slot | None:
    """End a slot that holds nothing; None while assignments are not served (H2)."""
    if slot.assign_seq > served_seq:
        return None
    return _after(
        slot,
        SlotEvent.SERVED,
        served_seq=slot.assign_seq,
        heartbeat_ms=now_ms,
        open_turns=0,
        failure=None,
        **_HOLDS_NOTHING,
    )


def end_of_dead(slot: Slot) -> Slot | None:
    """End a slot on its behalf; an invocation that still runs somewhere finds itself outdated."""
    return _after(slot, SlotEvent.FOUND_DEAD, epoch=slot.epoch + 1, **_HOLDS_NOTHING)
