"""What a worker tells of its load: smoothed from what was there before, within its bounds."""

import pytest

from shardfleet.domain.slots.usage import UNKNOWN, Usage, next_share, next_throughput


@pytest.mark.parametrize(
    ("previous", "used_ms", "share"),
    [
        (UNKNOWN, 250, 250),  # The first is taken as it is.
        (0, 250, 125),
        (500, 250, 375),
        (1_000, 1_000, 1_000),
        # A clock that steps, or several processors: no less than nothing, no more than all.
        (UNKNOWN, -5, 0),
        (UNKNOWN, 3_000, 1_000),
        (400, 3_000, 700),
    ],
)
def test_a_share_is_half_of_what_it_was_and_half_of_what_it_is(previous, used_ms, share):
    assert next_share(previous, used_ms=used_ms, elapsed_ms=1_000) == share
    assert next_share(previous, used_ms=10 * used_ms, elapsed_ms=10_000) == share


@pytest.mark.parametrize(
    ("previous", "read_bytes", "elapsed_ms", "kbps"),
    [
        (None, 2_048, 1_000, 2.0),
        (4.0, 2_048, 1_000, 3.0),
        (None, 2_048, 4_000, 0.5),
        (1.0, 0, 1, 0.5),
    ],
)
def test_throughput_is_in_1024_bytes_a_second_as_java_s(previous, read_bytes, elapsed_ms, kbps):
    found = next_throughput(previous, read_bytes=read_bytes, elapsed_ms=elapsed_ms)
    assert found == kbps


def test_throughput_has_six_decimals_as_java_s():
    assert next_throughput(None, read_bytes=1, elapsed_ms=3_000) == 0.000326


@pytest.mark.parametrize(("busy", "cpu"), [(50, 0), (-50, 0), (0, 50), (0, -50)])
def test_a_difference_in_either_part_counts_from_its_step_on(busy, cpu):
    usage = Usage(busy=300, cpu=300)
    other = Usage(busy=300 + busy, cpu=300 + cpu)
    assert usage.differs_from(other, by=50)
    assert not usage.differs_from(other, by=51)


def test_what_is_not_known_is_not_told():
    assert Usage(busy=255, cpu=UNKNOWN).utilisation() == {"busy": 25.5}
    assert Usage(busy=UNKNOWN, cpu=1_000).utilisation() == {"cpu": 100.0}
