"""
Records that hold several JSON objects: each one a row, or the whole record one bad record.

Expected: Python's `json` on each object alone, and pandas on the lines.
"""

import io
import json

import pandas as pd
import pyarrow.dataset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.errors import ConfigurationError
from shardfleet_spark.payload.json_objects import ends_of_objects
from shardfleet_spark.payload.parsing import parse_payload
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline

SPACE = st.text(alphabet=" \t\r\n", max_size=3)  # RFC 8259, 2.
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(), each, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(), VALUES, max_size=3), min_size=1, max_size=5)


@given(OBJECTS, st.lists(SPACE, min_size=6, max_size=6), st.booleans())
def test_objects_end_where_they_were_put_together(objects, spaces, in_ascii):
    parts = [json.dumps(each, ensure_ascii=in_ascii) for each in objects]
    text = spaces[-1] + "".join(
        part + space for part, space in zip(parts, spaces[:-1], strict=False)
    )

    ends = ends_of_objects(text)

    starts = [0, *ends[:-1]]
    assert [text[start:end].strip() for start, end in zip(starts, ends, strict=True)] == [
        part.strip() for part in parts
    ]


@given(OBJECTS, st.data())
def test_a_record_that_was_cut_off_is_never_fewer_objects(objects, data):
    parts = [json.dumps(each) for each in objects]
    text = "".join(parts)
    cut = data.draw(st.integers(0, len(text)))
    wholes = [len("".join(parts[:count])) for count in range(1, len(parts) + 1)]

    if cut in wholes:
        assert list(ends_of_objects(text[:cut])) == wholes[: wholes.index(cut) + 1]
    else:
        with pytest.raises(ValueError, match="JSON object"):
            ends_of_objects(text[:cut])


def test_a_number_of_a_million_digits_and_a_hundred_thousand_levels_end_in_time():
    digits = '{"a": ' + "9" * 1_000_000 + "}"
    deep = '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"

    assert list(ends_of_objects(digits)) == [len(digits)]
    with pytest.raises(ValueError, match="no JSON object at character 0"):
        ends_of_objects(deep)


def rows_of(spark, *data, kind="binary"):
    return spark.createDataFrame([(n, each) for n, each in enumerate(data)], f"n int, data {kind}")


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["binary", "string"])
def test_each_object_of_a_record_is_a_row_with_its_place(spark, kind):
    records = [
        '{"a":1}{"a":2}',
        '{"a":3}\n{"a":4}\r\n\n {"a":5}\n',
        ' {"a": 6, "more": ["}{", "ü"]} ',
    ]
    data = [each if kind == "string" else each.encode() for each in records]

    parsed = parse_payload(rows_of(spark, *data, kind=kind), "a int", kind="ndjson").collect()

    assert [(row["n"], row["payload_index"], row["payload"]["a"]) for row in parsed] == [
        *((0, 0, 1), (0, 1, 2)),
        *((1, 0, 3), (1, 1, 4), (1, 2, 5)),
        (2, 0, 6),
    ]
    assert [row["bad_record"] for row in parsed] == [None] * 6
    own = [row["data"] if kind == "string" else row["data"].decode() for row in parsed]
    assert own == ['{"a":1}', '{"a":2}', '{"a":3}', '{"a":4}', '{"a":5}', records[2].strip()]


# The whole record is one bad record: what stands behind, before or between its objects, or none.
NOT_OBJECTS_ALONE = {
    b'{"a":1}{"a":2': 'no JSON object at character 7, behind 1: {"a":2',
    b'{"a":1}\n{"a":2} and so on': "no JSON object at character 16, behind 2: and so on",
    b'{"a":1},{"a":2}': 'no JSON object at character 7, behind 1: ,{"a":2}',
    b'[{"a":1},{"a":2}]': 'no JSON object at character 0, behind 0: [{"a":1},{"a":2}]',
    b'{"a":1}\n2': "no JSON object at character 8, behind 1: 2",
    b'{"a":1}\x00': "no JSON object at character 7, behind 1: \x00",
    b"{'a':1}": "no JSON object at character 0, behind 0: {'a':1}",
    b'{"a":1}\xff': "the data is no UTF-8",
    b" \n": "there is no JSON object",
    b"": "there is no JSON object",
    None: "there is no data",
}


@pytest.mark.processes
def test_anything_but_whole_objects_makes_the_whole_record_one_bad_record(spark):
    rows = rows_of(spark, *NOT_OBJECTS_ALONE)

    parsed = parse_payload(rows, "a int", kind="ndjson").collect()

    assert [row["data"] and bytes(row["data"]) for row in parsed] == [
        each and bytes(each) for each in NOT_OBJECTS_ALONE
    ]
    assert [row["bad_record"] for row in parsed] == list(NOT_OBJECTS_ALONE.values())
    assert {(row["payload"], row["payload_index"]) for row in parsed} == {(None, 0)}


@pytest.mark.processes
def test_a_record_is_a_row_or_bad_whatever_python_and_spark_each_think_of_its_depth(spark):
    depths = (10, 900, 960, 980, 990, 995, 999, 1_001)
    rows = rows_of(spark, *(b'{"a":1,"x":' + b"[" * n + b"]" * n + b"}" for n in depths))

    parsed = parse_payload(rows, "a int", kind="ndjson").collect()

    assert len(parsed) == len(depths)
    assert all((row["payload"] is None) == (row["bad_record"] is not None) for row in parsed)
    assert parsed[0]["payload"]["a"] == 1
    assert parsed[-1]["payload"] is None


@pytest.mark.processes
def test_an_object_that_does_not_fit_is_bad_alone(spark):
    objects = ['{"a":1}', '{"a":"late"}', '{"a":NaN}', '{"a":2,"b":"\\ud800"}', '{"a":3}']

    parsed = parse_payload(
        rows_of(spark, "".join(objects).encode()), "a int, b string", kind="ndjson"
    ).collect()

    assert [row["payload"] and row["payload"]["a"] for row in parsed] == [1, None, None, None, 3]
    assert [row["bad_record"] for row in parsed] == [
        None,
        f"no JSON of the schema: {objects[1]}",
        f"no JSON of the schema: {objects[2]}",
        f"half of a surrogate pair: {objects[3]}",
        None,
    ]
    assert [row["data"].decode() for row in parsed] == objects


@pytest.mark.processes
def test_a_record_of_very_many_objects_is_told_in_full(spark):
    many = 50_000

    (row,) = (
        parse_payload(rows_of(spark, b"{}" * many), "a int", kind="ndjson")
        .selectExpr("count(*) c", "count(distinct payload_index) i", "max(payload_index) m")
        .collect()
    )

    assert tuple(row) == (many, many, many - 1)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"options": {"allowComments": "true"}}, "payload option allowComments: .* RFC 8259"),
        ({"column": "n"}, "payload column n is of type int: binary and string are allowed"),
        ({"column": "text"}, "payload column text: the table has n, data"),
        ({"schema": "a intt"}, "payload schema 'a intt'"),
    ],
)
def test_what_cannot_be_split_is_refused_before_anything_runs(spark, change, said):
    given = {"schema": "a int", "kind": "ndjson", **change}

    with pytest.raises(ConfigurationError, match=said):
        parse_payload(rows_of(spark, b"{}"), **given)


@pytest.mark.processes
def test_an_archive_has_each_object_once_and_equals_pandas(
    spark, embedded_aws, make_stream, tmp_path
):
    stream = make_stream(shards=2)
    client = embedded_aws.client("kinesis")
    lines = [json.dumps({"n": n, "name": f"né {n}"}) for n in range(600)]
    broken = b'{"n":-1}{"n":-'
    for first in range(0, 600, 3):
        between = "\n" if first % 2 else ""
        data = between.join(lines[first : first + 3]).encode()
        client.put_record(StreamName=stream, Data=data, PartitionKey=str(first))
    client.put_record(StreamName=stream, Data=broken, PartitionKey="x")

    run_pipeline(
        spark,
        PipelinePlan(
            source=f"shardfleet:{stream}",
            sink=f"parquet:{tmp_path}/archive",
            transform="archive",
            schema="n int, name string",
            payload="ndjson",
            source_options={
                "startingPosition": "TRIM_HORIZON",
                "maxRecordsPerBatch": "70",
                "sealStore": f"file:{tmp_path}/seals",
                "region": embedded_aws.region,
                "endpoint": embedded_aws.endpoint_url,
            },
            checkpoint=str(tmp_path / "checkpoint"),
        ),
    )

    found = pyarrow.dataset.dataset(tmp_path / "archive", format="parquet").to_table().to_pandas()
    good, bad = found[found["bad_record"].isna()], found[found["bad_record"].notna()]
    wanted = pd.read_json(io.StringIO("\n".join(lines)), lines=True)
    got = pd.DataFrame(list(good["payload"])).sort_values("n", ignore_index=True)
    assert got.to_dict("list") == wanted.to_dict("list")
    assert [bytes(data) for data in bad["data"]] == [broken]
    place = ["shard_id", "sequence_number", "sub_sequence_number", "payload_index"]
    assert not found.duplicated(place).any()
