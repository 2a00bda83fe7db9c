"""The sink on real Spark, against the embedded AWS."""

import json
from collections import defaultdict

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.functions import expr

from shardfleet.domain.delivery.record_ids import SeenIds, split_record_id
from shardfleet.kpl.deaggregate import ExpansionLimits, deaggregate
from shardfleet_spark.pipelines.patience import start_patiently
from shardfleet_spark.sink.by_shard import as_records, by_shard, numbers_hashed_to_each, spark_hash

pytestmark = pytest.mark.processes

STOP_LIMIT_S = 300


@pytest.fixture
def sink(embedded_aws):
    """The options of a sink on a stream of the embedded AWS."""

    def options(stream, **more):
        return {
            "stream": stream,
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
            **more,
        }

    return options


@pytest.fixture
def records_of(embedded_aws):
    """Everything in a stream, by shard."""
    client = embedded_aws.client("kinesis")

    def read(stream):
        found = {}
        for shard in client.list_shards(StreamName=stream)["Shards"]:
            iterator = client.get_shard_iterator(
                StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            records = []
            while iterator:
                answer = client.get_records(ShardIterator=iterator)
                records += answer["Records"]
                iterator = answer.get("NextShardIterator") if answer["Records"] else None
            found[shard["ShardId"]] = records
        return found

    return read


def test_rows_arrive_in_order_per_key_and_a_task_owns_its_shards(
    spark, make_stream, sink, records_of
):
    stream = make_stream(shards=4)
    # One partition, so that the rows have an order to keep.
    rows = as_records(
        spark.range(3_000, numPartitions=1),
        data=expr("cast(id as string)"),
        partition_key=expr("concat('key-', id % 41)"),
    )
    options = sink(stream, recordId="position", runId="first")

    placed = by_shard(rows, options, tasks=2).cache()
    owners = {
        (row["partition_key"], row["task"])
        for row in placed.selectExpr("partition_key", "spark_partition_id() as task").collect()
    }
    placed.write.format("shardfleet").options(**{**options, "recordId": "column"}).mode(
        "append"
    ).save()

    by_key, tasks_of_shard = defaultdict(list), defaultdict(set)
    task_of = dict(owners)
    for shard_id, records in records_of(stream).items():
        for record in records:
            record_id, data = split_record_id(record["Data"])
            assert record_id.startswith("first:0:")
            by_key[record["PartitionKey"]].append(int(data))
            tasks_of_shard[shard_id].add(task_of[record["PartitionKey"]])
    placed.unpersist()
    assert len(owners) == 41
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(3_000))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert all(len(tasks) == 1 for tasks in tasks_of_shard.values())
    assert {task for tasks in tasks_of_shard.values() for task in tasks} == {0, 1}


def test_spark_4_0_places_rows_by_numbers_that_are_hashed_to_the_task(spark):
    rows = spark.range(40).selectExpr("cast(id as int) as n")
    hashes = {row["n"]: row["h"] for row in rows.selectExpr("n", "hash(n) as h").collect()}
    assert hashes == {n: spark_hash(n) for n in range(40)}

    for count in (1, 3, 7):
        tasks = rows.selectExpr(f"n % {count} as n").select(
            sf.get(sf.array(*map(sf.lit, numbers_hashed_to_each(count))), sf.col("n")).alias("by"),
            "n",
        )
        placed = tasks.repartition(count, "by").selectExpr("n", "spark_partition_id() as task")
        assert {(row["n"], row["task"]) for row in placed.collect()} == {
            (n, n) for n in range(count)
        }


def test_a_row_that_cannot_be_sent_fails_the_batch_before_anything_is_sent(
    spark, make_stream, sink, records_of
):
    stream = make_stream(shards=2)
    good = as_records(spark.range(200), data=expr("cast(id as string)"), partition_key="id")
    bad = spark.createDataFrame([("x", "k" * 300)], "data string, partition_key string")
    rows = by_shard(good.union(bad), sink(stream))

    with pytest.raises(PySparkException, match="300 characters, 256 are allowed"):
        rows.write.format("shardfleet").options(**sink(stream)).mode("append").save()

    assert not any(records_of(stream).values())


def test_rows_that_cannot_be_sent_are_diverted_if_that_is_wanted(
    spark, make_stream, sink, records_of, tmp_path
):
    stream = make_stream()
    rows = spark.createDataFrame(
        [("good", "a"), ("keyless", ""), ("x" * 2_000, "b")], "data string, partition_key string"
    ).coalesce(1)
    options = sink(stream, divertTo=str(tmp_path), maxRecordSize="1k", aggregate="true")

    rows.write.format("shardfleet").options(**options).mode("append").save()

    (records,) = records_of(stream).values()
    assert [record["Data"] for record in records] == [b"good"]
    (file,) = tmp_path.iterdir()
    diverted = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [each["row"] for each in diverted] == [1, 2]
    assert "2,001 bytes, 1,024 are allowed" in diverted[1]["problem"]


def test_rows_are_packed_into_aggregates_no_larger_than_is_wanted(
    spark, make_stream, sink, records_of
):
    stream = make_stream()
    rows = as_records(
        spark.range(25, numPartitions=1),
        data=expr("cast(id as string)"),
        partition_key=expr("cast(id % 3 as string)"),
    )
    options = sink(stream, aggregate="true", aggregateRecords="10")

    rows.write.format("shardfleet").options(**options).mode("append").save()

    (records,) = records_of(stream).values()
    packed = [users_of(record) for record in records]
    assert max(map(len, packed)) == 10
    assert [user for users in packed for user in users] == [(str(n % 3), n) for n in range(25)]


def users_of(record):
    found = deaggregate(
        record["Data"],
        partition_key=record["PartitionKey"],
        limits=ExpansionLimits(),
        hash_range=None,
        policy="deliver",
    )
    return [(user.partition_key, int(user.data)) for user in found.records]


def test_a_misspelt_option_of_the_sink_is_refused_with_the_nearest_name(spark, sink):
    rows = as_records(spark.range(1), data=expr("cast(id as string)"), partition_key="id")

    with pytest.raises(PySparkException, match="nearest is aggregate"):
        rows.write.format("shardfleet").options(**sink("any", agregate="true")).mode(
            "append"
        ).save()


def test_a_repeated_micro_batch_is_sent_again_with_the_same_ids(  # noqa: PLR0917 - fixtures
    spark, embedded_aws, make_stream, source, sink, records_of, tmp_path
):
    origin, target = make_stream(shards=2), make_stream(shards=2)
    client = embedded_aws.client("kinesis")
    for first in range(0, 900, 300):
        client.put_records(
            StreamName=origin,
            Records=[
                {"Data": b"%d" % n, "PartitionKey": f"key-{n % 5}"}
                for n in range(first, first + 300)
            ],
        )
    read = source(
        origin, startingPosition="TRIM_HORIZON", sealStore=f"file:{tmp_path}/seals"
    ).load()
    checkpoint = tmp_path / "checkpoint"

    def run():
        writer = (
            read.select("data", "partition_key")
            .writeStream.format("shardfleet")
            .options(**sink(target, recordId="position", aggregate="false"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
        )
        query = start_patiently(writer.start)
        try:
            assert query.awaitTermination(STOP_LIMIT_S), "the query did not end"
        finally:
            query.stop()

    run()
    # As if the driver had died before Spark noted that the last batch was done.
    commits = sorted(checkpoint.glob("commits/[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    run()

    seen, repeats, by_key = SeenIds(), 0, defaultdict(list)
    for records in records_of(target).values():
        for record in records:
            record_id, data = split_record_id(record["Data"])
            if seen.is_new(record_id):
                by_key[record["PartitionKey"]].append(int(data))
            else:
                repeats += 1
    assert repeats > 0
    assert sorted(n for numbers in by_key.values() for n in numbers) == list(range(900))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
