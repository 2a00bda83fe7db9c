"""
A fleet without a cloud: its tables in moto, its configuration as given.

What finds the tables from a stack's name needs CloudFormation and Lambda; that half is shown
against the embedded AWS in tests/end_to_end/test_cli.py.
"""

import boto3
import pytest
from botocore.session import Session
from moto import mock_aws

from shardfleet.adapters.dynamodb.items import item_from_fields
from shardfleet.config import FleetConfig
from shardfleet.domain.leases.changes import fields_of
from shardfleet_ops.cli import fleet_access

CONFIG = FleetConfig(
    fleet="clicks",
    stream_arn="arn:aws:kinesis:eu-central-1:123456789012:stream/clicks",
    lease_table="leases",
    state_table="state",
)
# What `cost` knows of the functions and the rest of a fleet.
AROUND = {
    "alarm_metrics": 20,
    "composites": 1,
    "dashboards": 1,
    "worker_mb": 512,
    "manager_mb": 256,
    "worker_timeout_ms": 900_000,
}


class MotoFleet:
    """The two tables, and short ways to fill and to read them."""

    def __init__(self):
        self.client = boto3.client("dynamodb")
        self._create("leases", "leaseKey")
        self._create("state", "kind", "id")
        self.state = boto3.resource("dynamodb").Table("state")

    def _create(self, name, *keys):
        self.client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[
                {"AttributeName": key, "KeyType": kind}
                for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
            ],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        )

    def put_lease(self, lease):
        self.client.put_item(TableName="leases", Item=item_from_fields(fields_of(lease)))

    def put_document(self, kind, name, body):
        self.state.put_item(Item={"kind": kind, "id": name, "version": 1, "body": body})

    def documents(self):
        return sorted((item["kind"], item["id"]) for item in self.state.scan()["Items"])


def once(create_client):
    """Return what makes one client of each configuration, for all commands of a test."""
    made = {}

    def create(session, service, *, config=None, **options):
        key = (service, repr(config and sorted(vars(config).items())), repr(options))
        if key not in made:
            made[key] = create_client(session, service, config=config, **options)
        return made[key]

    return create


@pytest.fixture
def fleet(monkeypatch):
    monkeypatch.setattr(fleet_access, "fleet_config", lambda stack: CONFIG)
    monkeypatch.setattr(Session, "create_client", once(Session.create_client))
    with mock_aws():
        yield MotoFleet()
