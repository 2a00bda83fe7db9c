"""What a stopped shard tells a person: when it goes on, and what to do."""

import pytest

from shardfleet.domain.delivery.stops import MissingShard, StopNote

FACTS = {"lease_key": "shard-1", "position": "5:2", "error": "ValueError: x", "worker_id": "w"}


@pytest.mark.parametrize(
    ("stop", "outlook", "advice"),
    [
        (
            StopNote(**FACTS, attempts=3, at_ms=1),
            "until `shardfleet resume` lets it go on",
            "mend the handler or the record, then: shardfleet resume shard-1",
        ),
        (
            StopNote(**FACTS, attempts=3, at_ms=1, retry_ms=9),
            "It is tried again by itself",
            "or at once: shardfleet resume shard-1",
        ),
        (
            MissingShard(**FACTS, attempts=0, at_ms=1),
            "when the service answers",
            "if you know that it is over: shardfleet release shard-1 --ended",
        ),
    ],
)
def test_a_stop_says_when_it_goes_on_and_what_to_do(stop, outlook, advice):
    assert outlook in stop.outlook
    assert stop.advice.endswith(advice)
