"""With what the records of a shard are handed over."""

from __future__ import annotations

from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ports import Clock, DeadLetters, EventSink
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.crash_notes import CrashNotes
from shardfleet.engine.shard.dispatch import Dispatcher
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPorts:
    """What delivering works with; ``dead_letters`` is None when records are never skipped."""

    dispatcher: Dispatcher
    checkpointer: Checkpointer
    notes: CrashNotes
    state: FleetState
    dead_letters: DeadLetters | None
    clock: Clock
    events: EventSink
    patience: Patience
