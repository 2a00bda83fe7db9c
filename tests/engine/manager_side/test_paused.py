"""Paused leases and the manager: assigned to nobody, no alarm of theirs, no slots for them."""

import json

import pytest
from msgspec.structs import replace

from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.engine.state.kinds import PAUSE
from shardfleet.engine.state.pauses import FLEET, PauseRecord
from shardfleet_testkit.memory import MemoryStateStore
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.virtual import virtual

ANN = Pause("ann", 5, "why not")


def key(number):
    return f"shardId-{number:012d}"


async def pause(fleet, *numbers):
    keys = [key(number) for number in numbers]
    await PauseRecord(fleet.store).change(lambda pauses: pauses.with_leases(keys, ANN))


def free(fleet, *numbers):
    """Leave leases without an owner, as workers do with paused ones."""
    for number in numbers or range(4):
        lease = fleet.leases.leases[key(number)]
        fleet.leases.leases[key(number)] = replace(
            lease, lease_owner=None, lease_counter=lease.lease_counter + 1
        )


@virtual
async def test_a_paused_lease_is_left_to_nobody_with_its_reason_until_it_is_resumed():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    await pause(fleet, 1)
    free(fleet, 1, 2)
    report = await fleet.manager.turn()
    assert fleet.owners()[1] is None
    assert fleet.owners()[2] == "f-s0001"
    assert report.plan.assignment.left == ((key(1), ANN),)
    told = fleet.named("ManagerTurnDone")[-1]
    # As read, before the turn assigned it: lease 2.
    assert (told.paused_leases, told.unclaimed_leases, told.leases_of_unknown_lag) == (1, 1, 3)

    await PauseRecord(fleet.store).change(lambda _: Pauses())
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert fleet.owners()[1] == "f-s0001"


@virtual
async def test_a_paused_fleet_wants_no_slots_and_misses_none():
    fleet = Fleet(leases_per_worker=2)
    await running_fleet(fleet)
    await PauseRecord(fleet.store).change(lambda _: Pauses(fleet=ANN))
    free(fleet)
    report = await fleet.manager.turn()
    assert report.plan.slots.wanted == 0
    assert report.plan.is_awake
    told = fleet.named("ManagerTurnDone")[-1]
    assert (told.paused_leases, told.unclaimed_leases, told.slots_missing) == (4, 0, 0)


@virtual
async def test_what_is_paused_falls_behind_from_then_on():
    """Its records will expire: the alarm about data loss must know (hazard H18)."""
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    since_ms = fleet.clock.now_ms() - 7_000_000
    pause = replace(ANN, since_ms=since_ms)
    await PauseRecord(fleet.store).change(lambda _: Pauses(leases={key(0): pause}))
    free(fleet, 0)
    await fleet.manager.turn()
    told = fleet.named("ManagerTurnDone")[-1]
    assert told.millis_behind_latest_max >= 7_000_000
    assert told.millis_behind_latest_min == -1  # Of the others nothing is known yet.


@virtual
async def test_a_paused_lease_whose_worker_is_lost_is_left_without_an_owner():
    fleet = Fleet(leases_per_worker=4)
    await running_fleet(fleet)
    foreign = fleet.leases.leases[key(3)]
    fleet.leases.leases[key(3)] = replace(foreign, lease_owner="java")
    await fleet.manager.turn()
    await pause(fleet, 0, 3)
    fleet.renew(key(1), key(2))
    await fleet.clock.sleep_ms(15_000)
    fleet.renew(key(1), key(2))
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert fleet.owners() == {0: None, 1: "f-s0001", 2: "f-s0001", 3: "java"}


@pytest.mark.parametrize("pauses", [Pauses(), Pauses(fleet=ANN, leases={"1": Pause("ben", 9)})])
@virtual
async def test_a_document_is_read_back_as_it_was_also_with_fields_of_a_later_version(pauses):
    store = MemoryStateStore()
    await PauseRecord(store).change(lambda _: pauses)
    kept = await store.read(PAUSE, FLEET)
    if kept is not None:
        body = {**json.loads(json.dumps(kept.body)), "later": 1}
        await store.write(PAUSE, FLEET, body, expected_version=kept.version)
    assert await PauseRecord(store).read() == pauses
