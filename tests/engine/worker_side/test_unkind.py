"""A worker on the embedded Kinesis at its unkindest: nothing is lost, or told lost."""

import asyncio

import pytest

from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.events.delivery import PositionLost, PositionOutlived, ShardStopped
from shardfleet.events.worker import TurnFailed
from shardfleet_testkit.clock import run_virtual
from tests.engine.unkind_stream import ARN, NAME, UnkindStream
from tests.engine.worker_side.worker_kit import World, a_lease, key
from tests.virtual import within

HOUR_MS = 3_600_000
KEYS = tuple("abcdefgh")
RECORDS = 40
HANDLED = {k: list(range(k, RECORDS, len(KEYS))) for k in range(len(KEYS))}


class UnkindWorld(World):
    """A worker's world whose stream is one of the embedded Kinesis."""

    def __init__(self, *, unkind=None, **config):
        config = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000} | config
        super().__init__(stream_arn=ARN, leases=(), **config)
        self.stream = UnkindStream(self.clock, unkind=unkind)
        self.holds(0, AT_TRIM_HORIZON)

    def holds(self, number, checkpoint):
        self.leases.leases[key(number)] = a_lease(number, checkpoint=checkpoint)

    def holds_record(self, sequence_number):
        self.holds(0, ExtendedSequenceNumber(sequence_number, 0))

    def assert_told_no_loss(self):
        assert not self.told(PositionLost)
        assert not self.told(ShardStopped)
        assert not self.told(TurnFailed)


def virtually(scenario):
    return run_virtual(scenario())


async def feed(world, *, records=RECORDS, split_at=RECORDS // 2):
    """Put a record every half second; split the shard in the middle of it."""
    for number in range(records):
        if number == split_at:
            world.stream.split(key(0))
        world.stream.put(number, key=KEYS[number % len(KEYS)])
        await world.clock.sleep_ms(500)


async def handled_while_fed(world):
    feeding = asyncio.create_task(feed(world))
    await world.turn(turn_ms=90_000)
    await feeding
    by_key = {}
    for number in dict.fromkeys(world.numbers):
        by_key.setdefault(number % len(KEYS), []).append(number)
    return by_key


@pytest.mark.parametrize(
    "kind",
    [
        "ChildrenUnlisted",  # K05
        "ParentsListedOpen",  # K06
        "EmptyStarts",  # K20
        "PhantomLag",  # K21
        "FirstReadLag",  # K22
        "UnevenArrivals",  # K28
    ],
)
@within(virtually)
async def test_all_is_handled_in_order_through_a_split_and_no_loss_is_told(kind):
    world = UnkindWorld()
    world.stream.inject(kind, DelayMs=5_000)
    assert await handled_while_fed(world) == HANDLED
    world.assert_told_no_loss()


@pytest.mark.parametrize("unkind", range(6))
@within(virtually)
async def test_all_is_handled_in_order_when_all_of_it_happens_at_once(unkind):
    world = UnkindWorld(unkind=unkind)
    assert await handled_while_fed(world) == HANDLED
    world.assert_told_no_loss()


async def after_the_retention(world):
    """Let a record that is done grow too old, and put a young one."""
    world.holds_record(world.stream.put(0))
    world.stream.put(1)
    await world.clock.sleep_ms(25 * HOUR_MS)
    world.stream.put(2)


@pytest.mark.parametrize("kind", ["SilentPositions", "RefusedPositions"])
@within(virtually)
async def test_a_checkpoint_that_has_expired_is_told_lost_once_and_left_within_a_minute(kind):
    """K15 (harlow/kinesis-consumer#125: silent for 15 minutes) and K14 (refused: #175)."""
    world = UnkindWorld(on_trimmed="jump")
    await after_the_retention(world)
    world.stream.inject(kind)
    began_ms, turn = world.clock.monotonic_ms(), asyncio.create_task(world.turn())
    await world.run_until(lambda: world.numbers, within_ms=60_000)
    assert world.clock.monotonic_ms() - began_ms <= 60_000
    await turn
    assert world.numbers == [2]
    (told,) = world.told(PositionLost)
    assert told.lease_key == key(0)


@pytest.mark.parametrize("kind", ["SilentPositions", "RefusedPositions"])
@within(virtually)
async def test_nothing_is_told_lost_where_the_fleet_stood_at_the_tip_until_the_checkpoint_expired(
    kind,
):
    """K16 on top of K14 and K15."""
    world = UnkindWorld()
    world.stream.put(1)
    for _ in range(4):  # An idle stream: its tip is marked, its last record grows old.
        await world.turn(turn_ms=30_000)
        await world.clock.sleep_ms(8 * HOUR_MS)
    world.stream.put(2)
    world.stream.inject(kind)
    await world.turn(turn_ms=90_000)
    assert world.numbers == [1, 2]
    world.assert_told_no_loss()


@pytest.mark.parametrize("kind", [None, "SilentPositions", "RefusedPositions"])
@within(virtually)
async def test_an_idle_fleet_that_was_drained_for_three_days_goes_on_and_tells_of_no_loss(kind):
    """K16, alone and on top of K14 and K15: what the checkpoint names is long gone."""
    world = UnkindWorld()
    world.stream.put(1)
    await world.turn(turn_ms=60_000)
    await world.clock.sleep_ms(72 * HOUR_MS)
    if kind:
        world.stream.inject(kind)
    turn = asyncio.create_task(world.turn(turn_ms=180_000))
    await world.clock.sleep_ms(80_000)
    world.stream.put(2)
    world.stream.put(3)
    await turn
    assert world.numbers == [1, 2, 3]
    world.assert_told_no_loss()
    assert len(world.told(PositionOutlived)) == 1


async def encrypted(world):
    for number in range(5):
        world.stream.put(number)
    world.stream.client.start_stream_encryption(
        StreamName=NAME, EncryptionType="KMS", KeyId="alias/aws/kinesis"
    )


@within(virtually)
async def test_a_handler_hears_how_a_record_was_encrypted_as_kinesis_says():
    world = UnkindWorld()
    await encrypted(world)
    world.stream.put(5)
    await world.turn(turn_ms=20_000)
    told = [(r.encryption_type, r.explicit_hash_key) for r in world.handler.handled]
    assert told == 5 * [(None, None)] + [("KMS", None)]


@within(virtually)
async def test_a_key_that_is_denied_at_first_is_waited_for():
    """I01: grants are seen everywhere only after a while."""
    world = UnkindWorld()
    world.stream.inject("DeniedKeys", DelayMs=20_000)
    await encrypted(world)
    await world.turn(turn_ms=60_000)
    assert world.numbers == [0, 1, 2, 3, 4]
    world.assert_told_no_loss()


@within(virtually)
async def test_a_key_that_stays_denied_ends_the_turn_with_what_a_person_has_to_do():
    world = UnkindWorld()
    world.stream.inject("DeniedKeys", DelayMs=HOUR_MS)
    await encrypted(world)
    began_ms = world.clock.monotonic_ms()
    await world.turn()
    assert 60_000 <= world.clock.monotonic_ms() - began_ms <= 90_000
    (told,) = world.told(TurnFailed)
    assert "KMSAccessDeniedException" in told.error
    assert "check the function's role and the key's policy" in told.error
    assert not world.told(PositionLost)
