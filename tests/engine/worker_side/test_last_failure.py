"""A worker that does not work says why on its slot's record, and takes it back when it does."""

import asyncio

from msgspec.structs import replace

from shardfleet.domain.slots.failure import FailureKind
from shardfleet.domain.slots.slot import TurnOutcome
from shardfleet.errors import RightMissing
from shardfleet.events.worker import TurnBegun
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.worker_kit import World, key
from tests.virtual import virtual

KILLED = "Runtime.ExitError: Runtime exited with error: signal: killed"


@virtual
async def test_a_handler_that_does_not_load_stands_on_the_record_until_one_does():
    world = World()
    world.put(1, 3)
    world.handler = MemoryHandler(world.clock, load_error="no settings")
    assert await world.turn() is TurnOutcome.FAILED
    await world.clock.sleep_ms(1_000)
    assert await world.turn() is TurnOutcome.FAILED

    failure = world.slot().failure
    assert (failure.kind, failure.message, failure.times) == (
        FailureKind.IMPORT,
        "no settings",
        2,
    )
    assert failure.last_ms - failure.first_ms >= 1_000
    assert world.slot().open_turns == 1

    world.handler = MemoryHandler(world.clock)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.slot().failure is None, within_ms=20_000)
    await turn
    assert world.numbers == [1, 2, 3]


@virtual
async def test_a_turn_that_fails_stores_what_was_done_before():
    world = World(checkpoint_ms=60_000)

    def refuses(call):
        if call.operation == "get_records" and world.numbers:
            raise RightMissing("GetRecords of clicks: AccessDeniedException: no")

    world.put(1, 3)
    world.stream.fault = refuses
    assert await world.turn() is TurnOutcome.FAILED
    assert world.numbers == [1, 2, 3]
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]


@virtual
async def test_a_call_that_outlives_its_time_out_says_so_before_the_process_ends():
    world = World(handler_timeout_ms=5_000)

    async def hangs(batch):
        await world.clock.sleep_ms(10_000_000)

    world.put(1, 3)
    world.handler = MemoryHandler(world.clock, hangs)
    await world.turn_that_may_die()
    assert world.deaths
    assert world.slot().failure.kind is FailureKind.TIME_OUT

    # Its end, which the state machine tells the next one, is no second failure.
    world.handler = MemoryHandler(world.clock)
    told = replace(world.given, fault="Runtime.ExitError: Runtime exited with error: exit 1")
    turn = asyncio.create_task(world.turn(told))
    await world.run_until(lambda: world.numbers == [1, 2, 3])
    assert world.slot().failure.times == 1
    await turn
    assert world.slot().failure is None


@virtual
async def test_a_process_that_was_killed_is_told_by_the_next_one_until_it_has_worked_for_a_minute():
    world = World(handler_timeout_ms=5_000)
    world.put(1, 3)
    await world.open_slot()
    beat_ms = world.clock.now_ms()
    await world.change_slot(lambda slot: replace(slot, turn_open=True, heartbeat_ms=beat_ms))
    await world.clock.sleep_ms(7_000)
    began_ms = world.clock.monotonic_ms()
    turn = asyncio.create_task(world.turn(replace(world.given, fault=KILLED)))
    await world.run_until(lambda: world.numbers == [1, 2, 3])
    assert [begun.recovery_ms for begun in world.told(TurnBegun)] == [7_000]
    assert world.slot().failure.kind is FailureKind.MEMORY

    await world.run_until(lambda: world.slot().failure is None)
    assert 60_000 <= world.clock.monotonic_ms() - began_ms - 5_000 <= 75_000
    await turn


@virtual
async def test_a_missing_right_is_named():
    world = World()

    def refuses(call):
        if call.operation == "get_records":
            raise RightMissing("GetRecords of clicks: AccessDeniedException: no")

    world.put(1)
    world.stream.fault = refuses
    assert await world.turn() is TurnOutcome.FAILED
    failure = world.slot().failure
    assert failure.kind is FailureKind.RIGHT
    assert "GetRecords of clicks" in failure.message


@virtual
async def test_a_table_that_does_not_answer_keeps_no_turn_from_its_end():
    world = World()
    world.handler = MemoryHandler(world.clock, load_error="no settings")
    await world.open_slot()
    real = world.state.write

    async def hangs(kind, name, body, **asked):
        if kind == "slot" and body["failure"]:
            await world.clock.sleep_ms(10_000_000)
        return await real(kind, name, body, **asked)

    world.state.write = hangs
    assert await world.turn() is TurnOutcome.FAILED
    assert world.clock.monotonic_ms() < 200_000
