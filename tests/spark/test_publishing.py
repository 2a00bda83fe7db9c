"""A real query that shows its positions in a lease table of its own, on the embedded AWS."""

import time
import uuid

import pytest

from shardfleet.adapters.dynamodb.items import lease_from_item
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from tests.spark.kept import Kept
from tests.spark.test_stream_source import Query, put, run_available, wait_active

pytestmark = pytest.mark.processes
LIMIT_S = 60


@pytest.fixture
def application(embedded_aws):
    name = f"spark-app-{uuid.uuid4().hex[:8]}"
    yield name
    embedded_aws.client("dynamodb").delete_table(TableName=name)


@pytest.fixture
def leases(embedded_aws, application):
    def read():
        client = embedded_aws.client("dynamodb")
        items = client.scan(TableName=application, ConsistentRead=True)["Items"]
        return {lease.lease_key: lease for lease in map(lease_from_item, items)}

    return read


def until(read, holds):
    deadline = time.monotonic() + LIMIT_S
    while not holds(found := read()):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def shard(number):
    return f"shardId-{number:012d}"


def test_a_running_query_is_seen_in_its_lease_table_and_its_last_batch_too(
    embedded_aws, make_stream, source, application, leases, tmp_path
):
    stream = make_stream(shards=1)
    options = {"startingPosition": "TRIM_HORIZON", "sealStore": f"file:{tmp_path}/seals"}
    options |= {"publishTo": application, "publishInterval": "1s", "discoveryInterval": "1s"}
    options |= {"storeEndpoint": embedded_aws.endpoint_url}
    put(embedded_aws, stream, [("a", b"plain")])
    put(embedded_aws, stream, [("a", aggregate([OutgoingRecord("a", b"x")] * 5))])
    kept = Kept(tmp_path / "kept")
    query = Query(source(stream, **options).load(), tmp_path / "checkpoint", kept=kept)
    query.until(6)

    # The stream is quiet, so Spark plans no further batch and calls commit for none.
    last = kept.rows()[-1]
    done = (last["sequence_number"], last["sub_sequence_number"])
    assert done[1] == 4
    found = until(leases, lambda each: not each[shard(0)].checkpoint.is_sentinel)
    checkpoint = found[shard(0)].checkpoint
    assert (checkpoint.sequence_number, checkpoint.sub_sequence_number) == done
    owner, counter = found[shard(0)].lease_owner, found[shard(0)].lease_counter
    assert owner.startswith("spark:")
    until(leases, lambda each: each[shard(0)].lease_counter > counter)  # Renewed while idle.

    client = embedded_aws.client("kinesis")
    client.split_shard(StreamName=stream, ShardToSplit=shard(0), NewStartingHashKey=str(1 << 127))
    wait_active(client, stream)
    put(embedded_aws, stream, [(f"key-{n}", b"child") for n in range(20)])
    query.until(26)
    found = until(leases, lambda each: set(each) == {shard(1), shard(2)} and started(each))
    assert {lease.lease_owner for lease in found.values()} == {owner}
    assert {lease.parent_shard_ids for lease in found.values()} == {(shard(0),)}
    query.query.stop()
    # Spark closes the reader's process; it gives the leases up at the place where it stopped.
    found = until(leases, lambda each: not any(lease.lease_owner for lease in each.values()))
    assert started(found)


def started(leases):
    return not any(lease.checkpoint.is_sentinel for lease in leases.values())


def test_what_is_available_now_is_published_to_the_last_batch_when_the_query_ends(
    embedded_aws, make_stream, source, application, leases, tmp_path
):
    stream = make_stream(shards=1)
    options = {"startingPosition": "TRIM_HORIZON", "publishTo": application}
    options |= {"metrics": f"cloudwatch:{application}"}
    options |= {"storeEndpoint": embedded_aws.endpoint_url}
    began = time.time()
    put(embedded_aws, stream, [("a", b"%d" % n) for n in range(10)])
    kept = Kept(tmp_path / "kept")

    run_available(source(stream, **options).load(), tmp_path / "checkpoint", into=kept)

    rows = kept.rows()
    (lease,) = leases().values()
    assert (len(rows), lease.lease_owner) == (10, None)
    assert lease.checkpoint.sequence_number == rows[-1]["sequence_number"]
    told = sum_of(embedded_aws.client("cloudwatch"), "stream_records", fleet=application)
    assert told == 10
    # Of the batch when it began: its oldest record had waited since it was put.
    lag_ms = sum_of(embedded_aws.client("cloudwatch"), "millis_behind_latest", fleet=application)
    assert 0 <= lag_ms <= 1_000 * (time.time() - began)


def sum_of(cloudwatch, metric, *, fleet):
    now = time.time()
    found = cloudwatch.get_metric_statistics(
        Namespace="shardfleet",
        MetricName=metric,
        Dimensions=[{"Name": "fleet", "Value": fleet}],
        StartTime=now - 3_600,
        EndTime=now + 60,
        Period=7_200,
        Statistics=["Sum"],
    )
    return sum(each["Sum"] for each in found["Datapoints"])
