"""Both tables, made with the project's own clients wherever there is a DynamoDB."""

import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field

from shardfleet.adapters.clients.aws_clients import AwsClients, ConnectionLimits
from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.dynamodb.state import DynamoDBStateStore
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet_testkit.memory import MemoryEvents

LIMITS = ConnectionLimits(writes=8, reads=8, streams=8)


@dataclass
class Tables:
    """A lease table and a fleet-state table, empty, and everything that reaches them."""

    clients: AwsClients
    lease_table: str
    state_table: str
    wired: bool = False
    events: MemoryEvents = field(default_factory=MemoryEvents)
    pools: TablePools = None

    def __post_init__(self):
        self.pools = TablePools(
            writes=ThreadPool("writes", threads=8),
            reads=ThreadPool("reads", threads=8),
            write_client=self.clients.wired_writes if self.wired else self.clients.table_writes,
            read_client=self.clients.wired_reads if self.wired else self.clients.table_reads,
        )

    @property
    def leases(self):
        return DynamoDBLeaseStore(self.lease_table, self.pools, events=self.events)

    @property
    def state(self):
        return DynamoDBStateStore(self.state_table, self.pools)

    def put(self, item):
        self.clients.table_writes.put_item(TableName=self.lease_table, Item=item)

    def item(self, lease_key):
        key = {"leaseKey": {"S": lease_key}}
        return self.clients.table_reads.get_item(TableName=self.lease_table, Key=key).get("Item")

    def delete(self, lease_key):
        key = {"leaseKey": {"S": lease_key}}
        self.clients.table_writes.delete_item(TableName=self.lease_table, Key=key)

    def items(self):
        return self.clients.table_reads.scan(TableName=self.lease_table)["Items"]


def create_lease_table(client, name):
    """Create it with the schema and index of protocol.md §1.1 and §1.3."""
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "LeaseOwnerToLeaseKeyIndex",
                "KeySchema": [
                    {"AttributeName": "leaseOwner", "KeyType": "HASH"},
                    {"AttributeName": "leaseKey", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
    )


def create_state_table(client, name):
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[
            {"AttributeName": "kind", "AttributeType": "S"},
            {"AttributeName": "id", "AttributeType": "S"},
        ],
        KeySchema=[
            {"AttributeName": "kind", "KeyType": "HASH"},
            {"AttributeName": "id", "KeyType": "RANGE"},
        ],
    )


@contextmanager
def tables_of(clients, *, wired=False):
    suffix = uuid.uuid4().hex[:8]
    names = {"lease_table": f"leases-{suffix}", "state_table": f"state-{suffix}"}
    made = Tables(clients, **names, wired=wired)
    create_lease_table(clients.table_writes, made.lease_table)
    create_state_table(clients.table_writes, made.state_table)
    yield made
    clients.table_writes.delete_table(TableName=made.lease_table)
    clients.table_writes.delete_table(TableName=made.state_table)
