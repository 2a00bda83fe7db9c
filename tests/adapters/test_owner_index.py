"""The index by owner: being built it is no lease's fault, nor is it when it is not there."""

import asyncio
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from shardfleet.adapters.clients.aws_clients import AwsClients
from shardfleet.errors import ConfigurationError, IndexNotReady
from shardfleet.events.worker import SlotDelayed
from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_ops.aws.owner_index import DynamoDBOwnerIndex
from tests.adapters.loopback import doubted
from tests.adapters.tables import LIMITS, tables_of
from tests.adapters.test_unreadable_items import put
from tests.engine.worker_side.worker_kit import ME, World, a_lease, key
from tests.virtual import virtual

INDEX = "LeaseOwnerToLeaseKeyIndex"
# aws-cloudformation/cloudformation-coverage-roadmap#1075
BACKFILLING = f"Cannot read from backfilling global secondary index: {INDEX}"


def change_index(tables, change):
    """Take the index away, or make it anew."""
    tables.clients.table_writes.update_table(
        TableName=tables.lease_table,
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexUpdates=[change],
    )


def answer_instead(tables, operation, code, message):
    """Answer each such call as DynamoDB does, before it is sent."""
    answer = SimpleNamespace(status_code=400, headers={}, content=b"")
    parsed = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}
    for client in (tables.clients.table_reads, tables.clients.table_writes):
        client.meta.events.register(
            f"before-call.dynamodb.{operation}", lambda **_: (answer, parsed)
        )


def test_an_index_that_is_being_built_is_asked_again_later(tables):
    answer_instead(tables, "Query", "ValidationException", BACKFILLING)
    with pytest.raises(IndexNotReady, match="backfilling"):
        asyncio.run(tables.leases.keys_owned_by(ME))


@pytest.mark.processes
def test_an_index_that_the_embedded_aws_is_building_is_asked_again_until_it_is_there(monkeypatch):
    """D11, in the engine's own answer; a table of a KCL 2 gets the index when a fleet comes."""
    with EmbeddedAws(behaviour=AwsBehaviour(index_built_s=5.0)) as aws:
        for name, value in aws.environment().items():
            monkeypatch.setenv(name, value)
        with tables_of(AwsClients(LIMITS)) as tables:
            change_index(tables, {"Delete": {"IndexName": INDEX}})
            put(tables, a_lease(0))
            with doubted(ConfigurationError, match=INDEX):
                asyncio.run(tables.leases.keys_owned_by(ME))
            keys = [
                {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                {"AttributeName": "leaseKey", "KeyType": "RANGE"},
            ]
            projected = {"Projection": {"ProjectionType": "KEYS_ONLY"}}
            change_index(tables, {"Create": {"IndexName": INDEX, "KeySchema": keys, **projected}})
            with pytest.raises(IndexNotReady, match="backfilling"):
                asyncio.run(tables.leases.keys_owned_by(ME))
            deadline_s = time.monotonic() + 60
            while time.monotonic() < deadline_s:
                with suppress(IndexNotReady):
                    assert asyncio.run(tables.leases.keys_owned_by(ME)) == [key(0)]
                    return
                time.sleep(0.2)
            pytest.fail("the index was never there")


def test_an_index_that_somebody_else_has_begun_to_make_is_being_made(tables):
    """D12: a KCL 3, or another command, was quicker."""
    answer_instead(tables, "UpdateTable", "ResourceInUseException", "Attempt to change a resource")
    asyncio.run(DynamoDBOwnerIndex(tables.lease_table, tables.pools).make())


def test_an_index_that_is_not_there_is_a_matter_of_configuration(tables):
    change_index(tables, {"Delete": {"IndexName": INDEX}})
    with doubted(ConfigurationError, match=INDEX):
        asyncio.run(tables.leases.keys_owned_by(ME))


@virtual
async def test_a_worker_goes_on_by_its_slot_record_while_the_index_is_being_built():
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
