"""With what the records of a shard are handed over."""

from __future__ import annotations

from msgspec import Struct

from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ports import Clock, Entropy, EventSink, WindowStates
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.crash_notes import CrashNotes
from shardfleet.engine.shard.dispatch import Dispatcher
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.state.beside import LeaseNotes
from shardfleet.engine.state.fleet_state import FleetState


class DeliveryPorts(Struct, frozen=True, kw_only=True):
    """
    What delivering works with.

    Attributes:
        beside: what stands beside the checkpoints.
        window_states: None where a window's state is kept in the fleet-state table alone.

    """

    dispatcher: Dispatcher
    checkpointer: Checkpointer
    notes: CrashNotes
    state: FleetState
    beside: LeaseNotes
    policy: FailurePolicy
    window_states: WindowStates | None
    clock: Clock
    entropy: Entropy
    events: EventSink
    patience: Patience
