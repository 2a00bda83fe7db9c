"""What a person is shown of a fleet is what its tables hold, each thing in its place."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.stops import MissingShard, StopNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.reasons import (
    MayHaveRecords,
    NoWorkerHasRoom,
    Pause,
    SecondListingAwaited,
    reason_json,
)
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.turn_log import Entry, Happening, Place
from shardfleet.engine.manager.history import History
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet_ops.operate.read import read_fleet, read_known, read_snapshot
from shardfleet_testkit.memory import SeededEntropy
from tests.domain.builders import a_lease
from tests.engine.manager_side.fleet_kit import Fleet
from tests.virtual import virtual

FAILOVER_MS = 10_000
KEYS = [f"shardId-{number:012d}" for number in range(5)]
ANN = Pause("ann", 5)
SLOT = Slot(slot_id="s1", worker_id="f-s1", state=SlotState.RUNNING, name="n", start_epoch=1)
STOP = StopNote(lease_key=KEYS[1], position="5:0", error="x", attempts=3, worker_id="f-s1", at_ms=7)
SIGHTING = Sighting(3, "f-s1", 9)


def a_fleet(**options):
    return Fleet(**options)


async def filled(fleet):
    """Write one of each kind of document, as its writer does."""
    for key, line in zip(
        KEYS, ("at 5 by f-s1", "at 5 by f-s1", "at 5", "at 5 by f-s1"), strict=False
    ):
        lease = a_lease(f"{key} {line}")
        fleet.leases.leases[lease.lease_key] = lease
    fleet.leases.leases[KEYS[4]] = a_lease(KEYS[4])
    fleet.leases.unreadable[KEYS[4]] = "no counter"
    await fleet.state.write_slot(SLOT, None)
    await fleet.state.write_sightings({KEYS[0]: SIGHTING})
    await fleet.state.write_stop(STOP)
    await PauseRecord(fleet.store).change(lambda _: Pauses(leases={KEYS[3]: ANN}))


async def read(fleet):
    return await read_fleet(fleet.leases, fleet.state, clock=fleet.clock, failover_ms=FAILOVER_MS)


@virtual
async def test_each_table_and_document_has_its_place_in_a_reading():
    fleet = a_fleet()
    await filled(fleet)
    now_ms = fleet.clock.now_ms()
    nap = Nap(
        lease_key=KEYS[2],
        worker_id="f-s1",
        since_ms=now_ms - 1,
        done=fleet.leases.leases[KEYS[2]].checkpoint,
    )
    await NapRecord(fleet.store).begin(nap)
    await fleet.state.write_plan({"at_ms": 77, "left": []})
    found = await read(fleet)
    assert (found.at_ms, found.failover_ms) == (now_ms, FAILOVER_MS)
    assert [lease.lease_key for lease in found.leases] == KEYS[:4]
    assert found.unreadable == {KEYS[4]: "no counter"}
    assert (found.slots, found.sightings) == ([SLOT], {KEYS[0]: SIGHTING})
    assert found.stops == {KEYS[1]: STOP}
    assert found.planned_ms == 77
    assert found.pauses == Pauses(leases={KEYS[3]: ANN})
    assert found.naps == {KEYS[2]: nap}


@virtual
async def test_a_fleet_whose_manager_has_never_planned_says_so():
    fleet = a_fleet()
    assert (await read(fleet)).planned_ms == 0
    known = await read_known(await read(fleet), fleet.state, shards=[])
    assert (known.waits, known.places, known.turns) == ({}, {}, [])


@pytest.mark.parametrize(("missed_ms", "shown"), [(FAILOVER_MS, True), (FAILOVER_MS - 1, False)])
@virtual
async def test_a_shard_that_is_missed_for_a_failover_time_is_shown_as_one_that_stands_still(
    missed_ms, shown
):
    fleet = a_fleet()
    await filled(fleet)
    note = GoneNote(
        lease_key=KEYS[0],
        first_ms=fleet.clock.now_ms() - missed_ms,
        checkpoint="5",
        reason=MayHaveRecords(),
    )
    await GoneRecord(fleet.store).write(note, None)
    missing = MissingShard(
        lease_key=KEYS[0],
        position="5",
        error=str(MayHaveRecords()),
        attempts=0,
        worker_id="",
        at_ms=note.first_ms,
    )
    assert (await read(fleet)).stops == {KEYS[1]: STOP} | ({KEYS[0]: missing} if shown else {})


@virtual
async def test_a_stop_is_shown_before_that_its_shard_is_missed_too():
    fleet = a_fleet()
    await filled(fleet)
    note = GoneNote(lease_key=KEYS[1], first_ms=1, reason=SecondListingAwaited())
    await GoneRecord(fleet.store).write(note, None)
    assert (await read(fleet)).stops == {KEYS[1]: STOP}


@virtual
async def test_what_the_manager_has_kept_is_read_from_an_instant_on():
    fleet = a_fleet()
    entry = Entry(what=Happening.CREATED, subject="0")
    place = Place(3, entry)
    history = History(fleet.store)
    for at_ms in (10, 20):
        await history.write_turn(at_ms, [entry])
    await history.write_places({}, {"0": place})
    waits = [["2", reason_json(NoWorkerHasRoom())]]
    await fleet.state.write_plan({"at_ms": 77, "left": waits})
    reading = await read(fleet)
    known = await read_known(reading, fleet.state, shards=fleet.stream.shards, since_ms=11)
    assert known.reading is reading
    assert known.turns == [(20, (entry,))]
    assert known.places == {"0": place}
    assert known.waits == {"2": NoWorkerHasRoom()}
    assert known.shards == fleet.stream.shards
    everything = await read_known(reading, fleet.state, shards=[])
    assert [at_ms for at_ms, _ in everything.turns] == [10, 20]


async def snapshot_of(fleet, **options):
    return await read_snapshot(
        replace(fleet.config, **options),
        leases=fleet.leases,
        state=fleet.state,
        stream=fleet.stream,
        clock=fleet.clock,
        entropy=SeededEntropy(7),
    )
