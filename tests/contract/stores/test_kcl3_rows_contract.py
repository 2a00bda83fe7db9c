"""The rows of a KCL 3's workers, in both layouts, attribute by attribute (protocol.md §2.6)."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.adapters.dynamodb.kcl3 import DynamoDBKcl3Store
from shardfleet.domain.balance.kcl3 import Kcl3, WorkerRow
from shardfleet.runtime.bootstrap import TurnThreads, open_sandbox
from shardfleet.runtime.managing import manager_ports

JAVA = {"lut": {"N": "1700000000"}, "sts": {"M": {"C": {"L": [{"N": "12.5"}]}}},
        "opr": {"M": {"C": {"L": [{"N": "100"}]}}}}  # fmt: skip
MIGRATED = {"cv": {"S": "CLIENT_VERSION_3X"}, "mts": {"N": "1"}}
OURS = WorkerRow("f-s0001", 1_700_000_020)
ROW = {"lut": {"N": "1700000020"}, "sts": {"M": {}}, "opr": {"M": {}}}
OTHERS = WorkerRow("java-1", 1_700_000_000)


@pytest.fixture
def store(tables):
    return DynamoDBKcl3Store(tables.lease_table, tables.pools, own=own_tables(tables))


def own_tables(tables):
    """WorkerMetricsTableConfig and CoordinatorStateTableConfig, by the application's name."""
    return f"{tables.lease_table}-WorkerMetricStats", f"{tables.lease_table}-CoordinatorState"


def make(tables, name, key, *items):
    """Make a table of the KCL's, as its classes do: one key, and what they write."""
    client = tables.clients.table_writes
    client.create_table(
        TableName=name,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
    )
    client.get_waiter("table_exists").wait(TableName=name)
    for item in items:
        client.put_item(TableName=name, Item=item)
    return lambda: client.scan(TableName=name)["Items"]


def found(store, *foreign):
    return asyncio.run(store.found(foreign))


def test_without_a_kcl_3_there_is_nothing_and_no_error(store):
    assert found(store) == Kcl3()


def test_until_3_4_rows_have_a_table_of_their_own(tables, store):
    metrics, state = own_tables(tables)
    rows = make(tables, metrics, "wid", {"wid": {"S": "java-1"}} | JAVA)
    assert found(store) == Kcl3(rows=(OTHERS,))
    make(tables, state, "key", {"key": {"S": "Migration3.0"}} | MIGRATED)
    asyncio.run(store.write(OURS))

    assert found(store) == Kcl3(rows=found(store).rows, version="CLIENT_VERSION_3X")
    assert set(found(store).rows) == {OTHERS, OURS}
    assert {"wid": {"S": "f-s0001"}} | ROW in rows()
    asyncio.run(store.delete(WorkerRow(OURS.worker_id, OURS.updated_s - 1)))
    assert len(rows()) == 2
    asyncio.run(store.delete(OURS))
    assert [row["wid"]["S"] for row in rows()] == ["java-1"]
    assert tables.items() == []


def test_a_process_s_row_has_its_cpu_as_java_s_has_where_it_is_known(tables, store):
    metrics, _ = own_tables(tables)
    rows = make(tables, metrics, "wid", {"wid": {"S": "java-1"}} | JAVA)
    found(store)
    asyncio.run(store.write(replace(OURS, cpu=125)))
    assert {"wid": {"S": "f-s0001"}} | JAVA | {"lut": ROW["lut"]} in rows()
    asyncio.run(store.write(OURS))
    assert {"wid": {"S": "f-s0001"}} | ROW in rows()


def test_tables_with_names_of_their_own_are_those_that_the_manager_looks_in(tables):
    """K2: the application is `orders`, its lease table another; without it Java is a KCL 2."""
    orders = tables.lease_table.replace("leases", "orders")
    names = {"METRICS": f"{orders}-WorkerMetricStats", "STATE": f"{orders}-CoordinatorState"}
    rows = make(tables, names["METRICS"], "wid", {"wid": {"S": "java-1"}} | JAVA)
    make(tables, names["STATE"], "key", {"key": {"S": "Migration3.0"}} | MIGRATED)
    env = {
        "SHARDFLEET_FLEET": "f",
        "SHARDFLEET_STREAM_ARN": "arn:aws:kinesis:eu-central-1:111122223333:stream/orders",
        "SHARDFLEET_LEASE_TABLE": tables.lease_table,
        "SHARDFLEET_STATE_TABLE": "state",
        **{f"SHARDFLEET_KCL_{name}_TABLE": value for name, value in names.items()},
    }

    async def main():
        sandbox = open_sandbox(env)
        threads = TurnThreads(sandbox.config)
        kcl3 = manager_ports(sandbox, threads, launcher=None).kcl3
        found = await kcl3.found(())
        await kcl3.write(OURS)
        assert await threads.close(within_ms=10_000)
        return found

    assert asyncio.run(main()) == Kcl3(rows=(OTHERS,), version="CLIENT_VERSION_3X")
    assert {"wid": {"S": "f-s0001"}} | ROW in rows()
    assert tables.items() == []


def test_since_3_5_rows_are_items_of_the_lease_table(tables, store):
    of = {"entityType": {"S": "WORKER_METRIC_STATS"}}
    # A KCL 3.5 says what it can do.
    tables.put({"leaseKey": {"S": "java-1"}, "sup": {"N": "1"}} | of | JAVA)
    migration = {"entityType": {"S": "CLIENT_VERSION_MIGRATION"}}
    tables.put({"leaseKey": {"S": "Migration3.0"}} | migration | MIGRATED)
    foreign = asyncio.run(tables.leases.survey()).foreign
    newer = replace(OTHERS, support=1)
    wanted = Kcl3(rows=(newer,), version="CLIENT_VERSION_3X", is_single=True)
    assert found(store, *foreign) == wanted
    asyncio.run(store.write(OURS))

    assert tables.item("f-s0001") == {"leaseKey": {"S": "f-s0001"}} | of | ROW
    # A lease is none of them, whatever its key.
    assert asyncio.run(tables.leases.survey()).leases == ()
    asyncio.run(store.delete(OURS))
    assert tables.item("f-s0001") is None
