"""The index by owner: being built it is no lease's fault, nor is it when it is not there."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardfleet.errors import ConfigurationError, IndexNotReady
from shardfleet.events.worker import SlotDelayed
from shardfleet.testing.clock import run_virtual
from tests.engine.worker_side.worker_kit import ME, World, key

# aws-cloudformation/cloudformation-coverage-roadmap#1075
BACKFILLING = "Cannot read from backfilling global secondary index: LeaseOwnerToLeaseKeyIndex"


def answer_queries(tables, code, message):
    """Answer each Query as DynamoDB does, before it is sent."""
    answer = SimpleNamespace(status_code=400, headers={}, content=b"")
    parsed = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}
    events = tables.clients.table_reads.meta.events
    events.register("before-call.dynamodb.Query", lambda **_: (answer, parsed))


def test_an_index_that_is_being_built_is_asked_again_later(tables):
    answer_queries(tables, "ValidationException", BACKFILLING)
    with pytest.raises(IndexNotReady, match="backfilling"):
        asyncio.run(tables.leases.keys_owned_by(ME))


def test_an_index_that_is_not_there_is_a_matter_of_configuration(tables):
    tables.clients.table_writes.update_table(
        TableName=tables.lease_table,
        GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": "LeaseOwnerToLeaseKeyIndex"}}],
    )
    with pytest.raises(ConfigurationError, match="LeaseOwnerToLeaseKeyIndex"):
        asyncio.run(tables.leases.keys_owned_by(ME))


def test_a_worker_goes_on_by_its_slot_record_while_the_index_is_being_built():
    async def main():
        world = World()

        async def backfilling(_worker_id):
            raise IndexNotReady(BACKFILLING)

        world.leases.keys_owned_by = backfilling
        world.put(1, 3)
        await world.open_slot()
        await world.change_slot(lambda slot: replace(slot, assigned=(key(0),), assign_seq=1))
        await world.turn()
        assert world.numbers == [1, 2, 3]
        assert {event.error for event in world.told(SlotDelayed)} == {"IndexNotReady"}

    run_virtual(main())
