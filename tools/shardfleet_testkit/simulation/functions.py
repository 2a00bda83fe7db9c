"""
The two Lambda functions: each invocation is an actor that runs the production engine unchanged.

An invocation has its own clock, off by less than two managers may differ, and ends by returning,
by its time-out, or by being killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Never

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.slot import SlotInput, TurnOutcome
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.spill import beside_processes
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import (
    Clock,
    EventSink,
    HandlerResult,
    HandlerRunner,
    Kcl3Store,
    LeaseStore,
    WorkerLauncher,
)
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.pushing import PushedSource
from shardfleet.engine.shard.reader import ShardSource
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.engine.worker.turn import worker_turn
from shardfleet.errors import HandlerTimedOut, OutcomeUnknown, Throttled
from shardfleet.events.base import Event
from shardfleet.events.delivery import PositionLost, RecordSkipped
from shardfleet.events.worker import ShardExpired
from shardfleet.runtime.delivering import progress_of
from shardfleet.runtime.redrive import Redrive, records_of
from shardfleet_testkit.memory import MemoryKcl3Store, MemoryStateStore, SeededEntropy
from shardfleet_testkit.simulation.actors import Actor, KilledError
from shardfleet_testkit.simulation.dead_letters import (
    KeptElsewhere,
    RedrivenDocuments,
    RedrivenHandler,
)
from shardfleet_testkit.simulation.java_leader import Kcl3Access, Kcl3World
from shardfleet_testkit.simulation.java_peer import JavaLikePeer
from shardfleet_testkit.simulation.streams import FaultyStream, TrueStream
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import FaultyKcl3, FaultyLeases, FaultyState, LeaseTable
from shardfleet_testkit.simulation.user_handler import (
    FaultyPolicy,
    UserHandler,
    pass_by,
)
from shardfleet_testkit.simulation.wire import Outage, Wire, WiredCall

MANAGER_BOX_MS = 70_000
MANAGER_FUNCTION = "manager"
FOREVER_MS = 24 * 3_600_000
# Two managers' clocks may differ by clock_skew_ms (2,000), so each by less than half of that.
_DRIFT_MS = 900
# With the last renewal before it, and the adoption after it, still within the failover time.
_COLD_MOST_S = 8.0


class ActorClock:
    """
    The ``Clock`` port of one invocation.

    Of its two clocks one at most is wrong by more than a second: where the monotonic one stands
    still, which Lambda's does not (fact L03), the wall clock does not jump. Nobody can tell from
    within that both are wrong (H15).
    """

    def __init__(self, actor: Actor, around: Surroundings) -> None:
        """Choose how wrong it is, and whether it stands still while frozen."""
        self._actor = actor
        self._loop = around.loop
        drifts = around.faults.strike("clock_drift", actor.worker_id)
        drift_ms = around.faults.whole("clock_drift", -_DRIFT_MS, _DRIFT_MS) if drifts else 0
        if drifts and around.drifts_most:
            drift_ms = _DRIFT_MS if drift_ms > 0 else -_DRIFT_MS
        self._around = around
        self._began_ms = around.clock.now_ms() - around.now_ms + drift_ms
        self._stands_still = drifts and drift_ms % 2 == 0
        actor.wall_ms = self.now_ms

    def now_ms(self) -> int:
        """Return this sandbox's idea of the epoch milliseconds."""
        jumped_ms = self._actor.clock_off_ms + self._around.clocks_off_ms
        steady_ms = self._began_ms + self._loop.virtual_ms
        return steady_ms if self._stands_still else steady_ms + jumped_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds that may leave out the time spent frozen."""
        stood_ms = self._actor.frozen_ms if self._stands_still else 0
        return self._loop.virtual_ms - stood_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        """Sleep."""
        self._actor.check()
        await asyncio.sleep(duration_ms / 1000)
        self._actor.check()


class ActorEvents:
    """The ``EventSink`` port of one invocation: the dead tell nothing."""

    def __init__(self, actor: Actor, around: Surroundings) -> None:
        """Tell what one says."""
        self._actor = actor
        self._around = around

    def emit(self, event: Event) -> None:
        """Pass the event on to the checkers and the log."""
        if self._actor.is_dead:
            return
        if isinstance(event, RecordSkipped):
            pass_by(self._actor, self._around, event)
        if isinstance(event, PositionLost | ShardExpired):
            self._around.ledger.told_lost(event.lease_key)
        self._around.tell(self._actor, event)


class ActorProcess:
    """The ``Process`` port of one invocation."""

    def __init__(self, actor: Actor, around: Surroundings) -> None:
        """End whoever is given."""
        self._actor = actor
        self._around = around

    def end(self, reason: str) -> Never:
        """Let the invocation die."""
        self._around.log(self._actor.name, "ends its process:", reason)
        self._actor.all_suffered("process ended")
        self._actor.kill()
        raise KilledError


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """
    What the functions reach: tables, stream, and what is wrong with each.

    Attributes:
        kcl3: what a KCL 3 keeps beside the leases; None: none of its workers is there.

    """

    leases: LeaseTable
    state: MemoryStateStore
    stream: TrueStream
    lease_outage: Outage
    state_outage: Outage
    kcl3: Kcl3World | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """
    Somebody at a command line, with the rights of an operator.

    Attributes:
        actor: the process of the command.
        clock: of its machine.
        entropy: for its back-offs.
        leases: the lease table.
        state: the fleet-state table.
        stream: the stream.
        kcl3: what a KCL 3 keeps beside the leases.
        kept: what was given up.
        events: what the command is told by the engine.

    """

    actor: Actor
    clock: Clock
    entropy: SeededEntropy
    leases: LeaseStore
    state: FleetState
    stream: FaultyStream
    kcl3: Kcl3Store
    kept: RedrivenDocuments
    events: EventSink


class Functions:
    """
    Invokes the functions.

    Attributes:
        alive: actors that run, in the order of their beginning.
        killed: how many were killed, cut off or ended their process.
        turns: worker turns begun.
        latest: the latest invocation of each slot.
        handler_of: makes the ``HandlerRunner`` port of an invocation.
        config: what whoever is invoked next is told.
        policy: what becomes of records that failed for good.
        is_reachable: while it is not set, nothing is invoked.

    """

    def __init__(
        self,
        around: Surroundings,
        services: Services,
        *,
        config: FleetConfig,
        worker_box_ms: int,
        handlers_overlap: bool,
    ) -> None:
        """Deploy."""
        self.alive: list[Actor] = []
        self.killed = 0
        self.turns = 0
        self.latest: dict[str, Actor] = {}
        self._around = around
        self._services = services
        self.config = config
        self._box_ms = worker_box_ms
        self._overlaps = handlers_overlap
        self.handler_of: Callable[[Actor, Clock], HandlerRunner] = self._scripted
        terms = config.policy_terms
        self._kept = KeptElsewhere(terms, around.ledger)
        self.policy = FailurePolicy(terms, self._kept)
        self.is_reachable = asyncio.Event()
        self.is_reachable.set()
        self._numbers = 0

    async def worker(self, given: SlotInput) -> TurnOutcome | None:
        """Invoke the worker function; None is a crash, as far as the caller can tell."""
        faults = self._around.faults
        await self.is_reachable.wait()
        await self.cold_start(self.worker_id(given.slot_id))
        actor = self._begin_worker(given)
        if faults.strike("duplicate_call", actor.worker_id):
            actor.suffered("duplicate call")
            self._begin_worker(given).suffered("duplicate call")
        if faults.strike("late_twin", actor.worker_id):
            delay_s = faults.between("late_twin", 1.0, 60.0)
            self._around.spawn(self._late_twin(given, delay_s), "late twin")
        if faults.strike("connection_lost", actor.worker_id):
            actor.suffered("connection lost")
            patience_s = faults.between("connection_lost", 0.1, 60.0)
            await asyncio.wait([actor.ended], timeout=patience_s)
            self._around.log(actor.name, "connection lost")
            return None
        await asyncio.wait([actor.ended])
        if actor.ended.exception() is not None:
            return None
        outcome = actor.ended.result()
        return outcome if isinstance(outcome, TurnOutcome) else None

    async def _called_manager(self) -> None:
        """Invoke the manager as it was invoked before."""
        await asyncio.sleep(0)
        self.manager(self._launcher_of)

    def manager(self, launcher_of: Callable[[Actor], WorkerLauncher]) -> None:
        """Invoke the manager function, asynchronously; nobody repeats what is not invoked."""
        if not self.is_reachable.is_set():
            return
        self._launcher_of = launcher_of
        actor = self.new_actor("manager", "")
        ports = self.manager_ports(actor, ActorClock(actor, self._around), launcher_of(actor))
        ports = replace(ports, function=MANAGER_FUNCTION)
        if self.config.spill:
            ports = beside_processes(self.config, ports)
        run = run_manager(self.config, ports, run_ms=self.config.max_manager_ms)
        self.start(actor, run, MANAGER_BOX_MS)

    def manager_ports(self, actor: Actor, clock: Clock, launcher: WorkerLauncher) -> ManagerPorts:
        """Return the manager's ports for one invocation, or for a process."""
        stream = self._stream(actor)
        return ManagerPorts(
            leases=self._leases(actor),
            kcl3=self._kcl3(actor),
            state=FleetState(self.state_of(actor), clock),
            stream=stream,
            source=PolledSource(stream, clock),
            launcher=launcher,
            clock=clock,
            entropy=self._entropy(actor),
            events=ActorEvents(actor, self._around),
        )

    def peer(self, number: int, *, hurry: float = 1.0, is_old: bool = False) -> Actor:
        """Start a worker that behaves like the KCL for Java; it runs until it is killed."""
        worker_id = f"java-{number}"
        actor = self.new_actor("java", worker_id)
        shared = self._services.kcl3
        kcl3 = None
        if shared is not None:
            kcl3 = Kcl3Access(rows=self._kcl3(actor), lock=shared.lock, hurry=hurry)
        peer = JavaLikePeer(
            actor,
            self._around,
            leases=self._leases(actor),
            stream=self._stream(actor),
            kcl3=kcl3,
            is_old=is_old,
        )
        self.start(actor, peer.run(), FOREVER_MS)
        return actor

    def person(self, command: str) -> Person:
        """Begin an operator's command; nobody but its own calls freezes or kills it."""
        self._around.commands[command] += 1
        actor = self.new_actor("operator", "")
        clock = ActorClock(actor, self._around)
        return Person(
            actor=actor,
            clock=clock,
            entropy=self._entropy(actor),
            leases=self._leases(actor),
            state=FleetState(self.state_of(actor), clock),
            stream=self._stream(actor),
            kcl3=self._kcl3(actor),
            kept=RedrivenDocuments(self._kept, self._wire(actor), around=self._around),
            events=ActorEvents(actor, self._around),
        )

    async def redrive(self, event: Mapping[str, Any]) -> HandlerResult:
        """
        Invoke the worker function with records that were given up.

        Raises:
            OutcomeUnknown: it died, or ended its process.

        """
        actor, config = self.new_actor("redrive", ""), self.config
        clock, is_manual = ActorClock(actor, self._around), config.way.handler_checkpoints
        handler = RedrivenHandler(
            actor, self._around, clock, overlaps=self._overlaps, is_manual=is_manual
        )
        work = Redrive(
            records_of(event),
            stream_arn=config.stream_arn,
            way=config.way,
            timeout_ms=config.handler_timeout_ms,
            clock=clock,
        )

        async def run() -> HandlerResult | None:
            with suppress(HandlerTimedOut):
                return await work.run(handler)
            return None

        self.start(actor, run(), self._box_ms)
        await asyncio.wait([actor.ended])
        result = None if actor.ended.exception() else actor.ended.result()
        if not isinstance(result, HandlerResult):
            message = f"{actor.name}: no answer"
            raise OutcomeUnknown(message)
        return result

    async def run_by(self, person: Person, command: Coroutine[Any, Any, None]) -> None:
        """Run a command to its end, or its death; an error that nobody foresaw is a violation."""
        actor = person.actor
        actor.start(command)
        await asyncio.wait([actor.ended])
        error = actor.ended.exception()
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            for checker in self._around.checkers:
                checker.turn_over(self._around.now_ms, actor, left=(), error=text)
        actor.kill()

    def _begin_worker(self, given: SlotInput) -> Actor:
        actor = self.slot_actor(given)
        clock = ActorClock(actor, self._around)
        wire, deadline_ms = self._wire(actor), clock.monotonic_ms() + self._box_ms
        calls = WiredCall(self._called_manager, wire)
        ports = replace(self.worker_ports(actor, clock), manager=calls)
        turn = worker_turn(given, config=self.config, ports=ports, deadline_ms=deadline_ms)
        self.start(actor, turn, self._box_ms)
        return actor

    def slot_actor(self, given: SlotInput) -> Actor:
        """Return who runs the next turn of a slot."""
        actor = self.new_actor(given.slot_id, self.worker_id(given.slot_id))
        actor.execution = (given.start_epoch, given.generation)
        self.latest[given.slot_id] = actor
        self.turns += 1
        return actor

    def worker_ports(self, actor: Actor, clock: Clock) -> WorkerPorts:
        """Return the ports of a slot's turn."""
        stream = self._stream(actor)
        events = ActorEvents(actor, self._around)
        source: ShardSource = PolledSource.of_worker(stream, clock, self.config)
        if self.config.consumer_arn:
            source = PushedSource(stream, source, clock=clock, events=events)
        return WorkerPorts(
            clock=clock,
            entropy=self._entropy(actor),
            leases=self._leases(actor),
            state=self.state_of(actor),
            stream=stream,
            source=source,
            handler=self.handler_of(actor, clock),
            progress=progress_of(self.config),
            policy=FaultyPolicy(actor, self._around, self._wire(actor), policy=self.policy),
            events=events,
            process=ActorProcess(actor, self._around),
        )

    def worker_id(self, slot_id: str) -> str:
        """Return the owner's name under which a slot's worker holds leases."""
        return f"{self.config.fleet}-{slot_id}"

    async def _late_twin(self, given: SlotInput, delay_s: float) -> None:
        """Make a call once more that was made long ago."""
        await asyncio.sleep(delay_s)
        late = self._begin_worker(given)
        for actor in self.alive:
            if actor.worker_id == late.worker_id:
                actor.suffered("late twin")

    async def cold_start(self, worker_id: str) -> None:
        """Let Lambda take its time to find a sandbox; the invocation's own time begins after."""
        faults = self._around.faults
        if faults.strike("cold_start", worker_id):
            await asyncio.sleep(faults.between("cold_start", 0.5, _COLD_MOST_S))

    def start(self, actor: Actor, main: Coroutine[Any, Any, object], box_ms: int) -> None:
        """Let an actor run, for so long at most."""
        self.alive.append(actor)
        self._around.log(actor.name, "begins")
        actor.start(main)
        self._around.spawn(self._watch(actor, box_ms), f"watch {actor.name}")

    async def _watch(self, actor: Actor, box_ms: int) -> None:
        """Cut an invocation off at its time-out; tell the checkers how it returned."""
        around = self._around
        await asyncio.wait([actor.ended], timeout=box_ms / 1000)
        if not actor.ended.done():
            actor.suffered("timed out")
            around.log(actor.name, "timed out")
            actor.kill()
        self.alive.remove(actor)
        if actor.is_dead:
            self.killed += 1
            return
        error = actor.ended.exception()
        is_refusal = isinstance(error, (Throttled, OutcomeUnknown)) and not actor.worker_id
        text = "" if error is None or is_refusal else f"{type(error).__name__}: {error}"
        left = [task.get_name() for task in actor.tasks if not task.done()]
        result = repr(error) if error else actor.ended.result()
        around.log(actor.name, "returns", result)
        for checker in around.checkers:
            checker.turn_over(around.now_ms, actor, left=left, error=text)
        if actor is not actor.main:
            actor.part()
        actor.kill()

    def _scripted(self, actor: Actor, clock: Clock) -> HandlerRunner:
        is_manual = self.config.way.handler_checkpoints
        return UserHandler(actor, self._around, clock, overlaps=self._overlaps, is_manual=is_manual)

    def new_actor(self, role: str, worker_id: str) -> Actor:
        """Return an actor that has not begun."""
        self._numbers += 1
        return Actor(f"{role}#{self._numbers}", worker_id, now_ms=self._around.clock.monotonic_ms)

    def _entropy(self, actor: Actor) -> SeededEntropy:
        return SeededEntropy(self._around.chance(f"entropy/{actor.name}").getrandbits(64))

    def _wire(self, actor: Actor) -> Wire:
        return Wire(actor, self._around, Outage())

    def _leases(self, actor: Actor) -> FaultyLeases:
        wire = Wire(actor, self._around, self._services.lease_outage)
        return FaultyLeases(self._services.leases, wire, around=self._around, by=actor)

    def _kcl3(self, actor: Actor) -> Kcl3Store:
        shared = self._services.kcl3
        if shared is None:
            return MemoryKcl3Store()
        wire = self._wire(actor)
        return FaultyKcl3(shared.rows, wire, around=self._around, by=actor)

    def state_of(self, actor: Actor) -> FaultyState:
        """Return an actor's way to the fleet-state table."""
        wire = Wire(actor, self._around, self._services.state_outage)
        return FaultyState(self._services.state, wire, around=self._around, by=actor)

    def _stream(self, actor: Actor) -> FaultyStream:
        wire = Wire(actor, self._around, Outage(), throttle="stream_throttle")
        return FaultyStream(self._services.stream, wire, around=self._around, by=actor)
