"""Pause, drain, force, end: each waits until workers have let go, and says who has not."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.reasons import Pause, SecondListingAwaited
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.slot import SlotState
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet_ops.operate.pause import Operator
from shardfleet_testkit.clock import run_virtual
from tests.engine.worker_side.worker_kit import (
    ME,
    OTHER,
    World,
    a_lease,
    key,
    lose_answers,
    refuse,
)
from tests.virtual import within

ANN, BOB = Pause("ann", 5), Pause("bob", 6)


def in_world(scenario, *leases, **world):
    async def main():
        at_work = World(leases=leases or [a_lease(0)], **world)
        operator = Operator(at_work.leases, at_work.ports().fleet_state, at_work.clock)
        return await scenario(at_work, operator)

    return run_virtual(main())


def prompts(world):
    return world.ports().fleet_state.prompts()


@within(in_world)
async def test_pausing_says_what_was_paused_before_and_keeps_who_did_it(world, operator, /):
    assert await operator.pause([key(0)], ANN) == Pauses()
    assert await operator.pause([key(0), key(1)], BOB) == Pauses(leases={key(0): ANN})
    await operator.pause(None, ANN)
    await operator.pause(None, BOB)
    paused = await operator.pauses()
    assert paused == Pauses(fleet=ANN, leases={key(0): ANN, key(1): BOB})
    assert await prompts(world) == 0


@pytest.mark.parametrize(
    ("taken_back", "left"),
    [
        (lambda operator: operator.resume([key(0)]), Pauses(fleet=ANN, leases={key(1): ANN})),
        (lambda operator: operator.resume(None), Pauses()),
        (lambda operator: operator.go_on(), Pauses(leases={key(0): ANN, key(1): ANN})),
    ],
    ids=["some", "all", "the fleet's"],
)
@within(in_world)
async def test_what_is_taken_back_is_taken_back_alone_and_the_manager_hears_of_it(
    world, operator, /, taken_back, left
):
    await operator.pause([key(0), key(1)], ANN)
    await operator.pause(None, ANN)
    when_prompted = []

    def prompted(call, kind, name):
        if call == "increment":
            when_prompted.append(dict(world.state.documents))

    world.state.before = prompted
    await taken_back(operator)
    # A manager that looks at once sees it.
    assert when_prompted[0].items() <= world.state.documents.items()
    assert await operator.pauses() == left
    assert await prompts(world) == 1


@within(in_world, a_lease(0, lease_owner="java-1"), a_lease(1, lease_owner="f-s0001"))
async def test_what_another_application_has_taken_is_free_of_our_workers(world, operator, /):
    """Beside a Java KCL a lease that is given up has its next owner before the next look."""
    keys, ours = [key(0), key(1)], {"f-s0001"}
    held = await operator.until_free(keys, of=ours, within_ms=2_000)
    assert (held, world.clock.monotonic_ms()) == ((key(1),), 2_000)
    assert await operator.until_free(keys, within_ms=0) == (key(0), key(1))


@pytest.mark.parametrize("answer", [Throttled("busy"), OutcomeUnknown("no answer")])
@within(
    in_world,
    a_lease(0),
    a_lease(1, lease_owner=None),
    a_lease(2, lease_owner=OTHER, checkpoint_owner=ME),
    a_lease(3, checkpoint=AT_SHARD_END),
)
async def test_who_waits_looks_each_half_second_whatever_a_look_answers(world, operator, /, answer):
    """And returns at the time that was given, with the names of those that are still held."""
    looks = []

    def reading(lease_key):
        looks.append((world.clock.monotonic_ms(), lease_key))
        if len(looks) == 1:
            raise answer

    world.leases.reading = reading
    keys = [key(2), key(1), key(0), key(3)]
    assert await operator.until_free(keys, within_ms=2_000) == (key(0), key(2))
    assert sorted({at_ms for at_ms, _ in looks}) == [0, 500, 1_000, 1_500, 2_000]
    # What is free is not asked for again.
    assert {name for at_ms, name in looks if at_ms > 500} == {key(0), key(2)}
    world.leases.leases[key(2)] = a_lease(2, lease_owner=None)
    assert await operator.until_free([key(2)], within_ms=60_000) == ()
    assert world.clock.monotonic_ms() == 2_000


@within(in_world)
async def test_a_drain_ends_with_the_start_that_was_asked_and_not_with_the_next(world, operator, /):
    for name in ("s0001", "s0002", "s0003"):
        await world.open_slot(name)
    names = ["s0003", "s0002", "s0001", "s0009"]
    left = await operator.drain(names, within_ms=1_000)
    assert left == ("s0001", "s0002", "s0003")
    assert all(world.slot(name).drain for name in left)
    assert ("slot", "s0009") not in world.state.documents

    async def go_on():
        await world.clock.sleep_ms(700)
        await world.change_slot(
            lambda slot: replace(slot, state=SlotState.ENDED, drain=False), "s0001"
        )
        await world.change_slot(
            lambda slot: replace(slot, start_epoch=slot.start_epoch + 1), "s0002"
        )

    going_on = asyncio.create_task(go_on())
    assert await operator.drain(left, within_ms=5_000) == ("s0003",)
    await going_on


@within(
    in_world,
    a_lease(0),
    a_lease(1, lease_owner=OTHER, checkpoint_owner=ME),
    a_lease(2, lease_owner=None),
    a_lease(3, checkpoint=AT_SHARD_END),
)
async def test_force_takes_by_the_counter_from_whoever_has_it_and_of_a_handover_from_both(
    world, operator, /
):
    before = {number: world.lease(number) for number in range(4)}
    await operator.force([key(2), key(0), key(1), key(3), key(9)])
    assert [world.lease(number).effective_owner for number in range(3)] == [None] * 3
    taken = [number for number in range(4) if world.lease(number) != before[number]]
    assert taken == [0, 1]
    assert world.lease(0).lease_counter == before[0].lease_counter + 1
    assert world.lease(1).lease_owner is None
    assert len(world.leases.operations(key(1))) == 2


@pytest.mark.parametrize("refusal", [Throttled, OutcomeUnknown])
@within(in_world)
async def test_force_tries_again_each_half_second_and_not_for_ever(world, operator, /, refusal):
    world.leases.before = refuse(3, refusal)
    await operator.force([key(0)])
    assert world.lease().lease_owner is None
    assert world.clock.monotonic_ms() == 1_500

    world.leases.leases[key(0)] = a_lease(0)
    world.leases.before = refuse(100, refusal)
    await operator.force([key(0)])
    assert world.lease().lease_owner == ME
    assert world.clock.monotonic_ms() == 1_500 + 10 * 500


@within(in_world)
async def test_force_whose_answer_is_lost_has_taken_the_lease_once(world, operator, /):
    world.leases.after = lose_answers(1)
    await operator.force([key(0)])
    assert world.leases.operations() == [world.leases.changes[0][0].operation]
    assert world.lease().lease_owner is None


@within(in_world, a_lease(0), a_lease(1, checkpoint=AT_SHARD_END), a_lease(2))
async def test_who_decides_that_missed_shards_are_over_is_on_record_and_their_ends_are_waited_for(
    world, operator, /
):
    record = GoneRecord(world.state)
    missed = GoneNote(lease_key=key(0), first_ms=1, unlisted_ms=2, reason=SecondListingAwaited())
    await record.write(missed, None)
    left = await operator.end([key(0), key(1), key(2)], person="ada", within_ms=1_000)
    assert left == (key(0), key(2))
    assert world.clock.monotonic_ms() == 1_000
    assert (await record.read(key(0))).note == replace(missed, ended_by="ada")
    # Nobody misses the others: nothing is decided about them.
    assert [note.lease_key for note in await record.missed()] == [key(0)]
