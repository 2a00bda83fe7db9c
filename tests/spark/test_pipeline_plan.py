"""What a pipeline may be asked to do, and compaction of an archive. Without Spark."""

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.app import run
from shardfleet_spark.host.files import file_system
from shardfleet_spark.options.options import read_options
from shardfleet_spark.pipelines.aggregate import AggregateOptions, in_step
from shardfleet_spark.pipelines.archive_options import ArchiveOptions
from shardfleet_spark.pipelines.compaction import LIST, Compactor
from shardfleet_spark.pipelines.plan import PipelinePlan, TablePlace

BACKFILL = {"backfill": "a", "backfill_positions": "p"}
PLAN = {"source": "shardfleet:clicks", "sink": "console", "checkpoint": "c"}


def test_a_plan_travels_as_json():
    plan = PipelinePlan(
        **PLAN,
        transform="aggregate",
        settings={"key": "origin"},
        source_options={"startingPosition": "TRIM_HORIZON"},
    )

    assert PipelinePlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("trigger", "ms"),
    [("available-now", 0), ("250ms", 250), ("10s", 10_000), ("5 minutes", 300_000), ("1h", 3.6e6)],
)
def test_a_trigger_has_a_length(trigger, ms):
    assert PipelinePlan(**PLAN, trigger=trigger).trigger_ms == ms


@pytest.mark.parametrize(
    ("change", "skew"),
    [
        ({}, str(10 * 60_000)),  # The watermark's default.
        ({"settings": {"watermark": "2 hours"}}, str(7_200_000)),
        ({"settings": {"watermark": "1 second"}, "trigger": "30s"}, "120000"),
        ({"source_options": {"maxshardskew": "7s"}}, "7s"),
        ({"source": "json:folder"}, None),
    ],
)
def test_aggregate_reads_shards_in_step_unless_it_is_told_otherwise(change, skew):
    plan = in_step(PipelinePlan(**{**PLAN, "transform": "aggregate", **change}))

    found = {name.lower(): value for name, value in plan.source_options.items()}
    assert found.get("maxshardskew") == skew


def test_a_place_may_be_an_arn_or_a_uri():
    arn = "arn:aws:kinesis:eu-central-1:111122223333:stream/clicks"

    assert TablePlace.parse(f"shardfleet:{arn}", side="source").where == arn
    assert TablePlace.parse("parquet:s3://bucket/a", side="sink") == TablePlace(
        "parquet", "s3://bucket/a"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"source": "clicks"}, "source 'clicks': format:place"),
        ({"sink": "parquet"}, "sink 'parquet': format:place"),
        ({"transform": "shop.clicks"}, "package.module:function"),
        ({"transform": "shop:clicks", "settings": {"a": "b"}}, "settings a: only archive and"),
        ({"checkpoint": ""}, "checkpoint is missing"),
        ({"trigger": "soon"}, "available-now or an interval"),
        ({"output_mode": "replace"}, "append, update or complete"),
        ({"transform": "archive", "batch": True}, "runs as a stream"),
        (
            {"payload": "jsonl", "schema": "a int"},
            "payload 'jsonl': json, ndjson, csv, avro, avro-",
        ),
        ({"bad_records": "b"}, "bad records 'b': a schema is needed"),
        ({"bad_records": "b", "schema": "a int", "batch": True}, "for a stream's query only"),
        ({"bad_records": "b", "schema": "a int", "source": "json:a"}, "for a stream's query only"),
        ({"payload": "ndjson"}, "payload ndjson: a schema is needed"),
        ({"backfill": "a"}, "both are needed, or neither"),
        (BACKFILL, "a stream's query into a table is needed"),
        ({**BACKFILL, "sink": "delta:t", "transform": "archive"}, "not with archive"),
        (
            {**BACKFILL, "sink": "delta:t", "source_options": {"startingposition": "LATEST"}},
            "leave startingPosition out",
        ),
        # Without a Java, and before one is started.
        ({"source_options": {"startingPositon": "LATEST"}}, "nearest is startingPosition"),
        ({"source_options": {"maxOffsetsPerTrigger": "9"}}, "is maxRecordsPerBatch here"),
        ({"source_options": {"endingPosition": "LATEST"}}, "endingposition does not exist"),
        ({"source_options": {"aggregate": "true"}}, "belongs to the other direction"),
        (
            {"sink": "shardfleet:out", "sink_options": {"giveUpAfter": "soon"}},
            "giveUpAfter = 'soon",
        ),
        ({"source": "shardfleet:not a stream"}, "option stream = 'not a stream'"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_by_field(change, said):
    with pytest.raises(ConfigurationError, match=said):
        PipelinePlan(**{**PLAN, **change})


def test_everything_wrong_is_said_at_once():
    with pytest.raises(ConfigurationError, match=r"source .*; sink .*; checkpoint"):
        PipelinePlan(source="x", sink="y")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"source": "json:a", "sink": "b", "more": 1}'])
def test_an_argument_that_is_no_plan_is_refused(text):
    with pytest.raises(ConfigurationError, match="plan"):
        PipelinePlan.from_json(text)


@pytest.mark.parametrize(
    ("options", "settings", "said"),
    [
        (AggregateOptions, {"window": "soon"}, "option window = 'soon'"),
        (AggregateOptions, {"watermark": "10"}, "allowed is an interval such as 10 seconds"),
        (AggregateOptions, {"windows": "1 minute"}, "nearest is window"),
        (ArchiveOptions, {"rowsPerFile": "0"}, "option rowsPerFile"),
        (ArchiveOptions, {"compression": "rar"}, "zstd"),
        (ArchiveOptions, {"files": "1001"}, "option files = '1001'"),
        (ArchiveOptions, {"compactAfter": "an hour"}, "option compactAfter = 'an hour'"),
        (ArchiveOptions, {"compactBelow": "0"}, "option compactBelow = '0'"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(options, settings, said):
    with pytest.raises(ConfigurationError, match=said):
        read_options(options, settings)


def test_the_command_prints_the_jobs_argument(capsys):
    arguments = ["pipeline", "run", "--source", "shardfleet:a", "--sink", "shardfleet:b"]
    arguments += ["--checkpoint", "c", "--source-option", "startingPosition=TRIM_HORIZON"]

    assert run([*arguments, "--print-plan"]) == 0

    plan = PipelinePlan.from_json(capsys.readouterr().out)
    assert plan.source_options == {"startingPosition": "TRIM_HORIZON"}
    assert plan.sink == "shardfleet:b"


def test_the_command_names_what_is_wrong(capsys):
    arguments = ["pipeline", "run", "--source", "shardfleet:a", "--sink", "console"]

    assert run([*arguments, "--sink-option", "numRows"]) == 2
    assert "--sink-option 'numRows': NAME=VALUE" in capsys.readouterr().err


def test_a_folder_may_be_a_path_or_a_uri(tmp_path):
    assert file_system("a/b/") == (fs.LocalFileSystem(), "a/b")
    assert file_system(tmp_path.as_uri())[1] == str(tmp_path)
    with pytest.raises(ConfigurationError, match="gopher://x"):
        file_system("gopher://x")


# --- compaction ---

OPTIONS = ArchiveOptions(compact_after_ms=3_600_000, compact_below_bytes=1_000_000)
HOUR, LATER = "date=2026-11-21/hour=03", "date=2026-11-21/hour=05"


def put_file(root, folder, name, numbers):
    (root / folder).mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), root / folder / name)


def visible(root, folder):
    return sorted(p.name for p in (root / folder).iterdir() if not p.name.startswith(("_", ".")))


def numbers_in(root, folder):
    found = [pq.read_table(root / folder / name)["n"].to_pylist() for name in visible(root, folder)]
    return sorted(n for each in found for n in each)


@pytest.fixture
def archive(tmp_path):
    put_file(tmp_path, HOUR, "q-0000000001-0-0.parquet", [1, 2])
    put_file(tmp_path, HOUR, "q-0000000002-0-0.parquet", [3])
    put_file(tmp_path, HOUR, "q-0000000003-0-0.parquet", [4])
    put_file(tmp_path, HOUR, "other-0000000001-0-0.parquet", [9])
    put_file(tmp_path, LATER, "q-0000000003-0-0.parquet", [5])
    return tmp_path


def test_an_hour_that_is_over_is_put_together_but_for_the_newest_batch(archive):
    compactor = Compactor(str(archive), OPTIONS, prefix="q-")

    assert compactor.after_batch(3, touched=[HOUR, LATER]) == [HOUR]

    names = visible(archive, HOUR)
    assert [name for name in names if name.startswith("q-0")] == ["q-0000000003-0-0.parquet"]
    assert "other-0000000001-0-0.parquet" in names
    assert sum(name.startswith("q-to-0000000002-") for name in names) == 1
    assert numbers_in(archive, HOUR) == [1, 2, 3, 4, 9]


def test_an_hour_that_is_not_over_is_left_alone(archive):
    compactor = Compactor(str(archive), OPTIONS, prefix="q-")

    assert compactor.after_batch(3, touched=[HOUR]) == []
    assert compactor.after_batch(4, touched=[]) == []


def test_a_file_that_is_large_enough_is_left_alone(archive):
    smallest = min(path.stat().st_size for path in (archive / HOUR).glob("q-*"))
    options = ArchiveOptions(compact_after_ms=3_600_000, compact_below_bytes=smallest)
    compactor = Compactor(str(archive), options, prefix="q-")

    assert compactor.after_batch(3, touched=[HOUR, LATER]) == []
    assert len(visible(archive, HOUR)) == 4


def test_the_rest_is_put_together_when_a_later_batch_is_written(archive):
    compactor = Compactor(str(archive), OPTIONS, prefix="q-")
    compactor.after_batch(3, touched=[HOUR, LATER])

    assert compactor.after_batch(4, touched=[LATER]) == [HOUR]

    assert len(visible(archive, HOUR)) == 2
    assert numbers_in(archive, HOUR) == [1, 2, 3, 4, 9]


def test_files_of_other_columns_stay_apart(archive):
    pq.write_table(pa.table({"m": ["x"]}), archive / HOUR / "q-0000000000-0-0.parquet")
    compactor = Compactor(str(archive), OPTIONS, prefix="q-")

    compactor.after_batch(3, touched=[HOUR, LATER])

    assert "q-0000000000-0-0.parquet" in visible(archive, HOUR)


class Died(Exception):
    """The process ended here."""


@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_any_step_loses_and_repeats_nothing(archive, step):
    real, calls = fs.LocalFileSystem(), []

    def counted(name):
        def call(*arguments, **options):
            if name in ("move", "delete_file", "open_output_stream"):
                calls.append(name)
                if len(calls) > step:
                    raise Died
            return getattr(real, name)(*arguments, **options)

        return call

    compactor = Compactor(str(archive), OPTIONS, prefix="q-")
    names = ("move", "delete_file", "open_output_stream", "open_input_stream", "get_file_info")
    before = numbers_in(archive, HOUR)
    # Parquet's own reading and writing goes to the real files; what arranges them is counted.
    compactor._system = SimpleNamespace(**{name: counted(name) for name in names})
    reading = {"filesystem": real}
    with pytest.MonkeyPatch.context() as patch:
        module = "shardfleet_spark.pipelines.compaction.pq"
        for name in ("read_schema", "ParquetWriter", "ParquetFile"):
            original = getattr(pq, name)
            patch.setattr(
                f"{module}.{name}",
                lambda *a, _original=original, **k: _original(*a, **{**k, **reading}),
            )
        try:
            compactor.after_batch(3, touched=[HOUR, LATER])
        except Died:
            assert len(set(numbers_in(archive, HOUR))) == len(numbers_in(archive, HOUR))

    Compactor(str(archive), OPTIONS, prefix="q-").after_batch(3, touched=[HOUR, LATER])

    assert numbers_in(archive, HOUR) == before
    assert not (archive / HOUR / LIST).exists()
