"""The life of a shard's handler object: what it is told, when, and what a hook can break."""

import asyncio
import contextlib
from functools import partial

import pytest

from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.slots.slot import TurnOutcome, announce_assignment, ask_to_drain
from shardfleet.errors import StaleEpoch, Throttled
from shardfleet.events.delivery import BatchFailed, ConsumerFailed, ShardStopped
from shardfleet.events.worker import LeaseLost
from shardfleet_testkit.clock import VirtualClock, run_virtual
from tests.engine.worker_side.steps_kit import deaths
from tests.engine.worker_side.test_lanes import apart
from tests.engine.worker_side.worker_kit import OTHER, World, a_lease, key
from tests.virtual import within

SHORT = {"handler_timeout_ms": 2_000, "turn_margin_ms": 3_000}
MANUAL = {**SHORT, "checkpoint": "manual"}


class Life:
    """A handler like a class whose objects say what they are told."""

    def __init__(self, world, *, buffers=False):
        self.world = world
        self.told = []
        self.files = []
        self.act = {}
        self._buffers = buffers
        self._kept = {}
        world.handler.hooks = self.tell
        world.handler._script = self.handle

    def note(self, what, shard):
        number = int(shard.shard_id[-4:])
        state = "SHARD_END" if self.world.lease(number).is_finished else ""
        self.told.append((what, number, state))

    async def handle(self, batch):
        self.note("handle", batch)
        self._kept.setdefault(batch.shard_id, []).extend(int(r.data) for r in batch)

    async def tell(self, hook, shard):
        self.note(str(hook), shard)
        if hook is Hook.STARTED:
            self._kept[shard.shard_id] = []
        if act := self.act.get(hook):
            await act(shard)
        if self._buffers and hook in (Hook.ENDED, Hook.STOPPING):
            self.files.append(self._kept.pop(shard.shard_id))
            shard.checkpoint()

    def of(self, number=0):
        """Return what one shard's objects were told, batches in a row as one."""
        names = [what for what, shard, _ in self.told if shard == number]
        return [n for i, n in enumerate(names) if n != "handle" or names[i - 1] != "handle"]


def in_life(scenario, *, buffers=False, **world):
    async def main():
        there = World(**{**(MANUAL if buffers else SHORT), **world})
        return await scenario(there, Life(there, buffers=buffers))

    return run_virtual(main())


@pytest.mark.parametrize("buffers", [False, True])
def test_a_turn_starts_each_shard_and_stops_it(buffers):
    async def scenario(world, life):
        world.put(1, 4)
        world.put(5, 7, number=1)
        await world.turn(turn_ms=20_000)
        for number in (0, 1):
            assert life.of(number) == ["started", "handle", "stopping"]
            last = world.stream.sequence_numbers(key(number))[-1]
            assert str(world.lease(number).checkpoint) == last
        await world.turn(turn_ms=20_000)
        assert sorted(world.numbers) == [1, 2, 3, 4, 5, 6, 7]

    in_life(scenario, buffers=buffers, shards=2)


@pytest.mark.parametrize("buffers", [False, True])
def test_ended_comes_after_the_last_record_and_before_shard_end_and_nothing_follows(buffers):
    async def scenario(world, life):
        world.put(1, 4)
        world.stream.split(key(0))
        await world.turn(turn_ms=20_000)
        assert life.of() == ["started", "handle", "ended"]
        assert ("ended", 0, "") in life.told
        assert world.lease().is_finished
        if buffers:
            assert life.files[0] == [1, 2, 3, 4]

    in_life(scenario, buffers=buffers)


@within(in_life, buffers=True)
async def test_a_handover_stops_the_shard_before_it_is_given_away(world, life, /):
    owners = []

    async def note_owner(shard):
        owners.append(world.lease().checkpoint_owner)

    life.act[Hook.STOPPING] = note_owner
    world.put(1, 4)
    await world.open_slot()
    turn = asyncio.create_task(world.turn(turn_ms=60_000), name="turn")
    await world.run_until(lambda: world.numbers)
    begun = lease_changes.initiate_handover(world.lease(), OTHER, as_read=True)
    await world.leases.apply(begun)
    await world.run_until(lambda: world.lease().checkpoint_owner is None)
    assert life.of() == ["started", "handle", "stopping"]
    assert owners == ["fleet-s0001"]
    assert life.files == [[1, 2, 3, 4]]
    assert str(world.lease().checkpoint) == world.stream.sequence_numbers(key(0))[-1]
    await turn


@within(in_life, buffers=True)
async def test_a_drain_stops_the_shard_before_it_is_released(world, life, /):
    world.put(1, 4)
    await world.open_slot()
    turn = asyncio.create_task(world.turn(turn_ms=60_000), name="turn")
    await world.run_until(lambda: world.numbers)
    await world.change_slot(ask_to_drain)
    assert await turn is TurnOutcome.DRAINED
    assert life.of() == ["started", "handle", "stopping"]
    assert life.files == [[1, 2, 3, 4]]
    assert world.lease().lease_owner is None


@within(in_life, buffers=True)
async def test_a_lost_lease_is_told_and_cannot_be_checkpointed_any_more(world, life, /):
    async def checkpoint(shard):
        shard.checkpoint()

    life.act[Hook.LEASE_LOST] = checkpoint
    world.put(1, 4)
    await world.open_slot()
    turn = asyncio.create_task(world.turn(turn_ms=60_000), name="turn")
    await world.run_until(lambda: world.numbers)
    await world.leases.apply(lease_changes.take(world.lease(), OTHER))
    await world.run_until(lambda: "lease_lost" in life.of())
    await turn
    assert life.of() == ["started", "handle", "lease_lost"]
    assert world.lease().lease_owner == OTHER
    assert world.lease().checkpoint.is_sentinel


@pytest.mark.parametrize("hook", [Hook.STARTED, Hook.ENDED])
@within(in_life)
async def test_a_hook_that_raises_is_tried_again_and_nothing_is_lost(world, life, /, hook):
    left = [2]

    async def raises(_):
        if left[0]:
            left[0] -= 1
            raise OSError("not now")

    life.act[hook] = raises
    world.put(1, 4)
    world.stream.split(key(0))
    await world.turn(turn_ms=30_000)
    expected = {
        Hook.STARTED: ["started"] * 3 + ["handle", "ended"],
        Hook.ENDED: ["started", "handle"] + ["ended"] * 3,
    }
    assert life.of() == expected[hook]
    assert world.numbers == [1, 2, 3, 4]
    assert world.lease().is_finished
    failed = world.told(BatchFailed)
    assert [(f.attempt, f.reason, f.error) for f in failed] == [
        (n, f"hook {hook}", "OSError: not now") for n in (1, 2)
    ]


@pytest.mark.parametrize("hook", [Hook.STARTED, Hook.ENDED])
@within(in_life, shards=2, max_attempts=3)
async def test_a_hook_that_goes_on_raising_stops_its_shard_by_policy_and_no_other(
    world, life, /, hook
):
    async def raises(shard):
        if shard.shard_id == key(0):
            raise OSError("never")

    life.act[hook] = raises
    world.put(1, 4)
    world.put(5, 8, number=1)
    world.stream.split(key(0))
    await world.turn(turn_ms=60_000)
    (stop,) = world.told(ShardStopped)
    assert (stop.lease_key, stop.error) == (key(0), f"{hook}: OSError: never")
    assert not world.lease(0).is_finished
    assert {5, 6, 7, 8} <= set(world.numbers)
    assert life.of(1) == ["started", "handle", "stopping"]
    assert len(world.told(BatchFailed)) == 3


@within(in_life, buffers=True, max_attempts=0)
async def test_ended_that_leaves_records_open_has_failed(world, life, /):
    life._buffers = False
    world.put(1, 4)
    world.stream.split(key(0))
    await world.turn(turn_ms=20_000)
    assert not world.lease().is_finished
    assert {f.error for f in world.told(BatchFailed)} == {"records are open"}
    life._buffers = True
    await world.turn(turn_ms=20_000)
    assert world.lease().is_finished
    assert life.files[0] == [1, 2, 3, 4]  # The rest are the children's, and empty.


@within(in_life, buffers=True)
async def test_stopping_that_raises_is_told_once_and_what_is_open_comes_again(world, life, /):
    async def raises(_):
        raise OSError("S3 is away")

    life.act[Hook.STOPPING] = raises
    world.put(1, 4)
    await world.turn(turn_ms=20_000)
    assert [(f.reason, f.error) for f in world.told(BatchFailed)] == [
        ("hook stopping", "OSError: S3 is away")
    ]
    assert world.lease().checkpoint.is_sentinel
    life.act.clear()
    await world.turn(turn_ms=20_000)
    assert life.files == [[1, 2, 3, 4]]
    assert world.numbers == [1, 2, 3, 4] * 2


@within(in_life, buffers=True, handler_timeout_ms=10_000)
async def test_an_object_whose_stopping_fails_while_its_lease_is_lost_is_told_nothing_more(
    world, life, /
):
    async def loses_the_lease(_):
        await world.leases.apply(lease_changes.take(world.lease(), OTHER))
        await world.clock.sleep_ms(4_000)  # Until a renewal hears of it.
        raise OSError("S3 is away")

    life.act[Hook.STOPPING] = loses_the_lease
    world.put(1, 4)
    await world.open_slot()
    turn = asyncio.create_task(world.turn(turn_ms=60_000), name="turn")
    await world.run_until(lambda: world.numbers)
    await world.change_slot(ask_to_drain)
    await turn
    assert world.told(LeaseLost)
    assert life.of() == ["started", "handle", "stopping"]


@within(in_life, buffers=True)
async def test_stopping_that_hangs_ends_the_process_in_time_and_loses_nothing(world, life, /):
    async def hangs(_):
        await asyncio.sleep(3_600)

    life.act[Hook.STOPPING] = hangs
    world.put(1, 4)
    began = world.clock.monotonic_ms()
    assert await world.turn_that_may_die(turn_ms=20_000) is None
    assert world.clock.monotonic_ms() - began < 20_000
    (death,) = world.deaths
    assert "the handler call of stopping took longer than handler_timeout_ms" in str(death)
    life.act.clear()
    world.handler._is_stuck = False
    await world.turn(turn_ms=20_000)
    assert life.files == [[1, 2, 3, 4]]


class StandingClock(VirtualClock):
    """A monotonic clock that leaves out some of the time, as one may that stood still."""

    stood_ms = 0

    def now_ms(self):
        return self.start_ms + super().monotonic_ms()

    def monotonic_ms(self):
        return super().monotonic_ms() - self.stood_ms


@within(in_life, max_retry_ms=500)
async def test_no_object_is_told_anything_once_the_process_is_about_to_end(world, life, /):
    """Seed 200: the clock said that there was time for a call, and the turn had ended (H10)."""
    world.clock = StandingClock()
    read, ends_ms = world.state.read, 57_000 + 2_000

    async def stands_still(_):
        asyncio.get_running_loop().stall(50)
        world.clock.stood_ms = 50_000

    async def last_read_is_slow(kind, name):
        if kind == "slot" and asyncio.get_running_loop().virtual_ms == ends_ms:
            await asyncio.sleep(4)
        return await read(kind, name)

    def refused_to_the_end(change):
        if 50_000 <= asyncio.get_running_loop().virtual_ms < ends_ms:
            raise Throttled(change.lease_key)

    life.act[Hook.STARTED] = stands_still
    world.state.read, world.leases.before = last_read_is_slow, refused_to_the_end
    assert await world.turn_that_may_die(turn_ms=60_000) is None
    assert "still running: shard" in str(world.deaths)
    assert life.of() == ["started"]


@within(in_life, buffers=True)
async def test_a_fault_of_the_worker_s_own_stops_the_object_and_starts_another(world, life, /):
    page, left = world.stream.page, [1]

    async def page_once_ill(*given, **options):
        if world.numbers and left[0]:
            left[0] = 0
            raise RuntimeError("nobody foresaw this")
        return await page(*given, **options)

    world.stream.page = page_once_ill
    world.put(1, 2)
    await world.turn(turn_ms=30_000)
    assert len(world.told(ConsumerFailed)) == 1
    assert life.of() == ["started", "handle", "stopping", "started", "stopping"]
    assert life.files == [[1, 2], []]


def test_a_lease_that_is_adopted_while_the_handler_is_imported_waits_for_it():
    async def scenario(world, life):
        world.handler._load_ms = 8_000
        early = []

        async def too_early(shard):
            if not world.handler.loads:
                early.append(shard.shard_id)

        life.act[Hook.STARTED] = too_early
        world.put(1, 2)
        world.put(3, 4, number=1)
        await world.open_slot()
        turn = asyncio.create_task(world.turn(turn_ms=30_000), name="turn")
        await world.clock.sleep_ms(2_000)
        await world.leases.apply(lease_changes.take(world.lease(1), "fleet-s0001"))
        await world.change_slot(partial(announce_assignment, lease_keys=[key(1)]))
        await turn
        assert sorted(world.numbers) == [1, 2, 3, 4]
        assert early == []

    leases = [a_lease(), a_lease(1, lease_owner=None)]
    in_life(scenario, shards=2, leases=leases)


@within(in_life, buffers=True, checkpoint_ms=0)
async def test_an_object_that_was_stopped_is_told_nothing_more_when_the_write_after_it_fails(
    world, life, /
):
    def before(change):
        if "stopping" in life.of():
            raise StaleEpoch("another invocation has taken over")

    world.leases.before = before
    world.put(1, 4)
    await world.turn(turn_ms=20_000)
    assert life.of() == ["started", "handle", "stopping"]


def fail_at_the_next_checkpoint(world):
    def before(change):
        raise StaleEpoch("another invocation has taken over")

    world.leases.before = before


async def lose(world):
    await world.leases.apply(lease_changes.take(world.lease(), OTHER))


async def hand_over(world):
    lease = lease_changes.initiate_handover(world.lease(), OTHER, as_read=True)
    await world.leases.apply(lease)


@pytest.mark.parametrize("happens", [fail_at_the_next_checkpoint, lose, hand_over, None])
@pytest.mark.parametrize("parallelism", [1, 4])
def test_no_last_hook_comes_while_a_call_of_the_object_runs(happens, parallelism):
    """However a shard is left, and with as many calls at once as there are."""

    async def scenario(world, life):
        running, seen = set(), []

        async def handle(batch):
            number = int(batch[0].data)
            running.add(number)
            # Those before are done, and to be stored while the last ones run.
            await asyncio.sleep(0.05 if number <= 8 else 1.9)
            running.discard(number)

        async def look(shard):
            seen.append(set(running))

        world.handler._script = handle
        life.act = dict.fromkeys([Hook.STOPPING, Hook.LEASE_LOST], look)
        keys = apart(4)
        world.put(1, 12, key_of=lambda number: keys[number % 4])
        await world.open_slot()
        turn = asyncio.create_task(world.turn(turn_ms=20_000), name="turn")
        await world.run_until(lambda: running == set(range(9, 9 + parallelism)))
        if happens and (result := happens(world)):
            await result
        with contextlib.suppress(StaleEpoch):
            await turn
        assert seen == [set()]

    lanes = {"parallelism": parallelism, "max_batch_records": 1, "checkpoint_ms": 500}
    in_life(scenario, overlaps=True, **lanes)


@within(in_life)
async def test_without_time_for_stopping_a_turn_says_so(world, life, /):
    assert await world.turn(turn_ms=6_000) is TurnOutcome.FAILED
    assert life.told == []
    assert "handler_timeout_ms: 2000 found" in str(world.events.events[-1].error)


def test_a_death_at_any_step_leaves_files_without_gaps():
    lives = []

    async def prepared():
        world = World(**MANUAL, max_open_records=3, checkpoint_ms=0)
        lives.append(Life(world, buffers=True))
        world.put(1, 8)
        world.stream.split(key(0))
        handle = lives[-1].handle

        async def flushing(batch):
            await handle(batch)
            if batch.must_flush:
                lives[-1].files.append(lives[-1]._kept[batch.shard_id])
                lives[-1]._kept[batch.shard_id] = []
                batch.checkpoint()

        world.handler._script = flushing
        return world

    for _, where in deaths(prepared, every=4, steps_least=30):
        files = lives[-1].files
        assert {n for file in files for n in file} == set(range(1, 9)), where
        assert all(file == list(range(file[0], file[-1] + 1)) for file in files if file), where
        assert sum(map(len, files)) - 8 <= 3, where
