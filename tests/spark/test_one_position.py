"""Fleet, then Spark, then the fleet again, on one position, while records flow and shards split."""

import json

import pytest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet_ops.cli import app as application
from shardfleet_spark.pipelines.patience import start_patiently
from tests.end_to_end.cloud import deployed, wait_until
from tests.end_to_end.watching import Feed, handled, out_of_order, read_calls

pytestmark = pytest.mark.processes
LIMIT_S = 240
IN_AN_AGGREGATE = 5


class PackedFeed(Feed):
    """The feed, its records packed: each request is one aggregate per key, of several numbers."""

    def entries(self):
        first = self.rounds * IN_AN_AGGREGATE
        numbers = range(first, first + IN_AN_AGGREGATE)
        return [
            {"PartitionKey": key, "Data": aggregate([self._user(key, n) for n in numbers])}
            for key in self._keys
        ]

    def _user(self, key, number):
        return OutgoingRecord(key, json.dumps([key, number]).encode())

    @property
    def expected(self):
        numbers = range(self.rounds * IN_AN_AGGREGATE)
        return {(key, number) for key in self._keys for number in numbers}


@pytest.fixture
def fleet(tmp_path, spark_account):
    with deployed(
        tmp_path,
        handler="ledger",
        function="ledger:handler",
        environment={"LEDGER": str(tmp_path / "ledger.jsonl")},
        config={"max_workers": 1, "max_turn_ms": 15_000, "handler_timeout_ms": 5_000},
        shards=2,
        enforce_iam=False,  # Spark is here the account's own user.
    ) as found:
        spark_account.use(found.aws)
        yield found


@pytest.fixture
def ask(fleet, monkeypatch, capsys):
    """Run a command as a person in that account would."""
    for name, value in fleet.aws.environment().items():
        monkeypatch.setenv(name, value)

    def run(*arguments):
        assert application.run(list(arguments)) == 0, capsys.readouterr()
        return capsys.readouterr().out

    return run


def split(fleet):
    kinesis, stream = fleet.client("kinesis"), fleet.outputs["StreamName"]
    shards = kinesis.list_shards(StreamName=stream)["Shards"]
    parent = next(
        each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]
    )
    ends = [int(parent["HashKeyRange"][f"{end}HashKey"]) for end in ("Starting", "Ending")]
    kinesis.split_shard(
        StreamName=stream, ShardToSplit=parent["ShardId"], NewStartingHashKey=str(sum(ends) // 2)
    )
    kinesis.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})


class Query:
    """A Spark query that goes on at the fleet's leases; what it has handed on, in order."""

    def __init__(self, spark, fleet, folder):
        self.records, self.batches = [], {}
        self.seals, self.checkpoint = f"file:{folder}/seals", folder / "checkpoint"
        frame = spark.readStream.format("shardfleet").options(
            stream=fleet.outputs["StreamName"],
            region=fleet.aws.region,
            endpoint=fleet.aws.endpoint_url,
            storeEndpoint=fleet.aws.endpoint_url,
            startingPosition=f"fleet:{fleet.outputs['LeaseTable']}",
            sealStore=self.seals,
            publishTo="clicks-in-spark",
            publishInterval="1s",
            discoveryInterval="1s",
            probeInterval="200ms",
        )
        writer = frame.load().writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        self._query = start_patiently(writer.trigger(processingTime="200 milliseconds").start)

    def _keep(self, batch, batch_id):
        rows = [tuple(json.loads(bytes(row["data"]))) for row in batch.select("data").collect()]
        self.batches[batch_id] = rows
        self.records += rows

    def has(self, count):
        if not self._query.isActive:
            raise AssertionError(str(self._query.exception()))
        return len(self.records) >= count

    def stop(self):
        self._query.stop()

    @property
    def uncommitted(self):
        """The records of a batch that the sink has and the commit log lacks."""
        commits = {int(each.name) for each in (self.checkpoint / "commits").glob("[0-9]*")}
        return {
            record
            for batch, rows in self.batches.items()
            if batch not in commits
            for record in rows
        }


def test_a_fleet_a_query_and_the_fleet_again_read_each_record_once_and_in_order(
    fleet, ask, spark, tmp_path
):
    ledger = tmp_path / "ledger.jsonl"
    with PackedFeed(fleet, keys=12, pause_s=0.2) as feed:
        wait(lambda: len(handled(read_calls(ledger))) > 300, "the fleet reads", fleet)
        ask("drain", "--yes", "--reason", "Spark goes on")
        before = handled(read_calls(ledger))
        split(fleet)

        query = Query(spark, fleet, tmp_path)
        wait(lambda: query.has(600), "the query reads", fleet)
        shown = json.loads(ask("leases", "--application", "clicks-in-spark", "--json"))
        assert {row["owner"].partition(":")[0] for row in shown} == {"spark"}
        query.stop()

        positions = tmp_path / "positions.json"
        checkpoint = ["--checkpoint", str(query.checkpoint), "--seals", query.seals]
        ask("position", "export", *checkpoint, "--output", str(positions))
        told = json.loads(ask("position", "import", str(positions), "--yes", "--json"))
        assert {step["result"] for step in told["steps"]} <= {"WRITTEN", "SAME"}
        assert "END" in {step["action"] for step in told["steps"]}
        split(fleet)
        ask("resume", "--all", "--yes")
        wait(lambda: len(handled(read_calls(ledger))) > len(before) + 300, "it goes on", fleet)
    in_all = lambda: handled(read_calls(ledger)) | set(query.records)  # noqa: E731
    wait(lambda: in_all() >= feed.expected, "every record is read", fleet)

    calls = read_calls(ledger)
    by_fleet = [record for call in calls for record in call.records]
    assert len(by_fleet) == len(set(by_fleet)), "the fleet read a record twice"
    assert len(query.records) == len(set(query.records)), "the query read a record twice"
    # What the export says: only a batch that was begun and not committed comes again.
    assert set(by_fleet) & set(query.records) == query.uncommitted
    assert set(by_fleet) | set(query.records) == feed.expected
    assert out_of_order(calls) == []
    for key in {key for key, _ in feed.expected}:
        handed_on = [number for each, number in query.records if each == key]
        assert handed_on == sorted(handed_on)
        first = [number for each, number in before if each == key]
        assert max(first, default=-1) < min(handed_on)


def wait(condition, what, fleet):
    return wait_until(condition, what=what, within_s=LIMIT_S, fleet=fleet)
