"""Records that are too old for the handler: kept elsewhere in full, and passed only then."""

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as replace_fields

from shardfleet.errors import ConfigurationError
from shardfleet.events.delivery import RecordSkipped
from shardfleet_testkit.clock import VirtualClock
from tests.engine.worker_side.steps_kit import deaths
from tests.engine.worker_side.worker_kit import World, a_config, key
from tests.virtual import virtual

KEPT = {"on_exhausted": "sqs", "failed_queue_url": "q"}
SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, **KEPT}
HOUR_MS = 3_600_000


def a_world(**world):
    return World(**SHORT, **world)


def kept(world):
    return [int(r.data) for failed in world.dead_letters.kept for r in failed.records]


def last_of(world):
    return world.stream.sequence_numbers(key(0))[-1]


@virtual
async def test_what_is_too_old_is_kept_in_full_unhandled_and_what_is_not_is_handled():
    world = a_world(max_record_age_ms=HOUR_MS)
    world.put(1, 250)
    await world.clock.sleep_ms(HOUR_MS + 60_000)
    world.put(251, 260)
    await world.turn(turn_ms=20_000)

    assert world.numbers == list(range(251, 261))
    assert kept(world) == list(range(1, 251))
    # Not one message each: the mapping tells of a batch, too.
    assert [len(failed.records) for failed in world.dead_letters.kept] == [100, 100, 50]
    assert all(f.is_too_old and not f.attempts for f in world.dead_letters.kept)
    assert len(world.told(RecordSkipped)) == 250
    assert str(world.lease().checkpoint) == last_of(world)


@pytest.mark.parametrize("by_ms", [-HOUR_MS, HOUR_MS])
@virtual
async def test_a_worker_s_wrong_wall_clock_makes_no_record_old_or_young(by_ms):
    """Arrivals are by the service's clock."""
    world = a_world(max_record_age_ms=30 * 60_000)
    world.put(1, 3)
    await world.clock.sleep_ms(45 * 60_000)
    world.put(4, 6)
    clock = VirtualClock(world.clock.start_ms + by_ms)
    await world.turn(turn_ms=20_000, clock=clock)

    assert kept(world) == [1, 2, 3]
    assert world.numbers == [4, 5, 6]


@virtual
async def test_a_record_whose_arrival_nobody_tells_is_not_too_old():
    """Model kinesis Record: ApproximateArrivalTimestamp is not required."""
    world = a_world(max_record_age_ms=HOUR_MS)

    def untold(_, page):
        made = [replace_fields(each, approximate_arrival_ms=0) for each in page.records]
        return replace(page, records=made)

    world.stream.alter = untold
    world.put(1, 3)
    await world.clock.sleep_ms(HOUR_MS + 60_000)
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3]
    assert kept(world) == []


@virtual
async def test_one_that_fails_for_ever_is_tried_until_it_is_too_old():
    world = a_world(max_record_age_ms=60_000, max_attempts=0)

    async def fail(batch):
        if batch[0].data == b"1":
            raise ValueError("no")

    world.handler._script = fail
    world.put(1, 1)
    await world.clock.sleep_ms(30_000)
    world.put(2, 3)
    await world.turn(turn_ms=90_000)

    (failed,) = world.dead_letters.kept
    assert kept(world) == [1]
    assert failed.attempts > 3
    assert failed.error.endswith("max_record_age_ms is 60000")
    assert world.numbers == [2, 3]


@virtual
async def test_without_an_age_however_old_a_record_is_it_is_handled():
    world = a_world()
    world.put(1, 3)
    await world.clock.sleep_ms(HOUR_MS)
    await world.turn(turn_ms=20_000)
    assert world.numbers == [1, 2, 3]


def test_a_death_at_any_step_passes_no_old_record_that_is_not_kept():
    async def prepared():
        world = World(**SHORT, max_record_age_ms=HOUR_MS)
        world.put(1, 3)
        await world.clock.sleep_ms(2 * HOUR_MS)
        world.put(4, 6)
        return world

    for world, where in deaths(prepared, every=2, steps_least=30):
        assert set(kept(world)) == {1, 2, 3}, where
        assert set(world.numbers) == {4, 5, 6}, where
        assert str(world.lease().checkpoint) == last_of(world), where


def test_an_age_needs_a_place_for_what_is_too_old():
    told = "on_exhausted: stop found, one of skip, sqs, s3, sns needed for max_record_age_ms"
    with pytest.raises(ConfigurationError, match=told):
        a_config(max_record_age_ms=1)
    assert a_config(max_record_age_ms=1, **KEPT).max_record_age_ms == 1
