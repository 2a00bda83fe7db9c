"""Rows on their way into a sink: checks, ids, what is held, what is diverted. Without Spark."""

import gc
import json
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from shardfleet.domain.delivery.record_ids import split_record_id
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.errors import ConfigurationError, InvalidRecord
from shardfleet.kpl.hash_keys import check_partition_key, parse_hash_key
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.sink import sink_session
from shardfleet_spark.sink.by_shard import task_ranges
from shardfleet_spark.sink.diverted_rows import write_diverted
from shardfleet_spark.sink.held_rows import HeldRows
from shardfleet_spark.sink.row_checks import BadRow, RowLimits, check_columns, checked, refuse
from shardfleet_spark.sink.sink import make_batch_writer, outgoing, stop_at_bad
from shardfleet_spark.sink.task_place import TaskPlace
from tests.engine.producing.embedded_stream import client_of
from tests.engine.unkind_stream import ARN, NAME

LIMITS = RowLimits(record_bytes=1024)
PLACE = TaskPlace(query="q", batch=7, partition=3, attempt=0)
RECORDS = StructType().add("data", BinaryType()).add("partition_key", StringType())


def batch(*rows, hash_keys=None, ids=None):
    columns = {
        "data": pa.array([data for data, _ in rows], pa.binary()),
        "partition_key": pa.array([key for _, key in rows], pa.string()),
    }
    if hash_keys is not None:
        columns["explicit_hash_key"] = pa.array(hash_keys, pa.string())
    if ids is not None:
        columns["record_id"] = pa.array(ids, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def test_rows_within_the_limits_are_the_very_batch():
    given_rows = batch((b"x", "a"), (b"", "ü" * 256), hash_keys=[None, "0"])

    good, bad = checked(given_rows, LIMITS, first_row=0)

    assert good is given_rows
    assert bad == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((None, "a"), "data is null"),
        ((b"x", None), "partition_key is missing"),
        ((b"x", ""), "partition_key is missing"),
        ((b"x", "k" * 257), "257 characters, 256 are allowed"),
        ((b"x" * 1024, "a"), "1,025 bytes, 1,024 are allowed"),
        ((b"x" * 1023, "ü"), "1,025 bytes, 1,024 are allowed"),
    ],
)
def test_a_row_that_kinesis_would_refuse_is_shown_with_its_number(row, said):
    good, bad = checked(batch((b"x", "a"), row, (b"y", "b")), LIMITS, first_row=100)

    assert good.column("partition_key").to_pylist() == ["a", "b"]
    assert [each.row for each in bad] == [101]
    assert said in bad[0].problem
    with pytest.raises(InvalidRecord, match="nothing of this task was: row 101"):
        raise refuse(bad, total=1)


def test_the_frame_of_an_id_counts():
    framed = RowLimits(record_bytes=1024, framed=True)

    assert checked(batch((b"x" * (1024 - 1 - 260), "a")), framed, first_row=0)[1] == []
    assert checked(batch((b"x" * (1024 - 260), "a")), framed, first_row=0)[1] != []


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=12),
            st.none() | st.sampled_from(["", "a", "ü" * 5, "k" * 256, "k" * 257]),
            st.none() | st.sampled_from(["", "0", "00", "-1", "9" * 38, "9" * 39, str(2**128 - 1)]),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_exactly_the_rows_pass_that_the_library_itself_takes(rows):
    def fits(data, key, hash_key):
        try:
            check_partition_key(key or "")
            if hash_key is not None:
                parse_hash_key(hash_key)
        except InvalidRecord:
            return False
        return data is not None and len(data) + len(key.encode()) <= 10

    given_rows = batch(*((data, key) for data, key, _ in rows), hash_keys=[r[2] for r in rows])

    good, bad = checked(given_rows, RowLimits(record_bytes=10), first_row=0)

    wanted = [fits(*row) for row in rows]
    assert [each.row for each in bad] == [n for n, fine in enumerate(wanted) if not fine]
    assert good.num_rows == sum(wanted)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType().add("data", BinaryType()), "partition_key is missing"),
        (RECORDS.__class__([*RECORDS.fields]).add("delay", LongType()), "column delay is none"),
        (StructType().add("data", LongType()).add("partition_key", StringType()), "type bigint"),
        (RECORDS.__class__([*RECORDS.fields]).add("record_id", StringType()), "recordId"),
    ],
)
def test_a_table_that_is_no_list_of_records_is_refused(schema, said):
    with pytest.raises(ConfigurationError, match=said):
        check_columns(schema, record_id="none")


def test_ids_by_position_name_query_batch_partition_and_row():
    batches = iter([batch((b"x", "a"), (b"y", "b")), batch((b"z", "c"))])

    records = list(outgoing(batches, "position", place=PLACE))

    assert [split_record_id(each.data) for each in records] == [
        ("q:7:3:0", b"x"),
        ("q:7:3:1", b"y"),
        ("q:7:3:2", b"z"),
    ]


def test_ids_of_a_column_and_hash_keys_go_along():
    rows = batch((b"x", "a"), hash_keys=["17"], ids=["order-1"])

    (record,) = outgoing(iter([rows]), "column", place=PLACE)

    assert split_record_id(record.data) == ("order-1", b"x")
    assert (record.partition_key, record.explicit_hash_key) == ("a", "17")


@pytest.mark.parametrize("memory_bytes", [1, 1_000_000])
def test_held_rows_come_back_in_order_from_memory_and_from_a_file(memory_bytes):
    batches = [batch(*((b"%d" % n, "k") for n in range(10 * m, 10 * m + 10))) for m in range(5)]

    with HeldRows(memory_bytes) as held:
        for each in batches:
            held.add(each)
        found = [value for each in held.batches() for value in each.column("data").to_pylist()]

        assert held.rows == 50
        assert (held._file is None) == (memory_bytes > 1)
    assert found == [b"%d" % n for n in range(50)]


def test_diverted_rows_are_json_lines_and_a_repeated_task_writes_the_same_file(tmp_path):
    bad = [BadRow(row=4, problem="too large", values={"data": b"\xff", "partition_key": "ü"})]

    first = write_diverted(str(tmp_path / "bad"), PLACE, bad, stage="sink")
    again = write_diverted(str(tmp_path / "bad"), PLACE, bad, stage="sink")

    assert first == again
    (line,) = (tmp_path / "bad/sink-q_7_3.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line) == {
        "row": 4,
        "problem": "too large",
        "data": "/w==",
        "partition_key": "ü",
    }


def test_bad_rows_end_the_task_unless_they_may_be_diverted():
    bad = [BadRow(row=0, problem="too large", values={})]

    stop_at_bad(bad, SinkOptions(stream="s", divert_to="folder"))
    with pytest.raises(InvalidRecord, match="too large"):
        stop_at_bad(bad, SinkOptions(stream="s"))


def test_a_batch_cannot_replace_what_a_stream_has():
    with pytest.raises(ConfigurationError, match="append"):
        make_batch_writer({"stream": "s"}, RECORDS, overwrite=True)


def test_ids_of_a_batch_write_need_a_name_for_the_run():
    options = {"stream": "s", "recordId": "position"}

    with pytest.raises(ConfigurationError, match="runId"):
        make_batch_writer(options, RECORDS, overwrite=False)
    make_batch_writer({**options, "runId": "2026-11-21"}, RECORDS, overwrite=False)


def shards(count):
    size = 2**128 // count
    return [
        Shard(
            shard_id=f"shardId-{n:012d}",
            hash_key_range=HashKeyRange(
                n * size, (n + 1) * size - 1 if n < count - 1 else 2**128 - 1
            ),
            starting_sequence_number="1",
        )
        for n in range(count)
    ]


@given(st.integers(1, 40), st.integers(1, 50))
def test_tasks_have_whole_shards_and_as_even_as_numbers_allow(count, tasks):
    found = shards(count)

    starts = task_ranges(found, tasks)

    edges = [shard.hash_key_range.start for shard in found]
    assert starts == sorted(set(starts))
    assert set(starts) <= set(edges)
    assert len(starts) == min(tasks, count)
    assert starts[0] == 0
    sizes = [
        sum(start <= edge < end for edge in edges)
        for start, end in zip(starts, [*starts[1:], 2**128], strict=True)
    ]
    assert max(sizes) - min(sizes) <= 1


def test_a_failed_task_leaves_no_task_of_the_event_loop_and_no_thread(monkeypatch, caplog):
    """Rows that were put wait for company when a later one is refused."""
    engine = KinesisEngine(AccountSettings(), clock=time.time)
    engine.call("CreateStream", {"StreamName": NAME, "ShardCount": 2})
    client = client_of(engine)
    clients = SimpleNamespace(
        stream_arn=lambda _: ARN, stream_records=client, stream_control=client
    )
    monkeypatch.setattr(sink_session, "_clients", lambda _: clients)
    rows = [OutgoingRecord(f"k{n}", b"x" * 2_000) for n in range(2_000)]
    of_others = set(threading.enumerate())  # Other tests of this process may have left some.
    with pytest.raises(InvalidRecord, match="partition key"):
        sink_session.send(iter([*rows, OutgoingRecord("", b"")]), SinkOptions(stream=NAME))
    gc.collect()
    assert caplog.text == ""
    names = [thread.name for thread in set(threading.enumerate()) - of_others]
    assert not [name for name in names if name.startswith("shardfleet-sink")]
