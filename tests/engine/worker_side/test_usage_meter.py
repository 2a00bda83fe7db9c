"""What a slot tells of its use: averaged, unknown while it warms up."""

import pytest

from shardfleet.domain.slots.usage import Usage
from shardfleet.engine.shard.usage import LONG_CALL_MS, WARM_UP_MS, UsageMeter

RENEWAL_MS = 1_000
SHARD = "shardId-000000000007"
NOTHING = Usage()


class Machine:
    """A clock, a CPU and a handler."""

    overlaps = False

    def __init__(self):
        self.now_ms = 5_000
        self.cpu_ms = 0

    def monotonic_ms(self):
        return self.now_ms

    def used_ms(self):
        return self.cpu_ms

    def works(self, ms):
        self.now_ms += RENEWAL_MS
        self.cpu_ms += ms


@pytest.fixture
def machine():
    return Machine()


def meter_of(machine, *, cpu=True, before=NOTHING):
    meter = machine if cpu else None
    return UsageMeter(clock=machine, cpu=meter, handler=machine, before=before, ways={})


def warm(machine, meter, *, cpu_ms=RENEWAL_MS):
    for _ in range(WARM_UP_MS // RENEWAL_MS):
        machine.works(cpu_ms)
        assert meter.sample() == Usage()


def test_a_cold_start_is_no_load(machine):
    """Else a fleet begins with twice the slots it needs: each had its CPU in full use at first."""
    meter = meter_of(machine)
    warm(machine, meter)
    machine.works(30)
    assert meter.sample() == Usage(busy=0, cpu=30)


def test_until_it_is_warm_it_tells_what_its_slot_told_before(machine):
    """A worker that begins its next turn has not become one of which nothing is known."""
    before = Usage(busy=600, cpu=400)
    meter = meter_of(machine, before=before)
    for _ in range(WARM_UP_MS // RENEWAL_MS):
        machine.works(RENEWAL_MS)
        assert meter.sample() == before
    machine.works(0)
    assert meter.sample() == Usage(busy=300, cpu=200)


def test_what_cannot_be_known_any_more_is_unknown_once_it_is_warm(machine):
    machine.overlaps = True
    meter = meter_of(machine, cpu=False, before=Usage(busy=600, cpu=400))
    machine.now_ms += WARM_UP_MS + 1
    assert meter.sample() == Usage()


def test_a_load_that_lasts_is_seen_in_full(machine):
    meter = meter_of(machine)
    with meter.call(SHARD):
        warm(machine, meter)
        machine.works(RENEWAL_MS)
        assert meter.sample() == Usage(busy=1_000, cpu=1_000)


def test_it_is_averaged_by_halves(machine):
    meter = meter_of(machine)
    warm(machine, meter)
    for cpu_ms, share in ((800, 800), (0, 400), (0, 200)):
        machine.works(cpu_ms)
        assert meter.sample().cpu == share


def test_two_calls_at_once_are_not_busier_than_one(machine):
    meter = meter_of(machine)
    warm(machine, meter)
    with meter.call(SHARD):
        machine.works(0)
        with meter.call(SHARD):
            machine.works(0)
    machine.works(0)
    machine.works(0)
    assert meter.sample().busy == 500


def test_handlers_that_overlap_have_no_such_limit(machine):
    machine.overlaps = True
    meter = meter_of(machine)
    warm(machine, meter)
    with meter.call(SHARD):
        machine.works(100)
        assert meter.sample() == Usage(busy=-1, cpu=100)


def test_without_a_meter_the_cpu_is_unknown(machine):
    meter = meter_of(machine, cpu=False)
    warm(machine, meter)
    machine.works(500)
    assert meter.sample() == Usage(busy=0, cpu=-1)


def test_a_second_look_at_once_tells_the_same(machine):
    meter = meter_of(machine)
    warm(machine, meter)
    machine.works(500)
    assert meter.sample() == meter.sample() == Usage(busy=0, cpu=500)


def test_a_call_that_runs_long_is_a_sign_until_it_is_over(machine):
    meter = meter_of(machine)
    began_ms = machine.now_ms
    with meter.call(SHARD):
        machine.now_ms += LONG_CALL_MS - 1
        assert meter.signs(now_ms=99_999).calls_ms == {}
        machine.now_ms += 1
        with meter.call(SHARD):  # Of another lane: the older one counts.
            assert meter.signs(now_ms=machine.now_ms + 7).calls_ms == {SHARD: began_ms + 7}
    assert meter.signs(now_ms=99_999).calls_ms == {}


def test_remarks_are_those_of_the_last_call(machine):
    meter = meter_of(machine)
    meter.remarks = ("its code left 101 threads behind: end them",)

    assert meter.signs(now_ms=1).remarks == meter.remarks
