"""
A turn of the manager: everything it decides, from what it has read; nothing is read or written.

The order of :func:`plan_turn` is the order in which one decision needs another: who has lost its
lease, which leases there are to be, which of them nobody is to have, how many slots read the rest,
who gets what. :mod:`shardfleet.engine.manager.turn` carries a plan out, `shardfleet what-if` plays
it on a copy. It is one idea: what a turn decides, and in which order; every rule itself is in the
room of what it decides about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct, field

from shardfleet.config import KEPT_MOST_MS, FleetConfig
from shardfleet.domain.balance.by_count import AssignmentPlan, count_to_read
from shardfleet.domain.balance.kcl3 import (
    LEADERLESS_MS,
    BesideFacts,
    Direction,
    Kcl3,
    Kcl3Plan,
    plan_beside,
    slow_to_begin,
)
from shardfleet.domain.balance.loads import Loads, smoothed
from shardfleet.domain.balance.merge_wait import waiting_for_a_merge
from shardfleet.domain.balance.strategy import (
    STRATEGIES,
    AssignmentFacts,
    graceful_workers,
    plan_assignments,
)
from shardfleet.domain.leases.changes import (
    assign,
    delete,
    evict,
    set_children,
    set_hash_range,
)
from shardfleet.domain.leases.cleanup import CleanupPlan, plan_lease_cleanup
from shardfleet.domain.leases.expiry import Reading, Sighting, sighted
from shardfleet.domain.leases.foreign_owners import (
    Foreign,
    foreign_owners,
    noted_foreign,
    read_by_others,
)
from shardfleet.domain.leases.handovers import Handover, overdue_handovers, pending_handovers
from shardfleet.domain.leases.holes import Evidence, Suspicion, suspicions
from shardfleet.domain.leases.lease import Lease, LeaseChange, Survey
from shardfleet.domain.leases.sync import (
    PIN_BACK_MS,
    LeaseSyncPlan,
    plan_lease_sync,
)
from shardfleet.domain.leases.unreadable import Unreadable
from shardfleet.domain.reasons import OtherApplication, Pause, PausesUnreadable, Reason
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.sleep.sleep import Nap, plan_naps
from shardfleet.domain.slots.lags import lags_of
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.domain.slots.sizing import Pace, SizingLimits, SlotNeed, plan_size
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import (
    SlotFacts,
    SlotPlan,
    SlotTask,
    plan_slots,
    stands_still,
    stays,
)
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.events.base import Event
from shardfleet.events.manager import HandoverForced, LeaseDeleted

LAG_MOST_MS = 60_000  # without an objective
_STEALING = "greedy"  # the one strategy that takes from healthy others


class TurnSnapshot(Struct, frozen=True, kw_only=True):
    """
    All that a turn is planned by, as read in this order: leases, shards, slots, the rest.

    Attributes:
        began_ms: when reading began, epoch milliseconds.
        at_ms: when all was read, epoch milliseconds.
        reading: when the lease table was read, by the clock of the sightings.
        survey: of the lease table; what is foreign by the listing is set apart.
        service_ms: the time by the stream's own clock just before, epoch milliseconds; None: it
            did not say.
        shards: the unfiltered listing, or its graph.
        listed_at_initial: the listing of a new application's initial position; None: not new.
        finished: ids of listed shards that are done with, as kept; None: never kept.
        evidence: of leases that were lost; None: not asked for, as a turn seldom needs it.
        slots: all slot records that can be read.
        unreadable_slots: ids of the others: they are not started again, and who has claimed one
            goes on as long as it renews its leases.
        sightings: of leases, until the turn before.
        handovers: lease key to what was pending.
        pauses: what is paused.
        naps: where workers stood in shards that had nothing to read.
        foreign: which other application was last seen in the lease table.
        woken: lease key to what a look at a sleeping shard found.
        stopped: keys of leases that are behind for another reason than too few slots.
        missed: shards that the service does not know, as their workers noted.
        pace: of sizing, as kept.
        loads: what was compared in the turn before.
        kcl3: what a KCL 3 keeps beside the leases.
        rooms: which processes carry slots.
        rebalance: load is evened out in this turn.
        draw: what the greedy strategy shuffles by; another one in each turn.
        versions: kind and id to the version of documents that the plan may change.

    """

    began_ms: int
    at_ms: int
    reading: Reading
    survey: Survey
    shards: Iterable[Shard]
    listed_at_initial: Sequence[Shard] | None = None
    finished: frozenset[str] | None = None
    evidence: Evidence | None = None
    slots: Sequence[Slot] = ()
    unreadable_slots: Collection[str] = ()
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    handovers: Mapping[str, Handover] = field(default_factory=dict)
    pauses: Pauses = field(default_factory=Pauses)
    naps: Sequence[Nap] = ()
    foreign: Foreign | None = None
    woken: Mapping[str, Reason] = field(default_factory=dict)
    stopped: Collection[str] = ()
    missed: Sequence[GoneNote] = ()
    pace: Pace = field(default_factory=Pace)
    loads: Loads = field(default_factory=Loads)
    kcl3: Kcl3 = field(default_factory=Kcl3)
    rooms: Rooms = field(default_factory=Rooms)
    rebalance: bool = True
    draw: str = ""
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    service_ms: int | None = None


class Losses(Struct, frozen=True, kw_only=True):
    """
    Who has lost its lease.

    Attributes:
        sightings: to be kept.
        graces: lease key to extra grace, ms, for assignments that are not renewed yet (H16).
        expired: keys of leases whose owner is lost.
        handovers: what is pending, to be kept.
        overdue: leases whose handover is to be forced.

    """

    sightings: Mapping[str, Sighting]
    graces: Mapping[str, int]
    expired: frozenset[str]
    handovers: Mapping[str, Handover]
    overdue: Sequence[Lease]


class Sleepers(Struct, frozen=True, kw_only=True):
    """
    Who sleeps.

    Attributes:
        asleep: lease key to where its worker stood.
        woken: lease key to why its nap is taken away.
        foreign: other applications, to be noted.
        off: why nothing may sleep; None if it may.

    """

    asleep: Mapping[str, Nap] = field(default_factory=dict)
    woken: Mapping[str, Reason] = field(default_factory=dict)
    foreign: Foreign | None = None
    off: Reason | None = None


class TurnPlan(Struct, frozen=True, kw_only=True):
    """
    Everything that a turn decides.

    Attributes:
        snapshot: by which it was planned.
        losses: expiry and handovers.
        unreadable: lease items that nobody can read, and what waits for them.
        sync: leases to create, and problems of the listing.
        suspicions: shard id to how often it was found without a lease, to be kept.
        pin_ms: where a LATEST lease that is created begins, epoch milliseconds (H7).
        hash_ranges: leases without a range, and theirs.
        cleanup: leases to delete.
        graph: of the listing.
        leases: all leases, those to be created included.
        unfinished: those of them that are not at SHARD_END.
        paused: leases that nobody is to have.
        abandoned: paused ones whose worker is lost; they are left without an owner.
        sleepers: leases that nobody has because there is nothing to read.
        slots: decisions about slots.
        restarts: ids of silent slots that start again if their execution is over; others end.
        pace: of sizing, to be kept.
        loads: what is compared, to be kept; None: nothing is.
        kcl3: what is done beside a KCL 3.
        assignment: who gets which lease.
        graceful: ids of workers that hand over when asked; from others a lease is stolen.

    """

    snapshot: TurnSnapshot
    losses: Losses
    unreadable: Unreadable
    sync: LeaseSyncPlan
    suspicions: Mapping[str, Suspicion]
    pin_ms: int
    hash_ranges: Sequence[tuple[Lease, HashKeyRange]]
    cleanup: CleanupPlan
    graph: ShardGraph
    leases: Sequence[Lease]
    unfinished: Sequence[Lease]
    paused: Mapping[str, Pause]
    abandoned: Sequence[Lease]
    sleepers: Sleepers
    slots: SlotPlan
    restarts: frozenset[str]
    pace: Pace
    loads: Loads | None
    kcl3: Kcl3Plan
    assignment: AssignmentPlan
    graceful: frozenset[str]

    @property
    def wants_evidence(self) -> bool:
        """Return whether leases may be lost: then the turn is planned again, with evidence."""
        return self.snapshot.evidence is None and self.sync.wants_evidence

    @property
    def read_by_others(self) -> frozenset[str]:
        """Return the keys of unfinished leases that healthy workers read which are no slots."""
        ours = {slot.worker_id for slot in self.snapshot.slots}
        return read_by_others(self.unfinished, ours=ours, expired=self.losses.expired)

    @property
    def examined(self) -> frozenset[str]:
        """Return the ids of workers that may be over: their executions are looked at."""
        return self._workers_to(SlotTask.EXAMINE)

    @property
    def staying(self) -> frozenset[str]:
        """Return the ids of workers that were to leave, and take leases once they are to stay."""
        return self._workers_to(SlotTask.STAY)

    def _workers_to(self, task: SlotTask) -> frozenset[str]:
        slot_ids = {each.slot_id for each in self.slots.decisions if each.task is task}
        return frozenset(s.worker_id for s in self.snapshot.slots if s.slot_id in slot_ids)

    @property
    def urgent_changes(self) -> Sequence[tuple[LeaseChange, Event | None]]:
        """Return what ends a lease's being nobody's, in order, and what that tells."""
        pending = self.losses.handovers
        return (
            *(self._forced(lease, pending[lease.lease_key]) for lease in self.losses.overdue),
            *((evict(lease, expired=True), None) for lease in self.abandoned),
        )

    @property
    def clean_up(self) -> Sequence[tuple[LeaseChange, Event | None]]:
        """Return what is to be written of leases that nobody waits for, and what that tells."""
        cleanup = self.cleanup
        return (
            *((set_hash_range(lease, covered), None) for lease, covered in self.hash_ranges),
            *((set_children(lease, children), None) for lease, children in cleanup.learn_children),
            *(
                (
                    delete(gone.lease),
                    LeaseDeleted(lease_key=gone.lease.lease_key, reason=gone.reason),
                )
                for gone in cleanup.delete
            ),
        )

    @property
    def lease_changes(self) -> Sequence[tuple[LeaseChange, Event | None]]:
        """Return what is to be written of leases that exist, and what that tells."""
        return (*self.urgent_changes, *self.clean_up)

    def _forced(self, lease: Lease, handover: Handover) -> tuple[LeaseChange, Event]:
        """End by force what takes too long (protocol.md §3.5); else its old owner ends it."""
        return assign(lease, handover.next_owner), HandoverForced(
            lease_key=lease.lease_key,
            worker_id=handover.next_owner,
            old_owner=handover.old_owner,
            waited_ms=self.snapshot.at_ms - handover.since_ms,
        )

    @property
    def is_calm(self) -> bool:
        """
        Return whether nothing moves, so that the schedule's next invocation is soon enough.

        Every lease that is to be read has an owner who renews it, none is on its way to another or
        not taken up yet, none is to be deleted, no slot is silent, missing or too many, and no Java
        worker is there.
        """
        alive = (SlotState.STARTING, SlotState.RUNNING)
        slots = [slot for slot in self.snapshot.slots if slot.state in alive]
        moves = (
            *(self.losses.expired, self.losses.handovers, self.assignment.assignments),
            *(self.sync.create, self.sync.suspects, self.sync.problems, self.kcl3.others),
            *(self.clean_up, any(slot.served_seq < slot.assign_seq for slot in slots)),
            any(each.task is not SlotTask.NOTHING for each in self.slots.decisions),
        )
        return not any(moves) and len(slots) == self.slots.wanted and not self._unclaimed

    @property
    def _unclaimed(self) -> bool:
        """Return whether a lease has no owner and might: it rests not, nor waits for a parent."""
        unfinished = {lease.lease_key for lease in self.unfinished}
        resting = self.paused.keys() | self.sleepers.asleep.keys()
        return any(
            lease.effective_owner is None and unfinished.isdisjoint(lease.parent_shard_ids)
            for lease in self.unfinished
            if lease.lease_key not in resting
        )

    @property
    def is_awake(self) -> bool:
        """
        Return whether there is anything to do before the next scheduled invocation.

        That includes shards without leases because the listing made no sense: it is looked at
        again soon. Those asleep are only looked at. What nobody has, as it waits for a parent, is
        as awake as that one: nothing can be done for it before a look finds its parent's end.
        """
        unfinished = {lease.lease_key: lease for lease in self.unfinished}
        awake = any(
            lease.lease_owner or unfinished.keys().isdisjoint(lease.parent_shard_ids)
            for key, lease in unfinished.items()
            if key not in self.sleepers.asleep
        )
        return awake or bool(self.graph.shards and self.sync.problems)


def plan_turn(config: FleetConfig, snapshot: TurnSnapshot) -> TurnPlan:
    """Decide everything that a turn of a fleet so configured decides, by what was read."""
    graph = ShardGraph.of(snapshot.shards)
    losses = _losses(config, snapshot)
    unreadable = Unreadable.among(snapshot.survey, graph)
    known = [*snapshot.survey.leases, *unreadable.stand_ins]
    sync, suspected = _sync(config, snapshot, unreadable, graph=graph)
    leases = _with_created(snapshot.survey.leases, sync)
    unfinished = [lease for lease in leases if not lease.is_finished]
    paused = snapshot.pauses.among(lease.lease_key for lease in leases)
    kcl3, beside = _kcl3(config, snapshot, unfinished, expired=losses.expired)
    sleepers = _sleepers(
        config, snapshot, leases, expired=losses.expired, paused=paused, others=kcl3.others
    )
    resting = _resting(unreadable, sleepers, paused) | _perhaps_paused(snapshot, unfinished)
    slots, pace = _slots(config, snapshot, unfinished, beside=beside, resting=resting, kcl3=kcl3)
    facts = AssignmentFacts(
        now_ms=snapshot.at_ms,
        expired=losses.expired,
        idle=waiting_for_a_merge(graph, [*leases, *unreadable.stand_ins]),
        paused=resting,
        leaving=_leaving(snapshot.slots, slots),
        rebalance=snapshot.rebalance,
        draw=snapshot.draw,
        led=_led(snapshot, leases, losses) if kcl3.leads else frozenset(),
    )
    loads, compared, workers = _loads(config, snapshot, leases)
    return TurnPlan(
        snapshot=snapshot,
        losses=losses,
        unreadable=unreadable,
        sync=sync,
        suspicions=suspected,
        pin_ms=_pin_ms(snapshot, sync),
        hash_ranges=_hash_ranges(graph, known),
        cleanup=plan_lease_cleanup(graph, known, finished=sync.finished or ()),
        graph=graph,
        leases=leases,
        unfinished=unfinished,
        paused=paused,
        abandoned=_lost_and_paused(snapshot, leases, losses.expired),
        sleepers=sleepers,
        slots=slots,
        restarts=_restarts(snapshot.slots, slots, unfinished),
        pace=pace,
        loads=loads,
        kcl3=kcl3,
        assignment=plan_assignments(config, compared, workers, facts=facts),
        graceful=graceful_workers(config, compared, workers, facts=facts, others=kcl3.graceful),
    )


# --- who has lost its lease


def _losses(config: FleetConfig, snapshot: TurnSnapshot) -> Losses:
    """Go by what was kept, by what this process has seen itself, and by slots that have ended."""
    leases = snapshot.survey.leases
    graces = {
        key: config.start_allowance_ms
        for slot in snapshot.slots
        if slot.served_seq < slot.assign_seq
        for key in slot.assigned
    }
    ours = {slot.worker_id for slot in snapshot.slots}
    sightings, expired = sighted(
        snapshot.sightings,
        leases,
        reading=snapshot.reading,
        failover_ms=config.failover_ms,
        graces=graces,
        slow=slow_to_begin(snapshot.kcl3, ours=ours, now_ms=snapshot.at_ms),
    )
    expired |= orphans(leases, snapshot.slots)
    handovers = pending_handovers(
        snapshot.handovers,
        leases,
        now_ms=snapshot.at_ms,
        age_most_ms=config.handover_limit_ms + KEPT_MOST_MS,
    )
    overdue = overdue_handovers(
        handovers,
        leases,
        expired=expired,
        ended=_ended(snapshot.slots),
        now_ms=snapshot.at_ms,
        limit_ms=config.handover_limit_ms,
    )
    return Losses(
        sightings=sightings,
        graces=graces,
        expired=expired,
        handovers=handovers,
        overdue=overdue,
    )


def orphans(leases: Iterable[Lease], slots: Iterable[Slot]) -> frozenset[str]:
    """Return leases owned by ended slots: nobody can renew them, so nobody need wait (H2)."""
    ended = _ended(slots)
    if not ended:
        return frozenset()
    return frozenset(
        lease.lease_key
        for lease in leases
        if not lease.is_finished and lease.effective_owner in ended
    )


def _ended(slots: Iterable[Slot]) -> frozenset[str]:
    return frozenset(slot.worker_id for slot in slots if slot.state is SlotState.ENDED)


# --- which leases there are to be


def _sync(
    config: FleetConfig, snapshot: TurnSnapshot, unreadable: Unreadable, *, graph: ShardGraph
) -> tuple[LeaseSyncPlan, Mapping[str, Suspicion]]:
    """Plan without evidence, and with what is certain by it, as far as that is needed."""
    initial = ExtendedSequenceNumber(config.initial_position)
    listed, evidence = snapshot.listed_at_initial, snapshot.evidence
    plan_sync = partial(
        plan_lease_sync,
        graph,
        [*snapshot.survey.leases, *unreadable.stand_ins],
        initial=initial,
        listed_at_initial=listed,
        finished=snapshot.finished,
    )
    plan = plan_sync()
    if evidence is None or not plan.wants_evidence:
        return unreadable.spared(plan), evidence.suspicions if evidence else {}
    suspected = suspicions(evidence.suspicions, plan.suspects, now_ms=snapshot.at_ms)
    lost = [key for key, suspicion in suspected.items() if suspicion.is_proof]
    return unreadable.spared(plan_sync(lost=lost) if lost else plan), suspected


def _pin_ms(snapshot: TurnSnapshot, sync: LeaseSyncPlan) -> int:
    """Return where others began, for what begins late, else a moment ago, by the stream (H7)."""
    began_ms = snapshot.evidence.began_ms if snapshot.evidence and sync.begins_late else None
    if began_ms is not None:
        return began_ms
    now_ms = snapshot.at_ms if snapshot.service_ms is None else snapshot.service_ms
    return now_ms - PIN_BACK_MS


def _with_created(leases: Sequence[Lease], sync: LeaseSyncPlan) -> Sequence[Lease]:
    """Return the leases as they are once the plan's new ones exist."""
    if not sync.create:
        return leases
    known = {lease.lease_key for lease in leases}
    return (*leases, *(w.lease for w in sync.create if w.lease.lease_key not in known))


def _hash_ranges(graph: ShardGraph, leases: Sequence[Lease]) -> list[tuple[Lease, HashKeyRange]]:
    """Return what old rows lack."""
    return [
        (lease, shard.hash_key_range)
        for lease in leases
        if lease.hash_key_range is None and not lease.is_finished
        if (shard := graph.shards.get(lease.lease_key)) is not None
    ]


# --- what nobody is to have


def _resting(
    unreadable: Unreadable, sleepers: Sleepers, paused: Mapping[str, Pause]
) -> dict[str, Reason]:
    """Return the leases that nobody is to have, each with the reason that counts."""
    naps = {key: nap.reason for key, nap in sleepers.asleep.items()}
    return {**unreadable.held_up, **naps, **paused}


def _perhaps_paused(snapshot: TurnSnapshot, unfinished: Iterable[Lease]) -> dict[str, Reason]:
    """Return what nobody reads, if nobody knows what a person has paused; the rest was not."""
    if not snapshot.pauses.is_unknown:
        return {}
    return {
        lease.lease_key: PausesUnreadable() for lease in unfinished if not lease.effective_owner
    }


def _lost_and_paused(
    snapshot: TurnSnapshot, leases: Sequence[Lease], expired: frozenset[str]
) -> Sequence[Lease]:
    """
    Return paused leases whose owner is lost, so that a person finds them without one.

    Only those of our slots: what another application holds is that one's business.
    """
    ours = {slot.worker_id for slot in snapshot.slots}
    return [
        lease
        for lease in leases
        if lease.lease_key in expired
        and snapshot.pauses.of(lease.lease_key) is not None
        and lease.effective_owner in ours
    ]


def _sleepers(
    config: FleetConfig,
    snapshot: TurnSnapshot,
    leases: Sequence[Lease],
    *,
    expired: frozenset[str],
    paused: Collection[str],
    others: Collection[str],
) -> Sleepers:
    """What a person has paused is neither looked at nor woken by a look."""
    if not config.sleep:
        return Sleepers()
    ours = {slot.worker_id for slot in snapshot.slots}
    ours |= {f"{config.fleet}-{slot_id}" for slot_id in snapshot.unreadable_slots}
    owners = sorted({*foreign_owners(leases, ours=ours, expired=expired), *others})
    foreign = noted_foreign(snapshot.foreign, owners, now_ms=snapshot.at_ms)
    off = None if foreign is None else OtherApplication(foreign.owner)
    plan = plan_naps(
        snapshot.naps, leases, off=off, now_ms=snapshot.at_ms, settle_ms=config.failover_ms
    )
    asleep = {key: nap for key, nap in plan.asleep.items() if key not in paused}
    woken = {key: why for key, why in snapshot.woken.items() if key in asleep}
    return Sleepers(
        asleep={key: nap for key, nap in asleep.items() if key not in woken},
        woken={**plan.woken, **woken},
        foreign=foreign,
        off=off,
    )


# --- who gives out the leases


def _kcl3(
    config: FleetConfig,
    snapshot: TurnSnapshot,
    unfinished: Sequence[Lease],
    *,
    expired: frozenset[str],
) -> tuple[Kcl3Plan, BesideFacts]:
    """Return what is done beside a KCL 3, by who has leases and who let one expire."""
    held = Counter(lease.lease_owner for lease in unfinished if lease.lease_owner)
    held.update(
        old for lease in unfinished if (old := lease.checkpoint_owner) and old != lease.lease_owner
    )
    facts = BesideFacts(
        now_ms=snapshot.at_ms,
        holders=held,
        expired=expired,
        losers={le.effective_owner or "" for le in unfinished if le.lease_key in expired},
        migrates=_migrates(snapshot),
        is_paused=snapshot.pauses.fleet is not None,
    )
    return plan_beside(config, snapshot.kcl3, snapshot.slots, facts=facts), facts


def _migrates(snapshot: TurnSnapshot) -> Direction | None:
    migration = snapshot.pauses.migration
    return None if migration is None else Direction(migration.direction)


def _led(snapshot: TurnSnapshot, leases: Iterable[Lease], losses: Losses) -> frozenset[str]:
    """Return the leases that the KCL's leader gives out: all but those it has forgotten."""
    sightings, now_ms = losses.sightings, snapshot.reading.ended_ms
    return frozenset(
        key
        for key in (lease.lease_key for lease in leases)
        if key not in sightings or now_ms - sightings[key].first_seen_ms <= LEADERLESS_MS
    )


# --- how many slots read the rest


def _slots(
    config: FleetConfig,
    snapshot: TurnSnapshot,
    unfinished: Sequence[Lease],
    *,
    beside: BesideFacts,
    resting: Collection[str],
    kcl3: Kcl3Plan,
) -> tuple[SlotPlan, Pace]:
    to_read = count_to_read(
        unfinished,
        ours={slot.worker_id for slot in snapshot.slots},
        expired=beside.expired,
        resting=resting,
        steals=kcl3.leads
        or config.assignment == _STEALING
        or beside.migrates is Direction.FROM_JAVA,
    )
    rooms = snapshot.rooms
    bought = rooms.bought(snapshot.slots)
    least = rooms.least(snapshot.slots, unfinished=len(unfinished))
    sizing = plan_size(
        _slot_needs(config, snapshot, unfinished, held=beside.holders, bought=bought),
        unfinished=to_read,
        pace=snapshot.pace,
        limits=_sizing_limits(config, least=least),
        now_ms=snapshot.at_ms,
        bought=len(bought),
    )
    facts = SlotFacts(
        now_ms=snapshot.at_ms,
        silent_ms=_silent_ms(config),
        leave_most_ms=config.handover_limit_ms + config.cycle_ms,
        slots_most=config.max_workers,
        held=beside.holders,
        taken=snapshot.unreadable_slots,
        lost=beside.losers,
        bought=bought,
    )
    return plan_slots(snapshot.slots, sizing=sizing, facts=facts), sizing.pace


def _restarts(slots: Sequence[Slot], plan: SlotPlan, unfinished: Sequence[Lease]) -> frozenset[str]:
    silent = {each.slot_id for each in plan.decisions if each.task is SlotTask.EXAMINE}
    if not silent:
        return frozenset()
    holders = {lease.effective_owner for lease in unfinished}
    return frozenset(
        slot.slot_id
        for slot in slots
        if slot.slot_id in silent and slot.worker_id in holders and not slot.drain
    )


def _sizing_limits(config: FleetConfig, *, least: int) -> SizingLimits:
    return SizingLimits(
        leases_per_worker=config.leases_per_worker,
        min_workers=max(config.min_workers, least),
        max_workers=config.max_workers,
        target=config.target_percent / 100,
        lag_most_ms=config.lag_objective_ms or LAG_MOST_MS,
        scale_down_ms=config.scale_down_ms,
        shares_by_load=STRATEGIES[config.assignment].by_load,
    )


def _silent_ms(config: FleetConfig) -> int:
    return 2 * config.failover_ms


def _slot_needs(
    config: FleetConfig,
    snapshot: TurnSnapshot,
    unfinished: Sequence[Lease],
    *,
    held: Mapping[str, int],
    bought: Collection[str],
) -> list[SlotNeed]:
    """
    Return what each slot that stays, and does not stand still, has to do.

    The CPU of one that Lambda runs beside processes is of a share of one: it says little of theirs.
    """
    now_ms, silent_ms = snapshot.at_ms, _silent_ms(config)
    alive = [s for s in snapshot.slots if not stands_still(s, now_ms=now_ms, silent_ms=silent_ms)]
    staying = sorted((slot for slot in alive if stays(slot)), key=lambda slot: slot.slot_id)
    lags = lags_of(
        unfinished,
        staying,
        stopped_since_ms={},
        now_ms=now_ms,
        still_ms=silent_ms,
    )
    needs = []
    for slot in staying:
        usage = slot.usage.of_handler() if slot.slot_id in bought else slot.usage
        used = usage.utilisation().values() if slot.state is SlotState.RUNNING else ()
        behind = [lags[k] for k in slot.lags_ms if k in lags and k not in snapshot.stopped]
        needs.append(
            SlotNeed(
                slot_id=slot.slot_id,
                leases=held.get(slot.worker_id, 0),
                used=max(used) / 100 if used else None,
                lag_ms=max(behind, default=-1),
            )
        )
    return needs


def _leaving(slots: Iterable[Slot], plan: SlotPlan) -> frozenset[str]:
    """Return the ids of workers that are to hand over what they have, as of this turn's plan."""
    tasks = {decision.slot_id: decision.task for decision in plan.decisions}
    return frozenset(
        slot.worker_id
        for slot in slots
        if tasks.get(slot.slot_id) is SlotTask.LEAVE
        or (slot.leaving_ms and tasks.get(slot.slot_id) is not SlotTask.STAY)
    )


# --- who gets what


def _loads(
    config: FleetConfig, snapshot: TurnSnapshot, leases: Sequence[Lease]
) -> tuple[Loads | None, Sequence[Lease], Sequence[Slot]]:
    """Return the loads smoothed over turns, and both with them."""
    if not STRATEGIES[config.assignment].by_load:
        return None, leases, snapshot.slots
    running = (slot for slot in snapshot.slots if slot.state is SlotState.RUNNING)
    loads = smoothed(snapshot.loads, leases, {slot.worker_id: slot.usage for slot in running})
    if not loads.leases:
        return None, leases, snapshot.slots
    return loads, loads.of_leases(leases), [loads.of_slot(slot) for slot in snapshot.slots]
