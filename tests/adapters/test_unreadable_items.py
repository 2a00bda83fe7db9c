"""
One lease item that nobody can read stops itself and what descends from it, and nobody else.

There are peers that write such items; the fleet's own planners and workers meet
them here in a real table, byte for byte.
"""

import asyncio

import pytest

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.events.worker import LeaseUnreadable
from tests.engine.manager_side.fleet_kit import Fleet, shard
from tests.engine.worker_side.test_every_port_call import Ill
from tests.engine.worker_side.worker_kit import ME, World, a_lease, key
from tests.virtual import in_a_loop

ILL = 1
# What a foreign writer leaves behind, by what is wrong (protocol.md §1.2: names and types).
BROKEN = {
    "a checkpoint that is no number": {"checkpoint": {"S": "not a number"}},
    "a shard end spelled wrong": {"checkpoint": {"S": "shard_end"}},
    "no counter": {"leaseCounter": None},
    "no checkpoint": {"checkpoint": None},
    "a counter of the wrong type": {"leaseCounter": {"S": "7"}},
    "a counter that is no whole number": {"leaseCounter": {"N": "7.5"}},
    "an owner of the wrong type": {"leaseOwner": {"S": ME}, "checkpointOwner": {"N": "1"}},
    "parents of the wrong type": {"parentShardId": {"S": key(9)}},
    "half a hash range": {"startingHashKey": {"S": "0"}, "endingHashKey": None},
    "nothing that makes a lease": {
        "leaseCounter": None,
        "checkpoint": None,
        "entityType": None,
    },
    "a checkpoint that is a NULL": {"checkpoint": {"NULL": True}},
}


def put(tables, lease, differences=None):
    """Put a lease as the KCL would, but for the differences; return the item."""
    item = item_from_fields(fields_of(lease)) | (differences or {})
    item = {name: value for name, value in item.items() if value is not None}
    tables.put(item)
    return item


@pytest.mark.parametrize("what", BROKEN)
@in_a_loop
async def test_the_manager_leaves_it_alone_and_assigns_the_others(moto_tables, what):
    tables = moto_tables
    split = [shard(4, 4, 6, parents=(ILL,)), shard(5, 6, 8, parents=(ILL,))]
    whole = [shard(n, 4 * n, 4 * n + 4, closed=n == ILL) for n in range(4)]
    fleet = Fleet([*whole, *split], min_workers=2)
    fleet.use(tables.leases)
    for number in range(4):
        if number != ILL:
            put(tables, a_lease(number, lease_owner=None))
    child = put(tables, a_lease(4, lease_owner=None, parent_shard_ids=(key(ILL),)))
    ill = put(tables, a_lease(ILL, lease_owner=None), BROKEN[what])
    await fleet.manager.turn()
    await fleet.beat("s0001", "s0002")
    report = await fleet.manager.turn()

    owners = {item["leaseKey"]["S"]: "leaseOwner" in item for item in tables.items()}
    # Of its children one is there and waits, the other one is not made before it can be read.
    assert owners == {
        **{key(n): True for n in range(4) if n != ILL},
        key(ILL): "leaseOwner" in ill,
        key(4): False,
    }
    assert tables.item(key(ILL)) == ill
    assert tables.item(key(4)).keys() == child.keys() | {"startingHashKey", "endingHashKey"}
    assert list(report.plan.unreadable.reasons) == [key(ILL)]
    (done,) = fleet.named("ManagerTurnDone")[-1:]
    assert (done.unreadable_leases, done.unread_shards, done.hash_range_holes) == (1, 0, 0)
    assert {event.lease_key for event in fleet.named("LeaseUnreadable")} == {key(ILL)}

    put(tables, a_lease(ILL, lease_owner=None))
    report = await fleet.manager.turn()
    assert not report.plan.unreadable.reasons
    assert "leaseOwner" in tables.item(key(ILL))


@in_a_loop
async def test_a_worker_leaves_them_alone_and_goes_on_with_the_others(tables):
    well = range(len(BROKEN), len(BROKEN) + 3)
    world = World(shards=well.stop, handler_timeout_ms=1_000, turn_margin_ms=3_000)
    broken = [put(tables, a_lease(n), each) for n, each in enumerate(BROKEN.values())]
    for number in well:
        put(tables, a_lease(number))
        world.put(number, number=number)
    outcome = await world.turn(turn_ms=9_000, leases=tables.leases)
    assert outcome is TurnOutcome.CONTINUE
    assert sorted(world.numbers) == list(well)
    assert [tables.item(item["leaseKey"]["S"]) for item in broken] == broken
    # What is no lease at all is nobody's to tell of but the manager's.
    claims = [i["leaseKey"]["S"] for i in broken if {"checkpoint", "leaseCounter"} & i.keys()]
    assert sorted(event.lease_key for event in world.told(LeaseUnreadable)) == claims


@pytest.mark.parametrize("call", ["get", "apply"])
def test_what_nobody_foresaw_of_one_lease_leaves_the_others_served(tables, call):
    raised = []

    async def main():
        world = World(shards=3, handler_timeout_ms=1_000, turn_margin_ms=3_000)
        for number in range(3):
            put(tables, a_lease(number))
            world.put(number, number=number)
        ill = Ill(tables.leases, call, raised)
        assert await world.turn(turn_ms=9_000, leases=ill) is TurnOutcome.CONTINUE
        assert sorted(world.numbers) == [0, 2]
        assert {event.lease_key for event in world.told(LeaseUnreadable)} == {key(ILL)}

    asyncio.run(main())
    assert raised
