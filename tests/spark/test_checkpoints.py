"""Where a query stands, from Spark's logs and the seals; handed on as positions."""

import json

import pytest

from shardfleet.domain.positions.positions import position_text
from shardfleet.errors import ConfigurationError
from shardfleet_spark.offsets.plan_token import UnreadableCheckpoint, token_to_json
from shardfleet_spark.offsets.seals import MARK, SealKey, seal_to_bytes
from shardfleet_spark.plan.checkpoints import (
    LocalCheckpoint,
    S3Checkpoint,
    positions_of,
    read_logs,
    standing_after,
)
from tests.contract.stores.test_seal_store_contract import make_bucket
from tests.spark.memory_seals import INCARNATION, MemorySealStore, seal, stand, token

META = '{"batchWatermarkMs":0,"conf":{}}'
READ = {"first": "8", "last": "9", "last_sub": 4, "count": 2}


@pytest.fixture
def checkpoint(tmp_path):
    """`checkpoint(offsets={0: token}, commits=[0])` writes the logs as Spark 4 does."""

    def write(*, offsets, commits, version="v1", lines=None):
        for log in ("offsets", "commits"):
            (tmp_path / log).mkdir(exist_ok=True)
        for batch, each in offsets.items():
            lines_of = lines(each) if lines else [json.dumps(token_to_json(each))]
            text = "\n".join([version, META, *lines_of])
            (tmp_path / "offsets" / str(batch)).write_text(text)
            (tmp_path / "offsets" / f".{batch}.crc").write_bytes(b"x")
        for batch in commits:
            (tmp_path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        return LocalCheckpoint(tmp_path)

    return write


def store_of(plan, *seals, mark=True):
    store = MemorySealStore()
    for partition, each in enumerate(seals):
        store.put_if_absent(SealKey(plan.sid, plan.key, partition), seal_to_bytes(each))
    if mark:
        store.put_if_absent(SealKey(plan.sid, plan.key, MARK), b"{}")
    return store


def texts(family):
    return {key: position_text(each.position) for key, each in sorted(family.stands.items())}


ONE = token([stand("a")], layout=[["a"]], number=1)
TWO = token([stand("a", 7)], layout=[["a"]], number=2)


def test_the_seals_of_the_last_committed_batch_say_where_a_query_stands(checkpoint):
    folder = checkpoint(offsets={0: ONE, 1: TWO}, commits=[0, 1])
    store = store_of(TWO, seal({"shard_id": "a", **READ}))

    logged = read_logs(folder)
    family = standing_after(logged, store)

    assert (logged.batch, logged.begun) == (1, None)
    assert texts(family) == {"a": "AFTER:9:4"}  # Inside of the last aggregate, to its end.
    handed_on = positions_of(logged, family, at_ms=5)
    assert handed_on.incarnation == INCARNATION
    assert handed_on.origin == "Spark query spark:sid after batch 1"


def test_a_batch_that_was_begun_and_not_committed_does_not_count(checkpoint):
    folder = checkpoint(offsets={0: ONE, 1: TWO}, commits=[0])
    store = store_of(ONE, seal({"shard_id": "a", "first": "6", "last": "7", "count": 2}))
    store.put_if_absent(
        SealKey(TWO.sid, TWO.key, 0), seal_to_bytes(seal({"shard_id": "a", **READ}))
    )

    logged = read_logs(folder)

    assert (logged.batch, logged.begun) == (0, TWO)
    assert texts(standing_after(logged, store)) == {"a": "AFTER:7:0"}


def test_before_its_first_batch_a_query_stands_where_it_begins(checkpoint):
    logged = read_logs(checkpoint(offsets={0: ONE}, commits=[]))

    family = standing_after(logged, None)

    assert texts(family) == {"a": "TRIM_HORIZON"}
    assert "before its first batch" in positions_of(logged, family, at_ms=5).origin


def test_a_shard_that_ended_hands_its_children_on(checkpoint):
    ended = {"shard_id": "a", **READ, "ended": True, "children": {"b": ("a",), "m": ("a", "z")}}
    plan = token([stand("a"), stand("z", 3)], layout=[["a"], ["z"]], number=1)
    store = store_of(plan, seal(ended), seal({"shard_id": "z"}))

    logged = read_logs(checkpoint(offsets={0: plan}, commits=[0]))
    family = standing_after(logged, store)

    assert texts(family) == {"a": "END", "b": "TRIM_HORIZON", "z": "AFTER:3:0"}
    assert positions_of(logged, family, at_ms=5).waiting == {"m": ("a", "z")}


def test_without_a_seal_store_the_offset_says_it_alone(checkpoint):
    plan = token([stand("a")], layout=[["a"]], number=1, sealed=(seal({"shard_id": "a", **READ}),))

    family = standing_after(read_logs(checkpoint(offsets={0: plan}, commits=[0])), None)

    assert texts(family) == {"a": "AFTER:9:4"}


def test_a_seal_store_that_is_missing_or_another_one_is_asked_for(checkpoint):
    logged = read_logs(checkpoint(offsets={0: ONE}, commits=[0]))

    with pytest.raises(ConfigurationError, match="has a seal store"):
        standing_after(logged, None)
    with pytest.raises(UnreadableCheckpoint, match="seals of plan 1 are not in the seal store"):
        standing_after(logged, MemorySealStore())


def test_a_partition_that_spark_never_ran_keeps_its_place(checkpoint):
    plan = token([stand("a", 1), stand("b", 2)], layout=[["a"], ["b"]], number=1)
    store = store_of(plan, seal({"shard_id": "a", **READ}))

    family = standing_after(read_logs(checkpoint(offsets={0: plan}, commits=[0])), store)

    assert texts(family) == {"a": "AFTER:9:4", "b": "AFTER:2:0"}


def test_a_log_with_named_sources_is_read_as_well(checkpoint):
    def named(each):
        return [json.dumps({"clicks": json.dumps(token_to_json(each)), "files": {"v": 1}})]

    logged = read_logs(checkpoint(offsets={0: ONE}, commits=[0], version="v2", lines=named))

    assert logged.committed == ONE


def test_of_several_streams_one_must_be_named(checkpoint):
    other = json.dumps(token_to_json(ONE) | {"stream": "arn:aws:kinesis:x:1:stream/other"})
    folder = checkpoint(
        offsets={0: ONE}, commits=[0], lines=lambda each: [json.dumps(token_to_json(each)), other]
    )

    with pytest.raises(ConfigurationError, match=r"2 streams .*other.*--stream"):
        read_logs(folder)
    assert read_logs(folder, stream="memory").committed == ONE


def test_what_is_no_checkpoint_or_newer_than_this_code_is_refused(checkpoint, tmp_path):
    with pytest.raises(ConfigurationError, match="no offset log"):
        read_logs(LocalCheckpoint(tmp_path / "nothing"))
    with pytest.raises(UnreadableCheckpoint, match="version 'v9'"):
        read_logs(checkpoint(offsets={0: ONE}, commits=[0], version="v9"))
    with pytest.raises(ConfigurationError, match="reads 0 streams"):
        read_logs(checkpoint(offsets={0: ONE}, commits=[0], lines=lambda _: ['{"files": 1}', "-"]))


@pytest.mark.processes
def test_a_checkpoint_in_a_bucket_is_read_as_one_in_a_folder(checkpoint, tmp_path, embedded_aws):
    checkpoint(offsets={0: ONE, 1: TWO}, commits=[0])
    client, bucket = embedded_aws.client("s3"), make_bucket(embedded_aws)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        key = f"jobs/views/{path.relative_to(tmp_path)}"
        client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())

    folder = S3Checkpoint(client, bucket=bucket, prefix="jobs/views/")

    assert read_logs(folder) == read_logs(LocalCheckpoint(tmp_path))
    client.delete_object(Bucket=bucket, Key="jobs/views/offsets/0")
    with pytest.raises(ConfigurationError, match="in the commit log and not in the offset log"):
        read_logs(folder)
    with pytest.raises(ConfigurationError, match="no offset log"):
        read_logs(S3Checkpoint(client, bucket=bucket, prefix="jobs/other"))
