"""Pipelines on real Spark: payloads, the archive, and flights through the command."""

import io
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pandas as pd
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from pandas.testing import assert_frame_equal

from shardfleet.domain.delivery.record_ids import split_record_id
from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.avro_payload import struct_of_avro
from shardfleet_spark.payload.parsing import parse_payload
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from tests.spark.flights import COUNT, flight_lines

pytestmark = pytest.mark.processes

COMMAND_LIMIT_S = 540
FIGURES = ["origin", "date", "count", "sum_delay", "min_delay", "max_delay"]
FIGURES += ["sum_distance", "min_distance", "max_distance"]


def put(aws, stream, lines, *, key):
    client = aws.client("kinesis")
    for first in range(0, len(lines), 500):
        waiting = [
            {"Data": line.encode(), "PartitionKey": key(line)}
            for line in lines[first : first + 500]
        ]
        while waiting:
            answer = client.put_records(StreamName=stream, Records=waiting)["Records"]
            waiting = [
                record
                for record, outcome in zip(waiting, answer, strict=True)
                if "ErrorCode" in outcome
            ]


def read_all(aws, stream):
    client = aws.client("kinesis")
    for shard in client.list_shards(StreamName=stream)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = client.get_records(ShardIterator=iterator)
            yield from answer["Records"]
            iterator = answer.get("NextShardIterator") if answer["Records"] else None


def rows_of(spark, *data):
    return spark.createDataFrame([(each,) for each in data], "data binary")


def test_a_payload_that_does_not_fit_fails_nothing_and_says_why(spark):
    rows = rows_of(
        spark,
        b'{"origin": "LAS", "delay": -5, "more": 1}',
        b'{"origin": "HNL"}',
        b'{"origin": "SFO", "delay": "late"}',
        b"{",
        b"\xff\xfe",
        None,
    )

    parsed = parse_payload(rows, "origin string, delay int").collect()

    assert [row["payload"] and tuple(row["payload"]) for row in parsed] == [
        ("LAS", -5),
        ("HNL", None),
        *(None, None, None, None),
    ]
    assert [row["bad_record"] for row in parsed] == [
        None,
        None,
        'no JSON of the schema: {"origin": "SFO", "delay": "late"}',
        "no JSON of the schema: {",
        "the data is no UTF-8",
        "there is no data",
    ]
    assert bytes(parsed[2]["data"]) == b'{"origin": "SFO", "delay": "late"}'


# RFC 8259, 2: a JSON text is one value, with white space around it and nothing else. The last two
# would close what a reader may put around a text.
NOT_ONE_VALUE = [
    b'{"delay": 1}{"delay": 2}',
    b'{"delay": 1}\n{"delay": 2}\n',
    b'{"delay": 1}, {"delay": 2}',
    b'{"delay": 1} and so on',
    b'{"delay": 1}\x00',
    b'{"delay": 1}]',
    b'{"delay": 1}, ""] and so on',
]


def test_a_second_json_value_or_text_behind_it_is_never_passed_over(spark):
    fine = [b'\n {"delay": 1}\r\n', b'{"delay": 1, "more": [{"x": "}{"}, "\\"]"]}']

    parsed = parse_payload(rows_of(spark, *NOT_ONE_VALUE, *fine), "delay int").collect()

    assert [row["payload"] and tuple(row["payload"]) for row in parsed] == [
        *(None for _ in NOT_ONE_VALUE),
        *((1,) for _ in fine),
    ]
    assert [row["bad_record"] for row in parsed] == [
        *(f"not one JSON value alone: {text.decode()}" for text in NOT_ONE_VALUE),
        *(None for _ in fine),
    ]


def test_what_the_readers_options_allow_is_allowed_behind_the_value(spark):
    rows = rows_of(spark, b"{'delay': 1} // a comment", b'{"delay": 1} // x\n{"delay": 2}')

    allowed = {"allowComments": "true", "allowSingleQuotes": "true"}
    parsed = parse_payload(rows, "delay int", options=allowed).collect()

    assert [row["bad_record"] is None for row in parsed] == [True, False]


def test_csv_payloads_are_parsed_with_the_readers_options(spark):
    rows = rows_of(spark, b"LAS;-5", b"HNL;late")

    parsed = parse_payload(
        rows, "origin string, delay int", kind="csv", options={"sep": ";"}
    ).collect()

    assert [row["payload"] and tuple(row["payload"]) for row in parsed] == [("LAS", -5), None]
    assert parsed[1]["bad_record"] == "no CSV of the schema: HNL;late"


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["null", "Kind"]},
    ],
}


def test_avro_payloads_become_columns_and_bad_ones_say_why(spark):
    order = {
        "number": 7,
        "note": None,
        "at": datetime(2026, 11, 21, 6, tzinfo=UTC),
        "price": Decimal("12.50"),
        "id": UUID(int=5),
        "tags": {"a": [1, 2]},
        "kind": "B",
        "other": "A",
    }
    written = io.BytesIO()
    schemaless_writer(written, parse_schema(ORDER), order)
    good = written.getvalue()
    rows = rows_of(spark, good, good[:-1], good + b"x", None)

    parsed = parse_payload(rows, json.dumps(ORDER), kind="avro").collect()

    payload = parsed[0]["payload"].asDict()
    assert payload == {
        **order,
        "at": datetime(2026, 11, 21, 6),  # noqa: DTZ001 - Spark gives times of the session's zone.
        "id": str(UUID(int=5)),
    }
    assert parsed[0]["bad_record"] is None
    assert [row["payload"] for row in parsed[1:]] == [None, None, None]
    assert [row["bad_record"][:21] for row in parsed[1:]] == [
        "no Avro of the schema",
        "no Avro of the schema",
        "there is no data",
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "no Avro schema"),
        ('"long"', "record is needed"),
        ('{"type": "record", "name": "R", "fields": [{"name": "f", "type": "nul"}]}', "nul"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "f", "type": ["int", "string"]}]}',
            "payload.f: a union of 2 types",
        ),
    ],
)
def test_an_avro_schema_without_column_types_is_refused(schema, said):
    with pytest.raises(ConfigurationError, match=said):
        struct_of_avro(schema)


def test_a_schema_that_is_none_and_a_kind_that_is_unknown_are_refused(spark):
    rows = rows_of(spark, b"{}")

    with pytest.raises(ConfigurationError, match="origin strin"):
        parse_payload(rows, "origin strin")
    with pytest.raises(ConfigurationError, match="json, ndjson, csv, avro"):
        parse_payload(rows, "origin string", kind="xml")


def test_the_archive_has_each_record_once_also_after_a_repeated_batch(
    spark, embedded_aws, make_stream, tmp_path
):
    stream = make_stream(shards=2)
    lines = [json.dumps({"n": n}) for n in range(400)]
    put(embedded_aws, stream, lines, key=lambda line: line[-3:])
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=f"parquet:{tmp_path}/archive",
        transform="archive",
        settings={
            "files": "2",
            "rowsPerFile": "150",
            "compactAfter": "0",
            "compression": "gzip",
        },
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "maxRecordsPerBatch": "250",
            "sealStore": f"file:{tmp_path}/seals",
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )

    first = run_pipeline(spark, plan)
    before = sorted((tmp_path / "archive").rglob("*.parquet"))
    # As if the driver had died before Spark noted that the last batch was done.
    commits = sorted(tmp_path.glob("checkpoint/commits/[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    commits[-1].with_name(f".{commits[-1].name}.crc").unlink()
    run_pipeline(spark, plan)

    files = sorted((tmp_path / "archive").rglob("*.parquet"))
    tables = [pq.read_table(file, partitioning=None) for file in files]
    numbers = [json.loads(data)["n"] for table in tables for data in table["data"].to_pylist()]
    assert sorted(numbers) == list(range(400))
    assert files == before
    assert first.rows == 400
    assert first.batches >= 2
    assert all(file.parent.name.startswith("hour=") for file in files)
    assert all(table.num_rows <= 150 for table in tables)
    assert {pq.read_metadata(file).row_group(0).column(0).compression for file in files} == {"GZIP"}


def test_flights_through_the_command_equal_pandas(embedded_aws, make_stream, tmp_path, seed):
    flights, counts = make_stream(shards=4), make_stream(shards=2)
    lines = flight_lines(seed)
    put(embedded_aws, flights, lines, key=lambda line: json.loads(line)["origin"])
    command = [
        *(str(Path(sys.executable).with_name("shardfleet")), "pipeline", "run"),
        *("--source", f"shardfleet:{flights}", "--sink", f"shardfleet:{counts}"),
        *("--source-option", "startingPosition=TRIM_HORIZON"),
        *("--source-option", "maxRecordsPerBatch=8000"),
        *("--schema", "date timestamp, origin string, delay int, distance int"),
        *("--payload-option", "timestampFormat=yyyy/MM/dd HH:mm"),
        *("--transform", "aggregate", "--output-mode", "update"),
        *("--setting", "key=origin", "--setting", "time=date", "--setting", "window=1 day"),
        *("--setting", "watermark=3650 days", "--setting", "sum=delay,distance"),
        *("--checkpoint", str(tmp_path / "checkpoint"), "--master", "local[2]"),
        *("--conf", "spark.sql.shuffle.partitions=2"),
    ]

    run = subprocess.run(
        command,
        env=os.environ | embedded_aws.environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )

    assert run.returncode == 0, run.stderr[-8_000:]
    assert_frame_equal(
        counts_in(embedded_aws, counts), wanted_of(lines), check_dtype=False, check_exact=True
    )


def counts_in(aws, stream):
    """The last record of each key and window, as a table."""
    last = {}
    for record in read_all(aws, stream):
        record_id, data = split_record_id(record["Data"])
        last[record_id] = json.loads(data)  # Order per key: the last one is the newest.
    found = pd.DataFrame(last.values())
    found["date"] = found["window_start"].str[:10]
    found = found.rename(columns={"key": "origin"})
    return found.sort_values(["origin", "date"]).reset_index(drop=True)[FIGURES]


def wanted_of(lines):
    """The same from the input, by pandas."""
    table = pd.DataFrame([json.loads(line) for line in lines])
    assert len(table) == COUNT
    table["date"] = table["date"].str[:10].str.replace("/", "-")
    grouped = table.groupby(["origin", "date"]).agg(
        count=("delay", "size"),
        sum_delay=("delay", "sum"),
        min_delay=("delay", "min"),
        max_delay=("delay", "max"),
        sum_distance=("distance", "sum"),
        min_distance=("distance", "min"),
        max_distance=("distance", "max"),
    )
    return grouped.reset_index()[FIGURES]
