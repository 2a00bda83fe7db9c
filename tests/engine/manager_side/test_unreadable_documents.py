"""
A document of the fleet state that cannot be read is a fault domain of its own, for the manager.

Whatever has become of whichever document: the turn ends, the leases keep their owners or get one,
and an event and a metric name the document.
"""

import pytest
from msgspec.structs import replace

from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.engine.ports import Document
from shardfleet.engine.state.documents import read_as
from shardfleet.engine.state.kinds import kind_of
from shardfleet.engine.state.pauses import PauseRecord
from tests.engine.manager_side.fleet_kit import Fleet, four_shards, running_fleet
from tests.engine.state.damages import CELLS, DOCUMENTS, SECRET, TOLD_APART, of_a_later_release
from tests.virtual import virtual

OPTIONS = {"leases_per_worker": 2, "sleep": True}
# What is the manager's own is written anew by the turn that could not read it.
DAY = "2023-11-14"


def planted(fleet, document):
    """Put a document into the place where this fleet has, or would look for, its like."""
    kind = f"ledger {DAY}" if document.kind.startswith("ledger") else document.kind
    own = [name for (each, name) in fleet.store.documents if each == kind]
    name = own[0] if own else document.id
    fleet.store.documents[kind, name] = Document(
        kind, name, document.version, document.body, document.damage
    )
    return f"{kind}/{name}"


async def turn_beside(document):
    """Run a fleet, plant a document, and run two turns more."""
    fleet = Fleet(**OPTIONS)
    slots = await running_fleet(fleet)
    before = fleet.owners()
    name = planted(fleet, document)
    fleet.events.events.clear()
    await fleet.clock.sleep_ms(60_000)
    fleet.renew()
    await fleet.manager.turn()
    fleet.renew()
    for slot_id in slots:
        if name != f"slot/{slot_id}":
            await fleet.beat(slot_id)
    await fleet.manager.turn()
    return fleet, before, name


@pytest.mark.parametrize("kind", DOCUMENTS)
@virtual
async def test_a_turn_goes_on_beside_any_damage_of_any_document_and_names_it(kind):
    cells = [(cell, d) for cell, d in TOLD_APART if cell.startswith(f"{kind}: ")]
    for cell, document in cells:
        fleet, before, name = await turn_beside(document)
        assert fleet.owners() == before, cell
        told = {event.document: event.reason for event in fleet.named("DocumentUnreadable")}
        planted_kind = kind_of(name.partition("/")[0])
        assert told.keys() == ({name} if read_as(planted_kind, document).reason else set()), cell
        assert SECRET not in str(told), cell


@pytest.mark.parametrize("kind", DOCUMENTS)
@virtual
async def test_nonsense_in_any_document_is_told_and_counted(kind):
    nonsense = dict(CELLS)[f"{kind}: nonsense"]
    document = replace(nonsense, damage="its body is no map")
    fleet, _, name = await turn_beside(document)
    assert {event.document for event in fleet.named("DocumentUnreadable")} == {name}


@pytest.mark.parametrize("kind", DOCUMENTS)
@virtual
async def test_what_a_later_release_has_written_is_no_news(kind):
    fleet, before, _ = await turn_beside(of_a_later_release(DOCUMENTS[kind]))
    assert fleet.named("DocumentUnreadable") == []
    assert fleet.owners() == before


@virtual
async def test_an_unreadable_slot_is_not_started_and_keeps_its_leases_while_they_are_renewed():
    fleet = Fleet(**OPTIONS)
    slots = await running_fleet(fleet)
    fleet.store.documents["slot", slots[0]] = Document("slot", slots[0], 9, {"state": 7})
    started, before = dict(fleet.launcher.executions), fleet.owners()
    for _ in range(6):
        await fleet.clock.sleep_ms(20_000)
        fleet.renew()
        await fleet.beat(*slots[1:])
        await fleet.manager.turn()
    assert fleet.owners() == before
    new = fleet.launcher.executions.keys() - started
    assert not [name for name in new if f"-{slots[0]}-" in name]


@virtual
async def test_what_an_unreadable_slot_held_goes_to_others_when_nobody_renews_it():
    fleet = Fleet(**OPTIONS)
    slots = await running_fleet(fleet)
    lost = f"f-{slots[0]}"
    fleet.store.documents["slot", slots[0]] = Document("slot", slots[0], 9, {"state": 7})
    for _ in range(8):
        await fleet.clock.sleep_ms(20_000)
        fleet.renew(*(k for k, le in fleet.leases.leases.items() if le.lease_owner != lost))
        running = [d.id for d in await fleet.store.list("slot") if d.id != slots[0]]
        await fleet.beat(*running)
        await fleet.manager.turn()
    assert lost not in fleet.owners().values()
    assert None not in fleet.owners().values()


@virtual
async def test_an_unreadable_pause_gives_to_nobody_what_nobody_has_and_takes_nothing():
    fleet = Fleet(**OPTIONS)
    slots = await running_fleet(fleet)
    free = min(fleet.leases.leases)
    fleet.leases.leases[free] = replace(fleet.leases.leases[free], lease_owner=None)
    pause = Pauses(leases={free: Pause("anna", 1, "")})
    await PauseRecord(fleet.store).change(lambda _: pause)
    document = fleet.store.documents["pause", "fleet"]
    fleet.store.documents["pause", "fleet"] = replace(document, body={"leases": SECRET})
    before = fleet.owners()
    for _ in range(3):
        await fleet.clock.sleep_ms(20_000)
        fleet.renew()
        await fleet.beat(*slots)
        await fleet.manager.turn()
    assert fleet.owners() == before


@virtual
async def test_a_lease_whose_pin_cannot_be_read_is_not_made_and_the_others_are():
    fleet = Fleet(four_shards(), initial_position="LATEST")
    key = "shardId-000000000001"
    fleet.store.documents["pin", key] = Document("pin", key, 3, {"instant_ms": "x"})
    await fleet.manager.turn()
    assert fleet.leases.leases.keys() == {f"shardId-{n:012d}" for n in (0, 2, 3)}
    assert "pin/" + key in {event.document for event in fleet.named("DocumentUnreadable")}
