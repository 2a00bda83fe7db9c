"""
One manager turn: observe, plan, carry out, report.

:mod:`shardfleet.engine.manager.observe` reads, :func:`shardfleet.domain.turn.plan_turn` decides,
and what it has decided is done here, in order of urgency, each step in its time: a call that is
refused is made again, and what ends a step early is told and left to the next turn, which plans it
anew. Within a step nothing is left half done: pins before LATEST leases (H7), a slot's intent
before its start (H3), an announcement before a lease (H2). Every write is conditional, so a turn
may be cut off anywhere, repeated, or overlap another one. Behaves like
Java's ``LeaseAssignmentManager`` plus ``HierarchicalShardSyncer`` plus ``LeaseCleanupManager``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import Assignment
from shardfleet.domain.balance.kcl3 import of_our_application
from shardfleet.domain.balance.strategy import STRATEGIES
from shardfleet.domain.delivery.progress import position_text
from shardfleet.domain.leases.changes import create as creation
from shardfleet.domain.leases.foreign_leases import refuse_to_begin
from shardfleet.domain.leases.lease import (
    FOREIGN_NAMED_MOST,
    Applied,
    ForeignLease,
    LeaseAndWhy,
    LeaseChange,
)
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.domain.slots.slot import ask_to_drain
from shardfleet.domain.stream.sequence import AT_LATEST, StreamIncarnation
from shardfleet.domain.turn import TurnPlan, TurnSnapshot, plan_turn
from shardfleet.engine.manager.assigner import Assigner
from shardfleet.engine.manager.history import TurnHistory
from shardfleet.engine.manager.inspection import Inspector
from shardfleet.engine.manager.losses import LossWatch
from shardfleet.engine.manager.neighbours import show_workers
from shardfleet.engine.manager.observe import Observer
from shardfleet.engine.manager.prober import Prober
from shardfleet.engine.manager.report import TurnReport, report_turn
from shardfleet.engine.manager.slots import SlotUpkeep
from shardfleet.engine.manager.sweep import sweep
from shardfleet.engine.ports import (
    Clock,
    Entropy,
    EventSink,
    Kcl3Store,
    LeaseStore,
    StreamDirectory,
    WorkerLauncher,
)
from shardfleet.engine.retry import Box, BoxSpent, Patience, each_of, insisting
from shardfleet.engine.shard.reader import ReadPorts, ShardSource
from shardfleet.engine.state.beside import raise_generation
from shardfleet.engine.state.fleet_state import MANAGER, FleetState
from shardfleet.engine.state.kinds import PACE, SUSPECTS
from shardfleet.engine.state.rows import write_rows
from shardfleet.errors import MalformedDocument, ShardfleetError, StreamReplaced, kind_of
from shardfleet.events.base import Event
from shardfleet.events.manager import (
    ForeignLeasesFound,
    LeaseCreated,
    LeaseHealed,
    LeaseSyncProblem,
    ManagerStepCut,
)

# A step that somebody waits for; with 6 ms a write some 40,000 calls.
URGENT_MS = 15_000
# One that can wait: nobody looks for lost owners meanwhile.
LATER_MS = 1_000


class ManagerPorts(Struct, frozen=True, kw_only=True):
    """
    Everything the manager asks of the world.

    Attributes:
        rooms: looks which processes carry slots; None: Lambda carries all.
        function: by which workers call it; empty: it stands by.

    """

    leases: LeaseStore
    kcl3: Kcl3Store
    state: FleetState
    stream: StreamDirectory
    source: ShardSource
    launcher: WorkerLauncher
    clock: Clock
    entropy: Entropy
    events: EventSink
    rooms: Callable[[], Awaitable[Rooms]] | None = None
    function: str = ""


class LeaseManager:
    """
    Runs turns; holds nothing between them but their count and what it has seen.

    Attributes:
        rests: after a turn: nothing moves, so the next one may wait for the schedule.
        losses: looks for lost owners between turns.
        prober: looks at sleeping shards between turns.

    """

    def __init__(
        self, config: FleetConfig, ports: ManagerPorts, *, losses: LossWatch | None = None
    ) -> None:
        """Wire the parts of a turn; ``losses``: what another one of this process has seen."""
        self._config = config
        patience = Patience.of(config, clock=ports.clock, entropy=ports.entropy)
        self._inspector = Inspector(insisting(ports.state.store.raw, patience), ports.clock)
        state = FleetState(self._inspector.documents, ports.clock)
        self._history = TurnHistory(state, ports.events)
        ports = replace(
            ports,
            leases=insisting(ports.leases, patience),
            kcl3=insisting(ports.kcl3, patience),
            state=state,
            stream=insisting(ports.stream, patience),
            launcher=insisting(ports.launcher, patience),
            events=self._history,
        )
        self._ports = ports
        self._turns = 0
        self._refusal: ShardfleetError | None = None
        self._told_foreign: tuple[ForeignLease, ...] = ()
        self.rests = False
        leases, events = ports.leases, ports.events
        stream, clock = ports.stream, ports.clock
        self.losses = losses or LossWatch(config, leases=leases, state=state, clock=clock)
        self._observer = Observer(
            config, leases=leases, state=state, stream=stream, clock=clock, losses=self.losses
        )
        reading = ReadPorts(source=ports.source, clock=clock, events=events, patience=patience)
        self.prober = Prober(config, state=state, ports=reading)
        self._upkeep = SlotUpkeep(
            config, state=state, launcher=ports.launcher, clock=clock, events=events
        )
        self._assigner = Assigner(leases=leases, state=state, events=events)

    async def turn(self) -> TurnReport:
        """
        Run one turn.

        Raises:
            ConfigurationError: the fleet has not begun, and its lease table has leases that are
                not of its stream or mode (H23); nothing was written.
            StreamGone, StreamReplaced: the stream is not what the leases speak of (H12); every
                slot has been asked to drain.
            ShardfleetError: it could not be planned or told; or a step had no answer, or was
                refused, and all others are done. The next turn begins anew.

        """
        incarnation = await self._ports.stream.incarnation()
        await self._check(incarnation)
        plan = await self._plan(incarnation)
        await self._carry_out(plan, created_ms=incarnation.created_ms)
        self._turns += 1
        report = TurnReport(
            plan=plan,
            at_ms=self._ports.clock.now_ms(),
            quiet_ms=self.prober.quiet_ms,
            unreadable=self._inspector.take(),
        )
        ports = self._ports
        done = await report_turn(ports.state, ports.events, report, config=self._config)
        is_late = 0 < self._config.lag_objective_ms < done.millis_behind_latest_max
        self.rests = plan.is_calm and not is_late
        await self._history.keep(report)
        if self._refusal is not None:
            raise self._refusal
        return report

    async def watch(self) -> None:
        """
        Tell what there is to tell of the fleet, and change nothing: somebody else leads.

        Raises:
            ShardfleetError: not everything could be read.

        """
        ports, incarnation = self._ports, await self._ports.stream.incarnation()
        snapshot = await self._observer.observe()
        plan = await self._observer.plan(snapshot, created_ms=incarnation.created_ms)
        report = TurnReport(plan=plan, at_ms=ports.clock.now_ms(), quiet_ms=self.prober.quiet_ms)
        await report_turn(ports.state, ports.events, report, config=self._config)

    async def _check(self, incarnation: StreamIncarnation) -> None:
        """Refuse to go on with another incarnation of the stream; stop the workers too (H12)."""
        try:
            await self._ports.state.check_incarnation(incarnation)
        except StreamReplaced:
            for found in await self._ports.state.slots():
                await self._ports.state.update_slot(found.slot.slot_id, ask_to_drain)
            raise

    async def _plan(self, incarnation: StreamIncarnation) -> TurnPlan:
        """Plan by what was read and remembered, and again if a look finds somebody to wake."""
        config, observer = self._config, self._observer
        snapshot = await observer.observe()
        self._look_at_foreign(snapshot)
        survey = snapshot.survey
        snapshot = replace(
            snapshot,
            service_ms=incarnation.service_ms,
            kcl3=of_our_application(
                await self._ports.kcl3.found(survey.foreign),
                survey,
                ours={slot.worker_id for slot in snapshot.slots},
            ),
            rooms=await self._ports.rooms() if self._ports.rooms else Rooms(),
            rebalance=self._turns % config.rebalance_turns == 0,
            draw=self._ports.entropy.token() if STRATEGIES[config.assignment].draws else "",
        )
        plan = await observer.plan(snapshot, created_ms=incarnation.created_ms)
        woken = await self.prober.look_if_due(plan, incarnation=incarnation)
        return plan_turn(config, replace(plan.snapshot, woken=woken)) if woken else plan

    def _look_at_foreign(self, snapshot: TurnSnapshot) -> None:
        """Name leases that are not ours; a fleet that has not begun does not begin beside them."""
        foreign, config = snapshot.survey.foreign_leases, self._config
        if foreign != self._told_foreign:
            self._told_foreign = foreign
            self._ports.events.emit(
                ForeignLeasesFound(
                    table=config.lease_table,
                    leases=len(foreign),
                    named=tuple(str(each) for each in foreign[:FOREIGN_NAMED_MOST]),
                )
            )
        if snapshot.finished is None and not snapshot.slots:
            refuse_to_begin(config.lease_table, config.stream_arn, foreign)

    # --- carrying out

    async def _carry_out(self, plan: TurnPlan, *, created_ms: int) -> None:
        """Do first what nobody reads for as long as it is not done, and clean up last."""
        self._refusal, ports = None, self._ports
        existing = {lease.lease_key for lease in plan.snapshot.survey.leases}
        looked_after = plan.examined | plan.staying
        first: list[Assignment] = []
        later: list[Assignment] = []
        for each in plan.assignment.assignments:
            # Who may have to start anew is told of nothing before: it would lose that write; and
            # who is to leave takes nothing before it is asked to stay.
            waits = each.lease.lease_key not in existing or each.worker_id in looked_after
            (later if waits else first).append(each)
        await self._step("losses", lambda box: self._apply(plan.urgent_changes, box))
        # A nap is taken away before its lease is given, a lease before its lost slot starts anew.
        await self._step("sleep", lambda box: self.prober.carry_out(plan, box=box))
        await self._step("assignment", lambda box: self._assign(plan, first, box))
        await self._step("slots", lambda box: self._upkeep.carry_out(plan, box=box))
        await self._step("rows", lambda box: show_workers(plan, ports.kcl3, ports.state, box=box))
        is_kept = await self._step("lineage", lambda _: self._keep_lineage(plan))
        if is_kept:
            await self._step("creation", lambda box: self._create(plan, box, created_ms=created_ms))
            await self._step("assignment", lambda box: self._assign(plan, later, box))
        await self._step("memory", lambda _: self._remember(plan))
        if is_kept:
            await self._step("clean-up", lambda box: self._apply(plan.clean_up, box), LATER_MS)
        await self._inspect(plan)

    async def _step(
        self, name: str, work: Callable[[Box], Awaitable[object]], most_ms: int = URGENT_MS
    ) -> bool:
        """Do a step in its time; what ends it early is told, and left to the next turn."""
        clock = self._ports.clock
        try:
            await work(Box(clock, clock.monotonic_ms() + most_ms))
        except (BoxSpent, ShardfleetError) as error:
            why = f"{kind_of(error)}: {error}"
            self._ports.events.emit(ManagerStepCut(step=name, reason=why))
            if not isinstance(error, BoxSpent):
                self._refusal = self._refusal or error
            return False
        return True

    async def _inspect(self, plan: TurnPlan) -> None:
        """Look for documents that cannot be read, or are of nothing; no answer harms no turn."""
        ports = self._ports
        box = Box(ports.clock, ports.clock.monotonic_ms() + LATER_MS)
        try:
            seen = await self._inspector.inspect_if_due()
            if seen:
                await sweep(seen, plan, leases=ports.leases, state=ports.state.store.raw, box=box)
        except (BoxSpent, ShardfleetError) as error:
            why = f"{type(error).__name__}: {error}"
            self._ports.events.emit(ManagerStepCut(step="inspection", reason=why))

    async def _apply(self, changes: Iterable[tuple[LeaseChange, Event | None]], box: Box) -> None:
        async def apply(each: tuple[LeaseChange, Event | None]) -> None:
            change, event = each
            if isinstance(await self._ports.leases.apply(change), Applied) and event:
                self._ports.events.emit(event)

        await each_of(changes, apply, box=box)

    async def _assign(self, plan: TurnPlan, assignments: Sequence[Assignment], box: Box) -> None:
        await self._assigner.carry_out(
            assignments, plan.snapshot.slots, graceful=plan.graceful, box=box
        )

    async def _keep_lineage(self, plan: TurnPlan) -> None:
        """Keep what was found of shards without a lease, before any is created or deleted."""
        snapshot, state = plan.snapshot, self._ports.state
        if snapshot.evidence and plan.suspicions != snapshot.evidence.suspicions:
            await write_rows(state.store.raw, SUSPECTS, plan.suspicions)
        if plan.sync.finished not in (None, snapshot.finished):
            await state.write_finished(plan.sync.finished or ())

    async def _remember(self, plan: TurnPlan) -> None:
        """Keep what the next turn goes by; without it, it is later or needs longer."""
        state = self._ports.state
        await self.losses.keep(plan)
        if plan.losses.handovers != plan.snapshot.handovers:
            await state.write_handovers(plan.losses.handovers)
        if plan.pace != plan.snapshot.pace:
            await state.write_pace(plan.pace, plan.snapshot.versions.get((PACE, MANAGER)))
        if plan.loads is not None:
            await state.write_loads(plan.loads)

    async def _create(self, plan: TurnPlan, box: Box, *, created_ms: int) -> None:
        """Create what is missing: pins before leases, parents before children."""
        leases, state, events = self._ports.leases, self._ports.state, self._ports.events
        for problem in plan.sync.problems:
            events.emit(LeaseSyncProblem(problem=problem))

        unpinned: list[str] = []

        async def create(wanted: LeaseAndWhy) -> None:
            key, reason = wanted.lease.lease_key, wanted.reason
            if wanted.lease.checkpoint == AT_LATEST:
                try:
                    await state.pin(key, instant_ms=plan.pin_ms, created_ms=created_ms)
                except MalformedDocument:  # Told by who has read it.
                    unpinned.append(key)
                    return
            if await leases.get(key) is None:
                # It may have been there before: what is noted of that one is none of this one's.
                now_ms = self._ports.clock.now_ms()
                made = position_text(wanted.lease.checkpoint)
                await raise_generation(state.store.raw, key, now_ms=now_ms, made=made)
            if isinstance(await leases.apply(creation(wanted.lease)), Applied):
                events.emit(LeaseCreated(lease_key=key, reason=reason))
                if key in plan.sync.repairs:
                    events.emit(LeaseHealed(lease_key=key, reason=reason))

        for generation in plan.sync.generations():
            await each_of(generation, create, box=box)
            if unpinned:
                return  # No child begins before a parent that has no lease yet.
