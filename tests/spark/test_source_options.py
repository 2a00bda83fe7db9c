"""Every option is read, defaulted, and refused with a useful message."""

import re
from pathlib import Path

import pytest

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.columns import COLUMNS
from shardfleet_spark.options.foreign_names import HERE
from shardfleet_spark.options.options import described, read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions
from shardfleet_spark.options.starting import Start
from shardfleet_spark.options_page import page

ROOT = Path(__file__).resolve().parents[2]
ROLE = "arn:aws:iam::123456789012:role/reader"
KEY_ID = "AKIAIOSFODNN7EXAMPLE"

# Option: (a right text, what it reads as, wrong texts).
CASES = {
    "stream": ("clicks", "clicks", ["", "a stream", "arn:aws:s3:::bucket"]),
    "region": ("eu-west-1", "eu-west-1", ["Ireland"]),
    "endpoint": ("http://127.0.0.1:4566", "http://127.0.0.1:4566", ["localhost:4566"]),
    "roleArn": (ROLE, ROLE, ["reader", "arn:aws:iam::1:role/x"]),
    "roleSessionName": ("job-7", "job-7", ["a b", "x"]),
    "roleExternalId": ("id", "id", ["a b", "x"]),
    "accessKeyId": (KEY_ID, KEY_ID, ["AKIA", "A B"]),
    "secretAccessKey": ("hidden/+", "hidden/+", ["hid den"]),
    "sessionToken": ("hidden=", "hidden=", ["hid den"]),
    "profile": ("mine", "mine", ["my own", "[mine]"]),
    "startingPosition": (
        "trim_horizon",
        Start("TRIM_HORIZON"),
        ["EARLIEST", "2026-11-21T06:00:00"],
    ),
    "endingPosition": ("latest", Start("LATEST"), ["TRIM_HORIZON", "fleet:orders", "{}"]),
    "shards": ("a, b", ("a", "b"), []),
    "sealStore": ("s3://bucket/prefix", "s3://bucket/prefix", ["bucket", "dynamodb:", "redis:x"]),
    "storeEndpoint": ("https://x.y", "https://x.y", ["x.y"]),
    "publishTo": ("clicks-in-spark", "clicks-in-spark", ["my app", "ab"]),
    "publishInterval": ("10s", 10_000, ["500ms", "often"]),
    "metrics": ("cloudwatch:clicks", "cloudwatch:clicks", ["clicks", "statsd:x", "emf:"]),
    "sealsRetained": ("5", 5, ["1", "-3", "many"]),
    "maxRecordsPerBatch": ("1000", 1_000, ["-1", "1e3"]),
    "maxBytesPerBatch": ("1g", 1 << 30, ["1t", "-1"]),
    "maxRecordsPerShard": ("7", 7, ["x"]),
    "maxBytesPerPartition": ("512k", 512 * 1024, ["0", "big"]),
    "maxFetchTime": ("1500ms", 1_500, ["-1s", "soon"]),
    "availableNowTarget": ("1700000000000", 1_700_000_000_000, ["-1", "now"]),
    "maxShardSkew": ("5m", 300_000, ["5 minutes"]),
    "partitions": ("8", 8, ["-1"]),
    "shardsPerPartition": ("50", 50, ["half"]),
    "concurrency": ("32", 32, ["0", "257"]),
    "pollInterval": ("1s", 1_000, ["100ms"]),
    "probeInterval": ("2s", 2_000, ["0"]),
    "probesPerSecond": ("5", 5, ["0"]),
    "discoveryInterval": ("1m", 60_000, ["10"]),
    "retryFirst": ("50ms", 50, ["0"]),
    "maxRetryPause": ("10s", 10_000, ["0"]),
    "retryAttempts": ("3", 3, ["-1"]),
    "recordsPerRead": ("100", 100, ["0", "10001"]),
    "streamCalls": ("boto3", "boto3", ["curl"]),
    "deaggregate": ("FALSE", False, ["no"]),
    "misrouted": ("In-Range", "in-range", ["drop"]),
    "failOnDataLoss": ("false", False, ["0"]),
    "columns": ("data, shard_id", ("data", "shard_id"), ["payload", "data,shardid"]),
}
KEYS = {"accessKeyId": KEY_ID, "secretAccessKey": "hidden"}
NEEDS = {
    "roleExternalId": {"roleArn": ROLE},
    "accessKeyId": {"secretAccessKey": "hidden"},
    "secretAccessKey": {"accessKeyId": KEY_ID},
    "sessionToken": KEYS,
}
SECRET = {"accessKeyId", "secretAccessKey", "sessionToken"}
FIELDS = {each.name: each.field for each in described(BatchOptions)}
WRONG = [(name, text) for name, (_, _, wrong) in CASES.items() for text in wrong]


def read(**options):
    return read_options(BatchOptions, {"stream": "clicks", **options})


def test_every_option_has_its_cases():
    assert set(CASES) == set(FIELDS)


@pytest.mark.parametrize("name", CASES)
def test_a_right_value_is_read_whatever_the_case_of_its_name(name):
    text, value, _ = CASES[name]

    needs = NEEDS.get(name, {})

    assert getattr(read(**needs, **{name: text}), FIELDS[name]) == value
    assert getattr(read(**needs, **{name.lower(): text}), FIELDS[name]) == value


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_a_wrong_value_is_refused_with_what_was_found_and_what_is_allowed(name, text):
    with pytest.raises(ConfigurationError) as refused:
        read(**{name: text})

    shown = "(not shown)" if name in SECRET else repr(text)
    assert f"option {name} = {shown}" in str(refused.value)
    assert "allowed is " in str(refused.value)


@pytest.mark.parametrize(
    ("found", "nearest"),
    [
        ("startingPositon", "startingPosition"),
        ("failondataloss2", "failOnDataLoss"),
        ("streams", "stream"),
        ("max_records_per_batch", "maxRecordsPerBatch"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_name(found, nearest):
    with pytest.raises(ConfigurationError, match=f"option {found.lower()} .*nearest is {nearest}$"):
        read(**{found: "x"})


def test_everything_wrong_is_named_at_once():
    with pytest.raises(ConfigurationError) as refused:
        read_options(SourceOptions, {"concurrency": "none", "zzz": "1"})

    for part in ("option stream is missing", "option concurrency = 'none'", "option zzz does not"):
        assert part in str(refused.value)


def test_the_options_of_a_batch_are_none_of_a_stream():
    with pytest.raises(ConfigurationError, match="endingposition does not exist"):
        read_options(SourceOptions, {"stream": "clicks", "endingPosition": "LATEST"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"accessKeyId": "hidden"}, "accessKeyId = (not shown): allowed is 16 to 128"),
        ({"accessKeyId": "A" * 20, "secretAccessKey": "hid den"}, "secretAccessKey = (not shown)"),
        ({"secretAccessKey": "hidden"}, "belong together"),
        ({"accessKeyId": "A" * 20}, "belong together"),
        ({"sessionToken": "hidden"}, "of no use without accessKeyId"),
        (
            {"accessKeyId": "A" * 20, "secretAccessKey": "hidden", "profile": "mine"},
            "give one of them",
        ),
    ],
)
@pytest.mark.parametrize("kind", [SourceOptions, BatchOptions, SinkOptions])
def test_keys_that_do_not_fit_are_refused_and_not_shown(kind, given, said):
    with pytest.raises(ConfigurationError) as refused:
        read_options(kind, {"stream": "clicks", **given})
    assert said in str(refused.value)
    assert "hid" not in str(refused.value)


def test_keys_are_in_no_repr():
    keys = {"accessKeyId": "A" * 20, "secretAccessKey": "hidden", "sessionToken": "hidden"}
    options = read(**keys)
    assert options.access["session_token"] == "hidden"
    assert "hidden" not in repr(options)
    assert "A" * 20 not in repr(options)


def test_what_spark_adds_is_let_through():
    read_options(SourceOptions, {"stream": "clicks", "checkpointLocation": "/x", "queryName": "q"})


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("LATEST", Start("LATEST")),
        ("1700000000123", Start("INSTANT", instant_ms=1_700_000_000_123)),
        ("2026-11-21T06:00:00Z", Start("INSTANT", instant_ms=1_795_240_800_000)),
        ("2026-11-21T07:00:00.250+01:00", Start("INSTANT", instant_ms=1_795_240_800_250)),
        ("AFTER:49:2", Start("AFTER", done=ExtendedSequenceNumber("49", 2))),
        ("fleet:orders", Start("fleet", application="orders")),
        (
            '{"s-1": "AFTER:49", "s-2": 1700000000005, "default": "LATEST"}',
            Start(
                "shards",
                shards={
                    "s-1": Start("AFTER", done=ExtendedSequenceNumber("49")),
                    "s-2": Start("INSTANT", instant_ms=1_700_000_000_005),
                },
                default=Start("LATEST"),
            ),
        ),
    ],
)
def test_start_positions_are_words_instants_positions_and_json(text, start):
    assert read(startingPosition=text).starting_position == start


@pytest.mark.parametrize(
    "text", ["AFTER:x", "AFTER:1:y", "{", '{"s": "soon"}', '{"s": [1]}', '{"s": true}', "fleet:"]
)
def test_what_is_no_start_position_is_refused(text):
    with pytest.raises(ConfigurationError, match="option startingPosition"):
        read(startingPosition=text)


def test_the_reference_page_is_current():
    written = (ROOT / "docs/spark-options.md").read_text("utf-8")

    assert written == page(), "make it: python -m shardfleet_spark.options_page FILE"


# On the right of a row: words that are values, and columns of the sink.
NO_OPTIONS = {"auto", "union", "record_id"}


def rows_of_spark_migrations():
    """Yield (theirs, ours) of the tables about another Spark source."""
    text = (ROOT / "docs/migrating.md").read_text("utf-8")
    for part in re.split(r"(?m)^## ", text):
        if part.startswith(("From awslabs' Spark", "From Databricks'")):
            for line in part.splitlines():
                if line.startswith("| ") and not line.startswith("| the connector's"):
                    yield line.split(" | ")[:2]


def foreign_options():
    """Yield (theirs, ours of the same row) of the migrations' tables, columns left out."""
    for theirs, ours in rows_of_spark_migrations():
        if not theirs.startswith("| columns"):
            yield from (
                (name, re.findall(r"`([a-z]\w*)`", ours))
                for name in re.findall(r"`([a-z][\w.]*)`", theirs)
            )


# On the left of a row: values, not names.
VALUES = {"latest", "trim_horizon", "earliest", "at_timestamp", "efo", "subscribeToShard."}
# https://spark.apache.org/docs/latest/structured-streaming-kafka-integration.html
OF_KAFKA = re.findall(
    r"\S+",
    """
    assign subscribe subscribePattern kafka.bootstrap.servers startingTimestamp
    startingOffsetsByTimestamp startingOffsets endingTimestamp endingOffsetsByTimestamp
    endingOffsets maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay minPartitions
    maxRecordsPerPartition fetchOffset.numRetries fetchOffset.retryIntervalMs groupIdPrefix
    kafka.group.id includeHeaders startingOffsetsByTimestampStrategy topic
""",
)


def said(name):
    """Return what is said to who gives this option, of the source or the sink."""
    kind = SinkOptions if name.startswith("sink.") else BatchOptions
    with pytest.raises(ConfigurationError) as refused:
        read_options(kind, {"stream": "clicks", name: "7"})
    return str(refused.value)


def test_the_options_of_other_connectors_lead_to_what_they_are_here():
    known = {each.name.lower() for kind in (BatchOptions, SinkOptions) for each in described(kind)}
    tried = 0
    for name, ours in foreign_options():
        if name in VALUES or name.lower() in known:
            continue
        tried += 1
        text = said(name)
        assert "of another connector" in text, name
        assert any(each in text for each in ours) or " not " in text, (name, ours, text)
    assert tried > 25
    for name in OF_KAFKA:
        assert "of another connector" in said(name), name


def test_every_option_that_another_connector_s_leads_to_exists():
    known = {each.name for kind in (BatchOptions, SinkOptions) for each in described(kind)}
    for name, text in HERE.items():
        if text.startswith("is not"):
            continue
        named = set(re.findall(r"\b[a-z]+[A-Z]\w+|stream|region|endpoint|aggregate|shards\b", text))
        assert named - known == set(), name


def test_every_option_and_column_that_a_migration_leads_to_exists():
    known = {each.name for kind in (SourceOptions, SinkOptions) for each in described(kind)}
    rows = list(rows_of_spark_migrations())
    named = {word for _, ours in rows for word in re.findall(r"`([a-z]\w*)`", ours)}

    assert len(rows) > 15
    assert named - known - set(COLUMNS) - NO_OPTIONS == set()
    assert {"maxFetchTime", "sealStore", "partition_key", "giveUpAfter"} <= named
