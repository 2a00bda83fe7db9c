"""
What would happen if: the manager's own planners, turn by turn, on a copy of what was read.

Nothing is written anywhere. Workers are taken to do their part at once: a slot that is started
runs at the next turn, one that is drained has given its leases back by then, a lease that is
handed over has moved. What a lease costs its worker (CPU, handler time) it costs the next one,
too. So this is what the planners want, not how long handlers take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.by_count import AssignmentKind
from shardfleet.domain.balance.merge_wait import waiting_for_a_merge
from shardfleet.domain.explain.forecast import Forecast, Question, Snapshot
from shardfleet.domain.explain.turn_log import Entry, Happening
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import InitialPosition, plan_lease_sync
from shardfleet.domain.reasons import (
    AskedToEnd,
    ExecutionOver,
    FollowsParents,
    Reason,
    WentOnWithChild,
)
from shardfleet.domain.slots.sizing import Pace, plan_size
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.upkeep import SlotFacts, SlotPlan, SlotTask, plan_slots
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.manager.slots import held_by, leaving, sizing_limits, slot_needs, to_read
from shardfleet.engine.manager.strategy import AssignmentPlanner, Standing
from shardfleet.engine.operate.lease_costs import LeaseCosts
from shardfleet.engine.ports import Entropy
from shardfleet.engine.state.fleet_state import VersionedSlot
from shardfleet.errors import ConfigurationError

TURNS_MOST = 100
_ALIVE = (SlotState.STARTING, SlotState.RUNNING)
_KINDS = {
    AssignmentKind.UNOWNED: Happening.ASSIGNED,
    AssignmentKind.EXPIRED: Happening.TAKEN_OVER,
    AssignmentKind.STEAL: Happening.MOVED,
}


def what_if(
    config: FleetConfig, snapshot: Snapshot, question: Question, *, entropy: Entropy
) -> Forecast:
    """
    Play the manager's turns until nothing more happens.

    Args:
        config: of the fleet.
        snapshot: of the fleet.
        question: what is supposed.
        entropy: for the greedy strategy, which draws.

    Raises:
        ConfigurationError: the question names what the fleet has not.

    """
    future = _Future(config, snapshot, entropy=entropy)
    future.suppose(question)
    steps: list[tuple[int, Entry]] = []
    before = _held(snapshot.leases)
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
        before=before,
        after=_held(future.leases),
        left=future.left,
    )


def _held(leases: Sequence[Lease]) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for lease in sorted(leases, key=lambda le: le.lease_key):
        if lease.lease_owner is not None and not lease.is_finished:
            found.setdefault(lease.lease_owner, []).append(lease.lease_key)
    return {worker_id: tuple(keys) for worker_id, keys in sorted(found.items())}


class _Future:
    """The fleet as it would be."""

    def __init__(self, config: FleetConfig, snapshot: Snapshot, *, entropy: Entropy) -> None:
        self._config = config
        self._entropy = entropy
        self._now_ms = snapshot.at_ms
        self._paused = snapshot.paused
        self._expired = snapshot.expired
        self._shards = list(snapshot.shards)
        self._slots = {slot.slot_id: slot for slot in snapshot.slots}
        self._leases = {lease.lease_key: lease for lease in snapshot.leases}
        self._costs = LeaseCosts(snapshot.leases, snapshot.slots)
        self._pace = Pace()
        self._supposed: list[Entry] = []
        self.left: Mapping[str, Reason] = {}

    @property
    def leases(self) -> list[Lease]:
        """Return all leases."""
        return list(self._leases.values())

    def suppose(self, question: Question) -> None:
        """Change the fleet as the question says."""
        if question.workers is not None:
            self._config = replace(
                self._config, workers_min=question.workers, workers_max=question.workers
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
        # Silent for long enough to be examined, and its leases for long enough to be expired.
        self._slots[slot.slot_id] = replace(
            slot, heartbeat_ms=self._now_ms - 3 * self._config.failover_ms
        )
        self._expired |= {
            lease.lease_key
            for lease in self._leases.values()
            if lease.effective_owner == slot.worker_id and not lease.is_finished
        }

    def _split(self, shard_id: str) -> None:
        shard = next((s for s in self._shards if s.shard_id == shard_id and s.is_open), None)
        lease = self._leases.get(shard_id)
        if shard is None or lease is None:
            usable = [s.shard_id for s in self._shards if s.is_open and s.shard_id in self._leases]
            raise ConfigurationError(
                f"--split {shard_id}: no open shard with a lease; these are: "
                f"{', '.join(usable) or 'none'}"
            )
        middle = (shard.hash_key_range.start + shard.hash_key_range.end) // 2
        number = max(int(s.shard_id.rpartition("-")[2]) for s in self._shards)
        ranges = (
            HashKeyRange(shard.hash_key_range.start, middle),
            HashKeyRange(middle + 1, shard.hash_key_range.end),
        )
        children = [
            Shard(
                shard_id=f"shardId-{number + n:012d}",
                hash_key_range=covered,
                starting_sequence_number=str(2**200 + n),
                parent_shard_id=shard_id,
            )
            for n, covered in enumerate(ranges, start=1)
        ]
        self._shards = [s for s in self._shards if s.shard_id != shard_id]
        self._shards += [replace(shard, ending_sequence_number=str(2**200)), *children]
        keys = tuple(child.shard_id for child in children)
        self._costs.split(lease, keys)
        self._leases[shard_id] = replace(lease, checkpoint=AT_SHARD_END, child_shard_ids=keys)
        self._supposed += [
            Entry(what=Happening.FINISHED, subject=shard_id, worker_id=lease.lease_owner or "")
        ]
        self._follow(lease, children)

    def _follow(self, parent: Lease, children: Sequence[Shard]) -> None:
        """Let the worker that ended a shard go on with its children, as far as it has room."""
        owner = parent.lease_owner
        held = len(_held(self.leases).get(owner or "", ()))
        plan = plan_lease_sync(
            self._shards, self.leases, initial=self._initial, listed_at_initial=None
        )
        known = {child.shard_id for child in children}
        for wanted in plan.create:
            if wanted.lease.lease_key not in known:
                continue
            takes = owner is not None and held < self._config.leases_per_worker
            held += takes
            self._leases[wanted.lease.lease_key] = replace(
                wanted.lease,
                lease_owner=owner if takes else None,
                throughput_kbps=self._costs.rate(wanted.lease.lease_key),
            )
            parents = (parent.lease_key,)
            self._supposed.append(
                Entry(
                    what=Happening.APPEARED,
                    subject=wanted.lease.lease_key,
                    worker_id=owner or "" if takes else "",
                    reason=WentOnWithChild(parents) if takes else FollowsParents(parents),
                )
            )

    @property
    def _initial(self) -> InitialPosition:
        return InitialPosition(self._config.initial_position)

    def turn(self, *, rebalance: bool) -> list[Entry]:
        """Play one turn of the manager and what the workers do after it."""
        entries, self._supposed = self._supposed, []
        entries += self._settle()
        entries += self._create()
        plan = self._sized()
        standing = Standing(
            expired=self._expired,
            idle=waiting_for_a_merge(self._shards, self.leases),
            paused=self._paused,
            leaving=leaving([VersionedSlot(s, 0) for s in self._slots.values()], plan),
        )
        slots = [VersionedSlot(self._costs.loaded(s, self.leases), 0) for s in self._slots.values()]
        planner = AssignmentPlanner(self._config, self._entropy)
        able = planner.able(self.leases, slots, standing, now_ms=self._now_ms)
        assigned = planner.plan(self.leases, able, standing, rebalance=rebalance)
        entries += self._carry_out(plan)
        for each in assigned.assignments:
            entry = Entry(
                what=_KINDS[each.kind],
                subject=each.lease.lease_key,
                worker_id=each.worker_id,
                before=each.lease.effective_owner or "",
                reason=each.reason,
            )
            entries.append(entry)
            self._give(each.lease, each.worker_id)
        self._expired -= {each.lease.lease_key for each in assigned.assignments}
        self.left = dict(assigned.left)
        self._now_ms += self._config.cycle_ms
        return entries

    def _give(self, lease: Lease, worker_id: str | None) -> None:
        self._leases[lease.lease_key] = replace(
            lease,
            lease_owner=worker_id,
            checkpoint_owner=None,
            lease_counter=lease.lease_counter + 1,
        )

    def _settle(self) -> list[Entry]:
        """Let workers do what they were asked to: hand over, give back, end, show life."""
        entries: list[Entry] = []
        for slot in list(self._slots.values()):
            if slot.drain and slot.state in _ALIVE:
                for lease in self.leases:
                    if lease.effective_owner == slot.worker_id and not lease.is_finished:
                        self._give(lease, None)
                        entries.append(
                            Entry(
                                what=Happening.RELEASED,
                                subject=lease.lease_key,
                                before=slot.worker_id,
                                reason=AskedToEnd(slot.worker_id),
                            )
                        )
                self._slots[slot.slot_id] = replace(slot, state=SlotState.ENDED)
            elif slot.state is SlotState.STARTING or (
                slot.state is SlotState.RUNNING
                and self._now_ms - slot.heartbeat_ms <= self._silent_ms
            ):
                self._slots[slot.slot_id] = replace(
                    slot, state=SlotState.RUNNING, heartbeat_ms=self._now_ms
                )
        return entries

    @property
    def _silent_ms(self) -> int:
        return 2 * self._config.failover_ms

    def _create(self) -> list[Entry]:
        plan = plan_lease_sync(
            self._shards, self.leases, initial=self._initial, listed_at_initial=None
        )
        for wanted in plan.create:
            self._leases[wanted.lease.lease_key] = wanted.lease
        return [
            Entry(what=Happening.CREATED, subject=w.lease.lease_key, reason=w.reason)
            for w in plan.create
        ]

    def _sized(self) -> SlotPlan:
        config = self._config
        unfinished = [lease for lease in self.leases if not lease.is_finished]
        slots = [self._costs.loaded(slot, self.leases) for slot in self._slots.values()]
        sizing = plan_size(
            slot_needs(slots, unfinished, now_ms=self._now_ms, still_ms=self._silent_ms),
            unfinished=to_read(
                config, self.leases, slots, expired=self._expired, resting=self._paused
            ),
            pace=self._pace,
            limits=sizing_limits(config),
            now_ms=self._now_ms,
        )
        self._pace = sizing.pace
        facts = SlotFacts(now_ms=self._now_ms, silent_ms=self._silent_ms, held=held_by(unfinished))
        return plan_slots(slots, sizing=sizing, facts=facts)

    def _carry_out(self, plan: SlotPlan) -> list[Entry]:
        entries: list[Entry] = []
        for decision in plan.decisions:
            slot = self._slots.get(decision.slot_id)
            worker_id = slot.worker_id if slot else f"{self._config.fleet}-{decision.slot_id}"
            what, reason = None, decision.reason
            if decision.task is SlotTask.START:
                what = Happening.SLOT_STARTED
                self._start(decision.slot_id, slot, worker_id)
            elif decision.task is SlotTask.LEAVE and slot:
                what = Happening.SLOT_DRAINED
                self._slots[slot.slot_id] = replace(slot, leaving_ms=self._now_ms)
            elif decision.task is SlotTask.STAY and slot:
                self._slots[slot.slot_id] = replace(slot, leaving_ms=0)
            elif decision.task is SlotTask.DRAIN and slot:
                self._slots[slot.slot_id] = replace(slot, drain=True)
            elif decision.task is SlotTask.EXAMINE and slot:
                what, reason = Happening.SLOT_RESTARTED, ExecutionOver()
                self._start(decision.slot_id, slot, worker_id)
            if what is not None:
                entries.append(
                    Entry(what=what, subject=decision.slot_id, worker_id=worker_id, reason=reason)
                )
        return entries

    def _start(self, slot_id: str, slot: Slot | None, worker_id: str) -> None:
        fresh = Slot(
            slot_id=slot_id, worker_id=worker_id, state=SlotState.STARTING, name="", start_epoch=1
        )
        self._slots[slot_id] = replace(
            slot or fresh,
            state=SlotState.STARTING,
            drain=False,
            started_ms=self._now_ms,
            heartbeat_ms=0,
        )
