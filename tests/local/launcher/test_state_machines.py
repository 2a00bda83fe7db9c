"""The delay between retries, as the States Language defines it."""

import random

import pytest

from shardfleet_local.aws.state_machines import retry_delay_s


@pytest.mark.parametrize(
    ("retrier", "retries", "expected"),
    [
        ({}, 0, 1),
        ({}, 3, 8),
        ({"IntervalSeconds": 3, "BackoffRate": 1.5}, 2, 6.75),
        ({"IntervalSeconds": 3, "MaxDelaySeconds": 5}, 10, 5),
        ({"IntervalSeconds": 3, "MaxDelaySeconds": 5}, 0, 3),
    ],
)
def test_the_delay_grows_up_to_its_limit(retrier, retries, expected):
    assert retry_delay_s(retrier, retries, jitter=random.Random(1)) == expected


def test_full_jitter_is_anything_up_to_the_delay(seed):
    jitter = random.Random(seed)
    retrier = {"IntervalSeconds": 4, "JitterStrategy": "FULL", "MaxDelaySeconds": 10}
    delays = [retry_delay_s(retrier, 5, jitter=jitter) for _ in range(200)]
    assert 0 <= min(delays) < 2
    assert 8 < max(delays) <= 10
