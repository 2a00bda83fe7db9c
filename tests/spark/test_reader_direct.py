"""The reader class without a JVM, against the embedded AWS: from a fleet's leases, and pickled."""

import asyncio
import uuid

import pytest
from pyspark import cloudpickle

from shardfleet.adapters.dynamodb.leases import DynamoDBLeaseStore, TablePools
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ConfigurationError
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.stream_reader import KinesisStreamReader


class NoEvents:
    def emit(self, event):
        pass


@pytest.fixture
def store_leases(embedded_aws):
    """Make a lease table with these leases: `store_leases([Lease(...)])` returns its name."""
    client = embedded_aws.client("dynamodb")

    def store(leases):
        name = f"fleet-{uuid.uuid4().hex[:8]}"
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "leaseKey", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        pool = ThreadPool("test-leases", threads=1)
        pools = TablePools(writes=pool, reads=pool, write_client=client, read_client=client)
        table = DynamoDBLeaseStore(name, pools, events=NoEvents())

        async def write():
            for lease in leases:
                await table.apply(lease_changes.create(lease))
            await pool.close(within_ms=60_000)

        asyncio.run(write())
        return name

    return store


@pytest.fixture
def make_reader(embedded_aws, tmp_path):
    def make(stream, **options):
        given = {
            "stream": stream,
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
            "storeEndpoint": embedded_aws.endpoint_url,
            "sealStore": f"file:{tmp_path}/seals",
            **options,
        }
        return KinesisStreamReader(read_options(SourceOptions, given))

    return make


def put_aggregate(aws, stream):
    """Put one aggregate of five user records; return its shard and sequence number."""
    users = [OutgoingRecord("k", b"%d" % n) for n in range(5)]
    answer = aws.client("kinesis").put_record(
        StreamName=stream, Data=aggregate(users), PartitionKey="k"
    )
    return answer["ShardId"], answer["SequenceNumber"]


def read_batch(reader, start):
    """Plan a batch here and read it as an executor would: with a pickled reader and partition."""
    end = reader.latestOffset(start)
    data = []
    for partition in reader.partitions(start, end):
        away, sent = cloudpickle.loads(cloudpickle.dumps((reader, partition)))
        for batch in away.read(sent):
            data += batch["data"].to_pylist()
    return end, data


def test_a_query_goes_on_where_a_drained_fleet_stopped_inside_an_aggregate(
    embedded_aws, make_stream, store_leases, make_reader
):
    stream = make_stream(shards=2)
    shard_id, number = put_aggregate(embedded_aws, stream)
    other = {"shardId-000000000000", "shardId-000000000001"} - {shard_id}
    leases = [Lease(lease_key=shard_id, checkpoint=ExtendedSequenceNumber(number, 2))]
    leases += [Lease(lease_key=other.pop(), checkpoint=ExtendedSequenceNumber("TRIM_HORIZON"))]
    application = store_leases(leases)

    reader = make_reader(stream, startingPosition=f"fleet:{application}")
    _, data = read_batch(reader, reader.initialOffset())

    assert data == [b"3", b"4"]


def test_a_fleet_that_still_works_is_refused(make_stream, store_leases, make_reader):
    lease = Lease(
        lease_key="shardId-000000000000",
        checkpoint=ExtendedSequenceNumber("TRIM_HORIZON"),
        lease_owner="worker-1",
    )
    application = store_leases([lease])
    reader = make_reader(make_stream(), startingPosition=f"fleet:{application}")

    with pytest.raises(ConfigurationError, match=r"not drained.*worker-1"):
        reader.initialOffset()


def test_spark_4_0_and_4_1_ask_without_saying_where_they_are(
    embedded_aws, make_stream, make_reader
):
    stream = make_stream()
    put_aggregate(embedded_aws, stream)
    reader = make_reader(stream, startingPosition="TRIM_HORIZON")

    end = reader.latestOffset()  # Fresh: before the initial offset was asked for.
    assert reader.partitions(reader.initialOffset(), end)
    restarted = make_reader(stream, startingPosition="TRIM_HORIZON")
    assert restarted.partitions(end, end) == []  # How an old Spark tells where it is.
    again, data = read_batch(restarted, None)

    assert again["n"] == end["n"] + 1
    assert again["sid"] == end["sid"]
    assert data == [b"0", b"1", b"2", b"3", b"4"]


def test_a_stream_that_is_not_there_is_named(make_reader):
    with pytest.raises(ConfigurationError, match="'nowhere': there is no such stream"):
        make_reader("nowhere").initialOffset()
