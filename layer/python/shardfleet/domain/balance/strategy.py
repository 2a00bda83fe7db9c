"""
Which strategy plans, for whom, and with what.

Rules: docs/protocol.md A1-A13 and B1-B10. Who may be given leases at all is the same for all three.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import (
    Assignment,
    AssignmentKind,
    AssignmentPlan,
    WorkerView,
    in_key_order,
    plan_balanced,
    plan_greedy,
)
from shardfleet.domain.balance.by_load import BalanceLimits, plan_by_load
from shardfleet.domain.balance.kcl3 import CRASHES_MOST
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Lease, LeaseChange
from shardfleet.domain.reasons import AllStoodStill, KclLeads, Reason
from shardfleet.domain.slots.slot import Slot, SlotState


class AssignmentFacts(Struct, frozen=True, kw_only=True):
    """
    What a turn knows of its leases and slots beside their records.

    Attributes:
        now_ms: epoch milliseconds.
        expired: keys of leases whose owner is lost.
        idle: keys of leases that only wait; they take no place (``merge_wait``).
        paused: key and reason of leases that nobody is to have.
        leaving: ids of workers whose leases are to be handed over to others.
        rebalance: load is evened out in this turn; it is also when a worker has nothing yet.
        draw: what the greedy strategy shuffles by; another one in each turn.
        led: keys of leases that the leader of a KCL 3 gives out.

    """

    now_ms: int
    expired: frozenset[str]
    idle: frozenset[str] = frozenset()
    paused: Mapping[str, Reason]
    leaving: frozenset[str] = frozenset()
    rebalance: bool = False
    draw: str = ""
    led: frozenset[str] = frozenset()


def plan_assignments(
    config: FleetConfig, leases: Sequence[Lease], slots: Sequence[Slot], *, facts: AssignmentFacts
) -> AssignmentPlan:
    """
    Plan one turn's assignments by the configured strategy.

    Args:
        config: tells which, and its limits.
        leases: all leases, the ones created in this turn included.
        slots: all slots.
        facts: what else is known.

    """
    able = _able(config, leases, slots, facts=facts)
    views = _views(config, leases, able, facts=facts)
    returned = _returned(leases, able, facts=facts)
    expired = facts.expired - {each.lease.lease_key for each in returned}
    plan = _plan(config, leases, views, facts=replace(facts, expired=expired))
    # Who fails would let stand still what it takes from who reads it (J2).
    failing = {w for w, slot in able.items() if _crashes(slot) or slot.failure is not None}
    # Who let a lease expire may not hear that it is to hand over another: it would be robbed.
    robbed = _losers(leases, facts) - facts.leaving
    kept = (
        each
        for each in plan.assignments
        if each.kind is not AssignmentKind.STEAL
        or (each.worker_id not in failing and each.lease.lease_owner not in robbed)
    )
    return AssignmentPlan((*returned, *kept), plan.left)


def _returned(
    leases: Sequence[Lease], able: Mapping[str, Slot], *, facts: AssignmentFacts
) -> list[Assignment]:
    """
    Return what is left with its owner, because all others have let leases expire as well (A13).

    What stood still then is what they all run on, and whoever got a lease of another's would have
    to begin it anew, while that one still reads it.
    """
    return [
        Assignment(lease, owner, AssignmentKind.EXPIRED, AllStoodStill())
        for lease in sorted(
            (lease for lease in leases if lease.lease_key in facts.expired),
            key=lambda le: le.lease_key,
        )
        if lease.lease_key not in facts.paused
        and lease.lease_key not in facts.led
        and (owner := lease.lease_owner) in able
        and owner is not None
    ]


def _plan(
    config: FleetConfig,
    leases: Sequence[Lease],
    views: Sequence[WorkerView],
    *,
    facts: AssignmentFacts,
) -> AssignmentPlan:
    if facts.led:
        return _without_led(_plan_by_count(config, leases, views, facts=facts), facts)
    return STRATEGIES[config.assignment].plan(config, leases, views, facts=facts)


def _plan_by_load(
    config: FleetConfig,
    leases: Sequence[Lease],
    views: Sequence[WorkerView],
    *,
    facts: AssignmentFacts,
) -> AssignmentPlan:
    owners = {lease.lease_owner for lease in leases if not lease.is_finished}
    return plan_by_load(
        leases,
        expired=facts.expired,
        workers=views,
        limits=BalanceLimits(
            threshold=config.rebalance_percent / 100, dampening=config.dampening_percent / 100
        ),
        rebalance=facts.rebalance
        or any(view.worker_id not in owners for view in views if not view.leaves),
        paused=facts.paused,
    )


def _plan_by_count(
    _: FleetConfig,
    leases: Sequence[Lease],
    views: Sequence[WorkerView],
    *,
    facts: AssignmentFacts,
) -> AssignmentPlan:
    return plan_balanced(leases, expired=facts.expired, workers=views, paused=facts.paused)


def _without_led(plan: AssignmentPlan, facts: AssignmentFacts) -> AssignmentPlan:
    """Leave to the KCL's leader what it leads; only slots of ours that leave give to others."""
    led = {
        each.lease.lease_key
        for each in plan.assignments
        if each.lease.lease_key in facts.led and each.lease.lease_owner not in facts.leaving
    }
    named: dict[str, Reason] = {
        each.lease.lease_key: KclLeads()
        for each in plan.assignments
        if each.lease.lease_key in led and each.kind is not AssignmentKind.STEAL
    }
    return AssignmentPlan(
        tuple(each for each in plan.assignments if each.lease.lease_key not in led),
        in_key_order({**dict(plan.left), **named}),
    )


def graceful_workers(
    config: FleetConfig,
    leases: Sequence[Lease],
    slots: Sequence[Slot],
    *,
    facts: AssignmentFacts,
    others: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the ids of workers that hand over when asked: ours, also if they leave, and others."""
    if not config.graceful_handover:
        return frozenset()
    well = frozenset(_well(config, slots, now_ms=facts.now_ms))
    return (well | others) - _losers(leases, facts)


def change_of(
    assignment: Assignment, current: Lease | None, *, graceful: Collection[str]
) -> LeaseChange | None:
    """
    Move by what the table says now (KCL 2.3.10, #886); everything else by what was planned.

    Args:
        assignment: as planned.
        current: the lease as it is now, for a move; None: there is none.
        graceful: owners that hand over; from others a lease is stolen.

    """
    lease, worker_id = assignment.lease, assignment.worker_id
    if assignment.kind is not AssignmentKind.STEAL:
        is_expired = assignment.kind is AssignmentKind.EXPIRED
        return lease_changes.assign(lease, worker_id, expired=is_expired)
    if (
        current is None
        or current.effective_owner != lease.effective_owner
        or current.is_finished
        or current.checkpoint_owner is not None
    ):
        return None
    if current.lease_owner in graceful:
        return lease_changes.initiate_handover(current, worker_id, as_read=True)
    return lease_changes.take(current, worker_id)


def _able(
    config: FleetConfig, leases: Sequence[Lease], slots: Sequence[Slot], *, facts: AssignmentFacts
) -> dict[str, Slot]:
    """Return the slots that can be given leases, by worker id."""
    well = _well(config, slots, now_ms=facts.now_ms)
    able = {w: slot for w, slot in well.items() if w not in facts.leaving}
    # Who let a lease expire is probably gone, whatever its last heartbeat says; it is given
    # leases only when nobody else is left; so is who crashes.
    losers = _losers(leases, facts)
    best = {w: slot for w, slot in able.items() if w not in losers and not _crashes(slot)}
    return best or able


def _crashes(slot: Slot) -> bool:
    return slot.open_turns > CRASHES_MOST


def _losers(leases: Sequence[Lease], facts: AssignmentFacts) -> set[str | None]:
    if not facts.expired:
        return set()
    return {lease.effective_owner for lease in leases if lease.lease_key in facts.expired}


def _well(config: FleetConfig, slots: Sequence[Slot], *, now_ms: int) -> dict[str, Slot]:
    """Return the running slots that were heard of lately and do not drain (H2)."""
    return {
        slot.worker_id: slot
        for slot in slots
        if slot.state is SlotState.RUNNING
        and not slot.drain
        and now_ms - slot.heartbeat_ms <= 2 * config.failover_ms
    }


def _plan_greedily(
    config: FleetConfig,
    leases: Sequence[Lease],
    views: Sequence[WorkerView],
    *,
    facts: AssignmentFacts,
) -> AssignmentPlan:
    """Let one worker after the other take what is free."""
    expired, paused = facts.expired, facts.paused
    taken: list[Assignment] = []
    left = plan_balanced(leases, expired=expired, workers=(), paused=paused).left
    current = list(leases)
    for view in views:
        if view.leaves:
            continue
        plan = plan_greedy(
            current,
            expired=expired - {a.lease.lease_key for a in taken},
            worker=view,
            leases_to_acquire=config.leases_to_acquire,
            order=partial(_shuffled, draw=facts.draw),
            paused=paused,
        )
        taken += plan.assignments
        owners = {a.lease.lease_key: a.worker_id for a in plan.assignments}
        current = [
            replace(lease, lease_owner=owners[lease.lease_key])
            if lease.lease_key in owners
            else lease
            for lease in current
        ]
        left = plan.left
    if facts.leaving:
        given = plan_balanced(current, expired=expired, workers=views, paused=paused)
        taken += [a for a in given.assignments if a.lease.lease_owner in facts.leaving]
    return AssignmentPlan(assignments=tuple(taken), left=left)


def _shuffled(leases: Sequence[Lease], *, draw: str) -> list[Lease]:
    """Shuffle, so that anybody can repeat it who knows the draw."""
    return sorted(leases, key=lambda le: sha256(f"{draw} {le.lease_key}".encode()).digest())


def _views(
    config: FleetConfig,
    leases: Sequence[Lease],
    able: Mapping[str, Slot],
    *,
    facts: AssignmentFacts,
) -> list[WorkerView]:
    """Finished leases keep their owner: their children are best read where they ended."""
    ended: dict[str | None, set[str]] = defaultdict(set)
    for lease in leases:
        if lease.is_finished:
            ended[lease.lease_owner].add(lease.lease_key)
    waiting = Counter(le.lease_owner for le in leases if le.lease_key in facts.idle)
    leaving = [
        WorkerView(worker_id=worker_id, leases_most=0, leaves=True)
        for worker_id in sorted(facts.leaving)
    ]
    return leaving + [
        WorkerView(
            worker_id=worker_id,
            leases_most=config.leases_per_worker + waiting[worker_id],
            recently_ended=frozenset(ended.get(worker_id, ())),
            utilisation=slot.usage.utilisation(),
        )
        for worker_id, slot in sorted(able.items())
    ]


class Strategy(Struct, frozen=True):
    """
    How leases are given out.

    Attributes:
        plan: by configuration, leases, views of the workers and facts.
        by_load: the loads of leases and workers count.
        draws: it is shuffled by the turn's draw.

    """

    plan: Callable[..., AssignmentPlan]
    by_load: bool = False
    draws: bool = False


# By the values of ``assignment``.
STRATEGIES = {
    "balanced": Strategy(_plan_by_load, by_load=True),
    "count": Strategy(_plan_by_count),
    "greedy": Strategy(_plan_greedily, draws=True),
}
