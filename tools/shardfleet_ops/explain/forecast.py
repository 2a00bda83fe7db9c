"""
What would happen if: the manager's own turns, one after the other, on a copy of what was read.

Nothing is written anywhere. What the manager decides is :func:`shardfleet.domain.turn.plan_turn`,
here as there; what is made up here is the rest of the world. Workers are taken to do their part at
once: a slot that is started runs at the next turn, one that is drained has given its leases back by
then, a lease that is handed over has moved, and who is not silent renews. The execution of a silent
slot is over, and shards that sleep have nothing to read. What a lease costs its worker (CPU,
handler time) it costs the next one, too, and it stays as far behind as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.balance.strategy import change_of
from shardfleet.domain.balance.worker_loads import throughputs
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.leases.lease import Applied, ChangeKind, Lease, LeaseChange
from shardfleet.domain.reasons import (
    AskedToEnd,
    ExecutionOver,
    FollowsParents,
    Reason,
    SlotEnds,
    WentOnWithChild,
)
from shardfleet.domain.slots.slot import (
    Slot,
    SlotState,
    announce_assignment,
    claim,
    end,
    end_of_dead,
    heartbeat,
    intend_start,
)
from shardfleet.domain.slots.upkeep import SlotDecision, SlotTask, asked
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from shardfleet.domain.stream.shards import Shard
from shardfleet.domain.turn import TurnPlan, TurnSnapshot, plan_turn
from shardfleet.domain.turn_log import Entry, Happening, entry_of_event
from shardfleet.errors import ConfigurationError
from shardfleet.events.base import Event
from shardfleet.events.manager import (
    AssignmentLost,
    LeaseAssigned,
    LeaseCreated,
    LeaseWoken,
    SlotStarted,
)

TURNS_MOST = 100


class Question(Struct, frozen=True, kw_only=True):
    """
    What is supposed; with nothing supposed: what happens as things are.

    Attributes:
        workers: the fleet has exactly so many slots.
        lose: this worker, or slot, is lost.
        split: this shard is split in its middle and has been read to its end.

    """

    workers: int | None = None
    lose: str = ""
    split: str = ""


class Forecast(Struct, frozen=True, kw_only=True):
    """
    What would come of it.

    Attributes:
        turns: manager turns until nothing more happens.
        settled: whether that was reached within the most turns that are played.
        steps: turn (from 1) and what would happen in it, in order.
        before: worker to the shards it has now.
        after: worker to the shards it would have at the end.
        left: lease key to why nobody would have it at the end.

    """

    turns: int
    settled: bool
    steps: tuple[tuple[int, Entry], ...]
    before: Mapping[str, tuple[str, ...]]
    after: Mapping[str, tuple[str, ...]]
    left: Mapping[str, Reason]


def what_if(config: FleetConfig, snapshot: TurnSnapshot, question: Question) -> Forecast:
    """
    Play the manager's turns until nothing more happens.

    Args:
        config: of the fleet.
        snapshot: of the fleet.
        question: what is supposed.

    Raises:
        ConfigurationError: the question names what the fleet has not.

    """
    future = _Future(config, snapshot)
    future.suppose(question)
    steps: list[tuple[int, Entry]] = []
    # Load is evened out each so many turns, and a surplus of slots must last for some.
    still_most = config.rebalance_turns + config.scale_down_ms // config.cycle_ms + 2
    still = turn = 0
    while still < still_most and turn < TURNS_MOST:
        turn += 1
        found = future.turn(rebalance=(turn - 1) % config.rebalance_turns == 0)
        steps += [(turn, entry) for entry in found]
        still = 0 if found else still + 1
    return Forecast(
        turns=turn - still,
        settled=still == still_most,
        steps=tuple(steps),
        before=_held(snapshot.survey.leases),
        after=_held(future.leases.values()),
        left=future.left,
    )


def _held(leases: Iterable[Lease]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for lease in sorted(leases, key=lambda le: le.lease_key):
        if lease.lease_owner is not None and not lease.is_finished:
            found.setdefault(lease.lease_owner, []).append(lease.lease_key)
    return {worker_id: tuple(keys) for worker_id, keys in sorted(found.items())}


class _Cost(Struct, frozen=True):
    rate: float  # KB/s
    busy: float  # thousandths of a worker
    cpu: float


class LeaseCosts:
    """What each lease costs, so that a plan on a plan sees workers loaded as they would be."""

    def __init__(self, leases: Sequence[Lease], slots: Sequence[Slot]) -> None:
        """Divide what every running worker uses among its leases."""
        running = {s.worker_id: s for s in slots if s.state is SlotState.RUNNING}
        rates, held = throughputs(leases), _held(leases)
        self._knows_busy = bool(running) and all(s.busy != UNKNOWN for s in running.values())
        self._knows_cpu = bool(running) and all(s.cpu != UNKNOWN for s in running.values())
        self._costs: dict[str, _Cost] = {}
        for worker_id, slot in running.items():
            keys = held.get(worker_id, ())
            total = sum(rates[key] for key in keys)
            for key in keys:
                part = rates[key] / total if total > 0 else 1 / len(keys)
                self._costs[key] = _Cost(
                    rates[key], part * max(0, slot.busy), part * max(0, slot.cpu)
                )
        known, count = self._costs.values(), max(1, len(self._costs))
        # Of a lease that nobody has.
        self._usual = _Cost(
            rate=sum(cost.rate for cost in known) / count,
            busy=sum(cost.busy for cost in known) / count,
            cpu=sum(cost.cpu for cost in known) / count,
        )

    def rate(self, lease_key: str) -> float:
        """Return KB/s."""
        return self._costs.get(lease_key, self._usual).rate

    def split(self, parent: Lease, children: Sequence[str]) -> None:
        """Give each child an equal part of what its parent costs."""
        cost = self._costs.get(parent.lease_key, self._usual)
        count = len(children)
        for child in children:
            self._costs[child] = _Cost(cost.rate / count, cost.busy / count, cost.cpu / count)

    def loaded(self, slot: Slot, leases: Sequence[Lease]) -> Slot:
        """Return the slot with the utilisation that these leases would bring about."""
        held = [
            self._costs.get(lease.lease_key, self._usual)
            for lease in leases
            if lease.lease_owner == slot.worker_id and not lease.is_finished
        ]
        return replace(
            slot,
            busy=round(sum(cost.busy for cost in held)) if self._knows_busy else UNKNOWN,
            cpu=round(sum(cost.cpu for cost in held)) if self._knows_cpu else UNKNOWN,
        )


class _Future:
    """The fleet as it would be."""

    def __init__(self, config: FleetConfig, snapshot: TurnSnapshot) -> None:
        self._config = config
        self._snapshot = snapshot
        self._silent_ms = 2 * config.failover_ms
        self._slots = {slot.slot_id: slot for slot in snapshot.slots}
        self.leases = {lease.lease_key: lease for lease in snapshot.survey.leases}
        self._costs = LeaseCosts(
            snapshot.loads.of_leases(snapshot.survey.leases),
            [snapshot.loads.of_slot(slot) for slot in snapshot.slots],
        )
        self._lags_ms = {key: ms for slot in snapshot.slots for key, ms in slot.lags_ms.items()}
        self._others: list[Entry] = []  # what workers did since the turn before
        self.left: Mapping[str, Reason] = {}

    # --- what is supposed

    def suppose(self, question: Question) -> None:
        """Change the fleet as the question says."""
        if question.workers is not None:
            self._config = replace(
                self._config, min_workers=question.workers, max_workers=question.workers
            )
        if question.lose:
            self._lose(question.lose)
        if question.split:
            self._split(question.split)

    def _lose(self, name: str) -> None:
        found = [s for s in self._slots.values() if name in (s.slot_id, s.worker_id)]
        if not found or found[0].state is SlotState.ENDED:
            alive = [s.worker_id for s in self._slots.values() if s.state is not SlotState.ENDED]
            raise ConfigurationError(
                f"--lose {name}: no such worker; the fleet's are: {', '.join(alive) or 'none'}"
            )
        (slot,) = found
        # Long enough for it to be examined, and for its leases to be expired.
        silent_ms = 2 * self._silent_ms + self._config.start_allowance_ms
        heartbeat_ms = self._snapshot.at_ms - silent_ms
        self._slots[slot.slot_id] = replace(slot, heartbeat_ms=heartbeat_ms)
        seen_ms = self._snapshot.reading.began_ms - silent_ms
        lost = {
            lease.lease_key: Sighting(lease.lease_counter, slot.worker_id, seen_ms)
            for lease in self.leases.values()
            if lease.effective_owner == slot.worker_id and not lease.is_finished
        }
        self._snapshot = replace(self._snapshot, sightings={**self._snapshot.sightings, **lost})

    def _split(self, shard_id: str) -> None:
        shards = self._snapshot.shards
        shard = next((s for s in shards if s.shard_id == shard_id and s.is_open), None)
        lease = self.leases.get(shard_id)
        if shard is None or lease is None:
            usable = [s.shard_id for s in shards if s.is_open and s.shard_id in self.leases]
            raise ConfigurationError(
                f"--split {shard_id}: no open shard with a lease; these are: "
                f"{', '.join(usable) or 'none'}"
            )
        number = max(int(s.shard_id.rpartition("-")[2]) for s in shards)
        children = [
            Shard(
                shard_id=f"shardId-{number + n:012d}",
                hash_key_range=covered,
                starting_sequence_number=str(2**200 + n),
                parent_shard_id=shard_id,
            )
            for n, covered in enumerate(shard.hash_key_range.halves, start=1)
        ]
        others = [s for s in shards if s.shard_id != shard_id]
        closed = replace(shard, ending_sequence_number=str(2**200))
        self._snapshot = replace(self._snapshot, shards=[*others, closed, *children])
        keys = tuple(child.shard_id for child in children)
        self._costs.split(lease, keys)
        self.leases[shard_id] = replace(lease, checkpoint=AT_SHARD_END, child_shard_ids=keys)
        owner = lease.lease_owner or ""
        self._others.append(Entry(what=Happening.FINISHED, subject=shard_id, worker_id=owner))
        for child in children:
            self._follow(lease, child)

    def _follow(self, parent: Lease, child: Shard) -> None:
        """Let the worker that ended a shard go on with a child of it, if it has room."""
        owner, key = parent.lease_owner or "", child.shard_id
        held = len(_held(self.leases.values()).get(owner, ()))
        takes = bool(owner) and held < self._config.leases_per_worker
        self.leases[key] = Lease(
            lease_key=key,
            checkpoint=AT_TRIM_HORIZON,
            lease_owner=owner if takes else None,
            parent_shard_ids=(parent.lease_key,),
            hash_key_range=child.hash_key_range,
            throughput_kbps=self._costs.rate(key),
        )
        self._others.append(
            Entry(
                what=Happening.APPEARED,
                subject=key,
                worker_id=owner if takes else "",
                reason=(WentOnWithChild if takes else FollowsParents)((parent.lease_key,)),
            )
        )

    # --- a turn

    def turn(self, *, rebalance: bool) -> list[Entry]:
        """Play one turn of the manager, and what the workers do after it."""
        survey = replace(self._snapshot.survey, leases=tuple(self.leases.values()))
        slots = [slot for _, slot in sorted(self._slots.items())]
        plan = plan_turn(
            self._config, replace(self._snapshot, survey=survey, slots=slots, rebalance=rebalance)
        )
        entries = [*self._others, *changes_of(plan, fleet=self._config.fleet)]
        self.left = dict(plan.assignment.left)
        self._write(plan)
        self._others = self._go_on(plan)
        return entries

    def _write(self, plan: TurnPlan) -> None:
        """Carry a plan out."""
        self.leases = {lease.lease_key: lease for lease in plan.leases}
        for change, _ in plan.lease_changes:
            self._apply(change)
        for decision in plan.slots.decisions:
            after = self._after(decision, plan)
            if after is not None:
                self._slots[decision.slot_id] = after
        slot_ids = {slot.worker_id: slot.slot_id for slot in self._slots.values()}
        for each in plan.assignment.assignments:
            key, slot_id = each.lease.lease_key, slot_ids[each.worker_id]
            announced = announce_assignment(self._slots[slot_id], [key])
            moved = change_of(each, self.leases.get(key), graceful=plan.graceful)
            if announced is not None and moved is not None:
                self._slots[slot_id] = announced
                self._apply(moved)

    def _apply(self, change: LeaseChange) -> None:
        result = lease_changes.apply_change(change, self.leases.get(change.lease_key))
        if change.kind is ChangeKind.DELETE:
            self.leases.pop(change.lease_key, None)
        elif isinstance(result, Applied):
            self.leases[change.lease_key] = result.lease

    def _after(self, decision: SlotDecision, plan: TurnPlan) -> Slot | None:
        """Return a slot as a decision leaves it, None as it is."""
        slot, now_ms = self._slots.get(decision.slot_id), plan.snapshot.at_ms
        if decision.task is SlotTask.START or decision.slot_id in plan.restarts:
            return intend_start(
                slot,
                slot_id=decision.slot_id,
                worker_id=f"{self._config.fleet}-{decision.slot_id}",
                name_prefix=self._config.fleet,
                now_ms=now_ms,
            )
        assert slot is not None
        if decision.task is SlotTask.EXAMINE:
            return end_of_dead(slot)
        return asked(slot, decision.task, now_ms=now_ms)

    def _go_on(self, plan: TurnPlan) -> list[Entry]:
        """Let a cycle go by: workers start, renew, hand over, give back and end."""
        ours = {slot.worker_id for slot in self._slots.values()}
        alive = {slot.worker_id for slot in self._slots.values() if self._live(slot)}
        released: list[Entry] = []
        for key, lease in self.leases.items():
            owner = lease.effective_owner
            is_foreign = owner not in ours and key not in plan.losses.expired
            if owner in alive or (owner is not None and is_foreign):
                self.leases[key] = replace(
                    lease, checkpoint_owner=None, lease_counter=lease.lease_counter + 1
                )
        for slot in [s for s in self._slots.values() if s.drain and s.worker_id in alive]:
            left = [
                lease
                for lease in self.leases.values()
                if lease.effective_owner == slot.worker_id and not lease.is_finished
            ]
            for lease in left:
                self._apply(lease_changes.evict(lease))
            released += (
                Entry(
                    what=Happening.RELEASED,
                    subject=lease.lease_key,
                    before=slot.worker_id,
                    reason=AskedToEnd(slot.worker_id),
                )
                for lease in left
            )
            ended = end(slot, served_seq=slot.assign_seq, now_ms=plan.snapshot.at_ms)
            self._slots[slot.slot_id] = ended or slot
        self._snapshot = self._later(plan)
        return released

    def _live(self, slot: Slot) -> bool:
        """Let a slot show life until the next turn; tell whether there is any in it."""
        now_ms = self._snapshot.at_ms
        if slot.state is SlotState.STARTING:
            claimed = claim(slot, slot.slot_input(), now_ms=now_ms)
            slot = claimed if isinstance(claimed, Slot) else slot
        if slot.state is SlotState.ENDED or now_ms - slot.heartbeat_ms > self._silent_ms:
            return False
        held = _held(self.leases.values()).get(slot.worker_id, ())
        shown = heartbeat(
            slot,
            now_ms=now_ms + self._config.cycle_ms,
            served_seq=slot.assign_seq,
            lags_ms={key: self._lags_ms[key] for key in held if key in self._lags_ms},
            usage=self._costs.loaded(slot, list(self.leases.values())).usage,
        )
        self._slots[slot.slot_id] = shown or slot
        return True

    def _later(self, plan: TurnPlan) -> TurnSnapshot:
        """Return what the next turn reads beside leases and slots."""
        snapshot, cycle_ms = plan.snapshot, self._config.cycle_ms
        reading, evidence = snapshot.reading, snapshot.evidence
        return replace(
            snapshot,
            began_ms=snapshot.began_ms + cycle_ms,
            at_ms=snapshot.at_ms + cycle_ms,
            reading=replace(
                reading,
                began_ms=reading.began_ms + cycle_ms,
                ended_ms=reading.ended_ms + cycle_ms,
            ),
            evidence=evidence and replace(evidence, suspicions=plan.suspicions),
            sightings=plan.losses.sightings,
            handovers=plan.losses.handovers,
            naps=[nap for nap in snapshot.naps if nap.lease_key not in plan.sleepers.woken],
            foreign=plan.sleepers.foreign,
            pace=plan.pace,
            loads=plan.loads or snapshot.loads,
            draw=f"{snapshot.draw}.",
        )


def changes_of(plan: TurnPlan, *, fleet: str) -> list[Entry]:
    """
    Return what a plan changes once it is carried out, as the manager's own log tells it.

    No race is lost, and the execution of a silent slot is over.

    Args:
        plan: of one turn.
        fleet: its name, of which that of a new slot's worker is made.

    """
    decisions = plan.slots.decisions
    owners = {lease.lease_key: lease.lease_owner or "" for lease in plan.leases}
    events: list[Event | None] = [
        *(
            LeaseCreated(lease_key=wanted.lease.lease_key, reason=wanted.reason)
            for wanted in plan.sync.create
        ),
        *(event for _, event in plan.lease_changes),
        *(
            LeaseWoken(lease_key=key, reason=why, slept_ms=0)
            for key, why in plan.sleepers.woken.items()
        ),
        *(
            SlotStarted(
                slot_id=each.slot_id,
                worker_id=f"{fleet}-{each.slot_id}",
                start_epoch=0,
                reason=each.reason if each.task is SlotTask.START else ExecutionOver(),
            )
            for each in decisions
            if each.task is SlotTask.START or each.slot_id in plan.restarts
        ),
        *_assigned(plan),
    ]
    told = (entry_of_event(each, owners=owners) for each in events if each)
    leaves = (
        Entry(
            what=Happening.SLOT_DRAINED,
            subject=each.slot_id,
            worker_id=f"{fleet}-{each.slot_id}",
            reason=each.reason,
        )
        for each in decisions
        if each.task is SlotTask.LEAVE
    )
    return [*(entry for entry in told if entry is not None), *leaves]


def _assigned(plan: TurnPlan) -> list[Event]:
    """Return them worker by worker; a slot that was examined just before takes none (H2)."""
    refuse = plan.examined
    return [
        AssignmentLost(lease_key=each.lease.lease_key, worker_id=each.worker_id, reason=SlotEnds())
        if each.worker_id in refuse
        else LeaseAssigned(
            lease_key=each.lease.lease_key,
            worker_id=each.worker_id,
            kind=Happening.HANDOVER.value
            if each.kind is AssignmentKind.STEAL and each.lease.lease_owner in plan.graceful
            else each.kind.value,
            reason=each.reason,
        )
        for each in sorted(plan.assignment.assignments, key=lambda each: each.worker_id)
    ]
