"""Typed documents of the fleet-state table over a store that loses replies."""

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from shardfleet.domain.balance.loads import Loads, WorkerUse
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.delivery.windows import WindowNote
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.slot import Slot, SlotState, ask_to_drain
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet.engine.ports import Document
from shardfleet.engine.state.fleet_state import FleetState, slot_body
from shardfleet.engine.state.kinds import NOTE, WINDOW, CrashNote
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.errors import OutcomeUnknown, StaleEpoch, StreamReplaced, Throttled
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from tests.virtual import virtual


class LostReplies(MemoryStateStore):
    """Every write lands, every answer is lost."""

    async def write(self, kind, id, body, *, expected_version):  # noqa: A002 - the port's name
        await super().write(kind, id, body, expected_version=expected_version)
        raise OutcomeUnknown


class LandsTwice(MemoryStateStore):
    """Each write has a copy on its way, as a request that was sent again has."""

    def __init__(self):
        super().__init__()
        self.copies = []

    async def write(self, *arguments, **named):
        self.copies.append((arguments, named))
        return await super().write(*arguments, **named)

    async def land_copies(self):
        for arguments, named in self.copies:
            await super().write(*arguments, **named)


def a_slot(**changes):
    values = {"slot_id": "s1", "worker_id": "w", "state": SlotState.RUNNING, "name": "f-s1-1"}
    return Slot(start_epoch=1, **{**values, **changes})


@virtual
async def test_a_slot_write_whose_answer_was_lost_is_recognised_as_ours():
    state = FleetState(LostReplies(), VirtualClock())
    written = await state.write_slot(a_slot(), None)
    assert written is not None
    assert (written.slot, written.version) == (a_slot(), 1)


@virtual
async def test_a_slot_write_that_lost_its_race_is_not_taken_for_ours():
    store = MemoryStateStore()
    state = FleetState(store, VirtualClock())
    await state.write_slot(a_slot(), None)
    assert await state.write_slot(a_slot(assign_seq=4), None) is None


@virtual
async def test_an_update_is_made_again_on_what_somebody_else_wrote():
    store = MemoryStateStore()
    state = FleetState(store, VirtualClock())
    await state.write_slot(a_slot(), None)
    meddled = []

    def change(slot):
        if not meddled:
            meddled.append(True)
            body = {**store.documents["slot", "s1"].body, "epoch": 9}
            store.documents["slot", "s1"] = Document("slot", "s1", 2, body)
        return ask_to_drain(slot)

    after = await state.update_slot("s1", change)
    assert (after.slot.epoch, after.slot.drain) == (9, True)


class Overtaken(MemoryStateStore):
    """Somebody raises the epoch before the first write, whose answer does not come; one read."""

    reads = writes = 0

    async def read(self, kind, id):  # noqa: A002 - the port's name
        self.reads += 1
        if self.reads > 2:
            raise Throttled("no read more")
        return await super().read(kind, id)

    async def write(self, kind, id, body, *, expected_version):  # noqa: A002 - the port's name
        self.writes += 1
        if self.writes == 1:
            raise OutcomeUnknown
        if self.writes == 2:
            now = self.documents[kind, id]
            raised = {**now.body, "epoch": 9}
            self.documents[kind, id] = Document(kind, id, now.version + 1, raised)
        return await super().write(kind, id, body, expected_version=expected_version)


@virtual
async def test_whoever_lost_a_race_hears_from_its_refusal_what_the_slot_is_now():
    """A read more may be throttled for seconds, in which a worker that is over renews (H1)."""
    store = Overtaken()
    store.documents["slot", "s1"] = Document("slot", "s1", 1, slot_body(a_slot()))

    def change(slot):
        if slot.epoch == 9:
            raise StaleEpoch("over")
        return ask_to_drain(slot)

    with pytest.raises(StaleEpoch):
        await FleetState(store, VirtualClock()).update_slot("s1", change)


@virtual
async def test_sightings_are_kept_in_documents_that_fit_an_item():
    store = MemoryStateStore()
    state = FleetState(store, VirtualClock())
    many = {f"k{n:05d}": Sighting(n, "w", n) for n in range(1_201)}
    await state.write_sightings(many)
    assert len(await store.list("sightings")) == 4
    assert await state.sightings() == many
    await state.write_sightings({"k00000": Sighting(1, "w", 1)})
    assert await state.sightings() == {"k00000": Sighting(1, "w", 1)}
    assert len(await store.list("sightings")) == 1


@pytest.mark.parametrize(("leases", "workers"), [(4_001, 1), (1, 4_001), (4_001, 4_001)])
@virtual
async def test_loads_are_kept_in_documents_that_fit_an_item(leases, workers):
    store = MemoryStateStore()
    state = FleetState(store, VirtualClock())
    assert await state.loads() == Loads()
    many = Loads(
        {f"k{n:05d}": n for n in range(leases)},
        {f"w{n:05d}": WorkerUse(n, 400_000, -1) for n in range(workers)},
    )
    await state.write_loads(many)
    assert len(await store.list("loads")) == (8 if min(leases, workers) == 1 else 16)
    assert await state.loads() == many


@virtual
async def test_a_pin_of_an_earlier_incarnation_is_replaced():
    state = FleetState(MemoryStateStore(), VirtualClock())
    assert await state.pin("k", instant_ms=5, created_ms=1) == 5
    assert await state.pin("k", instant_ms=7, created_ms=1) == 5
    assert await state.pin("k", instant_ms=9, created_ms=2) == 9


@virtual
async def test_a_pin_whose_answer_was_lost_holds():
    state = FleetState(LostReplies(), VirtualClock())
    assert await state.pin("k", instant_ms=5, created_ms=1) == 5


@virtual
async def test_a_pause_that_lands_once_more_pauses_nothing_that_was_resumed():
    """Seed 454: a copy of the first write waits for no document, and must never find none."""
    store = LandsTwice()
    record, pause = PauseRecord(store), Pause("ann", 5, "why not")
    await record.change(lambda pauses: pauses.with_leases(["1"], pause))
    await record.change(lambda pauses: pauses.without_leases(["1"]))
    await store.land_copies()
    assert await record.read() == Pauses()


@pytest.mark.parametrize("before", [0, 1], ids=["the first of all", "after another"])
@virtual
async def test_a_pause_that_lands_behind_a_resume_that_found_nothing_pauses_nothing(before):
    """A command was killed while its write was on the way; who resumes may be there before it."""

    class LandsLate(MemoryStateStore):
        """A table whose next write lands when it is told to."""

        late = None

        async def write(self, *words, **options):
            if self.late == "next":
                self.late = partial(super().write, *words, **options)
                raise asyncio.CancelledError
            return await super().write(*words, **options)

    store = LandsLate()
    record, pause = PauseRecord(store), Pause("ann", 5, "why not")
    for _ in range(before):
        await record.change(lambda pauses: pauses.with_leases(["0"], pause))
        await record.change(lambda pauses: pauses.without_leases(["0"]))
    store.late = "next"
    with pytest.raises(asyncio.CancelledError):
        await record.change(lambda pauses: pauses.with_leases(["1"], pause))
    await record.change(lambda pauses: pauses.without_leases(["1"]))
    await store.late()
    assert await record.read() == Pauses()


@virtual
async def test_a_stop_that_lands_once_more_stops_no_shard_that_was_resumed():
    store = LandsTwice()
    state = FleetState(store, VirtualClock())
    stop = StopNote(lease_key="k", position="1", error="bad", attempts=5, worker_id="w", at_ms=1)
    await state.write_stop(stop)
    assert await state.resume("k")
    await store.land_copies()
    assert await state.stop("k") is None


@virtual
async def test_notes_and_stops_are_read_back_as_written():
    state = FleetState(MemoryStateStore(), VirtualClock())
    note = CrashNote(lease_key="k", first="12:3", last="13:0", count=4, crashes=1, is_open=True)
    stop = StopNote(
        lease_key="k", position="12:3", error="ValueError", attempts=5, worker_id="w", at_ms=1
    )
    await state.write_beside(NOTE, note)
    await state.write_beside(NOTE, note)
    await state.write_stop(stop)
    assert await state.beside(NOTE, "k") == (note, 2)
    assert list(await state.stops()) == [stop]
    assert await state.resume("k")
    assert not await state.resume("k")
    assert await state.stop("k") is None


@virtual
async def test_a_stream_of_the_same_name_but_another_birth_is_refused():
    state = FleetState(MemoryStateStore(), VirtualClock())
    await state.check_incarnation(StreamIncarnation(MEMORY_STREAM_ARN, 1))
    await state.check_incarnation(StreamIncarnation(MEMORY_STREAM_ARN, 1))
    with pytest.raises(StreamReplaced):
        await state.check_incarnation(StreamIncarnation(MEMORY_STREAM_ARN, 2))
    assert await state.known_incarnation() == StreamIncarnation(MEMORY_STREAM_ARN, 1)


@pytest.mark.parametrize(
    ("versions", "lands", "state", "now"),
    [(0, True, "{}", 1), (3, True, "{}", 4), (1, False, '{"n":2}', None), (3, False, "{}", None)],
    ids=["the first", "a later one", "another one's", "the same as before, and refused"],
)
@virtual
async def test_a_window_whose_answer_was_lost_is_ours_if_it_is_there_and_one_version_newer(
    versions, lands, state, now
):
    store = MemoryStateStore()
    note = WindowNote(lease_key="k", since="1:0", through="2:0", start_ms=0, state="{}")
    for version in range(versions):
        there = replace(note, state=state)
        assert await FleetState(store, VirtualClock()).replace_beside(
            WINDOW, there, version or None
        )
    write = store.write

    async def unanswered(*asked, **options):
        if lands:
            await write(*asked, **options)
        raise OutcomeUnknown

    store.write = unanswered
    call = FleetState(store, VirtualClock()).replace_beside(WINDOW, note, versions or None)
    if now is not None:
        assert await call == now
    else:
        with pytest.raises(OutcomeUnknown):
            await call
