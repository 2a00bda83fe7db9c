"""Everything a worker turn asks of the world, in one value."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from shardfleet.engine.ports import (
    Clock,
    Entropy,
    EventSink,
    HandlerRunner,
    LeaseStore,
    ManagerCall,
    Process,
    StateStore,
    StreamDirectory,
    WindowStates,
)
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.shard.progress import Progress
from shardfleet.engine.shard.reader import ShardSource
from shardfleet.engine.shard.usage import CpuMeter
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.events.base import Event


class UnfailingSink:
    """An ``EventSink`` that keeps the promise of the port: what telling raises stops nobody."""

    def __init__(self, sink: EventSink) -> None:
        """Emit by another sink."""
        self._sink = sink

    def emit(self, event: Event) -> None:
        """Take one event."""
        with suppress(Exception):
            self._sink.emit(event)


class WorkerPorts(Struct, frozen=True, kw_only=True):
    """
    The ports of a worker turn.

    Attributes:
        clock: time.
        entropy: jitter.
        leases: the lease table; its writes have threads of their own (hazard H17).
        state: the fleet-state table.
        stream: the stream, its shards.
        source: its records.
        handler: the user's code; loaded and closed by each turn.
        progress: the fleet's way of delivering; see :mod:`shardfleet.engine.delivery`.
        policy: what becomes of records that failed for good.
        events: diagnostics.
        process: what ends when something cannot be stopped (hazard H10).
        cpu: what the process uses of its CPU; None: not told.
        window_states: where large states of windows are kept; None: nowhere.
        manager: calls the manager; None: one stands by, or only the schedule calls it.

    """

    clock: Clock
    entropy: Entropy
    leases: LeaseStore
    state: StateStore | Documents
    stream: StreamDirectory
    source: ShardSource
    handler: HandlerRunner
    progress: type[Progress]
    policy: FailurePolicy
    events: EventSink
    process: Process
    cpu: CpuMeter | None = None
    window_states: WindowStates | None = None
    manager: ManagerCall | None = None

    @property
    def fleet_state(self) -> FleetState:
        """Return the fleet-state table, typed."""
        return FleetState(self.state, self.clock)
