"""
One manager turn: observe, plan, apply, report.

Leases are read first, then shards. The turn creates missing leases (pins before LATEST leases,
H7), deletes finished ones, finds expired ones by persisted sightings (H15), keeps the slots (H2,
H3) and assigns leases to them. Every write is conditional, so a turn may be cut off anywhere,
repeated, or overlap another one. Behaves like Java's ``LeaseAssignmentManager`` plus
``HierarchicalShardSyncer`` plus ``LeaseCleanupManager``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.loads import smoothed
from shardfleet.domain.balance.merge_wait import waiting_for_a_merge
from shardfleet.domain.cost.spending import Regime
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.cleanup import CleanupPlan, plan_lease_cleanup
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.leases.sync import InitialPosition, LeaseSyncPlan, LeaseToCreate
from shardfleet.domain.leases.unreadable import Unreadable
from shardfleet.domain.reasons import Pause, Reason
from shardfleet.domain.slots.slot import SlotState, ask_to_drain
from shardfleet.domain.stream.sequence import AT_LATEST, StreamIncarnation
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.manager.assigner import Assigner
from shardfleet.engine.manager.handovers import HandoverWatch
from shardfleet.engine.manager.history import TurnHistory
from shardfleet.engine.manager.holes import HoleAudit, began_ms
from shardfleet.engine.manager.losses import LossWatch, Reading
from shardfleet.engine.manager.prober import Prober, Sleepers
from shardfleet.engine.manager.report import TurnReport, report_turn
from shardfleet.engine.manager.slots import SlotKeeper, leaving
from shardfleet.engine.manager.spending import RegimeKeeper
from shardfleet.engine.manager.strategy import Standing
from shardfleet.engine.ports import (
    Clock,
    Entropy,
    EventSink,
    LeaseStore,
    ListingFilter,
    StreamReader,
    WorkerLauncher,
)
from shardfleet.engine.retry import each_of
from shardfleet.engine.shard.start import PIN_BACK_MS
from shardfleet.engine.state.fleet_state import FleetState, VersionedSlot
from shardfleet.engine.state.pauses import PauseRecord, free_paused
from shardfleet.errors import StreamReplaced
from shardfleet.events import LeaseCreated, LeaseDeleted, LeaseHealed, LeaseSyncProblem

_INITIAL_LISTING = {
    "TRIM_HORIZON": ListingFilter.AT_TRIM_HORIZON,
    "LATEST": ListingFilter.AT_LATEST,
    "AT_TIMESTAMP": ListingFilter.AT_TIMESTAMP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerPorts:
    """Everything the manager asks of the world."""

    leases: LeaseStore
    state: FleetState
    stream: StreamReader
    launcher: WorkerLauncher
    clock: Clock
    entropy: Entropy
    events: EventSink


@dataclass(frozen=True, slots=True)
class _Snapshot:
    reading: Reading
    leases: Sequence[Lease]
    shards: Sequence[Shard]
    unreadable: Unreadable

    @property
    def known(self) -> Sequence[Lease]:
        """Return the leases, and what stands for those that cannot be read."""
        return [*self.leases, *self.unreadable.stand_ins]


class LeaseManager:
    """
    Runs turns; holds nothing between them but their count.

    Attributes:
        rests: after a turn: for money's sake the next one may wait for the schedule.

    """

    def __init__(self, config: FleetConfig, ports: ManagerPorts) -> None:
        """Wire the parts of a turn."""
        self._config = config
        self._history = TurnHistory(ports.state, ports.events)
        ports = replace(ports, events=self._history)
        self._ports = ports
        self._turns = 0
        self._pauses = PauseRecord(ports.state.store)
        self._regimes = RegimeKeeper(
            config, store=ports.state.store, clock=ports.clock, events=ports.events
        )
        self.rests = False
        self._slots = SlotKeeper(
            config,
            state=ports.state,
            launcher=ports.launcher,
            clock=ports.clock,
            events=ports.events,
        )
        self._prober = Prober(
            config,
            state=ports.state,
            stream=ports.stream,
            clock=ports.clock,
            events=ports.events,
        )
        self._losses = LossWatch(config, leases=ports.leases, state=ports.state, clock=ports.clock)
        self._handovers = HandoverWatch(
            config,
            leases=ports.leases,
            state=ports.state,
            clock=ports.clock,
            events=ports.events,
        )
        self._audit = HoleAudit(state=ports.state, stream=ports.stream, clock=ports.clock)
        self._assigner = Assigner(
            config,
            leases=ports.leases,
            state=ports.state,
            entropy=ports.entropy,
            events=ports.events,
        )

    @property
    def next_watch_ms(self) -> int:
        """Return when to look for lost owners next, on the monotonic clock."""
        return self._losses.next_ms

    async def watch(self) -> bool:
        """Look for lost owners if it is time; return whether a turn is to replace one."""
        return await self._losses.look()

    async def remember(self) -> None:
        """Keep what was seen of the leases since the last turn, for the next invocation."""
        await self._losses.remember()

    @property
    def has_sleepers(self) -> bool:
        """Tell whether there are sleeping shards to look at between turns."""
        return self._prober.has_sleepers

    @property
    def looked_ms(self) -> int | None:
        """Return when the sleeping shards were last looked at, on the monotonic clock."""
        return self._prober.looked_ms

    async def look(self) -> bool:
        """Look at the sleeping shards; return whether a turn is to wake one."""
        return await self._prober.look()

    async def turn(self) -> TurnReport:
        """
        Run one turn.

        Raises:
            StreamGone, StreamReplaced: the stream is not what the leases speak of (H12); every
                slot has been asked to drain.
            Throttled, OutcomeUnknown: cut short; the next turn begins anew.

        """
        incarnation = await self._begin()
        seen = await self._observe()
        sync = await self._sync(seen, created_ms=incarnation.created_ms)
        cleanup = await self._clean_up(seen.shards, seen.known)
        slots = await self._ports.state.slots()
        expired = await self._expire(seen, slots)
        current = _after(seen.leases, sync)
        paused = await self._paused(current, slots, expired=expired)
        sleepers = await self._prober.turn(
            current, slots, expired=expired, paused=paused.keys(), incarnation=incarnation
        )
        resting = _resting(seen, sleepers, paused)
        slot_plan = await self._slots.keep(
            current, slots, resting=resting.keys(), expired=expired, is_thrifty=self._is_thrifty
        )
        standing = _standing(seen, current, expired=expired, paused=resting)
        loaded = await self._smoothed(current, slots)
        assignment = await self._assigner.assign(
            *loaded,
            standing=replace(standing, leaving=leaving(slots, slot_plan)),
            now_ms=self._ports.clock.now_ms(),
            rebalance=self._is_balancing_run(),
        )
        report = TurnReport(
            began_ms=seen.reading.started_ms,
            at_ms=self._ports.clock.now_ms(),
            leases=tuple(current),
            shards=tuple(seen.shards),
            slots_seen=tuple(slots),
            expired=expired,
            sync=sync,
            cleanup=cleanup,
            slots=slot_plan,
            assignment=assignment,
            paused=paused,
            sleepers=sleepers,
            unreadable=seen.unreadable,
        )
        await self._tell(report)
        return report

    async def _begin(self) -> StreamIncarnation:
        """See whether the stream is the one that the leases speak of, and what may be spent."""
        incarnation = await self._ports.stream.incarnation()
        await self._check(incarnation)
        await self._regimes.begin()
        return incarnation

    def _is_balancing_run(self) -> bool:
        """Count a turn; tell whether load is evened out in it."""
        self._turns += 1
        return (self._turns - 1) % self._config.rebalance_turns == 0

    @property
    def _is_thrifty(self) -> bool:
        return self._regimes.name is not Regime.EAGER

    async def _tell(self, report: TurnReport) -> None:
        """Tell and keep what the turn came to, and choose the regime by it."""
        self.rests = self._is_thrifty and report.is_calm
        ports = self._ports
        done = await report_turn(ports.state, ports.events, report, config=self._config)
        await self._regimes.choose(done.millis_behind_latest_max)
        await self._history.keep(report)

    async def _observe(self) -> _Snapshot:
        """Read leases, then shards: a shard list is never older than the leases beside it."""
        reading = Reading.begin(self._ports.clock)
        survey = await self._ports.leases.survey()
        reading = reading.end(self._ports.clock)
        shards = await self._ports.stream.list_shards()
        return _Snapshot(reading, survey.leases, shards, Unreadable.among(survey, shards))

    async def _expire(self, seen: _Snapshot, slots: Sequence[VersionedSlot]) -> frozenset[str]:
        """Bring sightings and handovers up to date, and tell which leases lost their owner."""
        stale = await self._losses.turn(seen.leases, seen.reading, graces=self._graces(slots))
        lost = stale | _orphans(seen.leases, slots)
        await self._handovers.look(seen.leases, lost)
        return lost

    async def _paused(
        self, leases: Sequence[Lease], slots: Sequence[VersionedSlot], *, expired: frozenset[str]
    ) -> Mapping[str, Pause]:
        """Read which leases nobody is to have; those whose worker is lost are left without one."""
        pauses = await self._pauses.read()
        store = self._ports.leases
        await free_paused(leases, slots, pauses=pauses, expired=expired, store=store)
        return pauses.among(lease.lease_key for lease in leases)

    async def _check(self, incarnation: StreamIncarnation) -> None:
        """Refuse to go on with another incarnation of the stream; stop the workers too (H12)."""
        try:
            await self._ports.state.check_incarnation(incarnation)
        except StreamReplaced:
            for found in await self._ports.state.slots():
                await self._ports.state.update_slot(found.slot.slot_id, ask_to_drain)
            raise

    async def _sync(self, seen: _Snapshot, *, created_ms: int) -> LeaseSyncPlan:
        """Create what is missing; the hash ranges that old rows lack are filled in too."""
        shards, leases = seen.shards, seen.known
        initial = InitialPosition(self._config.initial_position)
        at_initial = None
        if not leases:
            instant_ms = self._config.initial_timestamp_ms or None
            at_initial = await self._ports.stream.list_shards(
                _INITIAL_LISTING[initial.kind],
                instant_ms=instant_ms if initial.kind == "AT_TIMESTAMP" else None,
            )
        plan = await self._audit.plan(
            shards,
            leases,
            initial=initial,
            listed_at_initial=at_initial,
            created_ms=created_ms,
        )
        plan = seen.unreadable.spared(plan)
        pin_ms = self._ports.clock.now_ms() - PIN_BACK_MS
        if plan.begins_late:
            then_ms = await began_ms(self._ports.state.store, created_ms)
            pin_ms = pin_ms if then_ms is None else then_ms
        for problem in plan.problems:
            self._ports.events.emit(LeaseSyncProblem(problem=problem))

        async def create(wanted: LeaseToCreate) -> None:
            if wanted.lease.checkpoint == AT_LATEST:
                await self._ports.state.pin(
                    wanted.lease.lease_key, instant_ms=pin_ms, created_ms=created_ms
                )
            result = await self._ports.leases.apply(lease_changes.create(wanted.lease))
            if isinstance(result, Applied):
                self._ports.events.emit(
                    LeaseCreated(lease_key=wanted.lease.lease_key, reason=wanted.reason)
                )
                if wanted.lease.lease_key in plan.repairs:
                    self._ports.events.emit(
                        LeaseHealed(lease_key=wanted.lease.lease_key, reason=wanted.reason)
                    )

        for generation in plan.generations():
            await each_of(generation, create)
        await self._fill_hash_ranges(shards, leases)
        return plan

    async def _fill_hash_ranges(self, shards: Sequence[Shard], leases: Sequence[Lease]) -> None:
        ranges = {shard.shard_id: shard.hash_key_range for shard in shards}
        for lease in leases:
            known = ranges.get(lease.lease_key)
            if lease.hash_key_range is None and known is not None and not lease.is_finished:
                await self._ports.leases.apply(lease_changes.set_hash_range(lease, known))

    async def _clean_up(self, shards: Sequence[Shard], leases: Sequence[Lease]) -> CleanupPlan:
        plan = plan_lease_cleanup(shards, leases)
        for lease, child_ids in plan.learn_children:
            await self._ports.leases.apply(lease_changes.set_children(lease, child_ids))
        for gone in plan.delete:
            result = await self._ports.leases.apply(lease_changes.delete(gone.lease))
            if isinstance(result, Applied):
                self._ports.events.emit(
                    LeaseDeleted(lease_key=gone.lease.lease_key, reason=gone.reason)
                )
        return plan

    async def _smoothed(
        self, leases: Sequence[Lease], slots: Sequence[VersionedSlot]
    ) -> tuple[Sequence[Lease], Sequence[VersionedSlot]]:
        """Return both with their loads smoothed over turns, and keep that."""
        if self._config.assignment != "balanced":
            return leases, slots
        running = (found.slot for found in slots if found.slot.state is SlotState.RUNNING)
        told = {slot.worker_id: slot.usage for slot in running}
        loads = smoothed(await self._ports.state.loads(), leases, told)
        if not loads.leases:
            return leases, slots
        await self._ports.state.write_loads(loads)
        known = [replace(found, slot=loads.of_slot(found.slot)) for found in slots]
        return loads.of_leases(leases), known

    def _graces(self, slots: Sequence[VersionedSlot]) -> Mapping[str, int]:
        """Give assignments that their worker has not served yet the start allowance (H16)."""
        return {
            key: self._config.start_allowance_ms
            for found in slots
            if found.slot.served_seq < found.slot.assign_seq
            for key in found.slot.assigned
        }


def _resting(
    seen: _Snapshot, sleepers: Sleepers, paused: Mapping[str, Pause]
) -> Mapping[str, Reason]:
    """Return the leases that nobody is to have, each with the reason that counts."""
    return {**seen.unreadable.held_up, **sleepers.reasons, **paused}


def _standing(
    seen: _Snapshot,
    leases: Sequence[Lease],
    *,
    expired: frozenset[str],
    paused: Mapping[str, Reason],
) -> Standing:
    idle = waiting_for_a_merge(seen.shards, [*leases, *seen.unreadable.stand_ins])
    return Standing(expired=expired, idle=idle, paused=paused)


def _orphans(leases: Sequence[Lease], slots: Sequence[VersionedSlot]) -> frozenset[str]:
    """Return leases owned by ended slots: nobody can renew them, so nobody need wait (H2)."""
    ended = {f.slot.worker_id for f in slots if f.slot.state is SlotState.ENDED}
    return frozenset(
        lease.lease_key
        for lease in leases
        if not lease.is_finished and lease.effective_owner in ended
    )


def _after(leases: Sequence[Lease], sync: LeaseSyncPlan) -> Sequence[Lease]:
    """Return the leases as they are once the plan's new ones exist."""
    known = {lease.lease_key for lease in leases}
    created = [w.lease for w in sync.create if w.lease.lease_key not in known]
    return [*leases, *(replace(lease, lease_counter=0) for lease in created)]
