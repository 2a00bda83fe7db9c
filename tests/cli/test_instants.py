"""Points in time as a person types them."""

import pytest

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.instants import instant_ms

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


@pytest.mark.parametrize("text", ["yesterday", "5", "15 m", "-3m", "2023-11-14T22:13:20", ""])
def test_anything_else_is_refused_with_what_is_allowed(text):
    with pytest.raises(ConfigurationError, match=r"--at: .* found; allowed are a time ago"):
        instant_ms("--at", text, now_ms=NOW_MS)


def test_the_future_is_refused():
    with pytest.raises(ConfigurationError, match=r"--at: .* lies in the future"):
        instant_ms("--at", str(NOW_MS + 1), now_ms=NOW_MS)
