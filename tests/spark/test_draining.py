"""Trigger.AvailableNow reads all there is, on every Spark; without Spark, and with it."""

import itertools
import json
import os
import sys
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as sf

from shardfleet_local.aws.launcher import EmbeddedAws
from shardfleet_local.aws.settings import AwsBehaviour
from shardfleet_spark.pipelines.draining import NotDrained, drain
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from shardfleet_spark.plan.planning import BatchLimits
from tests.spark.test_source_driver import in_query

SHARDS, RECORDS, PER_BATCH = 3, 900, 120
MB = int(os.environ.get("SHARDFLEET_TEST_DRAIN_MB", "12"))
"""Of the test that reads eight shards with the defaults; 600 are more than one batch."""

RECORD_BYTES, RECORDS_OF_A_PUT = 62_500, 64
WATERMARK = {"watermark": "2026-11-27T00:00:00.000Z"}


class Run:
    """A query that has ended, after batches from one offset to the next."""

    def __init__(self, *batches, **progress):
        self.status = {"message": "Stopped"}
        self.recentProgress = [
            SimpleNamespace(
                numInputRows=rows,
                json=json.dumps(
                    {
                        "sources": [{"startOffset": {"n": first}, "endOffset": {"n": last}}],
                        **progress,
                    }
                ),
            )
            for first, last, rows in batches
        ]

    def awaitTermination(self):  # noqa: N802 - Spark's name
        pass

    def exception(self):
        return None


def drained(version, *runs, **bounds):
    left, targets = list(runs), []

    def start(target_ms):
        targets.append(target_ms)
        return left.pop(0)

    found = drain(start, version=version, clock_ms=itertools.count(77).__next__, **bounds)
    return [each["numInputRows"] for each in found], targets, left


async def by_a_new_driver(query, start, target_ms):
    """Return the end of the next batch, as Spark 4.0 and 4.1 ask for it: once in a process."""
    query.restart()
    query.driver.prepare_available_now(target_ms)
    await query.driver.partitions(start, start)
    return await query.driver.latest()


@pytest.mark.parametrize("version", ["4.0.2-amzn-0", "4.1.1"])
def test_a_spark_that_ends_after_a_batch_is_started_until_nothing_moves(version):
    # A batch without rows moves (it told a shard's age), a batch for the watermark alone does not.
    runs = [Run((0, 1, 5)), Run((1, 2, 0)), Run((2, 3, 4), (3, 3, 0)), Run((3, 3, 0)), Run()]

    assert drained(version, *runs) == ([5, 0, 4, 0, 0], [77] * 4, runs[4:])


@pytest.mark.parametrize(
    ("watermark", "operators", "closes"),
    [(WATERMARK, [{}], True), (WATERMARK, [], False), ({}, [{}], False)],
)
def test_what_the_last_watermark_closes_has_a_run_of_its_own(watermark, operators, closes):
    """For a later moment: for the same one there is no batch, and without one nothing is closed."""
    windows = {"eventTime": watermark, "stateOperators": operators}
    runs = [Run((0, 1, 5), **windows), Run((1, 1, 0)), Run((1, 2, 0), **windows)]

    wanted = ([5, 0, 0], [77, 77, 78], []) if closes else ([5, 0], [77, 77], runs[2:])
    assert drained("4.1.1", *runs) == wanted


@pytest.mark.parametrize("store", [True, False])
def test_the_first_run_for_a_moment_has_a_batch_though_nothing_is_there(store):
    async def scenario(query):
        query.stream.put(b"1")
        start, batches = await query.driver.initial(), []
        for _ in range(2):
            target_ms = query.clock.now_ms()
            for _ in range(9):
                end = await by_a_new_driver(query, start, target_ms)
                if end == start:
                    break
                if store:
                    await query.read(start, end)
                batches.append(target_ms)
                start = end
            await query.clock.sleep_ms(5_000)
        first, later = (batches.count(each) for each in sorted(set(batches)))
        assert 1 <= first < 9
        assert later == 1

    in_query(scenario, store=store)


def test_a_spark_that_runs_many_batches_is_started_once():
    runs = [Run((0, 1, 5), (1, 2, 5)), Run((2, 3, 1))]

    assert drained("4.2.0", *runs) == ([5, 5], [0], runs[1:])


def test_runs_have_a_bound():
    with pytest.raises(NotDrained, match="after 2 runs there is more"):
        drained("4.0.2", *[Run((n, n + 1, 1)) for n in range(3)], max_runs=2)


@pytest.mark.parametrize("limits", [{"records_per_shard": 5}, {"records": 1}])
def test_a_driver_that_is_new_for_each_batch_comes_to_the_end_of_what_was_there(limits):
    # As on Spark 4.0 and 4.1: what one driver knows of the shards that are done, the next does not.
    async def scenario(query):
        for number in range(30):
            query.stream.put(b"%d" % number, key="much" if number > 2 else f"few {number}")
        await query.clock.sleep_ms(1_000)
        target_ms, start, data = query.clock.now_ms(), await query.driver.initial(), []
        for _ in range(100):
            end = await by_a_new_driver(query, start, target_ms)
            if end == start:
                break
            data += await query.read(start, end)
            start = end
            await query.clock.sleep_ms(1_000)
            query.stream.put(b"later", key="much")
        else:
            pytest.fail("it comes to no end")
        assert {b"%d" % number for number in range(30)} <= set(data)
        assert data.count(b"later") < 5

    in_query(scenario, shards=2, limits=BatchLimits(**limits))


@pytest.mark.processes
@pytest.mark.parametrize("store", ["", "file"])
def test_a_pipeline_reads_all_that_there_is(spark, embedded_aws, make_stream, tmp_path, store):
    stream = make_stream(shards=SHARDS)
    client = embedded_aws.client("kinesis")
    for first in range(0, RECORDS, 300):
        client.put_records(
            StreamName=stream,
            Records=[
                {"Data": str(n).encode(), "PartitionKey": f"key {n}"}
                for n in range(first, first + 300)
            ],
        )
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=f"parquet:{tmp_path}/out",
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerBatch": str(PER_BATCH),
            **({"sealStore": f"file:{tmp_path}/seals"} if store else {}),
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )

    result = run_pipeline(spark, plan)

    read = [row["data"] for row in spark.read.parquet(f"{tmp_path}/out").collect()]
    assert sorted(int(data) for data in read) == list(range(RECORDS))
    assert result.rows == RECORDS
    assert run_pipeline(spark, plan).rows == 0


@pytest.fixture
def unlimited_aws(spark_account, monkeypatch):
    """An embedded AWS whose shards take as much as comes."""
    with EmbeddedAws(behaviour=AwsBehaviour(kinesis_quotas=False)) as aws:
        spark_account.use(aws)
        spark_account.set_environment(monkeypatch)
        yield aws


@pytest.mark.processes
def test_one_run_reads_all_of_eight_shards(spark, unlimited_aws, tmp_path):
    client = unlimited_aws.client("kinesis")
    client.create_stream(StreamName="much", ShardCount=8)
    client.get_waiter("stream_exists").wait(StreamName="much", WaiterConfig={"Delay": 1})
    count = MB * 1_000_000 // RECORD_BYTES
    rest = os.urandom(RECORD_BYTES - 8)
    for first in range(0, count, RECORDS_OF_A_PUT):
        numbers = range(first, min(first + RECORDS_OF_A_PUT, count))
        answer = client.put_records(
            StreamName="much",
            Records=[{"Data": b"%08d" % n + rest, "PartitionKey": f"key {n}"} for n in numbers],
        )
        assert not answer["FailedRecordCount"]
    plan = PipelinePlan(
        source="shardfleet:much",
        sink=f"parquet:{tmp_path}/out",
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "sealStore": f"file:{tmp_path}/seals",
            "region": unlimited_aws.region,
            "endpoint": unlimited_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )

    def shown(rows):
        number = sf.substring("data", 1, 8).cast("string").cast("int")
        return rows.select(number.alias("number"), sf.octet_length("data").alias("bytes"))

    result = run_pipeline(spark, plan, transform=shown)

    found = spark.read.parquet(f"{tmp_path}/out").collect()
    assert sorted(row["number"] for row in found) == list(range(count))
    assert {row["bytes"] for row in found} == {RECORD_BYTES}
    sys.stdout.write(f"{len(found)} of {count} records in {result.batches} batches\n")
