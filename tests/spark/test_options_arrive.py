"""
Every option arrives where it acts.

That a text is read, and a wrong one refused, is in test_source_options and test_sink_options; what
the parts do with the values, in the tests of the parts. Here is what lies between the two.
"""

import pyarrow as pa
import pytest

from shardfleet.adapters.clients.account_access import Access, AccountClients
from shardfleet.adapters.kinesis.wire import JSON_PAGES
from shardfleet.errors import InvalidRecord
from shardfleet.producer.settings import ProducerSettings
from shardfleet_spark.access import publishing_of, read_ports, seal_store
from shardfleet_spark.aws.columns import CBOR_PAGES
from shardfleet_spark.host.compat import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from shardfleet_spark.offsets.file_seals import FileSealStore
from shardfleet_spark.offsets.plan_token import Emission
from shardfleet_spark.options.options import described, read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions
from shardfleet_spark.options.starting import Start
from shardfleet_spark.pipelines.aggregate import AggregateOptions
from shardfleet_spark.pipelines.archive_options import ArchiveOptions
from shardfleet_spark.plan.driver import DriverSettings
from shardfleet_spark.plan.planning import BatchLimits
from shardfleet_spark.plan.probing import ProbePace
from shardfleet_spark.read.shard_pages import ReadPolicy
from shardfleet_spark.sink.sink import BatchSink
from shardfleet_spark.sink.sink_session import settings_of as producer_settings_of
from shardfleet_spark.stream_reader import KinesisStreamReader, settings_of
from tests.test_tidy import ROOT

ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks"
ROLE = "arn:aws:iam::123456789012:role/reader"

PLANNING = {
    "startingPosition": "TRIM_HORIZON",
    "sealsRetained": "5",
    "maxRecordsPerBatch": "11",
    "maxBytesPerBatch": "12",
    "maxRecordsPerShard": "13",
    "maxBytesPerPartition": "14",
    "maxFetchTime": "15ms",
    "maxShardSkew": "16ms",
    "partitions": "17",
    "shardsPerPartition": "18",
    "deaggregate": "false",
    "misrouted": "kpl",
    "probeInterval": "201ms",
    "probesPerSecond": "19",
    "discoveryInterval": "1001ms",
}
READING = {
    "pollInterval": "202ms",
    "recordsPerRead": "21",
    "concurrency": "22",
    "retryFirst": "23ms",
    "maxRetryPause": "24ms",
    "retryAttempts": "25",
    "failOnDataLoss": "false",
}
ACCESS = {
    "region": "eu-west-1",
    "endpoint": "http://127.0.0.1:9",
    "accessKeyId": "AKIAIOSFODNN7EXAMPLE",
    "secretAccessKey": "hidden",
    "sessionToken": "hidden-too",
    "roleArn": ROLE,
    "roleSessionName": "me",
    "roleExternalId": "given",
}
SENDING = {
    "aggregateSize": "1k",
    "aggregateRecords": "31",
    "maxRecordSize": "2k",
    "giveUpAfter": "3s",
}
# Those that are best seen at work; and those of the last four tests here.
AT_WORK = {
    "stream": "test_reader_direct.py::test_a_stream_that_is_not_there_is_named",
    "availableNowTarget": "test_draining.py::test_a_pipeline_reads_all_that_there_is",
    "columns": "test_batch_source.py::test_all_records_of_all_generations_and_of_a_part",
    "endingPosition": "test_batch_source.py::test_all_records_of_all_generations_and_of_a_part",
    "shards": "test_batch_source.py::test_all_records_of_all_generations_and_of_a_part",
    "publishTo": "test_publishing.py::test_a_running_query_is_seen_in_its_lease_table_and_its_last_"
    "batch_too",
    "storeEndpoint": "test_reader_direct.py::test_a_query_goes_on_where_a_drained_fleet_stopped_"
    "inside_an_aggregate",
    "metrics": "test_publishing.py::test_what_is_available_now_is_published_to_the_last_batch_when_"
    "the_query_ends",
    "sealStore": "test_options_arrive.py::test_a_seal_store_is_the_one_that_is_named",
    "publishInterval": "test_options_arrive.py::test_leases_are_written_at_their_interval",
    "profile": "test_options_arrive.py::test_a_profile_is_asked_as",
    "streamCalls": "test_options_arrive.py::test_two_sources_of_a_process_call_as_each_was_told",
}
SINK_AT_WORK = {
    "stream": "test_sink.py::test_rows_arrive_in_order_per_key_and_a_task_owns_its_shards",
    "aggregate": "test_sink.py::test_rows_are_packed_into_aggregates_no_larger_than_is_wanted",
    "recordId": "test_sink.py::test_a_repeated_micro_batch_is_sent_again_with_the_same_ids",
    "runId": "test_sink.py::test_rows_arrive_in_order_per_key_and_a_task_owns_its_shards",
    "divertTo": "test_sink.py::test_rows_that_cannot_be_sent_are_diverted_if_that_is_wanted",
    "profile": "test_options_arrive.py::test_a_profile_is_asked_as",
    "columns": "test_sql.py::test_a_stream_is_read_and_written_by_sql",
    "heldInMemory": "test_options_arrive.py::test_rows_beyond_the_memory_go_to_a_file",
}
SETTINGS_AT_WORK = {
    **dict.fromkeys(
        ("key", "time", "window", "watermark", "sum"),
        "test_pipelines.py::test_flights_through_the_command_equal_pandas",
    ),
    **dict.fromkeys(
        ("compression", "rowsPerFile", "files", "compactAfter"),
        "test_pipelines.py::test_the_archive_has_each_record_once_also_after_a_repeated_batch",
    ),
    "compactBelow": "test_pipeline_plan.py::test_a_file_that_is_large_enough_is_left_alone",
}


def names(*options):
    return {each.name for every in options for each in described(every)}


def read(**options):
    return read_options(SourceOptions, {"stream": ARN, **options})


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ((BatchOptions,), (PLANNING, READING, ACCESS, AT_WORK)),
        ((SinkOptions,), (SENDING, ACCESS, SINK_AT_WORK)),
        ((AggregateOptions, ArchiveOptions), (SETTINGS_AT_WORK,)),
    ],
)
def test_every_option_is_shown_by_a_test(options, shown):
    listed = [name for each in shown for name in each]

    assert sorted(listed) == sorted(names(*options))


@pytest.mark.parametrize(
    "test", sorted({*AT_WORK.values(), *SINK_AT_WORK.values(), *SETTINGS_AT_WORK.values()})
)
def test_the_named_tests_are_there(test):
    file, _, name = test.partition("::")

    assert f"\ndef {name}(" in (ROOT / "tests/spark" / file).read_text("utf-8")


def test_the_options_of_planning_are_the_drivers_settings():
    assert settings_of(read(**PLANNING)) == DriverSettings(
        start=Start("TRIM_HORIZON"),
        limits=BatchLimits(
            records=11,
            total_bytes=12,
            records_per_shard=13,
            bytes_per_partition=14,
            fetch_ms=15,
            skew_ms=16,
            partitions=17,
            partitions_most=68,
            shards_per_partition=18,
        ),
        emission=Emission(deaggregate=False, misrouted="kpl"),
        pace=ProbePace(interval_ms=201, per_second=19),
        discovery_interval_ms=1_001,
        plans_retained=5,
    )


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxBytesPerBatch": "7"}, ReadMaxBytes(7)),
        ({"maxRecordsPerBatch": "8"}, ReadMaxRows(8)),
        ({"maxRecordsPerBatch": "8", "maxBytesPerBatch": "7"}, ReadMaxRows(8)),
    ],
)
def test_spark_is_told_the_limit_of_records_or_else_of_bytes(options, limit):
    assert KinesisStreamReader(read(**options)).getDefaultReadLimit() == limit


def test_the_options_of_reading_are_the_readers_policy():
    assert read_ports(read(**READING)).policy == ReadPolicy(
        poll_interval_ms=202,
        records_per_read=21,
        concurrency=22,
        retry_first_ms=23,
        max_retry_pause_ms=24,
        retry_attempts=25,
        fail_on_data_loss=False,
    )


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions])
def test_source_and_sink_reach_the_account_that_is_named(options):
    access = read_options(options, {"stream": ARN, **ACCESS}).access

    assert {name: access[name] for name in access if name != "connections"} == {
        "region": "eu-west-1",
        "endpoint": "http://127.0.0.1:9",
        "access_key_id": "AKIAIOSFODNN7EXAMPLE",
        "secret_access_key": "hidden",
        "session_token": "hidden-too",
        "profile": "",
        "role_arn": ROLE,
        "role_session_name": "me",
        "role_external_id": "given",
    }


def test_the_options_of_sending_are_the_producers_settings():
    options = read_options(SinkOptions, {"stream": ARN, **SENDING})

    assert producer_settings_of(options) == ProducerSettings(
        aggregate_bytes=1_024, aggregate_records=31, record_bytes=2_048, give_up_ms=3_000
    )


def test_an_aggregate_is_never_larger_than_a_record_may_be():
    options = read_options(SinkOptions, {"stream": ARN, "maxRecordSize": "700"})

    assert producer_settings_of(options).aggregate_bytes == 700


def test_a_seal_store_is_the_one_that_is_named(tmp_path):
    store = seal_store(read(sealStore=f"file:{tmp_path}"))

    assert isinstance(store, FileSealStore)
    assert seal_store(read()) is None
    for text, kind in (("dynamodb:seals", "DynamoDBSealStore"), ("s3://b/p", "S3SealStore")):
        assert type(seal_store(read(sealStore=text))).__name__ == kind


def test_two_sources_of_a_process_call_as_each_was_told(monkeypatch):
    opened = []
    monkeypatch.setattr(AccountClients, "wire_to", lambda _clients, arn, **_: opened.append(arn))
    stream = f"{ARN}-of-two"  # Connections are kept by stream, also from test to test.

    by_boto3 = read_ports(read(stream=stream, streamCalls="boto3")).stream
    assert opened == []
    by_wire = read_ports(read(stream=stream)).stream

    assert opened == [stream]
    assert by_wire is not by_boto3
    assert read_ports(read(stream=stream)).stream is by_wire


@pytest.mark.parametrize(("told", "pages"), [("false", JSON_PAGES), ("", CBOR_PAGES)])
def test_long_pages_are_read_in_cbor_unless_the_endpoint_has_none(told, pages, monkeypatch):
    formats = []
    monkeypatch.setenv("CBOR_ENABLED", told)
    monkeypatch.setattr(
        AccountClients, "wire_to", lambda *_, long_pages: formats.append(long_pages)
    )
    read_ports(read(stream=f"{ARN}-of-{told}"))
    assert formats == [pages]


def test_rows_beyond_the_memory_go_to_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    good = pa.RecordBatch.from_pydict({"data": [b"x"], "partition_key": ["a"]})
    bad = pa.RecordBatch.from_pydict({"data": [b"x"], "partition_key": [""]})

    def write(**options):
        sink = BatchSink(read_options(SinkOptions, {"stream": ARN, **options}))
        sink.write_batches(iter([good, bad]))

    with pytest.raises(InvalidRecord):
        write()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write(heldInMemory="1")


@pytest.mark.processes
def test_leases_are_written_at_their_interval(embedded_aws, make_stream):
    options = read(
        stream=make_stream(),
        region=embedded_aws.region,
        endpoint=embedded_aws.endpoint_url,
        storeEndpoint=embedded_aws.endpoint_url,
        publishTo="a-query-of-its-own",
        publishInterval="7s",
    )

    assert publishing_of(options, "sid")._interval_ms == 7_000
    embedded_aws.client("dynamodb").delete_table(TableName="a-query-of-its-own")


@pytest.mark.parametrize("options", [SourceOptions, SinkOptions])
def test_a_profile_is_asked_as(options):
    access = read_options(options, {"stream": ARN, "profile": "mine"}).access

    assert Access(**access).profile == "mine"
