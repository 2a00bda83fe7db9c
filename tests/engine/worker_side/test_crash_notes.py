"""A record that kills the process costs its own shard only, and in the end only itself (H9)."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.leases.stamps import Stamp
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.engine.ownership.lease import HeldLease, Instant
from shardfleet.engine.shard.crash_notes import CrashNotes, NotedCall
from shardfleet.engine.state.beside import LeaseNotes, raise_generation
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import CrashNote
from shardfleet.events.delivery import CrashCharged, RecordSkipped
from shardfleet.events.worker import TurnBegun
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import MemoryEvents, MemoryStateStore
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import (
    ME,
    MEMORY_STREAM_ARN,
    World,
    a_config,
    a_lease,
    at,
    key,
)
from tests.virtual import virtual

SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000}


class Mortal:
    """A process whose handler kills it on some records."""

    def __init__(self, world, *poison):
        self.world = world
        self.poison = {str(n).encode() for n in poison}
        self.failing = ()
        self.handled = []

    async def run(self, **options):
        """Run one turn; return whether it lived."""
        steps = Steps()

        async def script(batch):
            await self.world.clock.sleep_ms(100)
            if batch.shard_id in self.failing:
                raise ValueError("later")
            for record in batch:
                if record.data in self.poison:
                    steps.died.set()
                    await asyncio.Event().wait()
            self.handled += [int(record.data) for record in batch]

        self.world.handler = MemoryHandler(self.world.clock, script, overlaps=True)
        deaths = len(self.world.deaths)
        steps.names.append("in the handler")
        await process(self.world, steps, **options)
        return len(self.world.deaths) == deaths

    async def run_until_alive(self, most=12, **options):
        for count in range(most):
            if await self.run(**options):
                return count
        raise AssertionError("it never stopped dying")


def a_world(**world):
    return World(**{**SHORT, **world})


def in_world(scenario, **world):
    async def main():
        return await scenario(World(**{**SHORT, **world}))

    return run_virtual(main())


def sequence_of(world, number, shard=0):
    records = world.stream._logs[key(shard)].records
    return at(next(r.sequence_number for r in records if r.data == str(number).encode()))


@virtual
async def test_a_poison_record_stops_its_own_shard_and_the_others_are_handled():
    world = a_world(shards=3)
    world.put(1, 20, number=0)
    world.put(21, 30, number=1)
    world.put(31, 40, number=2)
    mortal = Mortal(world, 13)
    deaths = await mortal.run_until_alive(turn_ms=30_000)

    stop = world.state.documents["stop", key(0)].body
    assert stop["position"] == str(sequence_of(world, 13))
    assert "the process died 3 times" in stop["error"]
    # One death in an ordinary turn, one over the noted range, then over the record alone.
    assert deaths == 4
    assert set(mortal.handled) == {*range(1, 13), *range(21, 41)}
    assert world.lease(0).checkpoint == sequence_of(world, 12)
    assert world.lease(0).lease_owner == ME
    assert {event.lease_key for event in world.told(CrashCharged)} == {key(0)}
    assert ("stop", key(1)) not in world.state.documents


@virtual
async def test_a_poison_record_behind_a_page_that_brings_nothing_stops_its_shard():
    """The first page of a turn begins at the record that is done, and may have no other."""
    world = a_world(records_per_read=1)
    world.put(1, 5)
    await Mortal(world, 3).run_until_alive(turn_ms=30_000)

    assert world.state.documents["stop", key(0)].body["position"] == str(sequence_of(world, 3))


@pytest.mark.parametrize("max_crashes", [1, 3])
@pytest.mark.parametrize("bad", [1, 7, 20])
def test_a_poison_record_is_kept_elsewhere_and_exactly_it_is_skipped(bad, max_crashes):
    async def scenario(world):
        world.put(1, 20)
        mortal = Mortal(world, bad)
        await mortal.run_until_alive(turn_ms=30_000)
        (failed,) = world.dead_letters.kept
        assert [int(record.data) for record in failed.records] == [bad]
        assert failed.attempts == max(max_crashes, 2)
        assert len(world.told(RecordSkipped)) == 1
        assert set(mortal.handled) == set(range(1, 21)) - {bad}
        assert world.lease().checkpoint == sequence_of(world, 20)

    policy = {"on_exhausted": "sqs", "failed_queue_url": "q", "max_crashes": max_crashes}
    in_world(scenario, max_batch_records=6, **policy)


def test_two_poison_records_in_a_row_are_both_given_up():
    """Found by the simulation: the second one's death had the first one counted anew, for ever."""

    async def scenario(world):
        world.put(1, 10)
        mortal = Mortal(world, 4, 5)
        await mortal.run_until_alive(turn_ms=30_000)
        kept = [int(record.data) for failed in world.dead_letters.kept for record in failed.records]
        assert kept == [4, 5]
        assert world.lease().checkpoint == sequence_of(world, 10)

    policy = {"on_exhausted": "sqs", "failed_queue_url": "q", "max_crashes": 3}
    in_world(scenario, max_batch_records=1, **policy)


@virtual
async def test_normal_turns_write_no_notes():
    world = a_world()
    world.put(1, 20)
    await Mortal(world).run(turn_ms=30_000)
    assert not [kind for kind, _ in world.state.documents if kind == "note"]


@virtual
async def test_after_a_crash_calls_run_one_at_a_time_and_each_is_noted_before_it_begins():
    world = a_world(shards=3, max_batch_records=2)
    for shard in range(3):
        world.put(10 * shard, 10 * shard + 5, number=shard)
    steps = Steps(act_at=0, only=lambda name: name == "before handler.run")
    await process(world, steps, turn_ms=30_000)
    assert len(world.deaths) == 1
    open_notes = []

    async def script(batch):
        notes = [(k, d.body) for (kind, k), d in world.state.documents.items() if kind == "note"]
        open_notes.append([k for k, body in notes if body["is_open"]])
        assert open_notes[-1] == [batch.shard_id]
        await world.clock.sleep_ms(500)

    world.handler = MemoryHandler(world.clock, script, overlaps=True)
    await world.turn(turn_ms=20_000)
    assert world.handler.running_most == 1
    assert len(open_notes) == 9
    assert sorted(world.numbers) == [10 * s + n for s in range(3) for n in range(6)]
    assert [event.suspicious for event in world.told(TurnBegun)] == [False, True]

    world.handler = MemoryHandler(world.clock, None, overlaps=True)
    await world.turn(turn_ms=20_000)
    assert world.told(TurnBegun)[-1].suspicious is False


@virtual
async def test_suspicion_ends_when_what_was_read_first_is_done():
    world = a_world()
    world.put(1, 3)
    steps = Steps(act_at=0, only=lambda name: name == "before handler.run")
    await process(world, steps, turn_ms=30_000)

    async def later():
        await world.clock.sleep_ms(60_000)
        before = dict(world.state.documents)
        world.put(4, 6)
        await world.clock.sleep_ms(5_000)
        notes = [world.state.documents[k] is before[k] for k in before if k[0] == "note"]
        assert notes == [True]

    task = asyncio.create_task(later())
    await world.turn(turn_ms=90_000)
    await task
    assert world.numbers == [1, 2, 3, 4, 5, 6]


@virtual
async def test_the_charged_shard_goes_first():
    """So that its next death does not cost the others what they were doing."""
    world = a_world(shards=3, max_batch_records=2, max_attempts=0)
    world.put(0, 5, number=0)
    world.put(10, 15, number=1)
    await world.clock.sleep_ms(1_000)
    world.put(20, 23, number=2)
    mortal = Mortal(world, 23)
    mortal.failing = (key(0), key(1))
    assert not await mortal.run(turn_ms=30_000)
    assert not await mortal.run(turn_ms=30_000)
    mortal.poison.clear()
    mortal.failing = ()
    mortal.handled.clear()
    assert await mortal.run(turn_ms=30_000)
    calls = [[int(record.data) for record in call.batch] for call in world.handler.calls]
    # Whoever asks first goes at once, with one batch; then the noted range, one by one, each
    # as soon as it is asked for, although the others have older records.
    assert calls.index([22]) == 1
    assert calls.index([23]) <= 3
    assert set(mortal.handled) == {*range(6), *range(10, 16), 22, 23}


@virtual
async def test_a_death_over_records_that_were_done_all_the_same_is_not_charged_to_later_ones():
    """Found by the simulation: after one call a record counted as the cause of three deaths."""
    store = MemoryStateStore()

    async def suspicious_turn():
        state = await notes_of(store, ME, 1)
        notes = CrashNotes(state, suspicious=True, config=a_config(), events=MemoryEvents())
        await notes.charge(key(0), done=AT_TRIM_HORIZON)
        return notes

    def a_call(*records):
        return NotedCall.of(CallKind.RECORDS, records, done=AT_TRIM_HORIZON)

    await (await suspicious_turn()).begin(key(0), a_call(at(5), at(6)))
    notes = await suspicious_turn()
    assert notes.is_charged(key(0))
    assert notes.attempts(key(0)).fitting([at(5), at(6), at(7)]) == 1
    await notes.begin(key(0), a_call(at(5)))
    assert (await (await notes_of(store, ME, 1)).note(key(0))).crashes == 1

    await (await suspicious_turn()).begin(key(0), a_call(at(5), at(6)))
    notes = await suspicious_turn()
    # What the dead process had done was checkpointed.
    assert notes.attempts(key(0)).fitting([at(7), at(8)]) == 2
    assert not notes.is_charged(key(0))
    await notes.begin(key(0), a_call(at(7), at(8)))
    assert (await (await notes_of(store, ME, 1)).note(key(0))).crashes == 0


@pytest.mark.parametrize("dies_in_it", [False, True])
@pytest.mark.parametrize(("kind", "records"), [(CallKind.FLUSH, ()), (CallKind.RECORDS, (4,))])
@virtual
async def test_a_call_before_charged_records_does_not_forget_the_charge(kind, records, dies_in_it):
    """Found by the simulation: two shards of one worker with a killer each were read for ever."""
    store, stands = MemoryStateStore(), position_of(at(3))

    async def turn_after_a_death():
        state = await notes_of(store, ME, 1)
        notes = CrashNotes(state, suspicious=True, config=a_config(), events=MemoryEvents())
        await notes.charge(key(0), done=stands)
        return notes

    first = await turn_after_a_death()
    await first.begin(key(0), NotedCall.of(CallKind.RECORDS, [at(5), at(6)]))
    second = await turn_after_a_death()
    between = NotedCall.of(kind, [at(n) for n in records], done=stands)
    await second.begin(key(0), between)
    if not dies_in_it:
        await second.close(key(0))  # The next death is another shard's.

    third = await turn_after_a_death()

    charge = third.attempts(key(0)).charge
    if dies_in_it and records:
        assert charge.first == position_of(at(4))
    else:
        assert (charge.first, charge.last, charge.crashes) == (*map(position_of, [at(5), at(6)]), 1)
        assert third.attempts(key(0)).fitting([at(5), at(6), at(7)]) == 1
    assert (third.killer(key(0)) is None) or dies_in_it


@pytest.mark.parametrize(
    ("kind", "records", "done", "is_charged"),
    [
        (CallKind.RECORDS, (5, 6), 5, True),
        (CallKind.RECORDS, (5, 6), 6, False),
        (CallKind.FLUSH, (), 6, True),
        (CallKind.FLUSH, (), 7, False),
    ],
)
@virtual
async def test_what_was_done_to_its_last_record_is_charged_to_nobody(
    kind, records, done, is_charged
):
    """Found by the simulation: the former owner, who lived, was still closing its note."""
    store, stands = MemoryStateStore(), [position_of(at(n)) for n in (6, done)]
    former, state = await notes_of(store, "former", 1), await notes_of(store, ME, 2)
    noted = CrashNotes(former, suspicious=True, config=a_config(), events=MemoryEvents())
    await noted.begin(key(0), NotedCall.of(kind, [at(n) for n in records], done=stands[0]))

    notes = CrashNotes(state, suspicious=True, config=a_config(), events=MemoryEvents())
    await notes.charge(key(0), done=stands[1])

    assert notes.is_charged(key(0)) == is_charged


@virtual
async def test_kills_at_random_moments_stop_no_shard():
    """A chaos monkey is no poison: only repeated deaths over one record count."""
    world = a_world(shards=3)
    feed = asyncio.create_task(_producing(world, 300))
    for n in range(8):
        steps = Steps(act_at=40 + 17 * n)
        await process(world, steps, turn_ms=60_000)
    await world.turn(turn_ms=60_000)
    await feed
    await world.turn(turn_ms=30_000)
    assert len(world.deaths) >= 5
    assert not [kind for kind, _ in world.state.documents if kind == "stop"]
    assert set(world.numbers) == set(range(300))


async def _producing(world, count):
    for n in range(count):
        world.put(n, number=n % 3)
        await world.clock.sleep_ms(200)


class Freezes(MemoryStateStore):
    """A store before which one caller is frozen."""

    def __init__(self):
        super().__init__()
        self.frozen_at, self.stands, self.thaws = "", asyncio.Event(), asyncio.Event()

    async def read(self, kind, *name):
        await self._stand("read", kind)
        return await super().read(kind, *name)

    async def write(self, kind, *given, **version):
        await self._stand("write", kind)
        return await super().write(kind, *given, **version)

    async def _stand(self, call, kind):
        if (call, kind) == (self.frozen_at, "note"):
            self.frozen_at = ""
            self.stands.set()
            await self.thaws.wait()


def a_hold(owner, counter):
    """Return the lease of the first shard as its owner holds it, one switch after another."""
    lease = replace(a_lease(0), lease_owner=owner, lease_counter=counter)
    lease = replace(lease, owner_switches_since_checkpoint=counter)
    return HeldLease(lease, Instant(0, 0), stream_arn=MEMORY_STREAM_ARN)


async def notes_of(store, owner, counter):
    notes = LeaseNotes(FleetState(store, VirtualClock()), owner)
    await notes.begin(a_hold(owner, counter))
    return notes


def a_note(crashes):
    return CrashNote(
        lease_key=key(0), first="1:0", last="2:0", count=2, crashes=crashes, is_open=True
    )


@pytest.mark.parametrize("has_noted", [False, True])
@pytest.mark.parametrize("frozen_at", ["read", "write"])
@virtual
async def test_who_thaws_does_not_overwrite_the_next_owners_note(frozen_at, has_noted):
    """Found by the simulation: two deaths were forgotten by a former owner's older note."""
    store = Freezes()
    former, later = await notes_of(store, "former", 1), await notes_of(store, "later", 2)
    await former.note(key(0))
    if has_noted:
        await former.write_note(a_note(crashes=0))
    store.frozen_at = frozen_at
    writing = asyncio.create_task(former.write_note(a_note(crashes=1)))
    await store.stands.wait()
    await later.note(key(0))
    await later.write_note(a_note(crashes=2))
    store.thaws.set()
    await writing
    assert await later.note(key(0)) == a_note(crashes=2)
    await later.write_note(a_note(crashes=3))
    assert await later.note(key(0)) == a_note(crashes=3)


@pytest.mark.parametrize("is_made_anew", [False, True])
@virtual
async def test_what_the_former_owner_closes_late_keeps_nobody_from_noting(is_made_anew):
    """It lived, and was still closing the note of its last call, as the next owner had read it."""
    store = MemoryStateStore()
    former = await notes_of(store, "former", 9 if is_made_anew else 1)
    if is_made_anew:
        await raise_generation(store, key(0), now_ms=1)
    later = await notes_of(store, "later", 2)
    await later.note(key(0))
    await former.write_note(a_note(crashes=0))
    await former.close_note(a_note(crashes=0))
    await later.write_note(a_note(crashes=1))
    assert await later.note(key(0)) == a_note(crashes=1)


@virtual
async def test_who_is_given_a_lease_back_notes_again():
    store = MemoryStateStore()
    first, other = await notes_of(store, "first", 1), await notes_of(store, "other", 2)
    await first.write_note(a_note(crashes=1))
    await other.write_note(a_note(crashes=2))
    await first.begin(a_hold("first", 3))
    await first.write_note(a_note(crashes=3))
    assert await first.note(key(0)) == a_note(crashes=3)


@pytest.mark.parametrize("noted_before", [False, True])
@virtual
async def test_a_note_that_lands_behind_its_close_charges_nobody(noted_before):
    """Found by the simulation: a write without an answer landed when its call had returned."""
    store = MemoryStateStore()
    notes = await notes_of(store, ME, 1)
    if noted_before:
        await notes.write_note(a_note(crashes=0))
        await notes.close_note(a_note(crashes=0))
    await notes.note(key(0))
    before = store.documents.get(("note", key(0)))
    version = before and before.version
    await notes.close_note(a_note(crashes=1))
    body = msgspec.to_builtins(replace(a_note(crashes=1), stamp=Stamp(owner=ME, stood="x")))
    await store.write("note", key(0), body, expected_version=version)
    assert not store.documents["note", key(0)].body["is_open"]


@pytest.mark.parametrize("owner", [ME, "another"])
@virtual
async def test_a_close_leaves_what_was_written_since(owner):
    store = MemoryStateStore()
    notes, later = await notes_of(store, ME, 1), await notes_of(store, owner, 2)
    await notes.write_note(a_note(crashes=1))
    await later.note(key(0))
    await later.write_note(a_note(crashes=2))
    await notes.close_note(a_note(crashes=1))
    assert await later.note(key(0)) == a_note(crashes=2)
