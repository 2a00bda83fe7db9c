"""
Leases of another stream or mode in a fleet's table: not one attribute of them changes (H23).

Every kind of row by everything that the fleet does with leases, byte for byte in a real table; what
makes a row foreign is KCL's own form of multi-stream leases (protocol.md §1.2, §1.4).
"""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.domain.balance.kcl3 import Direction
from shardfleet.domain.balance.migration import plan_migration
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import ConfigurationError, MalformedLease
from shardfleet_ops.operate.migrate import Migrator
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.read import read_fleet
from shardfleet_ops.positions.rewinds import RewindState, RewindTarget
from shardfleet_testkit.memory import MemoryOwnerIndex
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.engine.operating.test_rewinding import rewinder
from tests.engine.worker_side.worker_kit import ME, World, a_lease, key
from tests.virtual import in_a_loop

OURS = (ME, "f-s0001")
"""Our workers: of the kit for workers, and of the one for managers."""
ORDERS, EARLIER, OWN = (
    "123456789012:orders:1700000000",
    "123456789012:orders:1600000000",
    "123456789012:clicks:1600000000",
)


def several(stream, number=0, **more):
    """Return what a multi-stream application writes of a lease, as KCL's serializer does."""
    return {
        "leaseKey": {"S": f"{stream}:{key(number)}"},
        "streamName": {"S": stream},
        "shardId": {"S": key(number)},
        **more,
    }


def owner(name):
    return {"leaseOwner": {"S": name}}


ENDED = {"checkpoint": {"S": "SHARD_END"}, "childShardIds": {"SS": [key(1), key(2)]}}
ROWS = {
    "another stream's, free": several(ORDERS, 0),
    "another stream's, of a Java worker that is gone": several(ORDERS, 1, **owner("java-1")),
    "another stream's, finished, its children ours by their bare ids": several(ORDERS, 2, **ENDED),
    "another stream's, in a handover": several(
        ORDERS, 3, **owner("java-1"), checkpointOwner={"S": "java-2"}
    ),
    "another stream's, given to a worker of ours": several(ORDERS, 4, **owner(ME)),
    "another stream's, given to a slot of ours": several(ORDERS, 5, **owner("f-s0001")),
    "another stream's, handed over by a worker of ours": several(
        ORDERS, 6, **owner("java-1"), checkpointOwner={"S": ME}
    ),
    "another stream's, a child of a shard of ours by its bare id": several(
        ORDERS, 7, parentShardId={"SS": [key(0)]}
    ),
    "another stream's, a counter that nobody can read": several(ORDERS, 8, leaseCounter={"S": "7"}),
    "another stream's, no entityType, as of a KCL 2": several(ORDERS, 9, entityType=None),
    "another stream's, no hash range": several(
        ORDERS, 10, startingHashKey=None, endingHashKey=None
    ),
    "of an earlier life of another stream": several(EARLIER, 0),
    "of this stream in the other mode": several(OWN, 0),
    "a key of several fields, no streamName": {"leaseKey": {"S": f"{ORDERS}:{key(11)}"}},
    "a shard's id of ours' form, with a streamName": several(
        ORDERS, 0, leaseKey={"S": key(12)}, **owner(ME)
    ),
    "a shard's id of ours' form, with a shardId": {
        "leaseKey": {"S": key(13)},
        "shardId": {"S": key(13)},
    },
    "a shard's id of DynamoDB Streams": {
        "leaseKey": {"S": "shardId-00000001414576573621-f55eea83"},
        **owner(ME),
    },
    "a key that is no shard's id": {"leaseKey": {"S": "partition-7"}, **owner(ME)},
}
"""Every kind of row that shows by itself that it is not ours."""
_LEASE = replace(a_lease(0, lease_owner=None), hash_key_range=WHOLE_HASH_SPACE)


def items():
    """Return the rows as items."""
    found = [item_from_fields(fields_of(_LEASE)) | row for row in ROWS.values()]
    return [{name: value for name, value in item.items() if value is not None} for item in found]


def put_all(tables):
    """Put them all; return what they are by key."""
    for item in items():
        tables.put(item)
    return stored(tables)


def stored(tables):
    """Return the foreign rows as they are."""
    keys = {item["leaseKey"]["S"] for item in items()}
    return {i["leaseKey"]["S"]: i for i in tables.items() if i["leaseKey"]["S"] in keys}


def lease_of(item):
    """Return a row as a lease, as if it were one of ours, for who would write it."""
    ours = a_lease(0, lease_key=item["leaseKey"]["S"], lease_owner=None)
    owners = {
        name: item[wire]["S"] for name, wire in (("lease_owner", "leaseOwner"),) if wire in item
    }
    return replace(ours, **owners)


CHANGES = {
    "create": lease_changes.create,
    "renew": lease_changes.renew,
    "take": lambda lease: lease_changes.take(lease, ME),
    "assign": lambda lease: lease_changes.assign(lease, ME),
    "assign as expired": lambda lease: lease_changes.assign(lease, ME, expired=True),
    "hand over": lambda lease: lease_changes.initiate_handover(
        replace(lease, lease_owner="java-1"), ME
    ),
    "evict": lease_changes.evict,
    "checkpoint": lambda lease: lease_changes.checkpoint(lease, ExtendedSequenceNumber("9")),
    "finish": lambda lease: lease_changes.checkpoint(lease, AT_SHARD_END),
    "set children": lambda lease: lease_changes.set_children(lease, (key(1), key(2))),
    "set hash range": lambda lease: lease_changes.set_hash_range(lease, WHOLE_HASH_SPACE),
    "rewind": lambda lease: lease_changes.rewind(lease, AT_TRIM_HORIZON),
    "delete": lease_changes.delete,
}


@pytest.mark.parametrize("change", CHANGES)
def test_no_write_of_a_lease_reaches_one_that_shows_by_its_key_that_it_is_not_ours(
    moto_tables, change
):
    before = put_all(moto_tables)
    refused = [k for k in before if ":" in k or k.count("-") != 1 or k.startswith("partition")]
    assert len(refused) == len(ROWS) - 2
    for lease_key in refused:
        wanted = CHANGES[change](lease_of(before[lease_key]))
        with pytest.raises(MalformedLease, match="not written"):
            asyncio.run(moto_tables.leases.apply(wanted))
    assert stored(moto_tables) == before


class HandClock:
    """A clock that goes on when somebody sleeps: real tables answer from threads."""

    def __init__(self):
        self.at_ms = 1_700_000_000_000

    def now_ms(self):
        return self.at_ms

    def monotonic_ms(self):
        return self.at_ms

    async def sleep_ms(self, duration_ms):
        self.at_ms += round(duration_ms)
        await asyncio.sleep(0)


def a_fleet(tables, **options):
    """Return a fleet of four shards that has not begun, in this table."""
    fleet = Fleet(**options)
    fleet.clock = HandClock()
    fleet.state = FleetState(fleet.store, fleet.clock)
    fleet.use(tables.leases)
    return fleet


async def begun(tables, **options):
    """Return a fleet that has its leases and reads them, in this table."""
    fleet = a_fleet(tables, **options)
    await fleet.manager.turn()
    slots = [document.id for document in await fleet.store.list("slot")]
    await fleet.beat(*slots)
    await fleet.manager.turn()
    return fleet, slots


async def renew_ours(fleet):
    for lease in (await fleet.leases.survey()).leases:
        if lease.lease_owner and not lease.is_finished:
            await fleet.leases.apply(lease_changes.renew(lease))


@pytest.mark.parametrize("assignment", ["balanced", "greedy"])
@in_a_loop
async def test_managers_turns_for_five_minutes_touch_none_and_count_none(moto_tables, assignment):
    """Long enough for expiry, a take, a balancing run, the hole audit and the clean-up."""
    fleet, slots = await begun(moto_tables, assignment=assignment, min_workers=2)
    before = put_all(moto_tables)
    for turn in range(20):
        await fleet.clock.sleep_ms(15_000)
        await renew_ours(fleet)
        await fleet.beat(*slots)
        if turn == 10:
            fleet.manager = LeaseManager(fleet.config, fleet.ports())
        report = await fleet.manager.turn()
        assert await fleet.manager.losses.look() in (True, False)
        (done,) = fleet.named("ManagerTurnDone")[-1:]
        assert (done.total_leases, done.unreadable_leases) == (4, 0)
        assert not report.plan.losses.expired & before.keys()
        assert (done.unread_shards, done.stopped_shards, done.hash_range_holes) == (0, 0, 0)
        assert [lease.lease_key for lease in report.plan.leases] == [key(n) for n in range(4)]
        assert done.slots_wanted == 2
    assert stored(moto_tables) == before
    kept = {name for store in fleet.store.documents.values() for name in map(str, store.body)}
    assert not kept & before.keys()
    assert len(report.plan.snapshot.survey.foreign_leases) == len(ROWS)
    told = fleet.named("ForeignLeasesFound")
    # Once by each of the two managers.
    assert [event.leases for event in told] == [len(ROWS)] * 2


@in_a_loop
async def test_a_worker_that_is_given_them_adopts_none_and_reads_its_own(moto_tables):
    world = World(shards=3, handler_timeout_ms=1_000, turn_margin_ms=3_000)
    for number in range(3):
        moto_tables.put(item_from_fields(fields_of(a_lease(number))))
        world.put(number, number=number)
    before = put_all(moto_tables)
    await world.open_slot()
    # As by a manager that took them for its own: its announcement, and the owner index.
    await world.change_slot(
        lambda slot: replace(slot, assigned=tuple(before), assign_seq=slot.assign_seq + 1)
    )
    outcome = await world.turn(turn_ms=9_000, leases=moto_tables.leases)
    assert outcome is TurnOutcome.CONTINUE
    assert sorted(world.numbers) == [0, 1, 2]
    assert stored(moto_tables) == before


@in_a_loop
async def test_a_worker_that_ends_a_shard_does_not_overwrite_a_child_of_that_key(moto_tables):
    """The children of shard 0 are 1 and 2; the rows of these keys are another application's."""
    world = World(shards=1, handler_timeout_ms=1_000, turn_margin_ms=3_000)
    moto_tables.put(item_from_fields(fields_of(a_lease(0))))
    row = item_from_fields(fields_of(_LEASE)) | several(ORDERS, 1, leaseKey={"S": key(1)})
    moto_tables.put(row)
    world.put(0)
    world.stream.split(key(0))
    await world.turn(turn_ms=9_000, leases=moto_tables.leases)
    assert world.numbers == [0]
    assert moto_tables.item(key(1)) == row


@in_a_loop
async def test_readers_and_operators_see_none_as_a_lease_of_the_fleet(moto_tables):
    fleet, _ = await begun(moto_tables)
    before = put_all(moto_tables)
    store = moto_tables.leases
    survey = await store.survey()
    own = [key(n) for n in range(4)]
    assert [lease.lease_key for lease in survey.leases] == own
    assert [lease.lease_key for lease in await store.scan()] == own
    assert (survey.unreadable, survey.foreign) == ({}, ())
    assert sorted(each.lease_key for each in survey.foreign_leases) == sorted(before)
    assert [await store.get(each) for each in before] == [None] * len(before)
    for worker in OURS:
        assert not {k for k in await store.keys_owned_by(worker) if k not in own} - {key(12)}
    reading = await read_fleet(store, fleet.state, clock=fleet.clock, failover_ms=10_000)
    assert [lease.lease_key for lease in reading.leases] == own
    assert len(reading.foreign_leases) == len(ROWS)
    migrator = Migrator(
        fleet.config, Operator(store, fleet.state, fleet.clock), kcl3=fleet.kcl3,
        index=MemoryOwnerIndex(), events=fleet.events, person="ann",
    )  # fmt: skip
    for direction in Direction:
        step = plan_migration(direction, fleet.config, await migrator.look())
        assert not set(step.leases) - set(own)
    await migrator.run(Direction.TO_JAVA, within_ms=3_000, tell=lambda _step: None)
    assert stored(moto_tables) == before


@in_a_loop
async def test_a_rewind_sets_none_back(moto_tables):
    world = World(shards=1)
    world.leases = moto_tables.leases
    moto_tables.put(item_from_fields(fields_of(a_lease(0, checkpoint=AT_TRIM_HORIZON))))
    before = put_all(moto_tables)
    at_work = rewinder(world)
    plan = await at_work.preview(before, RewindTarget(AT_TRIM_HORIZON), with_children=True)
    assert not [row for row in plan.rows if row.state is RewindState.SET_BACK]
    assert stored(moto_tables) == before


@pytest.mark.parametrize("what", ROWS)
@in_a_loop
async def test_a_fleet_that_has_not_begun_refuses_the_table_by_name_and_writes_nothing(
    moto_tables, what
):
    (item,) = (found for name, found in zip(ROWS, items(), strict=True) if name == what)
    fleet = a_fleet(moto_tables)
    moto_tables.put(item)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not this fleet's") as refused:
            await fleet.manager.turn()
    said = str(refused.value)
    assert item["leaseKey"]["S"] in said
    assert item.get("streamName", {}).get("S", "") in said
    assert "lease_table" in said
    assert moto_tables.items() == [item]
    assert not await fleet.store.list("slot")
    moto_tables.delete(item["leaseKey"]["S"])
    await fleet.manager.turn()
    assert len(moto_tables.items()) == 4


@in_a_loop
async def test_a_row_of_the_other_mode_in_the_place_of_a_shard_of_ours_is_named_and_holds_it_up(
    moto_tables,
):
    fleet, _ = await begun(moto_tables)
    moto_tables.delete(key(2))
    row = item_from_fields(fields_of(_LEASE)) | several(ORDERS, 2, leaseKey={"S": key(2)})
    moto_tables.put(row)
    for _ in range(3):
        await fleet.clock.sleep_ms(15_000)
        report = await fleet.manager.turn()
    assert moto_tables.item(key(2)) == row
    assert ORDERS in report.plan.unreadable.reasons[key(2)]


@in_a_loop
async def test_rows_of_a_kcl_3_count_beside_foreign_leases_once_their_worker_has_a_lease_of_ours():
    """Shown to another application's leader, a slot would be given leases that it cannot read."""
    fleet = Fleet()
    await running_fleet(fleet)
    foreign = f"{ORDERS}:{key(0)}"
    fleet.leases.leases[foreign] = Lease(
        lease_key=foreign, checkpoint=AT_TRIM_HORIZON, lease_owner="java-1"
    )
    fleet.kcl3.rows["java-1"] = fleet.clock.now_ms() // 1000
    report = await fleet.manager.turn()
    assert not report.plan.kcl3.leads
    assert fleet.kcl3.rows.keys() == {"java-1"}
    taken = fleet.leases.leases[key(3)]
    fleet.leases.leases[key(3)] = replace(taken, lease_owner="java-1")
    report = await fleet.manager.turn()
    assert report.plan.kcl3.leads
