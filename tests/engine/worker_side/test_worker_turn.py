"""A whole turn: the order of things, and each way in which it ends."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import (
    SlotState,
    TurnOutcome,
    announce_assignment,
    ask_to_drain,
)
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.engine.retry import ATTEMPTS_MOST
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.errors import ShardGone, StreamGone, Throttled
from shardfleet.events.worker import SlotDelayed, TurnBegun, TurnEnded, TurnFailed, TurnRefused
from shardfleet_testkit.memory import ProcessEndedError
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.worker_kit import ME, TURN_MS, World, a_lease, at, key
from tests.virtual import virtual

# --- a good turn


@virtual
async def test_a_turn_handles_every_record_once_and_in_order_and_asks_to_go_on():
    world = World()
    world.put(1, 50)

    assert await world.turn() is TurnOutcome.CONTINUE
    assert world.numbers == list(range(1, 51))
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]
    assert world.lease().lease_owner == ME
    slot = world.slot()
    assert (slot.state, slot.turn_open, slot.open_turns) == (SlotState.RUNNING, False, 0)
    assert slot.epoch == world.told(TurnBegun)[0].epoch
    assert world.told(TurnEnded)[0].held_leases == 1


@virtual
async def test_the_next_turn_goes_on_behind_the_last_record():
    world = World()
    world.put(1, 10)
    await world.turn()
    world.put(11, 20)
    await world.turn()

    assert world.numbers == list(range(1, 21))


@pytest.mark.parametrize("after_ms", [0, 60_000])
@virtual
async def test_a_turn_that_is_told_to_leave_ends_as_when_its_time_is_over(after_ms):
    world = World()
    world.put(1, 20)
    given, now_ms = await world.open_slot(), world.clock.monotonic_ms
    began_ms, deadline_ms = now_ms(), now_ms() + TURN_MS
    turn = WorkerTurn(given, config=world.config, ports=world.ports(), deadline_ms=deadline_ms)
    asyncio.get_running_loop().call_later(after_ms / 1_000, turn.leave)

    assert await turn.run() is TurnOutcome.CONTINUE
    assert now_ms() - began_ms < after_ms + 2_000
    slot = world.slot()
    assert (slot.state, slot.turn_open, slot.open_turns) == (SlotState.RUNNING, False, 0)
    await world.turn()
    assert world.numbers == list(range(1, 21))


@virtual
async def test_leases_are_adopted_and_renewed_before_user_code_is_imported():
    """H16: an import of 25 s would otherwise cost every lease."""
    world = World()
    world.handler = MemoryHandler(world.clock, load_ms=25_000)
    counters = []

    async def watching():
        for _ in range(240):
            await world.clock.sleep_ms(100)
            counters.append(world.lease().lease_counter)

    watch = asyncio.create_task(watching())
    world.put(1)
    await world.turn()
    await watch

    assert world.handler.loads == [25_000]
    assert counters[0] == 8
    stands_still_ms = max(counters.count(c) for c in set(counters)) * 100
    assert stands_still_ms <= world.config.renew_ms + 100
    assert world.numbers == [1]


@virtual
async def test_where_nothing_is_refused_no_delay_is_told():
    world = World(shards=2)
    world.put(1)
    await world.turn()
    assert world.numbers == [1]
    assert not world.told(SlotDelayed)


@pytest.mark.parametrize("refused", ["read", "renewal"])
@virtual
async def test_a_lease_that_the_table_refuses_keeps_no_other_from_beginning(refused):
    """Found by the simulation: with many leases one or another is always refused."""
    world = World(shards=2)
    begun_ms = []

    def refuse(lease_key):
        if lease_key == key(1) and world.clock.monotonic_ms() < 20_000:
            raise Throttled("refused")

    async def note(batch):
        begun_ms.append((world.clock.monotonic_ms(), batch.shard_id))

    if refused == "read":
        world.leases.reading = refuse
    else:
        world.leases.before = lambda change: refuse(change.lease_key)
    world.handler = MemoryHandler(world.clock, note)
    world.put(1, number=0)
    world.put(2, number=1)
    await world.turn()

    (first_ms, first), (second_ms, second) = begun_ms
    assert (first, second) == (key(0), key(1))
    assert first_ms < 2_000
    assert 20_000 <= second_ms < 20_000 + world.config.renew_ms + 2_000
    assert {each.error for each in world.told(SlotDelayed)} == {"Throttled"}


@pytest.mark.parametrize("drains", [False, True])
@virtual
async def test_a_slot_does_not_end_without_a_lease_that_it_could_not_read(drains):
    world = World()

    def refuse(lease_key):
        if world.clock.monotonic_ms() < 30_000:
            raise Throttled("refused")

    world.leases.reading = refuse
    world.put(1)
    turn = asyncio.create_task(world.turn(await world.open_slot()))
    if drains:
        await world.clock.sleep_ms(1_000)
        await world.change_slot(lambda slot: announce_assignment(slot, [key(0)]))
        await world.change_slot(ask_to_drain)

    if drains:
        assert await turn is TurnOutcome.DRAINED
        assert world.clock.monotonic_ms() >= 30_000
        assert world.lease().lease_owner is None
    else:
        assert await turn is TurnOutcome.CONTINUE
        assert world.numbers == [1]


@virtual
async def test_every_lease_is_renewed_or_checkpointed_after_the_last_call_and_before_leaving():
    """H16: renew last."""
    world = World(shards=2)
    await world.turn()
    stopped_ms = 200_000 - world.config.turn_margin_ms - world.config.handler_timeout_ms

    assert world.clock.monotonic_ms() == stopped_ms
    last = [change for change, _ in world.leases.changes][-2:]
    assert sorted(change.lease_key for change in last) == [key(0), key(1)]


@virtual
async def test_nothing_of_a_turn_runs_when_it_has_returned():
    """H10 and §8 row 25."""
    world = World(shards=3)
    world.put(1, 20)
    before = asyncio.all_tasks()
    await world.turn()

    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
    changes, calls = len(world.leases.changes), len(world.stream.calls)
    await world.clock.sleep_ms(60_000)
    assert (len(world.leases.changes), len(world.stream.calls)) == (changes, calls)


@virtual
async def test_no_handler_call_begins_with_less_than_its_time_out_left():
    """H10: the call could not be stopped when the invocation is cut off."""
    world = World(max_batch_records=10)

    async def slow(batch):
        await world.clock.sleep_ms(7_000)

    world.handler = MemoryHandler(world.clock, slow)
    world.put(1, 400)
    await world.turn()

    calls_end_ms = 200_000 - world.config.turn_margin_ms
    began = [call.began_ms for call in world.handler.calls]
    assert len(began) > 10
    assert max(began) + world.config.handler_timeout_ms <= calls_end_ms
    # The last call was finished and counted, though the turn was to stop meanwhile.
    assert world.numbers == list(range(1, len(world.numbers) + 1))
    done = world.stream.sequence_numbers(key(0))[len(world.numbers) - 1]
    assert str(world.lease().checkpoint) == done


@virtual
async def test_a_turn_that_leaves_no_time_for_a_call_says_so_and_claims_nothing():
    world = World()
    await world.open_slot()
    before = dict(world.state.documents)

    assert await world.turn(turn_ms=70_000) is TurnOutcome.FAILED
    assert "handler_timeout_ms: 60000 found" in world.told(TurnFailed)[0].error
    assert world.state.documents == before


# --- claiming: hazards H1 and H3


@pytest.mark.parametrize(
    "change", [{"start_epoch": 4}, {"generation": 3}], ids=["start epoch", "generation"]
)
@virtual
async def test_an_outdated_invocation_touches_nothing_and_drains_its_execution(change):
    world = World()
    await world.open_slot()
    outdated = replace(world.given, **change)
    before = dict(world.state.documents)

    assert await world.turn(outdated) is TurnOutcome.DRAINED
    assert world.state.documents == before
    assert world.leases.changes == []
    assert world.stream.calls == []
    assert len(world.told(TurnRefused)) == 1


@virtual
async def test_a_claim_is_repeated_while_the_table_refuses():
    world = World()
    await world.open_slot()
    left = [4]

    def before(call, kind, name):
        if left[0]:
            left[0] -= 1
            raise Throttled(call)

    world.state.before = before
    world.put(1)
    await world.turn()
    assert world.numbers == [1]


# --- failure and end of the process


@virtual
async def test_a_handler_that_does_not_import_fails_the_turn_and_keeps_the_leases():
    world = World()
    world.handler = MemoryHandler(world.clock, load_error="handler x:y: no such module")

    assert await world.turn() is TurnOutcome.FAILED
    assert "no such module" in world.told(TurnFailed)[0].error
    assert world.lease().lease_owner == ME
    assert world.slot().turn_open


@pytest.mark.parametrize(
    "config", [{}, {"checkpoint_ms": 90_000, "failover_ms": 300_000, "max_batch_records": 4}]
)
@virtual
async def test_a_handler_that_outlives_its_time_out_ends_the_process_with_its_range_noted(config):
    """H10 and H9: progress of the others is stored; the next turn knows whom to charge."""
    world = World(shards=2, **config)

    async def hangs(batch):
        if batch.shard_id == key(1):
            await world.clock.sleep_ms(10_000_000)

    world.handler = MemoryHandler(world.clock, hangs)
    world.put(1, 5)
    await world.clock.sleep_ms(1_000)
    world.put(6, 9, number=1)
    with pytest.raises(ProcessEndedError, match="handler_timeout_ms"):
        await world.turn()

    # After a call that timed out none begins (H21).
    done = config.get("max_batch_records", 5)
    assert world.numbers == list(range(1, done + 1))
    assert str(world.lease(0).checkpoint) == world.stream.sequence_numbers(key(0))[done - 1]
    assert world.lease(1).checkpoint.is_sentinel
    note = world.state.documents["note", key(1)].body
    assert (note["is_open"], note["count"]) == (True, 4)
    assert ("note", key(0)) not in world.state.documents
    assert world.slot().turn_open


@virtual
async def test_what_concerns_every_shard_fails_the_turn_in_good_order():
    world = World()

    def fault(call):
        if call.operation == "get_records" and call.at_ms > 10_000:
            raise StreamGone("deleted")

    world.put(1, 5)
    world.stream.fault = fault
    before = asyncio.all_tasks()
    assert await world.turn() is TurnOutcome.FAILED
    assert asyncio.all_tasks() == before
    assert "StreamGone: deleted" in world.told(TurnFailed)[0].error
    assert world.slot().turn_open
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]


@pytest.mark.parametrize(
    ("operation", "lies"),
    [
        ("incarnation", ATTEMPTS_MOST - 1),
        ("list_shards", ATTEMPTS_MOST - 1),
        # Beside a description of the stream it is a lie, however often.
        ("list_shards", 2 * ATTEMPTS_MOST),
    ],
)
@virtual
async def test_that_there_is_no_stream_is_not_believed_at_once(operation, lies):
    """One false answer about the whole stream may not end the turn of all its shards."""
    world = World()
    denials = []

    def fault(call):
        if call.operation == operation and len(denials) < lies:
            denials.append(call)
            raise StreamGone("not found, for once")
        if call.operation == "get_records" and len(denials) == 0:
            raise ShardGone("not found, for once")

    world.put(1, 5)
    world.stream.fault = fault
    assert await world.turn() is not TurnOutcome.FAILED
    assert len(denials) == lies
    assert world.numbers == [1, 2, 3, 4, 5]


@virtual
async def test_a_read_that_never_returns_ends_the_process_and_not_the_renewals():
    """H10 and H17: a hung GetRecords holds nobody else, and nothing outlives the turn."""
    world = World(shards=2)
    real = world.stream.get_records

    async def hangs(iterator, *, shard_id, limit):
        if shard_id == key(0):
            await world.clock.sleep_ms(10_000_000)
        return await real(iterator, shard_id=shard_id, limit=limit)

    world.stream.get_records = hangs
    world.put(1, 5, number=1)
    with pytest.raises(ProcessEndedError, match=f"still running: shard {key(0)}"):
        await world.turn()
    assert world.numbers == [1, 2, 3, 4, 5]
    counts = [world.leases.operations(key(n)).count("renew") for n in (0, 1)]
    assert min(counts) > 40


@virtual
async def test_a_renewal_that_never_returns_ends_the_process_while_there_is_time():
    """H10: nothing is written beside it, and the turn stays open: the next one knows."""
    world = World(handler_timeout_ms=1_000)
    real, stuck = world.leases.apply, []

    async def hangs(change):
        if not stuck and world.clock.monotonic_ms() > 150_000:
            stuck.append(change.operation)
            await world.clock.sleep_ms(10_000_000)
        return await real(change)

    world.leases.apply = hangs
    with pytest.raises(ProcessEndedError, match="still running: renew"):
        await world.turn()

    assert stuck == ["renew"]
    assert world.clock.monotonic_ms() == 200_000 - world.config.turn_margin_ms // 3
    assert world.slot().turn_open
    assert not world.told(TurnEnded)


@virtual
async def test_finished_leases_are_neither_renewed_nor_read():
    world = World(shards=2, leases=[a_lease(0, checkpoint=AT_SHARD_END), a_lease(1)])
    await world.turn()
    assert world.leases.operations(key(0)) == []
    assert all(call.shard_id != key(0) for call in world.stream.calls)


@virtual
async def test_a_checkpoint_is_stored_at_most_once_a_second_and_at_the_end():
    world = World()

    async def producing():
        for n in range(1, 101):
            world.put(n)
            await world.clock.sleep_ms(300)

    task = asyncio.create_task(producing())
    await world.turn()
    await task
    assert world.numbers == list(range(1, 101))
    assert world.leases.operations().count("checkpoint") <= 32
    assert world.lease().checkpoint == at(world.stream.sequence_numbers(key(0))[-1])
