"""
The exact items of the lease table: names, types and counter moves of protocol.md §1.2 and §1.6.

The expected items are written out, so that no code of ours is judge in its own cause.
"""

import asyncio

import pytest

from shardfleet.adapters.dynamodb.items import ATTRIBUTES, item_from_fields, lease_from_item
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import Applied, Lease, LeaseField
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet_testkit.memory import MemoryLeaseStore

KEY = "shardId-000000000002"
# protocol.md §1.2: every attribute there is, and its type.
TYPES = {
    "leaseKey": "S",
    "leaseOwner": "S",
    "leaseCounter": "N",
    "ownerSwitchesSinceCheckpoint": "N",
    "checkpoint": "S",
    "checkpointSubSequenceNumber": "N",
    "parentShardId": "SS",
    "childShardIds": "SS",
    "startingHashKey": "S",
    "endingHashKey": "S",
    "pendingCheckpoint": "S",
    "pendingCheckpointSubSequenceNumber": "N",
    "pendingCheckpointState": "B",
    "throughputKBps": "N",
    "checkpointOwner": "S",
    "entityType": "S",
}

CREATED = {
    "leaseKey": {"S": KEY},
    "leaseCounter": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "parentShardId": {"SS": ["shardId-000000000000", "shardId-000000000001"]},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": "340282366920938463463374607431768211455"},
    "entityType": {"S": "LEASE"},
}
NEW = Lease(
    lease_key=KEY,
    checkpoint=ExtendedSequenceNumber("TRIM_HORIZON"),
    parent_shard_ids=("shardId-000000000000", "shardId-000000000001"),
    hash_key_range=HashKeyRange(0, 2**128 - 1),
)
# A row that Java's KCL 3 wrote: no entityType, an attribute of the future, a pending checkpoint.
JAVA_ROW = {
    **{name: value for name, value in CREATED.items() if name != "entityType"},
    "leaseOwner": {"S": "java-worker"},
    "leaseCounter": {"N": "41"},
    "ownerSwitchesSinceCheckpoint": {"N": "3"},
    "checkpoint": {"S": "100"},
    "checkpointSubSequenceNumber": {"N": "7"},
    "throughputKBps": {"N": "12.5"},
    "pendingCheckpoint": {"S": "120"},
    "pendingCheckpointSubSequenceNumber": {"N": "1"},
    "pendingCheckpointState": {"B": b"\x01\x02"},
    "attributeOfTheFuture": {"M": {"a": {"L": [{"BOOL": True}]}}},
}
PENDING = {
    "pendingCheckpoint",
    "pendingCheckpointSubSequenceNumber",
    "pendingCheckpointState",
}
HANDOVER_ROW = {
    **JAVA_ROW,
    "leaseOwner": {"S": "fleet-s0001"},
    "checkpointOwner": {"S": "java-worker"},
}
UNOWNED_ROW = {name: value for name, value in JAVA_ROW.items() if name != "leaseOwner"}


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


# Operation: (the row before, the change made from it, what differs afterwards, what is gone).
# Together with `create` and `delete` below these are all rows of protocol.md §1.6.
OPERATIONS = {
    "renew": (
        JAVA_ROW,
        lease_changes.renew,
        {"leaseCounter": {"N": "42"}},
        (),
    ),
    "renew with throughput": (
        JAVA_ROW,
        lambda lease: lease_changes.renew(lease, throughput_kbps=1234.5678905),
        {"leaseCounter": {"N": "42"}, "throughputKBps": {"N": "1234.567891"}},
        (),
    ),
    "renew in a handover": (
        HANDOVER_ROW,
        lambda lease: lease_changes.renew(lease, in_handover=True),
        {"leaseCounter": {"N": "42"}},
        (),
    ),
    "take from another": (
        HANDOVER_ROW,
        lambda lease: lease_changes.take(lease, "fleet-s0002"),
        {
            "leaseCounter": {"N": "42"},
            "leaseOwner": {"S": "fleet-s0002"},
            "ownerSwitchesSinceCheckpoint": {"N": "4"},
        },
        ("checkpointOwner",),
    ),
    "take what was mine": (
        JAVA_ROW,
        lambda lease: lease_changes.take(lease, "java-worker"),
        {"leaseCounter": {"N": "42"}},
        (),
    ),
    "take what is nobody's": (
        UNOWNED_ROW,
        lambda lease: lease_changes.take(lease, "fleet-s0002"),
        {"leaseCounter": {"N": "42"}, "leaseOwner": {"S": "fleet-s0002"}},
        (),
    ),
    "assign": (
        JAVA_ROW,
        lambda lease: lease_changes.assign(lease, "fleet-s0001"),
        {
            "leaseCounter": {"N": "42"},
            "leaseOwner": {"S": "fleet-s0001"},
            "ownerSwitchesSinceCheckpoint": {"N": "4"},
        },
        (),
    ),
    "finish a handover": (
        HANDOVER_ROW,
        lambda lease: lease_changes.assign(lease, lease.lease_owner),
        {"leaseCounter": {"N": "42"}},
        ("checkpointOwner",),
    ),
    "initiate a handover": (
        JAVA_ROW,
        lambda lease: lease_changes.initiate_handover(lease, "fleet-s0001"),
        {"leaseOwner": {"S": "fleet-s0001"}, "checkpointOwner": {"S": "java-worker"}},
        (),
    ),
    "evict": (JAVA_ROW, lease_changes.evict, {"leaseCounter": {"N": "42"}}, ("leaseOwner",)),
    "evict in a handover": (
        HANDOVER_ROW,
        lease_changes.evict,
        {"leaseCounter": {"N": "42"}},
        ("checkpointOwner",),
    ),
    "checkpoint": (
        JAVA_ROW,
        lambda lease: lease_changes.checkpoint(lease, ExtendedSequenceNumber("110", 3)),
        {
            "leaseCounter": {"N": "42"},
            "checkpoint": {"S": "110"},
            "checkpointSubSequenceNumber": {"N": "3"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        },
        PENDING,
    ),
    "checkpoint SHARD_END": (
        {**JAVA_ROW, "childShardIds": {"SS": ["shardId-000000000003", "shardId-000000000004"]}},
        lambda lease: lease_changes.checkpoint(lease, AT_SHARD_END),
        {
            "leaseCounter": {"N": "42"},
            "checkpoint": {"S": "SHARD_END"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        },
        PENDING,
    ),
    "meta-info: children": (
        JAVA_ROW,
        lambda lease: lease_changes.set_children(lease, ["shardId-000000000003"]),
        {"childShardIds": {"SS": ["shardId-000000000003"]}},
        (),
    ),
    "meta-info: hash range": (
        without(JAVA_ROW, "startingHashKey", "endingHashKey"),
        lambda lease: lease_changes.set_hash_range(lease, HashKeyRange(5, 9)),
        {"startingHashKey": {"S": "5"}, "endingHashKey": {"S": "9"}},
        (),
    ),
    "rewind (ours)": (
        UNOWNED_ROW,
        lambda lease: lease_changes.rewind(lease, ExtendedSequenceNumber("TRIM_HORIZON")),
        {
            "leaseCounter": {"N": "42"},
            "checkpoint": {"S": "TRIM_HORIZON"},
            "checkpointSubSequenceNumber": {"N": "0"},
            "ownerSwitchesSinceCheckpoint": {"N": "0"},
        },
        PENDING,
    ),
}


def in_order(item):
    """Sets have no order on the wire."""
    return {
        name: {"SS": sorted(value["SS"])} if "SS" in value else value
        for name, value in item.items()
    }


def apply(tables, change):
    result = asyncio.run(tables.leases.apply(change))
    assert isinstance(result, Applied)
    return result.lease


def test_a_created_lease_is_the_kcls_item_and_nothing_more(tables):
    apply(tables, lease_changes.create(NEW))
    assert in_order(tables.item(KEY)) == CREATED


def test_a_created_lease_without_parents_and_range_has_no_attribute_for_them(tables):
    bare = Lease(lease_key=KEY, checkpoint=ExtendedSequenceNumber("LATEST"))
    apply(tables, lease_changes.create(bare))
    expected = without(CREATED, "parentShardId", "startingHashKey", "endingHashKey")
    assert tables.item(KEY) == {**expected, "checkpoint": {"S": "LATEST"}}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_changes_exactly_its_attributes_and_the_counter_as_stated(tables, operation):
    before, change, differs, gone = OPERATIONS[operation]
    tables.put(before)
    apply(tables, change(lease_from_item(tables.item(KEY))))
    assert in_order(tables.item(KEY)) == in_order(without({**before, **differs}, *gone))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_attribute_written_has_the_kcls_type(tables, operation):
    before, change, _, _ = OPERATIONS[operation]
    tables.put(without(before, "attributeOfTheFuture"))
    apply(tables, change(lease_from_item(tables.item(KEY))))
    found = {name: next(iter(value)) for name, value in tables.item(KEY).items()}
    assert found == {name: TYPES[name] for name in found}


def test_a_deleted_lease_is_gone(tables):
    tables.put(JAVA_ROW)
    apply(tables, lease_changes.delete(lease_from_item(JAVA_ROW)))
    assert tables.items() == []


def test_a_row_of_java_is_read_as_it_is_meant():
    assert lease_from_item(HANDOVER_ROW) == Lease(
        lease_key=KEY,
        checkpoint=ExtendedSequenceNumber("100", 7),
        lease_owner="fleet-s0001",
        lease_counter=41,
        owner_switches_since_checkpoint=3,
        checkpoint_owner="java-worker",
        parent_shard_ids=("shardId-000000000000", "shardId-000000000001"),
        hash_key_range=HashKeyRange(0, 2**128 - 1),
        pending_checkpoint=ExtendedSequenceNumber("120", 1),
        pending_checkpoint_state=b"\x01\x02",
        throughput_kbps=12.5,
    )


def test_the_attributes_of_the_code_are_those_of_the_protocol():
    known = {a.name: a.type for attributes in ATTRIBUTES.values() for a in attributes}
    assert {**known, "entityType": "S"} == TYPES
    assert set(ATTRIBUTES) == set(LeaseField)


def test_no_null_is_ever_written():
    for before, change, _, _ in OPERATIONS.values():
        for value in change(lease_from_item(before)).sets.values():
            assert value is not None
    assert {"NULL"}.isdisjoint(t for v in item_from_fields(fields_of(NEW)).values() for t in v)


def test_fleet_state_of_every_kind_leaves_no_item_in_the_lease_table(tables):
    """Nothing of ours is put beside the KCL's leases (protocol.md §1.2, §8 row 19)."""
    state = FleetState(tables.state, FixedClock())

    async def write_all():
        await tables.leases.apply(lease_changes.create(NEW))
        await state.prompt_manager()
        await state.take_lock("manager-1", duration_ms=1_000, longest_ms=1_000)
        await state.pin(KEY, instant_ms=1, created_ms=1)
        await state.write_plan({"at_ms": 1})

    asyncio.run(write_all())
    assert [item["leaseKey"]["S"] for item in tables.items()] == [KEY]


class FixedClock:
    def now_ms(self):
        return 1_700_000_000_000


def test_the_memory_store_holds_what_the_table_holds(tables):
    """The whole life of a lease on both stores: the same leases after each step."""
    memory, after = MemoryLeaseStore(), NEW
    life = [
        lambda _: lease_changes.create(NEW),
        lambda lease: lease_changes.assign(lease, "fleet-s0001"),
        lease_changes.renew,
        lambda lease: lease_changes.checkpoint(lease, ExtendedSequenceNumber("100", 2)),
        lambda lease: lease_changes.initiate_handover(lease, "fleet-s0002"),
        lambda lease: lease_changes.renew(lease, in_handover=True),
        lambda lease: lease_changes.checkpoint(lease, ExtendedSequenceNumber("101")),
        lambda lease: lease_changes.assign(lease, "fleet-s0002"),
        lambda lease: lease_changes.set_children(lease, ["shardId-000000000003"]),
        lambda lease: lease_changes.checkpoint(lease, AT_SHARD_END),
        lease_changes.evict,
        lambda lease: lease_changes.take(lease, "java-worker"),
    ]
    for step in life:
        change = step(after)
        after = apply(tables, change)
        asyncio.run(memory.apply(change))
        assert memory.leases == {KEY: after}
        assert lease_from_item(tables.item(KEY)) == after
    assert after.lease_counter == 9  # create and meta-info move nothing, nor does the handover
    apply(tables, lease_changes.delete(after))
    assert tables.items() == []
