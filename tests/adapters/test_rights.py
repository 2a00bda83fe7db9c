"""Which requests the ports come down to: rights (hazard H19) and consistency (hazard H1)."""

import asyncio

import pytest

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber

LEASE = Lease(lease_key="shardId-000000000000", checkpoint=ExtendedSequenceNumber("100"))


@pytest.fixture
def sent(moto_tables):
    """Note each request to DynamoDB as (table, index, operation)."""
    seen = set()

    def note(params, model, **_):
        seen.add((params["TableName"].partition("-")[0], params.get("IndexName"), model.name))

    for client in (moto_tables.clients.table_reads, moto_tables.clients.table_writes):
        client.meta.events.register("provide-client-params.dynamodb.*", note)
    return seen


async def what_both_do(tables):
    """Everything a worker may ask of the two tables."""
    leases, state = tables.leases, tables.state
    await leases.apply(lease_changes.create(LEASE))
    for change in (lease_changes.renew, lease_changes.evict):
        await leases.apply(change(LEASE))
    await leases.get(LEASE.lease_key)
    await leases.keys_owned_by("orders-s0001")
    await state.write("slot", "s0001", {}, expected_version=None)
    await state.write("slot", "s0001", {}, expected_version=1)
    await state.read("slot", "s0001")
    await state.increment("prompt", "manager")
    await state.increment("prompt", "manager")


WORKER = {
    ("leases", "LeaseOwnerToLeaseKeyIndex", "Query"),
    ("leases", None, "GetItem"),
    ("leases", None, "PutItem"),
    ("leases", None, "UpdateItem"),
    ("state", None, "GetItem"),
    ("state", None, "UpdateItem"),
}


def test_a_worker_neither_deletes_nor_scans(moto_tables, sent):
    asyncio.run(what_both_do(moto_tables))
    assert sent == WORKER


def test_only_the_manager_scans_lists_and_deletes(moto_tables, sent):
    async def main():
        await what_both_do(moto_tables)
        await moto_tables.leases.scan()
        await moto_tables.leases.apply(lease_changes.delete(LEASE))
        await moto_tables.state.list("slot")
        await moto_tables.state.delete("slot", "s0001", expected_version=1)

    asyncio.run(main())
    assert sent - WORKER == {
        ("leases", None, "Scan"),
        ("leases", None, "DeleteItem"),
        ("state", None, "Query"),
        ("state", None, "DeleteItem"),
    }


def test_leases_and_documents_are_read_consistently_and_only_scan_and_index_are_not(moto_tables):
    """A decision about ownership must not rest on an old copy (hazards H1, H16)."""
    read = {}

    def note(params, model, **_):
        key = params["TableName"].partition("-")[0], model.name
        read[key] = params.get("ConsistentRead", False)

    events = moto_tables.clients.table_reads.meta.events
    events.register("provide-client-params.dynamodb.*", note)

    async def main():
        await moto_tables.leases.get(LEASE.lease_key)
        await moto_tables.leases.scan()
        await moto_tables.leases.keys_owned_by("orders-s0001")
        await moto_tables.state.read("slot", "s0001")
        await moto_tables.state.list("slot")

    asyncio.run(main())
    assert read == {
        ("leases", "GetItem"): True,
        ("leases", "Scan"): False,  # as Java; the conditions of the writes make up for it
        ("leases", "Query"): False,  # an index cannot be read consistently
        ("state", "GetItem"): True,
        ("state", "Query"): True,
    }


def test_every_lease_write_is_conditional_and_brings_the_stored_item_back(moto_tables):
    sent = []

    def note(params, model, **_):
        sent.append((model.name, params))

    events = moto_tables.clients.table_writes.meta.events
    events.register("provide-client-params.dynamodb.*", note)

    async def main():
        await moto_tables.leases.apply(lease_changes.create(LEASE))
        await moto_tables.leases.apply(lease_changes.renew(LEASE))
        await moto_tables.leases.apply(lease_changes.delete(LEASE))

    asyncio.run(main())
    assert [name for name, _ in sent] == ["PutItem", "UpdateItem", "DeleteItem"]
    for _, params in sent:
        assert params["ConditionExpression"]
        assert params["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
