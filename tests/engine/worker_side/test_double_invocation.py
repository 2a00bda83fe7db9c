"""Two invocations of one worker id at once (hazard H1), in both orders, and lost replies."""

import asyncio
import contextvars
from functools import partial

import pytest
from msgspec.structs import replace

from shardfleet.domain.slots.slot import TurnOutcome, intend_start
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.worker.slot import SlotRecord
from shardfleet.errors import OutcomeUnknown, Throttled
from shardfleet.events.worker import LeaseAdopted, OwnWriteRecognised, TurnEnded
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.worker_kit import ME, World, key
from tests.virtual import virtual

WHO = contextvars.ContextVar("which invocation this task belongs to", default="")


class Two:
    """Two invocations, A and B, each with a handler of its own, on one world."""

    def __init__(self, world, *, script=None):
        self.world = world
        self.handlers = [MemoryHandler(world.clock, script) for _ in range(2)]

    def begin(self, which, **options):
        context = contextvars.copy_context()
        context.run(WHO.set, "AB"[which])
        turn = self.world.turn(handler=self.handlers[which], **options)
        return asyncio.create_task(turn, name=f"invocation {'AB'[which]}", context=context)

    def numbers(self, which):
        return [int(data) for data in self.handlers[which].payloads]


async def producing(world, first, last, *, each_ms=200):
    for n in range(first, last + 1):
        world.put(n)
        await world.clock.sleep_ms(each_ms)


def applied(world):
    """Return (counter after the write, operation) of every write that was applied."""
    return [
        (result.lease.lease_counter, change.operation)
        for change, result in world.leases.changes
        if hasattr(result, "lease")
    ]


@pytest.mark.parametrize("overlap_ms", [0, 1, 1_700, 3_333, 7_000])
@virtual
async def test_the_second_invocation_wins_and_the_first_writes_nothing_more(overlap_ms):
    """A runs, the connection to it is lost, B is started: B has the leases, A stops in a tick."""
    world = World()
    await world.open_slot()
    two = Two(world)
    feed = asyncio.create_task(producing(world, 1, 200))
    a = two.begin(0)
    await world.clock.sleep_ms(overlap_ms)
    b_began_ms = world.clock.monotonic_ms()
    b = two.begin(1)
    assert await a is TurnOutcome.CONTINUE
    assert world.clock.monotonic_ms() - b_began_ms <= 2 * world.config.renew_ms
    assert await b is TurnOutcome.CONTINUE
    await feed

    assert set(two.numbers(0)) | set(two.numbers(1)) == set(range(1, 201))
    assert two.numbers(1) == list(range(two.numbers(1)[0], 201))
    counters = [counter for counter, _ in applied(world)]
    assert counters == sorted(set(counters))
    assert not world.told(OwnWriteRecognised)
    reasons = [event.reason for event in world.told(TurnEnded)]
    assert reasons == ["another invocation has taken over", "time is over"]


@virtual
async def test_the_first_invocation_delivers_nothing_that_began_after_it_saw_the_second():
    world = World()
    await world.open_slot()
    two = Two(world)
    feed = asyncio.create_task(producing(world, 1, 200))
    a = two.begin(0)
    await world.clock.sleep_ms(10_000)
    b = two.begin(1)
    await a
    last_of_a_ms = max(call.began_ms for call in two.handlers[0].calls)
    assert last_of_a_ms <= 10_000 + world.config.renew_ms
    await b
    await feed


@pytest.mark.parametrize("import_ms", [1_500, 3_500])
@virtual
async def test_who_learns_as_its_handler_is_imported_that_it_is_overtaken_renews_no_more(import_ms):
    """It waited for the stream's description first, and nobody else looked (seed 260)."""
    world = World()
    await world.open_slot()
    two = Two(world)
    killed = two.begin(1)
    await world.clock.sleep_ms(3_000)
    killed.cancel()
    await asyncio.wait([killed])
    read, apply, seen, sent = world.state.read, world.leases.apply, [], []

    async def reading(kind, name):
        if WHO.get() == "A" and "watch" in asyncio.current_task().get_name():
            raise Throttled("slow down")
        found = await read(kind, name)
        if WHO.get() == "A" and kind == "slot":
            seen.append(found.body["epoch"])
        return found

    async def applying(change):
        if WHO.get() == "A":
            sent.append(len(set(seen)))
        return await apply(change)

    def refused(call):
        if WHO.get() == "A":
            raise Throttled("slow down")

    world.state.read, world.leases.apply, world.stream.fault = reading, applying, refused
    two.handlers[0].load = partial(world.clock.sleep_ms, import_ms)
    a = two.begin(0)
    await world.clock.sleep_ms(1_000)
    b = two.begin(1)
    await a
    # It has seen the one before its claim, its own, and then the other's: nothing is sent any more.
    assert (len(set(seen)), max(sent)) == (3, 2)
    await b


@virtual
async def test_the_first_invocation_that_renews_late_does_not_keep_the_lease():
    """B renews 10 to 11 while A's renewal is under way: A is refused, and knows no unknown."""
    world = World()
    await world.open_slot()
    two = Two(world)
    a = two.begin(0)
    await world.clock.sleep_ms(10_000)
    real = world.leases.apply
    held_back = []

    async def slow_for_a(change):
        if WHO.get() == "A" and change.operation == "renew":
            held_back.append(change)
            await world.clock.sleep_ms(1_500)
        return await real(change)

    world.leases.apply = slow_for_a
    while not held_back:
        await world.clock.sleep_ms(10)
    b = two.begin(1)
    assert await a is TurnOutcome.CONTINUE
    assert await b is TurnOutcome.CONTINUE
    assert not world.told(OwnWriteRecognised)
    assert world.lease().lease_owner == ME


@pytest.mark.parametrize("operation", ["renew", "checkpoint"])
@virtual
async def test_an_answer_lost_by_the_first_is_not_taken_for_its_own_once_the_second_has_claimed(
    operation,
):
    """The heart of H1: counter + 1, our owner, even our checkpoint; but the epoch moved."""
    world = World(idle_end_ms=60_000)
    await world.open_slot()
    two = Two(world)
    feed = asyncio.create_task(producing(world, 1, 100))
    a = two.begin(0)
    await world.clock.sleep_ms(10_000)
    b = []

    def before(change):
        # A's request is lost, and what A finds in the table afterwards is B's write.
        if not b and change.operation == operation:
            b.append(two.begin(1))
            raise OutcomeUnknown("request lost")

    async def slow_get(lease_key):
        if b and WHO.get() == "A":
            while not len(world.told(LeaseAdopted)) > 1:
                await world.clock.sleep_ms(1)
        return await real_get(lease_key)

    real_get = world.leases.get
    world.leases.before = before
    world.leases.get = slow_get
    assert await a is TurnOutcome.CONTINUE
    assert await b[0] is TurnOutcome.CONTINUE
    await feed

    assert not world.told(OwnWriteRecognised)
    assert set(two.numbers(0)) | set(two.numbers(1)) == set(range(1, 101))
    counters = [counter for counter, _ in applied(world)]
    assert counters == sorted(set(counters))


@virtual
async def test_an_old_execution_that_still_runs_stops_when_the_manager_starts_another():
    """H3: the manager concluded that the execution is closed; its Lambda runs nevertheless."""
    world = World()
    await world.open_slot()
    two = Two(world)
    a = two.begin(0)
    await world.clock.sleep_ms(10_000)
    await world.change_slot(
        lambda slot: intend_start(
            slot,
            slot_id=slot.slot_id,
            worker_id=slot.worker_id,
            name_prefix="fleet",
            now_ms=world.clock.now_ms(),
        )
    )
    changes = []
    assert await a is TurnOutcome.DRAINED
    changes = len(world.leases.changes)
    await world.clock.sleep_ms(30_000)
    assert len(world.leases.changes) == changes
    world.given = world.slot().slot_input()
    world.put(1)
    assert await two.begin(1) is TurnOutcome.CONTINUE
    assert two.numbers(1) == [1]


@virtual
async def test_the_successor_of_a_continued_execution_is_accepted_and_fences_the_old_one():
    world = World()
    await world.open_slot()
    two = Two(world)
    a = two.begin(0)
    await world.clock.sleep_ms(10_000)
    b = two.begin(1, given=replace(world.given, generation=1))
    assert await a is TurnOutcome.DRAINED
    assert await b is TurnOutcome.CONTINUE
    assert world.slot().generation == 1


@virtual
async def test_with_every_tenth_answer_lost_nothing_is_lost_and_nobody_loses_a_lease():
    world = World(checkpoint_ms=1_000)
    await world.open_slot()
    count = [0]

    def after(change, result):
        count[0] += 1
        if count[0] % 10 == 0:
            raise OutcomeUnknown("answer lost")

    world.leases.after = after
    feed = asyncio.create_task(producing(world, 1, 300))
    await world.turn()
    await feed
    assert world.numbers == list(range(1, 301))
    assert len(world.told(OwnWriteRecognised)) >= 5
    assert world.lease().lease_owner == ME
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]


class OvertakenStore(MemoryStateStore):
    """The next write is lost without an answer, after somebody else's has landed."""

    before = None

    async def write(self, *args, **named):
        if self.before is not None:
            overtake, self.before = self.before, None
            await overtake()
            raise OutcomeUnknown
        return await super().write(*args, **named)


@virtual
async def test_two_that_claim_in_the_same_millisecond_have_epochs_of_their_own():
    """Found by the simulation: one took the other's claim for its own, and both had its epoch."""
    clock, store = VirtualClock(), OvertakenStore()
    state = FleetState(store, clock)
    intended = intend_start(None, slot_id="s1", worker_id=ME, name_prefix="f", now_ms=0)
    await state.write_slot(intended, None)
    first, second = (
        SlotRecord(intended.slot_input(), state=state, clock=clock, token=token)
        for token in ("a", "b")
    )

    store.before = second.claim
    await first.claim()

    assert first.epoch == second.epoch + 1
    assert await first.is_mine()
    assert not await second.is_mine()
