"""The stream's clock: what the service told, carried on by a clock that never goes back."""

import pytest

from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.stream_clock import StreamClock
from shardfleet_testkit.clock import VirtualClock
from tests.virtual import virtual


@pytest.mark.parametrize("ahead_ms", [None, -7_000, 7_000])
@virtual
async def test_it_goes_on_from_what_the_service_told_and_sleeps_as_long_as_it_is_asked(ahead_ms):
    ours = VirtualClock()
    now_ms = ours.now_ms()
    told_ms = None if ahead_ms is None else now_ms + ahead_ms
    clock = StreamClock(ours, StreamIncarnation("arn", 1, service_ms=told_ms))
    await clock.sleep_ms(1_500)
    assert clock.now_ms() == now_ms + (ahead_ms or 0) + 1_500
    assert clock.monotonic_ms() == ours.monotonic_ms()
