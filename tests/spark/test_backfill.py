"""Which records of an archive go into a table before the stream that follows it."""

import json
from types import SimpleNamespace

import pytest

from shardfleet.domain.positions.positions import option_text, positions_from_text
from shardfleet.errors import ConfigurationError
from shardfleet_spark.pipelines import backfill
from shardfleet_spark.pipelines.backfill import FILE, archived, begun
from shardfleet_spark.pipelines.compaction import LIST

ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/clicks"
NOW_MS = 1_790_000_000_000
HOUR = "date=2026-11-21/hour=14"
SHARDS = {
    "shardId-000000000002": "END",
    "shardId-000000000003": "AFTER:1000:1",
    "shardId-000000000004": f"AT:{NOW_MS}",
    "shardId-000000000005": "TRIM_HORIZON",
}
WAITING = {"shardId-000000000006": ["shardId-000000000003"]}
SCHEMA = "data string, shard_id string, sequence_number string, sub_sequence_number bigint"


def document(**change):
    return {
        "format": "shardfleet.positions",
        "version": 1,
        "stream": ARN,
        "created_ms": 1,
        "origin": "",
        "at_ms": NOW_MS,
        "shards": SHARDS,
        "waiting": WAITING,
        **change,
    }


POSITIONS = positions_from_text(json.dumps(document()))


@pytest.fixture
def given(tmp_path):
    """A file of positions."""
    file = tmp_path / "positions.json"
    file.write_text(json.dumps(document()), "utf-8")
    return str(file)


def rows_up_to(spark, folder, rows, *, schema=SCHEMA, columns=("data",)):
    """Return which of the rows of an archive are taken."""
    spark.createDataFrame(rows, schema).write.parquet(f"{folder}/{HOUR}")
    found = archived(spark, str(folder), POSITIONS, columns=columns)
    return sorted(row["data"] for row in found.collect())


def test_a_record_of_the_archive_is_taken_up_to_its_shards_position(spark, tmp_path):
    rows = [
        # A shard that was done before the positions were written, and one that was made later.
        ("taken 1", "shardId-000000000001", "7", 0),
        ("later", "shardId-000000000007", "7", 0),
        # Numbers are compared as numbers, and inside of an aggregate by the record.
        ("taken 2", "shardId-000000000002", "99999", 9),
        ("taken 3", "shardId-000000000003", "999", 5),
        ("taken 4", "shardId-000000000003", "1000", 0),
        ("taken 5", "shardId-000000000003", "1000", 1),
        ("later", "shardId-000000000003", "1000", 2),
        ("later", "shardId-000000000003", "1001", 0),
        ("later", "shardId-000000000003", "10000", 0),
        # Nothing of these had been read.
        ("later", "shardId-000000000004", "1", 0),
        ("later", "shardId-000000000005", "1", 0),
        ("later", "shardId-000000000006", "1", 0),
    ]

    found = rows_up_to(spark, tmp_path / "archive", rows)

    assert found == [f"taken {number}" for number in range(1, 6)]


def test_of_a_folder_that_two_streams_share_one_is_taken(spark, tmp_path):
    rows = [
        ("mine", "shardId-000000000002", "1", 0, "clicks"),
        ("other", "shardId-000000000002", "1", 0, "orders"),
    ]

    found = rows_up_to(spark, tmp_path / "archive", rows, schema=f"{SCHEMA}, stream string")

    assert found == ["mine"]


def test_a_row_that_does_not_say_where_it_was_stops_the_back_fill(spark, tmp_path):
    with pytest.raises(Exception, match="a row does not say where its record was"):
        rows_up_to(spark, tmp_path / "archive", [("?", "shardId-000000000002", None, 0)])


@pytest.mark.parametrize(
    ("schema", "columns", "said"),
    [
        ("data string, shard_id string", ("data",), "no column sequence_number, sub_sequence_nu"),
        (SCHEMA, ("data", "partition_key"), "the archive has no column partition_key"),
        (f"{SCHEMA}, payload_index int", ("data",), "written without --payload ndjson"),
    ],
)
def test_an_archive_that_cannot_be_divided_is_refused(spark, tmp_path, schema, columns, said):
    with pytest.raises(ConfigurationError, match=said):
        rows_up_to(spark, tmp_path / "archive", [], schema=schema, columns=columns)


def test_files_are_listed_when_no_compaction_is_under_way(tmp_path, monkeypatch):
    hour = tmp_path / HOUR
    hour.mkdir(parents=True)
    (hour / "a.parquet").touch()
    (hour / LIST).touch()
    read = []

    def pause(_seconds):
        """Let the compaction end, and let another batch come while the files are listed."""
        (hour / LIST).unlink(missing_ok=True)

    def lists():
        read.append(sorted(each.name for each in hour.iterdir()))
        if len(read) == 1:
            (hour / "b.parquet").touch()
        return read[-1]

    monkeypatch.setattr(backfill, "time", SimpleNamespace(sleep=pause))
    assert backfill._settled(str(tmp_path), lists) == ["a.parquet", "b.parquet"]

    (hour / LIST).touch()
    monkeypatch.setattr(backfill, "time", SimpleNamespace(sleep=lambda _: None))
    with pytest.raises(ConfigurationError, match="start the archive's query, which goes on"):
        backfill._settled(str(tmp_path), lists)


# --- the note in the checkpoint


def test_a_start_after_a_crash_means_the_same_commit(given, tmp_path):
    checkpoint = f"{tmp_path}/checkpoint"
    first = begun(given, stream="clicks", checkpoint=checkpoint, now_ms=NOW_MS)
    again = begun(given, stream=ARN, checkpoint=f"{checkpoint}/", now_ms=NOW_MS + 1)

    assert first == again
    assert first.as_commit().begun_ms == NOW_MS
    assert first.starting_position == option_text(POSITIONS)
    assert not first.is_done
    again.done()
    (tmp_path / "positions.json").unlink()
    last = begun(given, stream="clicks", checkpoint=checkpoint, now_ms=NOW_MS)
    assert last.is_done
    assert last.positions == POSITIONS


def test_two_queries_of_one_archive_are_two_commits(given, tmp_path):
    one, two = (
        begun(given, stream="clicks", checkpoint=f"{tmp_path}/{name}", now_ms=NOW_MS)
        for name in ("one", "two")
    )

    assert one.commit != two.commit


@pytest.mark.parametrize(
    ("text", "stream", "said"),
    [
        (None, "clicks", "no such file; shardfleet position export --checkpoint"),
        ("{", "clicks", "it is no JSON"),
        ("[]", "clicks", "format and version are None"),
        (json.dumps(document()), "orders", f"they are of {ARN}, and the source is orders"),
    ],
)
def test_positions_that_are_of_no_use_are_refused(tmp_path, text, stream, said):
    file = tmp_path / "given.json"
    if text is not None:
        file.write_text(text, "utf-8")

    with pytest.raises(ConfigurationError, match=said):
        begun(str(file), stream=stream, checkpoint=f"{tmp_path}/checkpoint", now_ms=NOW_MS)
    assert not (tmp_path / "checkpoint").exists()


def test_the_switch_is_not_moved_once_it_is_set(given, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    begun(given, stream="clicks", checkpoint=str(checkpoint), now_ms=NOW_MS)
    moved = tmp_path / "moved.json"
    moved.write_text(json.dumps(document(shards={"shardId-000000000002": "END"})), "utf-8")

    with pytest.raises(ConfigurationError, match="the query has begun with others"):
        begun(str(moved), stream="clicks", checkpoint=str(checkpoint), now_ms=NOW_MS)


def test_a_query_that_has_begun_without_a_back_fill_gets_none(given, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)

    with pytest.raises(ConfigurationError, match="has begun without one; begin with a new check"):
        begun(given, stream="clicks", checkpoint=str(checkpoint), now_ms=NOW_MS)
    assert not (checkpoint / FILE).exists()
