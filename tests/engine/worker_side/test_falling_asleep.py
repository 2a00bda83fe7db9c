"""A worker's part in sleep: an idle shard is given up where it was read to, and only then."""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import TurnOutcome, announce_assignment
from shardfleet.domain.stream.sequence import AT_LATEST
from shardfleet.engine.state.kinds import FOREIGN, NAP
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.events.worker import LeaseAsleep, LeaseReleased
from shardfleet.producer.aggregate import AggregateBuilder
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import OTHER, World, a_lease, at, key
from tests.virtual import virtual

AFTER_MS = 20_000


def a_world(**world):
    return World(**{"sleep": True, "sleep_after_ms": AFTER_MS, **world})


def nap(world, number=0):
    document = world.state.documents.get((NAP, key(number)))
    return None if document is None else document.body


class User:
    explicit_hash_key = None

    def __init__(self, partition_key, data):
        self.partition_key, self.data = partition_key, data


@virtual
async def test_an_idle_shard_is_given_up_with_a_nap_that_says_where_it_was_read_to():
    world = a_world(checkpoint_ms=600_000)
    world.put(1, 3)
    assert await world.turn() is TurnOutcome.IDLE
    last = world.stream.sequence_numbers(key(0))[-1]

    assert world.numbers == [1, 2, 3]
    lease = world.lease()
    assert lease.lease_owner is None
    assert lease.checkpoint == at(last)
    assert nap(world)["done"] == [last, 0]
    assert nap(world)["after"] == last
    assert nap(world)["worker_id"] == "fleet-s0001"
    (asleep,) = world.told(LeaseAsleep)
    assert AFTER_MS <= asleep.idle_ms < AFTER_MS + 2_000
    page = await world.stream.get_records(nap(world)["iterator"], shard_id=key(0), limit=1)
    assert not page.records


@virtual
async def test_an_aggregate_is_slept_behind_with_its_last_index_and_not_read_again():
    """Hazard H4: an aggregate's end carries its last sub-sequence number."""
    world = a_world()
    builder = AggregateBuilder()
    for number in (1, 2, 3):
        builder.add(User("a", str(number).encode()))
    world.stream.put(builder.build().data, key="a", shard_id=key(0))
    await world.turn()
    number = world.stream.sequence_numbers(key(0))[-1]

    assert world.numbers == [1, 2, 3]
    assert world.lease().checkpoint == at(number, 2)
    assert nap(world)["done"] == [number, 2]
    assert nap(world)["after"] == number


@virtual
async def test_a_shard_that_never_had_a_record_sleeps_at_its_beginning():
    world = a_world()
    assert await world.turn() is TurnOutcome.IDLE
    assert nap(world)["done"] == ["TRIM_HORIZON", 0]
    assert nap(world)["after"] == ""
    assert nap(world)["iterator"]


@virtual
async def test_a_lease_at_latest_sleeps_at_its_pin():
    world = a_world(leases=[a_lease(checkpoint=AT_LATEST)])
    await world.turn()
    assert nap(world)["done"] == ["LATEST", 0]
    assert world.state.documents["pin", key(0)].body["instant_ms"]


@virtual
async def test_a_record_now_and_then_keeps_a_shard_awake():
    world = a_world()
    turn = asyncio.create_task(world.turn())
    for number in range(1, 6):
        await world.clock.sleep_ms(AFTER_MS - 3_000)
        world.put(number)
    await world.run_until(lambda: len(world.numbers) == 5)
    assert nap(world) is None
    assert not world.told(LeaseReleased)
    await turn


@virtual
async def test_one_shard_sleeps_while_the_other_is_read():
    world = a_world(shards=2)
    turn = asyncio.create_task(world.turn())
    for number in range(1, 9):
        await world.clock.sleep_ms(10_000)
        world.put(number, number=1)
    await world.run_until(lambda: len(world.numbers) == 8)
    assert world.lease(0).lease_owner is None
    assert world.lease(1).lease_owner == "fleet-s0001"
    await turn


@virtual
async def test_without_the_option_an_idle_shard_is_kept():
    world = a_world(sleep=False)
    assert await world.turn() is TurnOutcome.CONTINUE
    assert nap(world) is None
    assert world.lease().lease_owner == "fleet-s0001"


@virtual
async def test_an_empty_answer_with_lag_is_no_idleness():
    """Hazard H6."""
    world = a_world()
    world.stream.alter = lambda shard_id, page: replace(page, millis_behind_latest=5)
    assert await world.turn() is TurnOutcome.CONTINUE
    assert nap(world) is None


@virtual
async def test_while_another_application_shares_the_table_nothing_falls_asleep():
    world = a_world()
    body = {"owner": "java", "seen_ms": world.clock.now_ms()}
    await world.state.write(FOREIGN, "fleet", body, expected_version=None)
    asked_ms = []

    def note(call, kind, name):
        if (call, kind) == ("read", FOREIGN):
            asked_ms.append(world.clock.monotonic_ms())

    world.state.before = note
    assert await world.turn() is TurnOutcome.CONTINUE
    assert nap(world) is None
    assert world.lease().lease_owner == "fleet-s0001"
    assert len(asked_ms) > 1
    assert all(later - at >= AFTER_MS for at, later in pairwise(asked_ms)), "asked each read"


@virtual
async def test_an_application_that_was_there_long_ago_is_no_reason_to_stay_awake():
    world = a_world()
    body = {"owner": "java", "seen_ms": world.clock.now_ms() - 3_600_000}
    await world.state.write(FOREIGN, "fleet", body, expected_version=None)
    assert await world.turn() is TurnOutcome.IDLE
    assert nap(world)


@pytest.mark.parametrize("error", [Throttled, OutcomeUnknown])
@virtual
async def test_a_nap_that_could_not_be_written_is_written_after_the_next_read(error):
    world = a_world()
    refused = []

    def before(call, kind, name):
        if (call, kind) == ("write", NAP) and len(refused) < 2:
            refused.append(name)
            raise error("refused")

    world.state.before = before
    assert await world.turn() is TurnOutcome.IDLE
    assert len(refused) == 2
    assert nap(world)
    assert world.lease().lease_owner is None


@virtual
async def test_a_lease_that_is_being_handed_over_does_not_sleep():
    async def scenario(world):
        turn = asyncio.create_task(world.turn())
        await world.run_until(lambda: world.numbers == [1])
        await world.clock.sleep_ms(AFTER_MS - 500)
        await world.leases.apply(lease_changes.initiate_handover(world.lease(), OTHER))
        await turn
        assert world.lease().lease_owner == OTHER
        assert world.lease().checkpoint_owner is None

    world = a_world()
    world.put(1)
    await scenario(world)


@virtual
async def test_records_that_come_while_the_lease_is_given_up_are_read_by_the_next_owner():
    world = a_world()

    def before(change):
        if change.operation == "evict":
            world.put(2)
            world.leases.before = lambda change: None

    world.leases.before = before
    world.put(1)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.lease().lease_owner is None)
    iterator = nap(world)["iterator"]
    found = await world.stream.get_records(iterator, shard_id=key(0), limit=1)
    assert [record.data for record in found.records] == [b"2"]
    await world.change_slot(lambda slot: announce_assignment(slot, [key(0)]))
    await world.leases.apply(lease_changes.assign(world.lease(), "fleet-s0001"))
    await world.run_until(lambda: world.numbers == [1, 2])
    await turn


@pytest.mark.parametrize("act_at", range(7))
@virtual
async def test_a_death_at_any_step_of_falling_asleep_loses_and_repeats_nothing(act_at):
    world = a_world()

    def is_step(name):
        is_write = ".write" in name or ".apply" in name
        return is_write and world.clock.monotonic_ms() > AFTER_MS

    steps = Steps(act_at=act_at, only=is_step)
    world.put(1, 3)
    assert await process(world, steps) is None

    naps = [nap for nap, _ in await NapRecord(world.state).naps()]
    assert all(nap.done == world.lease().checkpoint for nap in naps)
    if world.lease().lease_owner is None:
        assert naps
        await world.leases.apply(lease_changes.assign(world.lease(), "fleet-s0001"))
    world.put(4)
    assert await world.turn() is TurnOutcome.IDLE
    assert world.numbers == [1, 2, 3, 4]
    assert nap(world)
