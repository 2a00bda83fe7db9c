"""Assignments, drain, handover, and the end of a slot (hazard H2, protocol.md §3.5)."""

import asyncio
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import SlotState, TurnOutcome, announce_assignment, ask_to_drain
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.events.worker import LeaseAdopted, LeaseLost, TurnEnded, TurnFailed, WorkerBeat
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.worker_kit import ME, OTHER, World, a_lease, key
from tests.virtual import virtual


def in_world(scenario, **world):
    """Run a scenario in a fresh world in virtual time."""

    async def main():
        return await scenario(World(**world))

    return run_virtual(main())


# --- assignments and the end of a slot: hazard H2


@virtual
async def test_an_assignment_announced_while_running_is_adopted_at_the_next_tick_and_served():
    world = World(shards=2, leases=[a_lease(0), a_lease(1, lease_owner=None)])

    async def manager():
        await world.clock.sleep_ms(20_000)
        await world.change_slot(lambda slot: announce_assignment(slot, [key(1)]))
        assigned = lease_changes.assign(world.lease(1), ME)
        await world.leases.apply(assigned)

    task = asyncio.create_task(manager())
    world.put(1, number=1)
    await world.turn()
    await task

    begun_ms = world.handler.calls[0].began_ms
    assert 20_000 <= begun_ms <= 20_000 + world.config.renew_ms + 100
    assert world.slot().served_seq == world.slot().assign_seq == 1
    assert world.slot().assigned == ()


@virtual
async def test_a_finished_lease_that_was_set_back_is_read_again_in_the_same_turn():
    world = World()
    world.put(1, 3)
    world.stream.split(key(0))
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: world.lease().is_finished)
    # The index still names this worker, so the lease is looked at, and found finished.
    await world.clock.sleep_ms(15_000)

    evicted = await world.leases.apply(lease_changes.evict(world.lease()))
    await world.leases.apply(lease_changes.rewind(evicted.lease, AT_TRIM_HORIZON))
    await world.change_slot(lambda slot: announce_assignment(slot, [key(0)]))
    await world.leases.apply(lease_changes.assign(world.lease(), ME))
    await world.run_until(lambda: world.numbers == [1, 2, 3] * 2, within_ms=10_000)
    await world.run_until(lambda: world.lease().is_finished, within_ms=10_000)
    await turn
    assert world.slot().served_seq == 1


def prompts(world):
    document = world.state.documents.get(("prompt", "manager"))
    return document.version if document else 0


@virtual
async def test_a_slot_that_begins_with_nothing_asks_the_manager_at_once():
    world = World(leases=[a_lease(lease_owner=None)])
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: prompts(world) == 1, within_ms=1_000)
    await turn
    assert prompts(world) == 1


@virtual
async def test_a_slot_that_begins_with_leases_asks_for_no_more():
    world = World(leases=[a_lease()])
    await world.turn()
    assert prompts(world) == 0


def test_an_empty_slot_outlives_the_pause_between_two_turns_of_the_manager():
    config = FleetConfig(fleet="f", stream_arn="s", lease_table="l", state_table="t")
    between_invocations_ms = 60_000 - config.manager_run_ms

    assert config.idle_end_ms > max(config.cycle_ms, between_invocations_ms)


@virtual
async def test_a_state_table_that_is_out_for_a_whole_turn_is_gone_on_with():
    world = World()

    def out(call, kind, name):
        raise Throttled("state table")

    await world.open_slot()
    world.state.before = out
    assert await world.turn() is TurnOutcome.CONTINUE
    (told,) = world.told(TurnEnded)
    assert (told.reason, told.held_leases) == ("no answer in time", 0)
    assert not world.told(TurnFailed)

    world.state.before = lambda call, kind, name: None
    world.put(1)
    assert await world.turn() is TurnOutcome.CONTINUE
    assert world.numbers == [1]


@virtual
async def test_an_announced_assignment_that_is_written_late_is_still_found():
    world = World(leases=[a_lease(lease_owner=None)], idle_end_ms=60_000)

    async def manager():
        await world.clock.sleep_ms(5_000)
        await world.change_slot(lambda slot: announce_assignment(slot, [key(0)]))
        await world.clock.sleep_ms(8_000)
        await world.leases.apply(lease_changes.assign(world.lease(), ME))

    task = asyncio.create_task(manager())
    world.put(1)
    assert await world.turn() is TurnOutcome.CONTINUE
    await task
    assert world.numbers == [1]


@pytest.mark.parametrize("announced_ms", [1_000, 15_000])
def test_an_announced_assignment_that_is_never_written_counts_as_served_after_a_failover_time(
    announced_ms,
):
    async def scenario(world):
        async def manager():
            await world.clock.sleep_ms(announced_ms)
            await world.change_slot(lambda slot: announce_assignment(slot, [key(0)]))

        task = asyncio.create_task(manager())
        assert await world.turn() is TurnOutcome.IDLE
        await task
        assert world.slot().state is SlotState.ENDED
        config = world.config
        least_ms = announced_ms + config.failover_ms + config.idle_end_ms
        assert least_ms <= world.clock.monotonic_ms() <= least_ms + 3 * config.renew_ms

    in_world(scenario, leases=[a_lease(lease_owner=OTHER)], idle_end_ms=20_000)


@virtual
async def test_a_slot_that_is_announced_nothing_again_and_again_waits_for_what_others_give_it():
    world = World(leases=[a_lease(lease_owner=OTHER)], idle_end_ms=30_000)

    async def manager():
        for _ in range(2):
            await world.clock.sleep_ms(20_000)
            await world.change_slot(lambda slot: announce_assignment(slot, []))

    task = asyncio.create_task(manager())
    assert await world.turn() is TurnOutcome.IDLE
    await task
    last_ms = 2 * 20_000 + world.config.idle_end_ms
    assert last_ms <= world.clock.monotonic_ms() <= last_ms + 10_000


def lose_the_answer_to_the_end(world):
    """The write that ends the slot lands without an answer, and the look at it is throttled."""
    write, refused = world.state.write, []

    async def without_answer(kind, name, body, *, expected_version):
        result = await write(kind, name, body, expected_version=expected_version)
        if body.get("state") == "ENDED" and not refused:
            refused.append(1)
            raise OutcomeUnknown("lost")
        return result

    def throttled(call, kind, _name):
        if (call, kind, refused) == ("read", "slot", [1]):
            refused.append(2)
            raise Throttled("refused")

    world.state.write, world.state.before = without_answer, throttled
    return refused


@pytest.mark.parametrize("drains", [True, False])
@virtual
async def test_a_slot_whose_end_was_written_without_an_answer_has_ended(drains):
    """Found by simulation: it went on for the rest of the turn, and left a task behind."""
    world = World(leases=[])
    refused = lose_the_answer_to_the_end(world)
    await world.open_slot()
    if drains:
        await world.change_slot(ask_to_drain)
    outcome = await world.turn()
    assert len(refused) == 2
    assert outcome in (TurnOutcome.DRAINED, TurnOutcome.IDLE)
    assert world.clock.monotonic_ms() < 30_000


@virtual
async def test_a_turn_whose_last_write_finds_no_answer_leaves_no_task_behind():
    world = World(leases=[a_lease()])
    await world.open_slot()
    await world.change_slot(ask_to_drain)
    allowed = [1]  # the claim

    def refuse(call, kind, _name):
        if (call, kind) == ("write", "slot"):
            if not allowed:
                raise Throttled("refused")
            allowed.pop()

    world.state.before = refuse
    assert await world.turn(turn_ms=90_000) is TurnOutcome.CONTINUE
    assert "renew" not in {task.get_name() for task in asyncio.all_tasks()}


@virtual
async def test_a_slot_with_nothing_held_and_nothing_to_come_ends():
    world = World(leases=[])
    began_ms = world.clock.monotonic_ms()
    assert await world.turn() is TurnOutcome.IDLE
    assert world.clock.monotonic_ms() - began_ms == world.config.idle_end_ms
    assert world.slot().state is SlotState.ENDED
    assert not world.slot().turn_open


@virtual
async def test_a_slot_does_not_end_on_an_assignment_announced_at_the_last_moment():
    """H2: the manager bumps assign_seq between the look and the end; the end is refused."""
    world = World(leases=[])
    await world.open_slot()
    announced = []

    def before(call, kind, name):
        is_end = call == "write" and kind == "slot" and world.clock.monotonic_ms() > 4_000
        if is_end and not announced:
            announced.append(world.clock.monotonic_ms())
            slot = announce_assignment(world.slot(), [key(0)])
            document = world.state.documents["slot", "s0001"]
            world.state.documents["slot", "s0001"] = replace(
                document,
                version=document.version + 1,
                body={**document.body, "assign_seq": slot.assign_seq, "assigned": [key(0)]},
            )
            world.leases.leases[key(0)] = a_lease()

    world.state.before = before
    world.put(1)
    assert await world.turn() is TurnOutcome.CONTINUE
    assert announced
    assert world.numbers == [1]


@virtual
async def test_a_lease_found_only_in_the_index_is_adopted():
    world = World(shards=2, leases=[a_lease(0), a_lease(1, lease_owner=None)])

    async def taker():
        await world.clock.sleep_ms(5_000)
        await world.leases.apply(lease_changes.take(world.lease(1), ME))

    task = asyncio.create_task(taker())
    world.put(1, number=1)
    asked = []
    ask = world.leases.keys_owned_by

    async def noted(worker_id):
        asked.append(world.clock.monotonic_ms())
        return await ask(worker_id)

    world.leases.keys_owned_by = noted
    await world.turn()
    await task
    assert world.numbers == [1]
    assert world.handler.calls[0].began_ms <= 5_000 + 3 * world.config.renew_ms + 100
    between_ms = [later - before for before, later in pairwise(asked)]
    assert min(between_ms) > world.config.renew_ms, "each third look asks the index"


@virtual
async def test_the_heartbeat_tells_the_lag_of_each_lease():
    world = World(shards=2)
    world.put(1, 30)
    await world.turn()
    assert world.slot().lags_ms == {key(0): 0, key(1): 0}


@virtual
async def test_a_heartbeat_that_is_written_again_tells_what_is_held_by_then():
    world = World(max_turn_ms=5_000)
    world.stream.split(key(0))
    told = []
    write = world.state.write

    async def refused_when_the_children_are_taken(kind, name, body, **options):
        if kind == "slot" and body["lags_ms"]:
            told.append(sorted(body["lags_ms"]))
            if len(told) == 1:
                await world.run_until(lambda: len(world.told(LeaseAdopted)) == 3)
                await world.change_slot(lambda slot: slot)
        return await write(kind, name, body, **options)

    world.state.write = refused_when_the_children_are_taken
    await world.turn()
    assert told[:2] == [[key(0)], [key(1), key(2)]]
    assert world.told(WorkerBeat)[0].held_leases == 2


def test_a_worker_to_which_nothing_happens_tells_that_it_lives_within_each_failover_time():
    """Metrics are flushed with events: without this one, those of a stopped shard would wait."""

    async def scenario(world):
        await world.turn()
        return world.told(WorkerBeat)

    beats = in_world(scenario, shards=1)
    assert len(beats) >= 3
    assert {beat.held_leases for beat in beats} == {1}


# --- drain


@virtual
async def test_a_drained_slot_finishes_its_batch_checkpoints_evicts_and_ends():
    world = World(max_batch_records=10)

    async def slow(batch):
        await world.clock.sleep_ms(3_000)

    async def manager():
        await world.clock.sleep_ms(5_000)
        await world.change_slot(ask_to_drain)

    world.handler = MemoryHandler(world.clock, slow)
    world.put(1, 100)
    task = asyncio.create_task(manager())
    assert await world.turn() is TurnOutcome.DRAINED
    await task

    assert world.clock.monotonic_ms() < 15_000
    assert world.lease().lease_owner is None
    done = world.stream.sequence_numbers(key(0))[len(world.numbers) - 1]
    assert str(world.lease().checkpoint) == done
    assert world.slot().state is SlotState.ENDED


@virtual
async def test_a_drained_slot_completes_a_pending_handover_instead_of_evicting():
    world = World()

    async def manager():
        await world.clock.sleep_ms(5_000)
        await world.leases.apply(lease_changes.initiate_handover(world.lease(), OTHER))
        await world.change_slot(ask_to_drain)

    task = asyncio.create_task(manager())
    assert await world.turn() is TurnOutcome.DRAINED
    await task
    assert world.lease().lease_owner == OTHER
    assert world.lease().checkpoint_owner is None


@virtual
async def test_what_was_assigned_just_before_the_drain_is_given_back_too():
    world = World(shards=2, leases=[a_lease(0), a_lease(1, lease_owner=None)])

    async def manager():
        await world.clock.sleep_ms(5_000)
        await world.change_slot(lambda slot: ask_to_drain(announce_assignment(slot, [key(1)])))
        await world.clock.sleep_ms(4_000)
        await world.leases.apply(lease_changes.assign(world.lease(1), ME))

    task = asyncio.create_task(manager())
    assert await world.turn() is TurnOutcome.DRAINED
    await task
    assert [world.lease(n).lease_owner for n in (0, 1)] == [None, None]
    assert world.slot().state is SlotState.ENDED


@virtual
async def test_a_slot_found_draining_hands_over_without_reading_or_importing():
    world = World()
    await world.open_slot()
    await world.change_slot(lambda slot: replace(slot, drain=True, state=SlotState.ENDING))
    world.put(1)

    assert await world.turn() is TurnOutcome.DRAINED
    assert world.lease().lease_owner is None
    assert world.handler.loads == []
    assert world.stream.calls == []


# --- handover


@virtual
async def test_a_handed_over_shard_is_finished_to_its_batch_and_given_to_the_next_owner():
    """Protocol.md §3.5: the running batch ends, then checkpoint, then assign; we drop it."""
    world = World(max_batch_records=10, idle_end_ms=60_000)

    async def slow(batch):
        await world.clock.sleep_ms(2_000)

    async def leader():
        await world.clock.sleep_ms(5_000)
        await world.leases.apply(lease_changes.initiate_handover(world.lease(), OTHER))

    world.handler = MemoryHandler(world.clock, slow)
    world.put(1, 200)
    task = asyncio.create_task(leader())
    await world.turn()
    await task

    assert world.lease().lease_owner == OTHER
    assert world.lease().checkpoint_owner is None
    assert len(world.numbers) < 200
    done = world.stream.sequence_numbers(key(0))[len(world.numbers) - 1]
    assert str(world.lease().checkpoint) == done
    # Noticed by a renewal, which comes each 3.3 s; then the next owner has as long to look.
    assert max(call.began_ms for call in world.handler.calls) < 5_000 + 3 * world.config.renew_ms


@virtual
async def test_a_lease_that_was_lost_and_adopted_again_never_has_two_consumers():
    """The old one's handler call still runs when the index shows the lease as ours again."""
    world = World()

    async def slow(batch):
        await world.clock.sleep_ms(40_000)

    async def somebody():
        await world.clock.sleep_ms(5_000)
        lease = world.lease()
        counter = lease.lease_counter + 1
        world.leases.leases[key(0)] = replace(lease, lease_counter=counter)

    world.handler = MemoryHandler(world.clock, slow, overlaps=True)
    world.put(1, 3)
    task = asyncio.create_task(somebody())
    await world.turn()
    await task
    assert len(world.told(LeaseLost)) == 1
    assert len(world.told(LeaseAdopted)) == 2
    assert len(world.handler.calls) == 2
    assert world.handler.running_most == 1
    assert world.lease().checkpoint.sequence_number == world.stream.sequence_numbers(key(0))[-1]


@pytest.mark.parametrize(
    ("spill", "busy_ms", "prompts"), [(True, 900, 1), (True, 300, 0), (False, 900, 0)]
)
@virtual
async def test_beside_processes_a_slot_that_has_too_much_to_do_asks_for_another_once(
    spill, busy_ms, prompts
):
    world = World(spill=spill, max_batch_records=1, handler_timeout_ms=5_000)

    async def work(_):
        await world.clock.sleep_ms(busy_ms)

    async def feed():
        for number in range(60):
            world.put(number)
            await world.clock.sleep_ms(1_000)

    world.handler = MemoryHandler(world.clock, work)
    feeder = asyncio.create_task(feed())
    await world.turn(turn_ms=60_000)
    await feeder
    found = await world.state.read("prompt", "manager")
    assert (found.version if found else 0) == prompts
