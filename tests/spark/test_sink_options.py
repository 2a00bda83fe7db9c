"""Every option of the sink is read, defaulted, and refused with a useful message."""

import pytest
from pyspark.sql.types import StructType

from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.options import described, read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options_page import page
from shardfleet_spark.sink.sink import make_batch_writer, make_stream_writer
from tests.spark.test_source_options import KEY_ID, NEEDS, SECRET

ROLE = "arn:aws:iam::123456789012:role/writer"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
RECORDS = StructType().add("data", "binary").add("partition_key", "string")

# Option: (a right text, what it reads as, wrong texts).
CASES = {
    "stream": (ARN, ARN, ["", "a stream", "arn:aws:s3:::bucket"]),
    "region": ("eu-west-1", "eu-west-1", ["Ireland", "eu west 1"]),
    "endpoint": ("http://127.0.0.1:4566", "http://127.0.0.1:4566", ["localhost:4566", "ftp://x"]),
    "roleArn": (ROLE, ROLE, ["writer", "arn:aws:iam::1:role/x"]),
    "roleSessionName": ("job-7", "job-7", ["a b", "x"]),
    "roleExternalId": ("id", "id", ["a b", "x"]),
    "accessKeyId": (KEY_ID, KEY_ID, ["AKIA", "A B"]),
    "secretAccessKey": ("hidden/+", "hidden/+", ["hid den"]),
    "sessionToken": ("hidden=", "hidden=", ["hid den"]),
    "columns": ("data", ("data",), ["payload", "data,shardid"]),
    "profile": ("mine", "mine", ["my own", "[mine]"]),
    "aggregate": ("TRUE", True, ["yes"]),
    "aggregateSize": ("25k", 25 * 1024, ["511", "11m", "large"]),
    "aggregateRecords": ("9", 9, ["0", "100001"]),
    "maxRecordSize": ("10m", 10 << 20, ["0", "11m"]),
    "recordId": ("Column", "column", ["poistion"]),
    "runId": ("2026-11-21", "2026-11-21", []),
    "divertTo": ("s3a://bucket/bad", "s3a://bucket/bad", ["ftp://host/bad", "s3:bucket"]),
    "heldInMemory": ("1g", 1 << 30, ["0", "-1"]),
    "giveUpAfter": ("1h", 3_600_000, ["0", "999ms", "later"]),
}
FIELDS = {each.name: each.field for each in described(SinkOptions)}
WRONG = [(name, text) for name, (_, _, wrong) in CASES.items() for text in wrong]


def read(**options):
    return read_options(SinkOptions, {"stream": "clicks", **options})


def test_every_option_has_its_cases_and_its_line_in_the_reference():
    assert set(CASES) == set(FIELDS)
    parts = {
        title: page().partition(title)[2].partition("\n## ")[0]
        for title in ("## Source and", "## Sink")
    }
    for name in FIELDS:
        assert [f"| `{name}` |" in part for part in parts.values()].count(True) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_right_value_is_read_whatever_the_case_of_its_name(name):
    text, value, _ = CASES[name]

    assert getattr(read(**NEEDS.get(name, {}), **{name: text}), FIELDS[name]) == value
    found = read_options(
        SinkOptions, {"stream": "clicks", **NEEDS.get(name, {}), name.lower(): text}
    )
    assert getattr(found, FIELDS[name]) == value


@pytest.mark.parametrize(("name", "text"), WRONG)
@pytest.mark.parametrize("make", [make_batch_writer, make_stream_writer])
def test_a_wrong_value_is_refused_with_what_was_found_and_what_is_allowed(make, name, text):
    with pytest.raises(ConfigurationError) as refused:
        make({"stream": "clicks", name: text}, RECORDS, overwrite=False)

    shown = "(not shown)" if name in SECRET else repr(text)
    assert f"option {name} = {shown}" in str(refused.value)
    assert "allowed is " in str(refused.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"roleExternalId": "id"}, "roleExternalId is of no use without roleArn"),
        ({"runId": "x" * 65}, "option runId has 65 bytes, 64 are allowed"),
        ({"stream": ARN, "region": "eu-central-1"}, "the stream's ARN says 'eu-west-1'"),
        ({"agregate": "true"}, "option agregate does not exist; the nearest is aggregate"),
        ({"startingPosition": "LATEST"}, "startingposition belongs to the other direction"),
    ],
)
def test_what_contradicts_itself_or_does_not_exist_is_refused(options, said):
    with pytest.raises(ConfigurationError, match=said):
        make_batch_writer({"stream": "clicks", **options}, RECORDS, overwrite=False)
