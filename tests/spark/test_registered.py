"""
Avro in the frames of a schema registry: each payload in its own schema, one column for all.

Expected: what fastavro reads of the same bytes; the frames are the published ones.
"""

import io
import json
import time
import uuid
import zlib
from types import SimpleNamespace

import fastavro
import pytest
from pyspark.sql.types import StructType

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_spark.aws.schema_registries import NoSuchSchema
from shardfleet_spark.payload.avro_payload import struct_of_avro
from shardfleet_spark.payload.frames import confluent_frame as read_confluent
from shardfleet_spark.payload.frames import glue_frame as read_glue
from shardfleet_spark.payload.growth import grown, misfit, missing_fields
from shardfleet_spark.payload.parsing import parse_payload
from shardfleet_spark.payload.registered import (
    ASKED_IN_VAIN_S,
    ASKED_S,
    SCHEMAS_MOST,
    UNKNOWN_MOST,
    Registered,
    _Reader,
)
from shardfleet_spark.pipelines.plan import PipelinePlan
from shardfleet_spark.pipelines.running import run_pipeline
from tests.spark.registries import confluent_frame, glue_frame, registry


def record(*fields):
    return {
        "type": "record",
        "name": "Click",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }


PLACE_1 = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}
PLACE_2 = {**PLACE_1, "fields": [*PLACE_1["fields"], {"name": "y", "type": ["null", "int"]}]}
FIRST = record(("page", "string"), ("ms", "long"), ("place", PLACE_1))
# `ms` has gone, `user` and `place.y` have come.
SECOND = record(("page", "string"), ("user", ["null", "string"]), ("place", PLACE_2))
CLICKS_1 = [{"page": f"/{n}", "ms": n, "place": {"x": n}} for n in range(3)]
CLICKS_2 = [
    {"page": f"/{n}", "user": None if n == 4 else f"u{n}", "place": {"x": n, "y": n}}
    for n in range(3, 6)
]
EXPECTED = [
    *({**each, "user": None, "place": {**each["place"], "y": None}} for each in CLICKS_1),
    *({**each, "ms": None} for each in CLICKS_2),
]


def avro(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    assert fastavro.schemaless_reader(io.BytesIO(out.getvalue()), schema, None) == value
    return out.getvalue()


@pytest.fixture
def there():
    with registry() as found:
        found.add(1, FIRST)
        found.add(2, SECOND)
        yield found


# --- frames


def test_a_frame_says_which_schema_and_what_is_behind():
    name = "0f0e0d0c-0b0a-0908-0706-050403020100"
    number = uuid.UUID(name).int

    assert read_confluent(b"\x00\x00\x00\x01\x02body") == ("258", b"body")
    assert read_glue(glue_frame(number, b"body")) == (name, b"body")
    assert read_glue(glue_frame(number, b"body", compressed=True)) == (name, b"body")


@pytest.mark.parametrize(
    ("read", "data", "said"),
    [
        (read_confluent, b"", "no frame of a Confluent"),
        (read_confluent, b"\x00\x00\x00\x01", "no frame of a Confluent"),
        (read_confluent, b"\x01\x00\x00\x00\x01x", "no frame of a Confluent"),
        (read_glue, glue_frame(1, b"")[:17], "no frame of a Glue"),
        (read_glue, b"\x02" + glue_frame(1, b"x")[1:], "no frame of a Glue"),
        (read_glue, b"\x03\x04" + glue_frame(1, b"x")[2:], "compression 4"),
        (read_glue, b"\x03\x05" + glue_frame(1, b"none")[2:], "says zlib and is none"),
        (read_glue, glue_frame(1, b"body", compressed=True)[:-1], "cut off"),
        (read_glue, glue_frame(1, b"body", compressed=True) + b"x", "cut off"),
    ],
)
def test_what_is_no_frame_is_said(read, data, said):
    with pytest.raises(ValueError, match=said):
        read(data)


def test_a_frame_that_unpacks_to_too_much_is_no_frame():
    bomb = zlib.compress(bytes(1 << 27))

    with pytest.raises(ValueError, match="too long"):
        read_glue(b"\x03\x05" + bytes(16) + bomb)


# --- types


@pytest.mark.processes
@pytest.mark.usefixtures("spark")  # Which reads the types.
def test_a_type_grows_behind_its_fields_and_only_by_what_it_lacks():
    one = StructType.fromDDL("a int, b struct<c int>, d array<struct<e int>>, f map<string, int>")
    two = StructType.fromDDL("z int, b struct<y int, c int>, d array<struct<x int>>, a int")

    both = grown(one, two)

    assert both.simpleString() == (
        "struct<a:int,b:struct<c:int,y:int>,d:array<struct<e:int,x:int>>,f:map<string,int>,z:int>"
    )
    assert [".".join(path) for path, _ in missing_fields(one, two)] == ["z", "b.y", "d.element.x"]
    assert not list(missing_fields(both, two))
    assert grown(both, one) == both


@pytest.mark.processes
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("read", "written", "said"),
    [
        ("a bigint", "a int", ""),
        ("a double", "a int", ""),
        ("a double", "a float", ""),
        ("a int", "b string", ""),
        ("a int", "a bigint", "payload.a is bigint, which cannot be read as int"),
        ("a double", "a bigint", "payload.a is bigint"),  # Of more than 53 bits some are lost.
        ("a struct<b int>", "a struct<b string>", "payload.a.b is string"),
        ("a array<int>", "a array<string>", "payload.a[] is string"),
        ("a int", "A int", "payload.A is a in the schema"),
    ],
)
def test_what_cannot_be_read_is_said_by_field(read, written, said):
    found = misfit(StructType.fromDDL(read), StructType.fromDDL(written))

    assert found.startswith(said)
    assert bool(found) == bool(said)


# --- rows


@pytest.mark.processes
@pytest.mark.usefixtures("embedded_aws")  # For keys; Glue is another server.
@pytest.mark.parametrize("kind", ["avro-confluent", "avro-glue"])
def test_each_payload_is_read_in_the_schema_that_its_frame_names(spark, there, kind):
    if kind == "avro-confluent":
        frame, options, first = confluent_frame, {"registry": there.url}, "1"
    else:
        frame, options = glue_frame, {"endpoint": there.url, "region": "eu-central-1"}
        first = str(uuid.UUID(int=1))
    there.add(3, record(("ms", "int")))
    there.add(4, record(("ms", "string")))
    there.add(5, {"type": "enum", "name": "E", "symbols": ["A"]})
    data = [
        frame(1, avro(FIRST, CLICKS_1[1])),
        frame(3, avro(record(("ms", "int")), {"ms": 77})),
        frame(4, b"\x02x"),
        frame(5, b"\x00"),
        frame(9, b""),
        frame(1, b"\x02"),
        b"x",
    ]
    rows = spark.createDataFrame([(each,) for each in data], "data binary")

    found = parse_payload(rows, first, kind=kind, options=options).collect()

    assert found[0]["payload"].asDict(recursive=True) == CLICKS_1[1]
    assert found[1]["payload"].asDict(recursive=True) == {"page": None, "ms": 77, "place": None}
    assert [row["bad_record"] for row in found[:2]] == [None, None]
    said = ["cannot be read as bigint", "an Avro record is needed", "is not in the registry"]
    for row, words in zip(found[2:], [*said, "ends too early", "no frame of a"], strict=True):
        assert words in row["bad_record"]
        assert row["payload"] is None


@pytest.mark.processes
def test_two_versions_of_a_schema_are_one_table(spark, there, embedded_aws, make_stream, tmp_path):
    stream, client = make_stream(shards=2), embedded_aws.client("kinesis")
    data = [confluent_frame(1, avro(FIRST, each)) for each in CLICKS_1]
    data += [confluent_frame(2, avro(SECOND, each)) for each in CLICKS_2]
    for number, each in enumerate(data):
        client.put_record(StreamName=stream, Data=each, PartitionKey=str(number))
    plan = PipelinePlan(
        source=f"shardfleet:{stream}",
        sink=f"parquet:{tmp_path}/out",
        schema="1",
        payload="avro-confluent",
        payload_options={"registry": there.url},
        source_options={
            "startingPosition": "TRIM_HORIZON",
            "sealStore": f"file:{tmp_path}/seals",
            "region": embedded_aws.region,
            "endpoint": embedded_aws.endpoint_url,
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )

    result = run_pipeline(spark, plan)
    # A later run begins with what was met, whatever the order in which schemas come.
    client.put_record(
        StreamName=stream, Data=confluent_frame(1, avro(FIRST, CLICKS_1[0])), PartitionKey="x"
    )
    again = run_pipeline(spark, plan)

    read = spark.read.parquet(f"{tmp_path}/out").select("payload.*").collect()
    found = sorted((row.asDict(recursive=True) for row in read), key=lambda row: row["page"])
    assert found == [EXPECTED[0], *EXPECTED]
    assert list(found[0]) == ["page", "ms", "place", "user"]
    assert (result.rows, again.rows) == (len(data), 1)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("avro-confluent", {}, "payload option registry is missing"),
        ("avro-confluent", {"registry": "http://h", "url": "x"}, "payload option url: avro-conf"),
        ("avro-glue", {"registry": "x"}, "avro-glue has region, endpoint, roleArn, schemas"),
    ],
)
def test_options_of_a_registry_are_checked(kind, options, said):
    with pytest.raises(ConfigurationError, match=said):
        parse_payload(None, "1", kind=kind, options=options)


class Counting:
    """A registry with FIRST under 1 and what is no schema under 2; how often it was asked."""

    def __init__(self):
        self.asked = 0

    def schema_of(self, schema_id):
        self.asked += 1
        if schema_id == "1":
            return json.dumps(FIRST)
        if schema_id == "2":
            return '"what-a-body-holds'
        raise NoSuchSchema(f"schema {schema_id} is not in the registry")


@pytest.mark.processes
@pytest.mark.usefixtures("spark")  # Which reads the types.
def test_ids_that_somebody_makes_up_are_few_questions_and_a_bad_record_each():
    counting = Counting()
    how = Registered("avro-confluent", {"registry": "http://127.0.0.1:9"})
    reader = _Reader(how, struct_of_avro(json.dumps(FIRST)), registry=counting)
    good = confluent_frame(1, avro(FIRST, CLICKS_1[0]))
    assert reader.read(good) == (CLICKS_1[0], None)
    said = [reader.read(confluent_frame(number, b"x"))[1] for number in range(3, 100_003)]
    assert counting.asked == 1 + UNKNOWN_MOST
    assert all("is not in the registry" in each for each in said[:UNKNOWN_MOST])
    assert all("was not asked for" in each for each in said[UNKNOWN_MOST:])
    assert reader.read(good) == (CLICKS_1[0], None)
    assert len(reader._readers) == 1 + UNKNOWN_MOST


class Slow(Counting):
    """A registry that takes its time for each answer, and has each id, or none but 1."""

    def __init__(self, *, answer_s, has):
        super().__init__()
        self.answer_s, self.has, self.now_s = answer_s, has, 0.0

    def schema_of(self, schema_id):
        self.now_s += self.answer_s
        return super().schema_of("1" if self.has else schema_id)


@pytest.mark.processes
@pytest.mark.usefixtures("spark")  # Which reads the types.
@pytest.mark.parametrize(
    ("answer_s", "has", "asked_most", "said"),
    [
        (0, True, SCHEMAS_MOST, f"more than {SCHEMAS_MOST} schemas"),
        (3, False, ASKED_IN_VAIN_S // 3 + 1, "was not asked for"),
        (30, True, ASKED_S // 30 + 1, "took the registry 600 s"),
    ],
)
def test_whatever_a_registry_says_of_100_000_ids_questions_time_and_memory_are_bounded(
    answer_s, has, asked_most, said
):
    slow = Slow(answer_s=answer_s, has=has)
    how = Registered("avro-confluent", {"registry": "http://127.0.0.1:9"})
    struct = struct_of_avro(json.dumps(FIRST))
    reader = _Reader(how, struct, registry=slow, now_s=lambda: slow.now_s)
    frames = (confluent_frame(n, avro(FIRST, CLICKS_1[0])) for n in range(3, 100_003))
    try:
        last = [reader.read(each) for each in frames][-1][1]
    except ShardfleetError as error:  # The task fails, and goes on with what its process knows.
        last = str(error)
    assert said in last
    assert slow.asked <= asked_most
    assert len(reader._readers) <= asked_most


def twice_as_much(levels):
    """Return a schema of some KB whose every record has the one before it twice."""
    kind = {"type": "fixed", "name": "F", "size": 0}
    for level in range(levels):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": kind["name"]}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    return kind


LONG = "x" * 100_000
HOSTILE = {
    "twice as much": twice_as_much(40),
    "long names": record((LONG, ["int", "string"])),
    "many names": record(*((f"{LONG[:5_000]}{n}", "int") for n in range(99))),
    "many fields": record(*((f"f{n}", "int") for n in range(20_000))),
    "another type of a long name": record(("page", record((LONG, "int")))),
}


@pytest.mark.processes
@pytest.mark.usefixtures("spark")  # Which reads the types.
@pytest.mark.parametrize("about", HOSTILE)
def test_a_schema_that_means_harm_is_a_few_words(about):
    how = Registered("avro-confluent", {"registry": "http://127.0.0.1:9"})
    asked = SimpleNamespace(schema_of=lambda _: json.dumps(HOSTILE[about]))
    reader = _Reader(how, struct_of_avro(json.dumps(FIRST)), registry=asked)
    begun_s = time.process_time()
    try:
        value, said = reader.read(confluent_frame(7, b""))
    except ConfigurationError as error:
        value, said = None, str(error)
    assert value is None
    assert len(said) < 500
    assert time.process_time() - begun_s < 5


@pytest.mark.processes
@pytest.mark.usefixtures("spark")  # Which reads the types.
def test_what_a_registry_has_that_is_no_schema_is_not_quoted():
    how = Registered("avro-confluent", {"registry": "http://127.0.0.1:9"})
    reader = _Reader(how, struct_of_avro(json.dumps(FIRST)), registry=Counting())
    value, said = reader.read(confluent_frame(2, b"x"))
    assert (value, said) == (None, "schema 2 of the registry: an Avro record is needed")


@pytest.mark.processes
def test_without_a_folder_for_what_is_met_further_fields_are_refused(spark, there):
    rows = spark.createDataFrame([(confluent_frame(2, avro(SECOND, CLICKS_2[0])),)], "data binary")
    parsed = parse_payload(rows, "1", kind="avro-confluent", options={"registry": there.url})

    with pytest.raises(Exception, match=r"further fields: user, place\.y; name it"):
        parsed.collect()
