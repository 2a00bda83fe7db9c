"""
Points in time as a person types them.

In commands, in a configuration, in Spark's options, in a file of positions.
"""

import json

import pytest

from shardfleet.config import FleetConfig
from shardfleet.domain.positions.positions import position_of
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.instants import instant_ms
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions
from shardfleet_spark.options.starting import start_of

NOW_MS = 1_795_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0s", NOW_MS),
        ("90s", NOW_MS - 90_000),
        ("15m", NOW_MS - 900_000),
        ("2h", NOW_MS - 7_200_000),
        ("1d", NOW_MS - 86_400_000),
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        (" 2023-11-15T00:13:20+02:00 ", 1_700_000_000_000),
    ],
)
def test_a_time_ago_epoch_milliseconds_and_iso_with_a_zone_are_read(text, expected):
    assert instant_ms("--at", text, now_ms=NOW_MS) == expected


FORMS = r"epoch milliseconds, and ISO 8601 with a time zone \(2026-11-21T08:30:00Z\)"


@pytest.mark.parametrize(
    "text", ["yesterday", "15 m", "-3m", "2023-11-14T22:13:20", "", "\u0661", "9" * 5_000]
)
def test_anything_else_is_refused_with_what_is_allowed(text):
    with pytest.raises(ConfigurationError, match=rf"--at: .* found; allowed are a time .*{FORMS}"):
        instant_ms("--at", text, now_ms=NOW_MS)


def test_the_future_is_refused():
    with pytest.raises(ConfigurationError, match=r"--at: .* lies in the future"):
        instant_ms("--at", str(NOW_MS + 1), now_ms=NOW_MS)


def command(text):
    return instant_ms("--at", text, now_ms=NOW_MS)


def configured(text):
    from shardfleet_cdk.fleet_config import options_of  # noqa: PLC0415 - Node starts with it

    found = options_of({"initial_position": "AT_TIMESTAMP", "initial_timestamp_ms": text}, {})
    places = {"fleet": "f", "stream_arn": "arn", "lease_table": "l", "state_table": "s"}
    return FleetConfig(**places, **found).initial_timestamp_ms


def configured_by_number(text):
    return configured(int(text))


def start_of_spark(text):
    options = read_options(SourceOptions, {"stream": "clicks", "startingPosition": text})
    return options.starting_position.instant_ms


def end_of_spark(text):
    options = read_options(
        BatchOptions,
        {"stream": "clicks", "startingPosition": "TRIM_HORIZON", "endingPosition": text},
    )
    return options.ending_position.instant_ms


def target_of_spark(text):
    options = read_options(SourceOptions, {"stream": "clicks", "availableNowTarget": text})
    return options.available_now_target_ms


def shard_of_spark(text):
    return start_of(json.dumps({"s0": f"AT:{text}"})).shards["s0"].instant_ms


def shard_of_a_file(text):
    return position_of(f"AT:{text}", StreamIncarnation("arn", 1), "s0").instant_ms


NUMBERS = [command, configured, configured_by_number, start_of_spark, end_of_spark]
NUMBERS += [target_of_spark, shard_of_spark, shard_of_a_file]
READERS = [each for each in NUMBERS if each is not configured_by_number]


@pytest.mark.parametrize("read", NUMBERS)
def test_every_reader_refuses_an_unlikely_unit_and_says_what_is_meant(read):
    """Three ways to write 2023-11-14T22:13:20Z that are not in milliseconds."""
    for text, unit in [
        ("1700000000", "seconds"),
        ("1700000000000000", "microseconds"),
        ("1700000000000000000", "nanoseconds"),
    ]:
        with pytest.raises((ConfigurationError, ValueError)) as refused:
            read(text)
        assert f"{text} found, which are {unit}; milliseconds are 1700000000000" in str(
            refused.value
        )
    for text in ("5", "1384387199999", "253402300800000"):  # No unit of ours, nothing, 10000.
        with pytest.raises((ConfigurationError, ValueError), match=f"{text} "):
            read(text)
    assert [read(text) for text in ("1384387200000", "1700000000123")] == [
        1_384_387_200_000,
        1_700_000_000_123,
    ]


@pytest.mark.parametrize("read", READERS)
def test_every_reader_of_texts_has_the_same_grammar_and_the_same_words(read):
    assert read("2023-11-15T00:13:20.5+02:00") == 1_700_000_000_500
    for text in ("soon", "2023-11-14T22:13:20", "1970-01-01T00:00:00Z"):
        with pytest.raises((ConfigurationError, ValueError), match=FORMS + "|Kinesis began in"):
            read(text)


@pytest.mark.parametrize("read", [shard_of_spark, shard_of_a_file])
@pytest.mark.parametrize("text", ["LATEST", "TRIM_HORIZON", "AFTER:77", "END", "AT:1700000000123"])
def test_only_an_instant_stands_behind_at(read, text):
    with pytest.raises((ConfigurationError, ValueError), match=FORMS):
        read(text)
