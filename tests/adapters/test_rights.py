"""Which AWS actions the ports of each function come down to (hazard H19)."""

import asyncio

import pytest

from shardfleet.domain import lease_changes
from shardfleet.domain.leases import Lease
from shardfleet.domain.sequence import ExtendedSequenceNumber

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
