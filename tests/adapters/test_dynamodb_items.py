"""What a lease table may hold beside good leases (protocol.md §8 row 19), and large tables."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.adapters.dynamodb import items
from shardfleet.adapters.dynamodb.items import is_foreign, item_from_fields, lease_from_item
from shardfleet.adapters.dynamodb.leases import ForeignItemsFound
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.changes import apply_change, fields_of
from shardfleet.domain.leases.lease import ChangeKind, FieldEquals, Lease, LeaseChange, LeaseField
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import MalformedLease
from tests.adapters.lease_strategies import leases

KEY = "shardId-000000000000"
GOOD = {"leaseKey": {"S": KEY}, "leaseCounter": {"N": "5"}, "checkpoint": {"S": "100"}}
# protocol.md §1.2 and §2: what KCL 3.5 keeps in the lease table, and what nobody knows yet.
FOREIGN = {
    "LEADER": {
        "leaseKey": {"S": "Leader"},
        "entityType": {"S": "LEADER"},
        "ownerName": {"S": "java-worker"},
        "leaseDuration": {"S": "120000"},
        "recordVersionNumber": {"S": "5b5a"},
    },
    "CLIENT_VERSION_MIGRATION": {
        "leaseKey": {"S": "Migration3.0"},
        "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
        "cv": {"S": "CLIENT_VERSION_3X"},
        "mts": {"N": "1700000000000"},
    },
    "TABLE_MIGRATION": {
        "leaseKey": {"S": "TableMigration3.5"},
        "entityType": {"S": "TABLE_MIGRATION"},
        "tm": {"S": "TABLE_MIGRATION_STATUS_PENDING"},
    },
    "STREAM": {
        "leaseKey": {"S": "123456789012:orders:1700000000"},
        "entityType": {"S": "STREAM"},
        "streamId": {"S": "123456789012:orders:1700000000"},
    },
    "WORKER_METRIC_STATS": {
        "leaseKey": {"S": "java-worker"},
        "entityType": {"S": "WORKER_METRIC_STATS"},
        "lut": {"N": "1700000000"},
        "sts": {"M": {"C": {"L": [{"N": "12.5"}]}}},
    },
    "of the future": {"leaseKey": {"S": "x"}, "entityType": {"S": "SOMETHING_NEW"}},
    "an entityType of another type": {"leaseKey": {"S": "y"}, "entityType": {"N": "1"}},
    "what a blind update leaves of a deleted lease": {
        "leaseKey": {"S": "shardId-000000000009"},
        "leaseOwner": {"S": "java-worker"},
    },
}
# A lease with one thing wrong: (what differs, words that the message must have).
MALFORMED = {
    "no counter": ({"leaseCounter": None}, "leaseCounter"),
    "no checkpoint": ({"checkpoint": None}, "checkpoint"),
    "counter of another type": ({"leaseCounter": {"S": "5"}}, "type S found, type N"),
    "counter with a fraction": ({"leaseCounter": {"N": "5.5"}}, "5.5 found"),
    "checkpoint of another type": ({"checkpoint": {"N": "100"}}, "type N found, type S"),
    "checkpoint in words": ({"checkpoint": {"S": "HALFWAY"}}, "HALFWAY"),
    "checkpoint below zero": ({"checkpoint": {"S": "-1"}}, "-1"),
    "checkpoint without end": ({"checkpoint": {"S": "1" * 400}}, "checkpoint"),
    "owner as NULL": ({"checkpointOwner": {"NULL": True}}, "type NULL found, type S"),
    "parents as a list": ({"parentShardId": {"L": []}}, "type L found, type SS"),
    "half a hash range": ({"startingHashKey": {"S": "0"}}, "startingHashKey, endingHashKey"),
    "a hash range backwards": (
        {"startingHashKey": {"S": "9"}, "endingHashKey": {"S": "1"}},
        "9 to 1 found",
    ),
    "a pending checkpoint in words": ({"pendingCheckpoint": {"S": "?"}}, "pendingCheckpoint"),
}


def changed(item, differences):
    return {k: v for k, v in {**item, **differences}.items() if v is not None}


@given(leases)
def test_a_lease_survives_the_way_to_the_table_and_back(lease):
    assert lease_from_item(item_from_fields(fields_of(lease))) == lease


ODD = (
    *({"N": text} for text in ("-1", "+1", "1_0", " 1", "٣", "", "1.5", "0" * 39, "7" * 38)),
    *({"S": text} for text in ("", "5", "05", "LATEST", "٣", "9" * 40)),
    *({"SS": []}, {"SS": ["b", "a"]}, {"B": b"x"}, {"NULL": True}),
)


@given(
    leases,
    st.dictionaries(st.sampled_from(sorted(items._TYPES)), st.sampled_from(ODD), max_size=2),
    st.sets(st.sampled_from(sorted(items._TYPES.keys() - {items.LEASE_KEY})), max_size=2),
)
def test_the_quick_way_reads_what_the_careful_way_reads(lease, odd, absent):
    item = item_from_fields(fields_of(lease)) | odd
    item = {name: typed for name, typed in item.items() if name not in absent}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(items, "_usual_lease", lambda _: None)
        carefully = _read(item)
    assert _read(item) == carefully


def _read(item):
    try:
        return lease_from_item(item)
    except (KeyError, ValueError, MalformedLease) as error:
        return repr(error)


def test_an_ordinary_lease_is_read_the_quick_way():
    assert items._usual_lease(GOOD) == lease_from_item(GOOD)
    assert items._usual_lease(GOOD | {"pendingCheckpoint": {"S": "5"}}) is None


@pytest.mark.parametrize("what", FOREIGN)
def test_an_item_that_is_no_lease_is_foreign(what):
    assert is_foreign(FOREIGN[what])


@pytest.mark.parametrize("differences", [{}, {"entityType": {"S": "LEASE"}}])
def test_a_lease_is_not_foreign_with_or_without_its_entity_type(differences):
    assert not is_foreign(changed(GOOD, differences))


def test_a_scan_skips_foreign_items_and_counts_them(tables):
    tables.put(GOOD)
    for item in FOREIGN.values():
        tables.put(item)
    assert [lease.lease_key for lease in asyncio.run(tables.leases.scan())] == [KEY]
    (event,) = tables.events.events
    assert event == ForeignItemsFound(
        table=tables.lease_table,
        items=len(FOREIGN),
        entity_types=(
            *("", "CLIENT_VERSION_MIGRATION", "LEADER", "SOMETHING_NEW", "STREAM"),
            *("TABLE_MIGRATION", "WORKER_METRIC_STATS"),
        ),
    )


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_item_is_no_lease_to_get_and_is_never_overwritten(tables, what):
    item = FOREIGN[what]
    key = item["leaseKey"]["S"]
    tables.put(item)
    assert asyncio.run(tables.leases.get(key)) is None
    new = Lease(lease_key=key, checkpoint=ExtendedSequenceNumber("TRIM_HORIZON"))
    with pytest.raises(MalformedLease, match=rf"create .*{key}.* (is no lease|not written)"):
        asyncio.run(tables.leases.apply(lease_changes.create(new)))
    assert tables.item(key) == item
    # In the place of a lease of ours, too.
    tables.put(item | {"leaseKey": {"S": KEY}})
    with pytest.raises(MalformedLease, match=f"create of lease {KEY} .* is no lease"):
        asyncio.run(tables.leases.apply(lease_changes.create(replace(new, lease_key=KEY))))
    assert tables.item(KEY) == item | {"leaseKey": {"S": KEY}}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_lease_that_cannot_be_read_is_named_with_what_is_wrong(what):
    differences, words = MALFORMED[what]
    with pytest.raises(MalformedLease) as raised:
        lease_from_item(changed(GOOD, differences))
    assert KEY in str(raised.value)
    assert words in str(raised.value)


def test_a_scan_names_every_lease_that_cannot_be_read(tables):
    tables.put(GOOD)
    tables.put(
        changed(GOOD, {"leaseKey": {"S": "shardId-000000000101"}, "leaseCounter": {"S": "5"}})
    )
    tables.put(changed(GOOD, {"leaseKey": {"S": "shardId-000000000102"}, "checkpoint": {"S": "?"}}))
    with pytest.raises(MalformedLease, match=r"(?s)(?=.*101)(?=.*102)"):
        asyncio.run(tables.leases.scan())


def test_a_write_that_the_types_of_an_item_forbid_is_a_malformed_lease(tables):
    """Assign adds 1 to the counter; its condition does not look at it (protocol.md §1.6)."""
    seen = lease_from_item(GOOD)
    tables.put(changed(GOOD, {"leaseCounter": {"S": "five"}}))
    with pytest.raises(MalformedLease, match=KEY):
        asyncio.run(tables.leases.apply(lease_changes.assign(seen, "fleet-s0001")))


def test_unknown_attributes_are_ignored_and_kept(tables):
    more = {"attributeOfTheFuture": {"M": {"x": {"L": [{"NULL": True}]}}}}
    tables.put(changed(GOOD, more))
    seen = asyncio.run(tables.leases.get(KEY))
    asyncio.run(tables.leases.apply(lease_changes.renew(seen)))
    assert tables.item(KEY) == {**changed(GOOD, more), "leaseCounter": {"N": "6"}}


def test_numbers_that_java_never_wrote_read_as_zero_and_meet_conditions_as_zero(tables):
    tables.put(GOOD)  # no sub-sequence number, no owner switches
    seen = asyncio.run(tables.leases.get(KEY))
    assert (seen.checkpoint, seen.owner_switches_since_checkpoint) == (
        ExtendedSequenceNumber("100", 0),
        0,
    )
    result = asyncio.run(
        tables.leases.apply(lease_changes.checkpoint(seen, ExtendedSequenceNumber("100", 0)))
    )
    assert result.lease.lease_counter == 6
    tables.put(GOOD)
    zero = (
        FieldEquals(LeaseField.CHECKPOINT, ExtendedSequenceNumber("100", 0)),
        FieldEquals(LeaseField.OWNER_SWITCHES, 0),
    )
    touch = LeaseChange(
        operation="touch",
        lease_key=KEY,
        kind=ChangeKind.UPDATE,
        conditions=zero,
        sets={LeaseField.LEASE_OWNER: "me"},
    )
    assert asyncio.run(tables.leases.apply(touch)) == apply_change(touch, seen)


@pytest.fixture
def small_pages(tables):
    """Let the service answer two items at a time, as it does with 1 MiB (DynamoDB quota)."""

    def limited(params, **_):
        return {**params, "Limit": 2}

    events = tables.clients.table_reads.meta.events
    for operation in ("Scan", "Query"):
        events.register(f"provide-client-params.dynamodb.{operation}", limited)


@pytest.mark.usefixtures("small_pages")
def test_scan_and_index_query_and_document_list_read_all_pages(tables):
    keys = [f"shardId-{n:012d}" for n in range(7)]
    for key in keys:
        tables.put({**GOOD, "leaseKey": {"S": key}, "leaseOwner": {"S": "me"}})

    async def documents():
        for key in keys:
            await tables.state.write("slot", key, {}, expected_version=None)
        await tables.state.write("other", "x", {}, expected_version=None)
        return [document.id for document in await tables.state.list("slot")]

    assert [lease.lease_key for lease in asyncio.run(tables.leases.scan())] == keys
    assert sorted(asyncio.run(tables.leases.keys_owned_by("me"))) == keys
    assert asyncio.run(documents()) == keys
