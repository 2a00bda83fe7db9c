"""
The steps of one invocation of a worker, each with at most one read and one write.

It does what `writer` and `checkpointer` of :mod:`shardfleet.engine.ownership` and
:mod:`shardfleet.engine.shard.end` do, without time: nothing ever expires in its own eyes, so a
zombie goes on for as long as the table lets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardfleet.domain.leases.lease import (
    Applied,
    ChangeResult,
    CheckpointNotPast,
    FieldEquals,
    Gone,
    Lease,
    LeaseChange,
    LeaseField,
    Lost,
)
from shardfleet.domain.slots.slot import ClaimRefused, SlotState, heartbeat
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from tests.protocol_model.checks import ModelViolation, check_delivery, name_of
from tests.protocol_model.outcomes import send
from tests.protocol_model.rules import Rules
from tests.protocol_model.state import (
    CHILD,
    KEYS,
    NO_LAGS,
    PARENT,
    RECORDS,
    SHARDS,
    Held,
    ModelWorld,
    Phase,
    WorkerRun,
    at,
    handled_by,
)

Steps = Iterator[tuple[str, ModelWorld]]


def claims(rules: Rules, world: ModelWorld) -> Steps:
    """Begin an invocation: of a slot that has none, or a second one (hazard H1)."""
    for number, slot in enumerate(world.slots):
        if slot.state is SlotState.ENDED:
            continue
        is_double = any(each.slot == number for each in world.running)
        if is_double and not world.budget.doubles:
            continue
        claimed = rules.claim(slot, slot.slot_input(), now_ms=0)
        if isinstance(claimed, ClaimRefused):
            continue
        begun = WorkerRun(slot=number, epoch=claimed.epoch, served=slot.served_seq)
        after = world.with_slot(claimed, number)
        running = sorted((*after.running, begun), key=lambda each: (each.slot, each.epoch))
        budget = world.budget.less("doubles") if is_double else world.budget
        label = f"{name_of(begun)} is invoked{' beside another' if is_double else ''}"
        yield label, replace(after, running=tuple(running), budget=budget)


class Worker:
    """One invocation in one state of the world."""

    def __init__(self, rules: Rules, world: ModelWorld, me: WorkerRun) -> None:
        """Look at the world from here."""
        self._rules = rules
        self._world = world
        self._me = me
        self._slot = world.slots[me.slot]
        self._is_current = self._slot.epoch == me.epoch
        self._name = name_of(me)

    def steps(self) -> Steps:
        """Yield every step that this invocation may take next."""
        world, me = self._world, self._me
        if not self._is_current:
            yield f"{self._name} sees that it is outdated", world.with_invocation(me, None)
        if world.budget.crashes:
            poorer = replace(world, budget=world.budget.less("crashes"))
            yield f"{self._name} dies", poorer.with_invocation(me, None)
        for shard, held in enumerate(me.holds):
            if held is None:
                yield from self._adoption(shard)
            elif held.phase is Phase.READ:
                yield from self._first_renewal(shard, held)
            elif held.phase is Phase.RENEWED:
                yield self._look_at_epoch(shard, held, replace(held, phase=Phase.HELD))
            elif held.suspect is not None:
                mine = replace(held, lease=held.suspect, suspect=None, unsure=())
                yield self._look_at_epoch(shard, held, mine)
            else:
                yield from self._work(shard, held)
        yield from self._take_child()
        yield from self._serve_and_end()

    # --- getting leases

    def _adoption(self, shard: int) -> Steps:
        lease, worker_id = self._world.leases[shard], self._slot.worker_id
        if lease is None or lease.is_finished or not self._is_current:
            return
        if lease.checkpoint_owner == worker_id:
            change = self._rules.assign(lease, lease.lease_owner or worker_id)
            for how, world, _ in send(self._world, change):
                yield f"{self._name} completes a handover of {KEYS[shard]}{how}", world
        elif lease.lease_owner == worker_id and lease.checkpoint_owner is None:
            held = Held(lease, handled_by(lease.checkpoint, shard), Phase.READ)
            yield f"{self._name} reads that it owns {KEYS[shard]}", self._with(shard, held)

    def _first_renewal(self, shard: int, held: Held) -> Steps:
        for how, world, result in send(self._world, self._rules.renew(held.lease)):
            kept = None
            if isinstance(result, Applied):
                kept = replace(held, lease=result.lease, phase=Phase.RENEWED)
            yield f"{self._name} renews {KEYS[shard]}{how}", self._with(shard, kept, world)

    def _look_at_epoch(self, shard: int, held: Held, mine: Held) -> tuple[str, ModelWorld]:
        if not self._is_current:
            label = f"{self._name} finds another epoch and stops"
            return label, self._world.with_invocation(self._me, None)
        kept = None if mine.lease.is_finished and mine.lease.checkpoint_owner is None else mine
        what = "recognises its write to" if held.suspect else "holds"
        return f"{self._name} {what} {KEYS[shard]}", self._with(shard, kept)

    def _take_child(self) -> Steps:
        wanted, world = self._me.wanted, self._world
        parent, child = world.leases[PARENT], world.leases[CHILD]
        if wanted is not None:
            for how, after, result in send(world, self._rules.take(wanted, self._slot.worker_id)):
                held = None
                if isinstance(result, Applied):
                    held = Held(result.lease, handled_by(wanted.checkpoint, CHILD), Phase.HELD)
                me = replace(self._me, wanted=None).with_held(CHILD, held or self._me.holds[CHILD])
                yield f"{self._name} takes child{how}", after.with_invocation(self._me, me)
        elif (
            child is not None
            and child.effective_owner is None
            and (parent is None or parent.is_finished)
            and self._is_current
            and self._me.holds[CHILD] is None
        ):
            me = replace(self._me, wanted=child)
            yield f"{self._name} reads that child is free", world.with_invocation(self._me, me)

    # --- keeping leases

    def _work(self, shard: int, held: Held) -> Steps:
        lease, rules = held.lease, self._rules
        in_handover = lease.checkpoint_owner is not None
        is_done = held.done == RECORDS[shard]
        unstored = held.done > handled_by(lease.checkpoint, shard)
        if not in_handover and not is_done and self._may_begin(shard):
            check_delivery(self._world, shard, held.done + 1)
            yield self._handle(shard, held)
        if unstored:
            yield from self._write(shard, held, rules.checkpoint(lease, at(held.done)))
        elif held.unsure or self._world.budget.renewals:
            yield from self._write(shard, held, rules.renew(lease, in_handover=in_handover))
        if unstored:
            return
        if in_handover:
            yield from self._write(shard, held, rules.assign(lease, lease.lease_owner))
            if self._world.budget.ends:  # Its next owner gives no sign of life (G2).
                yield from self._write(shard, held, rules.assign(lease, self._slot.worker_id))
        elif self._world.budget.ends and not held.ending:
            yield from self._write(shard, held, rules.evict(lease))
        if shard == PARENT and is_done and not lease.is_finished:
            yield from self._end_shard(held)

    def _may_begin(self, shard: int) -> bool:
        parent = self._world.leases[PARENT]
        is_free = shard == PARENT or parent is None or parent.is_finished
        return is_free or not self._rules.waits_for_parents

    def _handle(self, shard: int, held: Held) -> tuple[str, ModelWorld]:
        done = list(self._world.done)
        done[shard] = max(done[shard], held.done + 1)
        after = replace(self._world, done=tuple(done))
        label = f"{self._name} handles record {held.done + 1} of {KEYS[shard]}"
        return label, self._with(shard, replace(held, done=held.done + 1), after)

    def _end_shard(self, held: Held) -> Steps:
        if held.ending == 0 and self._rules.children_first:
            child = Lease(
                lease_key=KEYS[CHILD],
                checkpoint=AT_TRIM_HORIZON,
                parent_shard_ids=(KEYS[PARENT],),
                hash_key_range=SHARDS[CHILD].hash_key_range,
            )
            for how, world, result in send(self._world, self._rules.create(child)):
                kept = replace(held, ending=1 if result is not None else 0)
                yield f"{self._name} creates child{how}", self._with(PARENT, kept, world)
        elif held.ending == 1:
            change = self._rules.set_children(held.lease, (KEYS[CHILD],))
            for how, world, result in send(self._world, change):
                kept = None
                if not isinstance(result, Gone):
                    kept = replace(held, ending=2 if result is not None else 1)
                yield f"{self._name} stores the child's id{how}", self._with(PARENT, kept, world)
        else:
            yield from self._write(PARENT, held, self._rules.checkpoint(held.lease, AT_SHARD_END))

    def _write(self, shard: int, held: Held, change: LeaseChange) -> Steps:
        """Send a write of the holder and understand its answer (`LeaseWriter.write`)."""
        label = f"{self._name} {_named(change)}"
        sending = self._world
        if change.operation == "renew" and not held.unsure:
            sending = replace(sending, budget=sending.budget.less("renewals"))
        is_kept = change.sets.get(LeaseField.LEASE_OWNER) == self._slot.worker_id
        if change.operation == "evict" or is_kept:
            sending = replace(sending, budget=sending.budget.less("ends"))
        before = self._world.leases[shard]
        for how, world, result in send(sending, change):
            if before and before.effective_owner != self._slot.worker_id:
                self._check_trespass(before, result)
            yield label + how, self._with(shard, self._understand(held, change, result), world)

    def _check_trespass(self, before: Lease, result: ChangeResult | None) -> None:
        if isinstance(result, Applied):
            raise ModelViolation(
                f"{self._name} wrote to {before.lease_key}, which {before.effective_owner} owns"
            )

    def _understand(
        self, held: Held, change: LeaseChange, result: ChangeResult | None
    ) -> Held | None:
        worker_id = self._slot.worker_id
        match result:
            case None:
                wanted = change.sets.get(LeaseField.CHECKPOINT, held.lease.checkpoint)
                assert isinstance(wanted, ExtendedSequenceNumber)
                return replace(held, unsure=tuple(dict.fromkeys((*held.unsure, wanted))))
            case Gone():
                return None
            case Applied(lease):
                is_over = lease.is_finished and lease.checkpoint_owner is None
                if lease.effective_owner != worker_id or is_over:
                    return None
                return replace(held, lease=lease, unsure=())
            case Lost():
                return self._after_refusal(held, change, lost=result)

    def _after_refusal(self, held: Held, change: LeaseChange, *, lost: Lost) -> Held | None:
        current, worker_id = lost.current, self._slot.worker_id
        if self._may_be_mine(held, current):
            if self._rules.looks_at_epoch:
                return replace(held, suspect=current)
            return replace(held, lease=current, unsure=())
        has_moved = current.lease_counter != held.lease.lease_counter
        if not self._rules.fears_counter:
            known = FieldEquals(LeaseField.LEASE_COUNTER, held.lease.lease_counter)
            has_moved = known in lost.failed
        if has_moved or current.effective_owner != worker_id:
            return None
        if current.checkpoint_owner == current.lease_owner:
            return None
        if all(isinstance(each, CheckpointNotPast) for each in lost.failed):
            raise ModelViolation(f"{self._name}: {_named(change)} is a step back")
        return replace(held, lease=current)

    def _may_be_mine(self, held: Held, current: Lease) -> bool:
        is_ours = bool(held.unsure) and current.checkpoint >= min(held.unsure)
        return (
            current.lease_counter == held.lease.lease_counter + 1
            and current.effective_owner == self._slot.worker_id
            and (is_ours or not self._rules.needs_doubt)
        )

    # --- the slot

    def _serve_and_end(self) -> Steps:
        if not self._is_current:
            return
        world, me, slot = self._world, self._me, self._slot
        beaten = heartbeat(slot, now_ms=0, served_seq=slot.assign_seq, lags_ms=NO_LAGS)
        if slot.assign_seq > me.served and beaten is not None:
            served = replace(me, served=slot.assign_seq)
            keys = [KEYS.index(key) for key in slot.assigned]
            if all(me.holds[key] or _is_finished(world.leases[key]) for key in keys):
                after = world.with_slot(beaten, me.slot).with_invocation(me, served)
                yield f"{self._name} has served what was assigned", after
            elif world.budget.ends:
                after = world.with_slot(beaten, me.slot).with_invocation(me, served)
                yield f"{self._name} waits no longer for what was announced", after
        if world.budget.ends and me.holds == (None, None) and me.wanted is None:
            ended = self._rules.end(slot, served_seq=me.served, now_ms=0)
            if ended is not None:
                poorer = replace(world, budget=world.budget.less("ends"))
                after = poorer.with_slot(ended, me.slot).with_invocation(me, None)
                yield f"{self._name} ends its slot", after

    def _with(self, shard: int, held: Held | None, world: ModelWorld | None = None) -> ModelWorld:
        changed = self._me.with_held(shard, held)
        return (world or self._world).with_invocation(self._me, changed)


def _is_finished(lease: Lease | None) -> bool:
    return lease is not None and lease.is_finished


def _named(change: LeaseChange) -> str:
    to = change.sets.get(LeaseField.CHECKPOINT)
    to = change.sets.get(LeaseField.LEASE_OWNER) if to is None else to
    text = f"{change.operation} of {change.lease_key}"
    return text if to is None else f"{text} to {to!s}"
