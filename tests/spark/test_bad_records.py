"""
Bad records beside the output: each exactly once, in full, and no longer among the others.

Expected: what was put, told apart by Python's `json`.
"""

import io
import json

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest

from shardfleet.domain.delivery.record_ids import split_record_id
from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.parsing import parse_payload
from shardfleet_spark.pipelines.bad_records import diverted, set_aside
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from tests.spark.test_pipelines import read_all

pytestmark = pytest.mark.processes

PLACE = ["shard_id", "sequence_number", "sub_sequence_number", "payload_index"]
COLUMNS = "shard_id string, sequence_number string, sub_sequence_number bigint, data binary"


def records():
    """Return what is put: one, two or three numbers a record; some are cut off, some misfit."""
    for n in range(0, 600, 3):
        objects = [json.dumps({"n": each}) for each in range(n, n + 1 + n % 2)]
        if n % 7 == 0:
            objects[-1] = objects[-1][:-1]
        if n % 11 == 0:
            objects.append('{"n": "late"}')
        yield "".join(objects).encode()


def judged(data):
    """Return the good numbers, and the bad texts, of a record."""
    decoder, at, objects, text = json.JSONDecoder(), 0, [], data.decode()
    try:
        while at < len(text):
            found, end = decoder.raw_decode(text, at)
            objects.append((found["n"], text[at:end]))
            at = end
    except ValueError:
        return [], [data]
    good = [number for number, _ in objects if isinstance(number, int)]
    return good, [own.encode() for number, own in objects if not isinstance(number, int)]


def rows_in(folder):
    return pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pandas()


def test_each_bad_record_is_in_its_folder_once_also_after_repeated_batches(
    spark, embedded_aws, make_stream, tmp_path
):
    stream = make_stream(shards=2)
    client = embedded_aws.client("kinesis")
    put = list(records())
    for number, data in enumerate(put):
        client.put_record(StreamName=stream, Data=data, PartitionKey=str(number))
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=f"parquet:{tmp_path}/archive",
        transform="archive",
        schema="n int",
        payload="ndjson",
        bad_records=str(tmp_path / "bad"),
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerBatch": "70",
            "sealStore": f"file:{tmp_path}/seals",
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )

    first = run_pipeline(spark, plan)
    before = sorted((tmp_path / "bad").iterdir())
    # As if the driver had died before Spark noted that the last batch was done.
    commits = sorted(tmp_path.glob("checkpoint/commits/[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    again = run_pipeline(spark, plan)

    good, bad = rows_in(tmp_path / "archive"), rows_in(tmp_path / "bad")
    wanted = [judged(data) for data in put]
    assert sorted(row["n"] for row in good["payload"]) == sorted(
        number for numbers, _ in wanted for number in numbers
    )
    assert sorted(map(bytes, bad["data"])) == sorted(each for _, texts in wanted for each in texts)
    assert first.batches >= 2
    assert again.batches == 1
    assert sorted((tmp_path / "bad").iterdir()) == before
    assert not bad.duplicated(PLACE).any()
    assert bad["bad_record"].notna().all()
    assert good["bad_record"].isna().all()
    assert "payload" not in bad.columns


def test_an_aggregate_of_several_objects_a_record_equals_pandas(
    spark, embedded_aws, make_stream, tmp_path
):
    stream, sums = make_stream(shards=2), make_stream()
    client = embedded_aws.client("kinesis")
    lines = [json.dumps({"origin": f"o{n % 7}", "delay": n}) for n in range(300)]
    broken = [b'{"origin":"o1","delay":1} end', b'{"origin":"o1","delay":1}{']
    put = ["\n".join(lines[first : first + 5]).encode() for first in range(0, 300, 5)]
    for number, data in enumerate([*put, *broken]):
        client.put_record(StreamName=stream, Data=data, PartitionKey=str(number))
    place = {"region": embedded_aws.region, "endpoint": embedded_aws.endpoint_url}
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=f"shardfleet:{sums}",
        transform="aggregate",
        output_mode="update",
        settings={"key": "origin", "sum": "delay", "window": "365 days"},
        schema="origin string, delay int",
        payload="ndjson",
        bad_records=str(tmp_path / "bad"),
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerBatch": "25",
            "sealStore": f"file:{tmp_path}/seals",
            **place,
        },
        sink_options=place,
        checkpoint=str(tmp_path / "checkpoint"),
    )

    run_pipeline(spark, plan)

    last = {}
    for record in read_all(embedded_aws, sums):
        record_id, data = split_record_id(record["Data"])
        last[record_id] = json.loads(data)
    found = {row["key"]: (row["count"], row["sum_delay"]) for row in last.values()}
    by_origin = pd.read_json(io.StringIO("\n".join(lines)), lines=True).groupby("origin")["delay"]
    assert found == {
        origin: (row["count"], row["sum"])
        for origin, row in by_origin.agg(["count", "sum"]).iterrows()
    }
    assert sorted(map(bytes, rows_in(tmp_path / "bad")["data"])) == sorted(broken)


def test_a_task_that_fails_leaves_no_part_of_a_file(tmp_path):
    def batch(*numbers):
        rows = [
            {
                "shard_id": f"s{n % 2}",
                "sequence_number": str(n),
                "sub_sequence_number": 0,
                "data": b"{",
                "bad_record": "no JSON" if n % 3 else None,
                "payload": None,
            }
            for n in numbers
        ]
        return pa.RecordBatch.from_pylist(rows)

    def failing():
        yield batch(0, 1, 2)
        yield batch(3, 4, 5)
        seen = list(tmp_path.iterdir())
        assert seen
        assert all(path.name.startswith("_") for path in seen)  # Readers pass over them.
        raise ValueError("as if the task had failed")

    with pytest.raises(ValueError, match="as if the task had failed"):
        list(diverted(failing(), folder=str(tmp_path)))
    assert not list(tmp_path.iterdir())

    whole = [batch(0, 1, 2), batch(3, 4, 5)]
    good = [
        row["sequence_number"]
        for each in diverted(whole, folder=str(tmp_path))
        for row in each.to_pylist()
    ]
    assert good == ["0", "3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s0-2-0.parquet", "s1-1-0.parquet"]
    assert sorted(rows_in(tmp_path)["sequence_number"]) == ["1", "2", "4", "5"]


@pytest.mark.parametrize(
    ("columns", "folder", "said"),
    [
        ("data binary", "bad", "shard_id, sequence_number, sub_sequence_number are missing"),
        (COLUMNS, "xyz://bad", "folder 'xyz://bad'"),
    ],
)
def test_what_cannot_be_set_aside_is_refused_before_anything_runs(spark, columns, folder, said):
    df = parse_payload(spark.createDataFrame([], columns), "a int")

    with pytest.raises(ConfigurationError, match=said):
        set_aside(df, folder)
