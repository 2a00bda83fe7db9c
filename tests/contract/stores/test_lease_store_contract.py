"""
One contract for every lease store: memory, DynamoDB on the embedded AWS, DynamoDB Local.

What a change means is said once, by `apply_change`; each store must answer, and leave behind,
exactly what it says.
"""

import asyncio

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.adapters.dynamodb.tables import ensure_lease_table, ensure_state_table
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.changes import apply_change, fields_of
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeKind,
    CheckpointNotPast,
    FieldAbsent,
    FieldEquals,
    FieldPresent,
    Gone,
    Lease,
    LeaseField,
    Lost,
)
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet_testkit.memory import MemoryLeaseStore
from tests.adapters.lease_strategies import KEY, REAL, free_changes, leases, real_changes
from tests.contract.stores.conftest import PLACES, WIRED

SHARED_TABLE = settings(
    # The table outlives the examples; each example first puts the one item it needs.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
OWNED = Lease(
    lease_key=KEY,
    checkpoint=ExtendedSequenceNumber("100", 2),
    lease_owner="fleet-s0001",
    lease_counter=5,
)
HANDOVER = replace(OWNED, lease_owner="fleet-s0002", checkpoint_owner="fleet-s0001")
UNOWNED = replace(OWNED, lease_owner=None)
FINISHED = replace(OWNED, checkpoint=ExtendedSequenceNumber("SHARD_END"))


class Memory:
    """The memory store, loaded with one lease or none."""

    def __init__(self):
        self.store = MemoryLeaseStore()

    def load(self, *stored):
        self.store.leases = {lease.lease_key: lease for lease in stored}


class DynamoDB:
    """The DynamoDB store; loading goes around it, by plain items."""

    def __init__(self, tables):
        self.tables = tables
        self.store = tables.leases

    def load(self, *stored):
        if not stored:
            self.tables.delete(KEY)
        for lease in stored:
            self.tables.put(item_from_fields(fields_of(lease)))


@pytest.fixture(params=["memory", *PLACES, *WIRED])
def loaded(request, tables_at):
    return Memory() if request.param == "memory" else DynamoDB(tables_at(request.param))


def apply(loaded, change):
    return asyncio.run(loaded.store.apply(change))


def stored(loaded):
    return asyncio.run(loaded.store.get(KEY))


def check(loaded, change, before):
    """Apply to what is stored; answer and remainder must be those of the reference."""
    loaded.load(*([before] if before else []))
    expected = apply_change(change, before)
    assert apply(loaded, change) == expected
    if isinstance(expected, Applied):
        after = None if change.kind is ChangeKind.DELETE else expected.lease
    else:
        after = before
    assert stored(loaded) == after


@SHARED_TABLE
@given(change=free_changes(), before=st.none() | leases)
def test_any_change_is_what_the_reference_says(loaded, change, before):
    check(loaded, change, before)


@SHARED_TABLE
@given(made=real_changes(), before=st.none() | leases)
def test_any_operation_on_any_lease_is_what_the_reference_says(loaded, made, before):
    _, change = made
    check(loaded, change, before)


@SHARED_TABLE
@given(made=real_changes())
def test_any_operation_on_the_lease_as_it_was_seen_is_what_the_reference_says(loaded, made):
    seen, change = made
    check(loaded, change, None if change.kind is ChangeKind.PUT else seen)


@SHARED_TABLE
@given(
    before=leases,
    counter_moved=st.booleans(),
    number=st.sampled_from(["7", "123456789", REAL, "SHARD_END"]),
)
@example(before=FINISHED, counter_moved=False, number=REAL)
@example(before=OWNED, counter_moved=False, number="99")
def test_a_checkpoint_moves_forward_or_is_refused(loaded, before, counter_moved, number):
    seen = replace(before, lease_counter=before.lease_counter + counter_moved)
    check(loaded, lease_changes.checkpoint(seen, ExtendedSequenceNumber(number, 1)), before)


EXISTS = FieldPresent(LeaseField.LEASE_KEY)
COUNTER_5 = FieldEquals(LeaseField.LEASE_COUNTER, 5)
NO_HANDOVER = FieldAbsent(LeaseField.CHECKPOINT_OWNER)
NO_OWNER = FieldAbsent(LeaseField.LEASE_OWNER)
MINE = FieldEquals(LeaseField.LEASE_OWNER, "fleet-s0001")
NEXT = FieldEquals(LeaseField.LEASE_OWNER, "fleet-s0002")
HANDED_BY_ME = FieldEquals(LeaseField.CHECKPOINT_OWNER, "fleet-s0001")
TO_101 = ExtendedSequenceNumber("101")
NOT_PAST = CheckpointNotPast(TO_101)

# Operation, a stored lease on which exactly one term of its condition is false, that term.
# The AND-terms are those of protocol.md §1.6; with the last two rows, of hazards H8 and H15.
ONE_TERM_FALSE = {
    "create: absent": (
        lease_changes.create(UNOWNED), UNOWNED, FieldAbsent(LeaseField.LEASE_KEY),
    ),
    "renew: counter": (lease_changes.renew(OWNED), replace(OWNED, lease_counter=6), COUNTER_5),
    "renew: no handover": (lease_changes.renew(OWNED), HANDOVER, NO_HANDOVER),
    "renew in handover: counter": (
        lease_changes.renew(HANDOVER, in_handover=True),
        replace(HANDOVER, lease_counter=4),
        COUNTER_5,
    ),
    "take: counter": (
        lease_changes.take(OWNED, "fleet-s0002"), replace(OWNED, lease_counter=6), COUNTER_5,
    ),
    "assign: owner": (
        lease_changes.assign(OWNED, "fleet-s0002"), replace(OWNED, lease_owner="other"), MINE,
    ),
    "assign: owner gone": (lease_changes.assign(OWNED, "fleet-s0002"), UNOWNED, MINE),
    "assign: no owner": (lease_changes.assign(UNOWNED, "fleet-s0002"), OWNED, NO_OWNER),
    "assign: no handover": (
        lease_changes.assign(OWNED, "fleet-s0002"),
        replace(OWNED, checkpoint_owner="other"),
        NO_HANDOVER,
    ),
    "assign: handed over by me": (
        lease_changes.assign(HANDOVER, "fleet-s0002"),
        replace(HANDOVER, checkpoint_owner=None),
        HANDED_BY_ME,
    ),
    "assign expired: counter": (
        lease_changes.assign(OWNED, "fleet-s0002", expired=True),
        replace(OWNED, lease_counter=6),
        COUNTER_5,
    ),
    "handover: owner": (
        lease_changes.initiate_handover(OWNED, "fleet-s0002"),
        replace(OWNED, lease_owner="other"),
        MINE,
    ),
    "handover: none before": (
        lease_changes.initiate_handover(OWNED, "fleet-s0002"),
        replace(OWNED, checkpoint_owner="other"),
        NO_HANDOVER,
    ),
    "handover as read: counter": (
        lease_changes.initiate_handover(OWNED, "fleet-s0002", as_read=True),
        replace(OWNED, lease_counter=6),
        COUNTER_5,
    ),
    "evict: owner": (lease_changes.evict(OWNED), replace(OWNED, lease_owner="other"), MINE),
    "evict: no handover": (
        lease_changes.evict(OWNED), replace(OWNED, checkpoint_owner="other"), NO_HANDOVER,
    ),
    "evict in handover: next owner": (
        lease_changes.evict(HANDOVER), replace(HANDOVER, lease_owner="other"), NEXT,
    ),
    "checkpoint: counter": (
        lease_changes.checkpoint(OWNED, TO_101), replace(OWNED, lease_counter=4), COUNTER_5,
    ),
    "checkpoint: not past": (
        lease_changes.checkpoint(OWNED, TO_101),
        replace(OWNED, checkpoint=ExtendedSequenceNumber("101", 1)),
        NOT_PAST,
    ),
    "checkpoint: not past SHARD_END": (
        lease_changes.checkpoint(OWNED, TO_101),
        replace(OWNED, checkpoint=ExtendedSequenceNumber("SHARD_END")),
        NOT_PAST,
    ),
    "delete: counter": (lease_changes.delete(OWNED), replace(OWNED, lease_counter=6), COUNTER_5),
    "rewind: counter": (
        lease_changes.rewind(UNOWNED, TO_101), replace(UNOWNED, lease_counter=6), COUNTER_5,
    ),
    "rewind: no owner": (lease_changes.rewind(UNOWNED, TO_101), OWNED, NO_OWNER),
    "rewind: no handover": (
        lease_changes.rewind(UNOWNED, TO_101),
        replace(UNOWNED, checkpoint_owner="other"),
        NO_HANDOVER,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ONE_TERM_FALSE)
def test_each_term_of_each_condition_alone_refuses_the_write(loaded, case):
    change, before, term = ONE_TERM_FALSE[case]
    loaded.load(before)
    assert apply(loaded, change) == Lost(before, (term,))
    assert stored(loaded) == before


ON_NOTHING = {
    "renew": lease_changes.renew(OWNED),
    "renew in handover": lease_changes.renew(OWNED, in_handover=True),
    "take": lease_changes.take(OWNED, "fleet-s0002"),
    "assign": lease_changes.assign(OWNED, "fleet-s0002"),
    "assign unowned": lease_changes.assign(UNOWNED, "fleet-s0002"),
    "handover": lease_changes.initiate_handover(OWNED, "fleet-s0002"),
    "evict": lease_changes.evict(OWNED),
    "evict unowned": lease_changes.evict(UNOWNED),
    "checkpoint": lease_changes.checkpoint(OWNED, TO_101),
    "set_children": lease_changes.set_children(OWNED, ["shardId-000000000001"]),
    "set_hash_range": lease_changes.set_hash_range(OWNED, HashKeyRange(0, 1)),
    "delete": lease_changes.delete(OWNED),
    "rewind": lease_changes.rewind(UNOWNED, TO_101),
}


@pytest.mark.parametrize("operation", ON_NOTHING)
def test_no_operation_brings_a_deleted_lease_back(loaded, operation):
    loaded.load()
    assert apply(loaded, ON_NOTHING[operation]) == Gone()
    assert stored(loaded) is None


def test_a_scan_returns_all_leases_in_order_of_their_keys(loaded):
    several = [replace(OWNED, lease_key=f"shardId-{n:012d}") for n in (3, 1, 2)]
    loaded.load(*several)
    found = asyncio.run(loaded.store.scan())
    assert list(found) == sorted(several, key=lambda lease: lease.lease_key)


def test_a_scan_returns_more_than_a_page_holds(loaded):
    """A page of DynamoDB has at most 1 MB; a KCL application may keep its state in a lease."""
    state = {"pending_checkpoint": TO_101, "pending_checkpoint_state": b"x" * 390_000}
    several = [replace(OWNED, lease_key=f"shardId-{n:012d}", **state) for n in range(4)]
    loaded.load(*several)
    assert list(asyncio.run(loaded.store.scan())) == several


def test_the_index_finds_leases_by_owner_and_during_a_handover_by_the_next_owner(loaded):
    first, second, third = (f"shardId-{n:012d}" for n in range(3))
    loaded.load(
        replace(OWNED, lease_key=first),
        replace(HANDOVER, lease_key=second),
        replace(UNOWNED, lease_key=third),
    )
    assert asyncio.run(loaded.store.keys_owned_by("fleet-s0001")) == [first]
    assert asyncio.run(loaded.store.keys_owned_by("fleet-s0002")) == [second]
    assert asyncio.run(loaded.store.keys_owned_by("nobody")) == []


def test_of_many_takers_at_once_exactly_one_wins(loaded):
    loaded.load(OWNED)

    async def race():
        workers = [f"worker-{n}" for n in range(16)]
        takes = [loaded.store.apply(lease_changes.take(OWNED, worker)) for worker in workers]
        return workers, await asyncio.gather(*takes)

    workers, answers = asyncio.run(race())
    winners = [w for w, a in zip(workers, answers, strict=True) if isinstance(a, Applied)]
    assert len(winners) == 1
    assert (stored(loaded).lease_owner, stored(loaded).lease_counter) == (winners[0], 6)


def test_a_lease_table_is_made_once_as_the_kcl_makes_it(dynamodb, unique):
    """Schema and index: protocol.md §1.1, §1.3; what a KCL reads of it before it begins."""
    assert ensure_lease_table(dynamodb, unique)
    assert not ensure_lease_table(dynamodb, unique)
    found = dynamodb.describe_table(TableName=unique)["Table"]
    dynamodb.delete_table(TableName=unique)
    (index,) = found["GlobalSecondaryIndexes"]
    assert (found["TableStatus"], index["IndexStatus"]) == ("ACTIVE", "ACTIVE")
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert found["KeySchema"] == [{"AttributeName": "leaseKey", "KeyType": "HASH"}]
    assert index["IndexName"] == "LeaseOwnerToLeaseKeyIndex"
    assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}
    assert index["KeySchema"] == [
        {"AttributeName": "leaseOwner", "KeyType": "HASH"},
        {"AttributeName": "leaseKey", "KeyType": "RANGE"},
    ]


def test_a_state_table_is_made_once_and_expires_what_says_so(dynamodb, unique):
    assert ensure_state_table(dynamodb, unique)
    assert not ensure_state_table(dynamodb, unique)
    keys = dynamodb.describe_table(TableName=unique)["Table"]["KeySchema"]
    assert {key["AttributeName"]: key["KeyType"] for key in keys} == {"kind": "HASH", "id": "RANGE"}
    told = dynamodb.describe_time_to_live(TableName=unique)["TimeToLiveDescription"]
    assert told["AttributeName"] == "expires"
    dynamodb.delete_table(TableName=unique)
