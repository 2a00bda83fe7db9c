"""
From Java to the fleet and back: whatever is done of it and whoever goes on, nothing is lost.

The world is small and hostile: each step may be carried out in part, be left for good, or be
followed by one of the other direction; owners renew, hand over, or die.
"""

import math
import random

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import UPGRADING, Direction, Kcl3, WorkerRow
from shardfleet.domain.balance.migration import (
    IndexStatus,
    MigrationSnapshot,
    MigrationTask,
    owners_of,
    plan_migration,
)
from shardfleet.domain.balance.strategy import change_of
from shardfleet.domain.leases.changes import apply_change, assign, evict
from shardfleet.domain.leases.lease import Applied
from shardfleet.domain.slots.slot import Slot, SlotState
from tests.domain.builders import a_lease

CONFIG = FleetConfig(
    fleet="f",
    stream_arn="arn:aws:kinesis:eu-central-1:123456789012:stream/clicks",
    lease_table="leases",
    state_table="state",
    leases_per_worker=4,
)
NOW_MS = 1_800_000_000_000
FROM, TO = Direction.FROM_JAVA, Direction.TO_JAVA
SLOTS, JAVAS = ("f-s0001", "f-s0002"), ("java-1", "java-2")


def a_slot(worker_id, **changes):
    slot = Slot(
        slot_id=worker_id[2:], worker_id=worker_id, state=SlotState.RUNNING,
        name=worker_id, start_epoch=1, heartbeat_ms=NOW_MS,
    )  # fmt: skip
    return replace(slot, **changes)


def snapshot(*leases, java=JAVAS, slots=SLOTS, shown=(), **more):
    rows = [WorkerRow(each, NOW_MS // 1000) for each in (*java, *shown)]
    given = {"kcl3": Kcl3(rows=rows), "slots": list(map(a_slot, slots))} | more
    return MigrationSnapshot(at_ms=NOW_MS, leases=[a_lease(each) for each in leases], **given)


def planned(direction, *leases, **more):
    return plan_migration(direction, CONFIG, snapshot(*leases, **more))


def moves(step):
    return {move.lease.lease_key: move.worker_id for move in step.moves}


HELD = "0 at 5 by java-1", "1 at 5 by java-2", "2 at 5 by f-s0001"


@pytest.mark.parametrize(
    ("more", "step"),
    [
        ({"index": IndexStatus.MISSING}, MigrationTask.MAKE_INDEX),
        ({"index": IndexStatus.CREATING}, MigrationTask.AWAIT_INDEX),
        ({"index": IndexStatus.UPDATING, "is_paused": True}, MigrationTask.RESUME),
        ({}, MigrationTask.HIDE),
        ({"is_hidden": True, "shown": SLOTS}, MigrationTask.AWAIT_HIDDEN),
        ({"is_hidden": True, "slots": ()}, MigrationTask.AWAIT_SLOTS),
        ({"is_hidden": True}, MigrationTask.MOVE),
    ],
)
def test_from_java_what_is_missing_comes_first_and_then_leases_move(more, step):
    assert planned(FROM, *HELD, **more).step is step


def test_rows_that_java_s_leader_takes_for_those_of_the_dead_show_nobody():
    """A manager that is gone takes no row away; a minute later the leader goes by none (§2.6)."""
    rows = [WorkerRow(each, NOW_MS // 1000) for each in JAVAS]
    for age_s, step in ((60, MigrationTask.AWAIT_HIDDEN), (61, MigrationTask.MOVE)):
        ours = [WorkerRow(each, NOW_MS // 1000 - age_s) for each in SLOTS]
        kcl3 = Kcl3(rows=[*rows, *ours])
        assert planned(FROM, *HELD, is_hidden=True, kcl3=kcl3).step is step


def test_nothing_is_given_to_a_worker_of_java_s_that_has_not_shown_that_it_lives():
    """For a minute a dead one's row is fresh; seen with KCL 3.1, which was given all leases."""
    held = [f"{key} at 5 by f-s0001" for key in range(3)]
    none = planned(TO, *held, unproven=JAVAS)
    assert (none.step, none.workers) == (MigrationTask.AWAIT_LIFE, list(JAVAS))
    one = planned(TO, *held, unproven=JAVAS[:1], is_hidden=True)
    assert moves(one) == dict.fromkeys("012", JAVAS[1])


def test_each_lease_goes_to_the_slot_with_most_room():
    assert moves(planned(FROM, *HELD, is_hidden=True)) == {"0": "f-s0002", "1": "f-s0001"}


@pytest.mark.parametrize(
    "changes",
    [{"drain": True}, {"leaving_ms": 1}, {"open_turns": 3}, {"heartbeat_ms": NOW_MS - 20_001},
     {"state": SlotState.STARTING}],
)  # fmt: skip
def test_a_slot_that_cannot_work_is_given_nothing(changes):
    assert set(moves(planned(FROM, *HELD, is_hidden=True)).values()) == set(SLOTS)
    found = snapshot(*HELD, is_hidden=True)
    unable = replace(found, slots=[a_slot(SLOTS[0], **changes), a_slot(SLOTS[1])])

    assert set(moves(plan_migration(FROM, CONFIG, unable)).values()) == {SLOTS[1]}


def test_what_has_no_room_waits_for_slots():
    many = [f"{number} at 5 by java-1" for number in range(9)]
    first = planned(FROM, *many, is_hidden=True)
    full = [f"{number} at 5 by {SLOTS[number % 2]}" for number in range(8)]

    assert len(first.moves) == 8
    # Each slot began with none and is given four, by turns.
    assert [move.reason.choice.held for move in first.moves] == [0, 0, 1, 1, 2, 2, 3, 3]
    rest = planned(FROM, *full, "8 at 5 by java-1", is_hidden=True)
    assert (rest.step, rest.leases) == (MigrationTask.AWAIT_SLOTS, ["8"])


def test_a_handover_is_awaited_and_then_the_end_of_javas_workers():
    pending = "0 at 5 by f-s0001 renewed-by java-1"
    waiting = planned(FROM, pending, is_hidden=True)
    assert (waiting.step, waiting.leases) == (MigrationTask.AWAIT_HANDOVERS, ["0"])
    theirs = planned(FROM, HELD[2], is_hidden=True)
    assert (theirs.step, theirs.workers) == (MigrationTask.AWAIT_JAVAS_END, list(JAVAS))
    assert planned(FROM, HELD[2], java=(), is_hidden=True).step is MigrationTask.SHOW
    assert planned(FROM, HELD[2], java=()).step is MigrationTask.DONE


def test_what_a_lost_owner_had_is_the_managers_to_give():
    step = planned(FROM, HELD[0], java=(), is_hidden=True, expired={"0"})

    assert (step.step, step.leases) == (MigrationTask.AWAIT_EXPIRY, ["0"])


def test_finished_leases_are_nobodys_matter():
    assert planned(FROM, "0 at SHARD_END by java-1", java=()).step is MigrationTask.DONE
    assert (
        planned(TO, "0 at SHARD_END by f-s0001", slots=(), is_paused=True).step
        is MigrationTask.DONE
    )


def test_to_java_leases_go_to_the_worker_with_fewest_then_the_fleet_is_drained():
    held = "0 at 5 by java-1", "1 at 5 by f-s0001", "2 at 5 by f-s0002"
    assert planned(TO, *held).step is MigrationTask.HIDE
    given = planned(TO, *held, is_hidden=True)
    assert moves(given) == {"1": "java-2", "2": "java-1"}
    over = planned(TO, held[0], is_hidden=True)
    assert (over.step, over.workers) == (MigrationTask.DRAIN, ["s0001", "s0002"])
    drained = {"slots": (), "is_paused": True}
    assert planned(TO, held[0], is_hidden=True, **drained).step is MigrationTask.SHOW
    assert planned(TO, held[0], **drained).step is MigrationTask.DONE


@pytest.mark.parametrize("version", ["", UPGRADING])
def test_where_no_kcl_3_hands_over_the_fleet_is_drained_and_java_takes_what_is_free(version):
    more = {"kcl3": Kcl3(version=version)}
    assert planned(TO, "0 at 5 by f-s0001", **more).step is MigrationTask.DRAIN
    free = planned(TO, "0 at 5", slots=(), is_paused=True, **more)
    assert (free.step, free.leases) == (MigrationTask.AWAIT_JAVA, ["0"])
    assert planned(TO, "0 at 5 by j", slots=(), is_paused=True, **more).step is MigrationTask.DONE


class World:
    """Both sides at a table, as far as leases go; who is alive renews and hands over."""

    def __init__(self, chance):
        self.chance = chance
        owners = [*SLOTS, *JAVAS, None]
        keys = [str(number) for number in range(chance.randrange(1, 7))]
        picks = {key: chance.choice(owners) for key in keys}
        by = {key: f" by {owner}" if owner else "" for key, owner in picks.items()}
        self.leases = {key: a_lease(f"{key} at 5{by[key]} counter 3") for key in keys}
        self.slots, self.javas = set(SLOTS), set(chance.sample(JAVAS, chance.randrange(3)))
        self.ghosts = set(chance.sample(JAVAS, chance.randrange(3))) - self.javas
        self.shown, self.is_paused, self.is_hidden = set(), False, False
        self.is_kcl_3 = chance.random() < 0.8

    def snapshot(self):
        alive = self.slots | self.javas
        rows = (self.javas | self.ghosts if self.is_kcl_3 else set()) | self.shown
        return MigrationSnapshot(
            at_ms=NOW_MS,
            leases=list(self.leases.values()),
            slots=[
                a_slot(each, state=SlotState.RUNNING if each in self.slots else SlotState.ENDED)
                for each in SLOTS
            ],
            kcl3=Kcl3(rows=[WorkerRow(each, NOW_MS // 1000) for each in sorted(rows)]),
            is_paused=self.is_paused,
            is_hidden=self.is_hidden,
            unproven=self.ghosts,
            expired={
                k for k, le in self.leases.items()
                if le.effective_owner and le.effective_owner not in alive
            },
        )  # fmt: skip

    def apply(self, change):
        before = self.leases[change.lease_key]
        result = apply_change(change, before)
        if isinstance(result, Applied):
            after = self.leases[change.lease_key] = result.lease
            # What the KCL goes by (protocol.md §0): counters never go back, a forced change of
            # owner moves it, the old owner of a handover keeps it; the position is nobody's here.
            assert after.checkpoint == before.checkpoint
            assert after.lease_counter >= before.lease_counter
            if after.effective_owner != before.effective_owner:
                assert after.lease_counter > before.lease_counter
            assert after.checkpoint_owner is None or after.lease_owner not in (
                None, after.checkpoint_owner,
            )  # fmt: skip

    def carry_out(self, direction, *, wholly=False):
        """Do the next step, or as much of it as chance has it; return it."""
        found = self.snapshot()
        step = plan_migration(direction, CONFIG, found)
        part = 1.0 if wholly else self.chance.random()
        match step.step:
            case MigrationTask.MOVE:
                graceful = found.ours if direction is TO else found.java if found.hands_over else ()
                for move in step.moves[: math.ceil(len(step.moves) * part)]:
                    lease = self.leases[move.lease.lease_key]
                    if change := change_of(move, lease, graceful=graceful):
                        self.apply(change)
            case MigrationTask.HIDE | MigrationTask.SHOW:
                self.is_hidden = step.step is MigrationTask.HIDE
            case MigrationTask.RESUME:
                self.is_paused = False
            case MigrationTask.DRAIN:
                self.is_paused = True
                if part > 0.5:
                    self.drain()
            case awaited:
                self.others_do(awaited, part)
        return step

    def others_do(self, awaited, part):
        """Let the manager or a person do what is awaited, or not yet."""
        match awaited:
            case MigrationTask.AWAIT_HIDDEN:
                self.shown = set()
            case MigrationTask.AWAIT_SLOTS | MigrationTask.AWAIT_EXPIRY if not self.is_paused:
                self.slots |= set(SLOTS)
            case MigrationTask.AWAIT_JAVAS_END if part > 0.5:
                self.javas = self.ghosts = set()
            case MigrationTask.AWAIT_LIFE if part > 0.5:
                self.ghosts = set()
            case MigrationTask.AWAIT_JAVA if part > 0.5:
                self.javas = {JAVAS[0]}

    def drain(self):
        for lease in list(self.leases.values()):
            if lease.effective_owner in self.slots:
                self.hand_over(lease) if lease.checkpoint_owner else self.apply(evict(lease))
        self.slots = set()

    def hand_over(self, lease):
        self.apply(assign(lease, lease.lease_owner))

    def live(self):
        """Let owners hand over what is asked of them, and each side take what is free to it."""
        for lease in list(self.leases.values()):
            alive = self.slots | self.javas
            if lease.checkpoint_owner in alive:
                self.hand_over(lease)
            elif lease.effective_owner is None or lease.effective_owner not in alive:
                takers = self.javas if self.javas and (self.is_kcl_3 or self.is_paused) else ()
                takers = takers or (() if self.is_paused else self.slots)
                if takers:
                    is_expired = lease.effective_owner is not None
                    self.apply(assign(lease, min(takers), expired=is_expired))


@pytest.mark.parametrize("seed", range(400))
def test_left_at_any_step_and_gone_on_with_in_any_direction_it_ends_where_it_is_to(seed):
    world = World(random.Random(seed))
    for _ in range(world.chance.randrange(12)):
        world.carry_out(world.chance.choice((FROM, TO)))
        if world.chance.random() < 0.6:
            world.live()
        if world.chance.random() < 0.1:
            world.javas ^= {world.chance.choice(JAVAS)}
        for lease in world.leases.values():
            # Somebody has it, or may take it: nothing of it says otherwise.
            assert lease.checkpoint_owner is None or lease.lease_owner is not None
    direction = world.chance.choice((FROM, TO))
    steps = []
    for _ in range(40):
        world.live()
        steps.append(world.carry_out(direction, wholly=True).step)
        if steps[-1] is MigrationTask.DONE:
            break
    assert steps[-1] is MigrationTask.DONE, steps
    side = set(SLOTS) if direction is FROM else set(JAVAS)
    held = set().union(*(owners_of(lease) for lease in world.leases.values()))
    assert held <= side
    assert not world.is_hidden
