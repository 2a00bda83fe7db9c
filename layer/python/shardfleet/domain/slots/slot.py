"""
A worker slot: a record with states, changed only by compare-and-set (hazards H1, H2, H3).

A slot is one Step Functions execution with a stable worker id. Two numbers fence it:
``start_epoch`` rises with each *execution* that a manager intends, ``epoch`` with that and with
each *invocation* of the worker Lambda. Every function here maps a slot to the slot that should be
written next, or to a refusal; writing is the engine's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from shardfleet.domain.slots.slot_input import INPUT_VERSION, SlotInput
from shardfleet.domain.slots.usage import UNKNOWN, Usage
from shardfleet.errors import ConfigurationError

_UNKNOWN_USAGE = Usage()
EXECUTION_NAME_LIMIT = 80  # Step Functions: execution names have at most 80 characters


class SlotState(StrEnum):
    """The life of a slot."""

    STARTING = "STARTING"  # an execution is intended; repeated until the first heartbeat
    RUNNING = "RUNNING"  # heartbeats; leases may be assigned
    ENDING = "ENDING"  # draining: hands over what it holds, takes nothing
    ENDED = "ENDED"  # no execution needed


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
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


def slot_body(slot: Slot) -> dict[str, Any]:
    """Return the slot as a document body (plain JSON values)."""
    body = asdict(slot)
    body["state"] = slot.state.value
    body["assigned"] = list(slot.assigned)
    body["lags_ms"] = dict(slot.lags_ms)
    return body


def slot_from_body(body: Mapping[str, Any]) -> Slot:
    """Read a slot back from its document body; fields of a later version are passed over (H19)."""
    values = {f.name: body[f.name] for f in fields(Slot) if f.name in body}
    values["state"] = SlotState(values["state"])
    values["assigned"] = tuple(values.get("assigned", ()))
    values["lags_ms"] = dict(values.get("lags_ms", {}))
    return Slot(**values)


def intend_start(
    slot: Slot | None, *, slot_id: str, worker_id: str, name_prefix: str, now_ms: int
) -> Slot:
    """
    Write down the intent to start an execution, before starting it (H3).

    The start epoch rises, so the name is new and its input is fixed. The epoch rises with it, so
    that an invocation of the closed execution that still runs somewhere finds itself outdated.

    Raises:
        ConfigurationError: the execution name would be too long.

    """
    start_epoch = (slot.start_epoch if slot else 0) + 1
    name = f"{name_prefix}-{slot_id}-{start_epoch}"
    if len(name) > EXECUTION_NAME_LIMIT - 6:
        message = (
            f"fleet name {name_prefix!r}: execution names such as {name!r} would pass Step "
            f"Functions' limit of {EXECUTION_NAME_LIMIT} characters; shorten the fleet's name"
        )
        raise ConfigurationError(message)
    before = slot or Slot(
        slot_id=slot_id,
        worker_id=worker_id,
        state=SlotState.STARTING,
        name=name,
        start_epoch=start_epoch,
    )
    return replace(
        before,
        state=SlotState.STARTING,
        name=name,
        start_epoch=start_epoch,
        generation=0,
        epoch=slot.epoch + 1 if slot else 0,
        drain=False,
        leaving_ms=0,
        started_ms=now_ms,
        heartbeat_ms=0,
    )


@dataclass(frozen=True, slots=True)
class ClaimRefused:
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
    if slot.state is SlotState.ENDED:
        return ClaimRefused("the slot has ended")
    ending = slot.state is SlotState.ENDING
    return replace(
        slot,
        state=SlotState.ENDING if ending else SlotState.RUNNING,
        generation=given.generation,
        epoch=slot.epoch + 1,
        heartbeat_ms=now_ms,
        turn_open=True,
        open_turns=slot.open_turns + 1 if slot.turn_open else 0,
        claimed_by=token,
    )


def heartbeat(
    slot: Slot,
    *,
    now_ms: int,
    served_seq: int,
    lags_ms: Mapping[str, int],
    usage: Usage = _UNKNOWN_USAGE,
) -> Slot:
    """Record a sign of life: assignments served, the lag of each lease held, utilisation."""
    served = max(slot.served_seq, min(served_seq, slot.assign_seq))
    ending = slot.drain and slot.state is SlotState.RUNNING
    return replace(
        slot,
        heartbeat_ms=now_ms,
        served_seq=served,
        assigned=() if served >= slot.assign_seq else slot.assigned,
        state=SlotState.ENDING if ending else slot.state,
        lags_ms=dict(lags_ms),
        busy=usage.busy,
        cpu=usage.cpu,
    )


def close_turn(slot: Slot, *, now_ms: int, lags_ms: Mapping[str, int]) -> Slot:
    """
    Record that the invocation ended in good order (nothing is charged, H9), holding these leases.

    The next one finds there also what was taken in the last moment: a lease that a leader has
    begun to hand over right then is in the index under its next owner only.
    """
    return replace(slot, turn_open=False, open_turns=0, heartbeat_ms=now_ms, lags_ms=dict(lags_ms))


def announce_assignment(slot: Slot, lease_keys: Iterable[str]) -> Slot | None:
    """Bump ``assign_seq`` before leases are written; None when the slot cannot take any (H2)."""
    if slot.state is not SlotState.RUNNING or slot.drain or slot.leaving_ms:
        return None
    waiting = slot.assigned if slot.served_seq < slot.assign_seq else ()
    return replace(
        slot,
        assign_seq=slot.assign_seq + 1,
        assigned=tuple(dict.fromkeys((*waiting, *lease_keys))),
    )


def ask_to_drain(slot: Slot) -> Slot:
    """Ask the slot to hand over and end."""
    return replace(slot, drain=True)


def end(slot: Slot, *, served_seq: int, now_ms: int) -> Slot | None:
    """End a slot that holds nothing; None while assignments are not served (H2)."""
    if slot.state not in (SlotState.RUNNING, SlotState.ENDING) or slot.assign_seq > served_seq:
        return None
    return replace(
        slot,
        state=SlotState.ENDED,
        served_seq=slot.assign_seq,
        assigned=(),
        heartbeat_ms=now_ms,
        turn_open=False,
        open_turns=0,
        lags_ms={},
        busy=UNKNOWN,
        cpu=UNKNOWN,
    )


__all__ = [
    "EXECUTION_NAME_LIMIT",
    "INPUT_VERSION",
    "ClaimRefused",
    "LeaseOutcome",
    "Slot",
    "SlotInput",
    "SlotState",
    "TurnOutcome",
    "announce_assignment",
    "ask_to_drain",
    "claim",
    "close_turn",
    "end",
    "heartbeat",
    "intend_start",
    "slot_body",
    "slot_from_body",
]
