"""Slots are started for leases that they can be given: not for what healthy others hold (Z8)."""

from collections import Counter

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.expiry import Reading, Sighting
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.slots.slot import SlotState
from shardfleet.domain.turn import TurnSnapshot
from shardfleet_ops.explain.forecast import Question, what_if
from tests.domain.builders import a_failure
from tests.engine.manager_side.fleet_kit import Fleet, shard
from tests.engine.manager_side.test_paused import pause
from tests.virtual import virtual

JAVA = "java-1"
SIXTEEN = [shard(n, n, n + 1) for n in range(16)]


class SharedTable(Fleet):
    """A fleet whose lease table a KCL for Java uses as well; its workers do as they are told."""

    def __init__(self, *, java, shards=SIXTEEN, **options):
        """Begin with leases for all shards, the first ``java`` of them held by Java."""
        super().__init__(shards=shards, **{"leases_per_worker": 4} | options)
        self._java = java
        self.javas = True
        self._idle_since = {}

    async def begin(self):
        """Let the leases be made, and Java take its part at once."""
        await self.manager.turn()
        for key in sorted(self.leases.leases)[: self._java]:
            await self.leases.apply(lease_changes.take(self.leases.leases[key], JAVA))
        for slot in await self.state.slots():
            await self.end(slot.slot.slot_id)
        self.launcher.executions.clear()

    async def end(self, slot_id):
        """End a slot, as one does that has had nothing for long enough."""
        slot = await self.slot(slot_id)
        self.launcher.close(slot.slot_input().execution_name())
        await self.state.update_slot(slot_id, lambda s: replace(s, state=SlotState.ENDED))

    def held(self):
        """Return owner to the number of leases."""
        return Counter(lease.lease_owner for lease in self.leases.leases.values())

    async def run(self, *, minutes):
        """Take a turn each 20 s: who lives renews, a slot that has nothing for a minute ends."""
        for _ in range(3 * minutes):
            await self.manager.turn()
            slots = [found.slot for found in await self.state.slots()]
            alive = [slot for slot in slots if slot.state is not SlotState.ENDED]
            await self.beat(*(slot.slot_id for slot in alive))
            owners = {slot.worker_id for slot in alive} | ({JAVA} if self.javas else set())
            held = [le for le in self.leases.leases.values() if le.lease_owner in owners]
            if held:
                self.renew(*(lease.lease_key for lease in held))
            for slot in alive:
                since_ms = self._idle_since.setdefault(slot.slot_id, self.clock.now_ms())
                if self.held()[slot.worker_id]:
                    del self._idle_since[slot.slot_id]
                elif self.clock.now_ms() - since_ms >= self.config.idle_end_ms:
                    del self._idle_since[slot.slot_id]
                    await self.end(slot.slot_id)
            await self.clock.sleep_ms(20_000)


@pytest.mark.parametrize("assignment", ["balanced", "count"])
@virtual
async def test_for_leases_that_healthy_others_hold_no_slot_is_started(assignment):
    fleet = SharedTable(java=16, assignment=assignment)
    await fleet.begin()
    await fleet.run(minutes=30)
    assert len(fleet.launcher.executions) == 0
    assert fleet.held() == {JAVA: 16}
    told = fleet.named("ManagerTurnDone")[-1]
    assert (told.slots_wanted, told.slots_missing, told.unclaimed_leases) == (0, 0, 0)


def told_ill(fleet):
    """Return what the alarms lag, never_caught_up and unknown_lag would ring for."""
    return {
        (told.millis_behind_latest_max, told.millis_behind_latest_min, told.leases_of_unknown_lag)
        for told in fleet.named("ManagerTurnDone")
    } - {(0, 0, 0)}


@pytest.mark.parametrize("is_paused", [False, True])
@virtual
async def test_beside_a_java_that_holds_everything_no_execution_begins_and_no_lag_is_told(
    is_paused,
):
    fleet = SharedTable(java=16)
    await fleet.begin()
    fleet.events.events.clear()
    if is_paused:
        # Nobody of ours is to have it; Java reads on.
        await pause(fleet, 0)
    await fleet.run(minutes=10)
    assert len(fleet.launcher.executions) == 0
    assert len(fleet.named("ManagerTurnDone")) == 30
    assert told_ill(fleet) == set()

    # Its leases are everybody's as soon as it is gone.
    fleet.javas = False
    await fleet.run(minutes=1)
    assert told_ill(fleet) != set()


@virtual
async def test_slots_are_for_our_part_of_a_shared_table():
    fleet = SharedTable(java=12)
    await fleet.begin()
    await fleet.run(minutes=30)
    assert len(fleet.launcher.executions) == 1
    assert fleet.held() == {JAVA: 12, "f-s0001": 4}


@virtual
async def test_the_leases_of_an_owner_that_dies_get_slots():
    fleet = SharedTable(java=16)
    await fleet.begin()
    await fleet.run(minutes=5)
    fleet.javas = False
    await fleet.run(minutes=3)
    assert fleet.held() == {f"f-s000{n}": 4 for n in (1, 2, 3, 4)}
    assert len(fleet.launcher.executions) == 4


@pytest.mark.parametrize("leases_per_worker", [1, 4, 16])
@virtual
async def test_a_strategy_that_steals_has_slots_for_what_it_may_steal_and_none_is_idle(
    leases_per_worker,
):
    fleet = SharedTable(
        java=16, assignment="greedy", leases_per_worker=leases_per_worker, max_workers=16
    )
    await fleet.begin()
    await fleet.run(minutes=30)
    wanted = -(-15 // leases_per_worker)
    assert len(fleet.launcher.executions) == wanted
    held = fleet.held()
    assert set(held) == {JAVA, *(f"f-s{n:04d}" for n in range(1, wanted + 1))}


@virtual
async def test_a_strategy_that_steals_takes_nobody_s_last_lease():
    fleet = SharedTable(java=1, shards=[shard(0, 0, 16)], assignment="greedy")
    await fleet.begin()
    await fleet.run(minutes=30)
    assert len(fleet.launcher.executions) == 0


@virtual
async def test_a_lease_that_waits_for_a_parent_of_others_asks_for_no_slot():
    shards = [shard(0, 0, 16, closed=True), *(shard(n, 8 * n - 8, 8 * n) for n in (1, 2))]
    shards[1:] = [replace(s, parent_shard_id=shards[0].shard_id) for s in shards[1:]]
    fleet = SharedTable(java=1, shards=shards)
    await fleet.begin()
    for child in shards[1:]:
        parent = fleet.leases.leases[shards[0].shard_id]
        made = replace(
            parent, lease_key=child.shard_id, lease_owner=None, lease_counter=0,
            parent_shard_ids=(parent.lease_key,), hash_key_range=child.hash_key_range,
        )  # fmt: skip
        fleet.leases.leases[child.shard_id] = made
    await fleet.run(minutes=10)
    assert len(fleet.launcher.executions) == 0


@virtual
async def test_a_forecast_starts_none_either():
    fleet = SharedTable(java=16)
    await fleet.begin()
    now_ms = fleet.clock.now_ms()
    snapshot = TurnSnapshot(
        began_ms=now_ms,
        at_ms=now_ms,
        reading=Reading(began_ms=now_ms, ended_ms=now_ms),
        survey=Survey(leases=tuple(fleet.leases.leases.values())),
        shards=SIXTEEN,
    )
    found = what_if(fleet.config, snapshot, Question())
    assert found.steps == ()
    seen = {
        lease.lease_key: Sighting(lease.lease_counter, JAVA, now_ms - 60_000)
        for lease in snapshot.survey.leases
    }
    found = what_if(fleet.config, replace(snapshot, sightings=seen), Question())
    assert sum(len(keys) for owner, keys in found.after.items() if owner != JAVA) == 16


@pytest.mark.parametrize(
    ("is_like", "stolen"),
    [
        ({"open_turns": 0}, True),
        ({"open_turns": 2}, True),
        ({"open_turns": 3}, False),
        ({"open_turns": 9}, False),
        ({"failure": a_failure()}, False),
    ],
)
@virtual
async def test_a_slot_that_fails_takes_nothing_from_who_works(is_like, stolen):
    fleet = SharedTable(java=16, assignment="greedy")
    await fleet.begin()
    await fleet.manager.turn()
    for _ in range(3):
        await fleet.beat("s0001")
        await fleet.state.update_slot("s0001", lambda s: replace(s, **is_like))
        fleet.renew()
        await fleet.manager.turn()
        await fleet.clock.sleep_ms(5_000)
    assert (fleet.held()["f-s0001"] > 0) is stolen


@virtual
async def test_who_crashes_is_given_what_is_free_only_where_nobody_else_is():
    fleet = SharedTable(java=0, leases_per_worker=16, min_workers=2)
    await fleet.begin()
    await fleet.manager.turn()
    await fleet.beat("s0001", "s0002")
    await fleet.state.update_slot("s0001", lambda s: replace(s, open_turns=3))
    await fleet.manager.turn()
    assert fleet.held() == {"f-s0002": 16}
