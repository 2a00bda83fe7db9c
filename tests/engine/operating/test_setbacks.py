"""
Whatever stands beside a checkpoint, and however it is set back: what is promised comes again.

Or it is told as lost. Each kind of note is left by a worker, the lease is set back in each way that
there is, and a worker reads on: all through whole turns, the real rewinder, importer and manager.

It is one idea: each kind of note against each way of setting back. Expected values are counted off
the stream: everything behind the place that the lease was set to.
"""

import asyncio
import dataclasses
import json
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.lanes import lane_of
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.positions.positions import Positions
from shardfleet.domain.reasons import Pause
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
    PointKind,
    Position,
)
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.engine.manager.turn import LeaseManager, ManagerPorts
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.reader import ReadPorts
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.kinds import GENERATION
from shardfleet.errors import ShardGone, Throttled
from shardfleet.events.delivery import PositionLost, RecordSkipped, ShardStopped
from shardfleet.events.worker import ShardExpired
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.positions import PositionImporter
from shardfleet_ops.operate.rewind import Rewinder
from shardfleet_ops.positions.position_import import plan_import
from shardfleet_ops.positions.rewinds import RewindState, RewindTarget
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import MemoryKcl3Store, MemoryLauncher, SeededEntropy
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import ME, World, a_lease, at, key
from tests.virtual import virtual

HOUR_MS = 3_600_000
SHORT = {"handler_timeout_ms": 5_000, "turn_margin_ms": 3_000, "failover_ms": 3_000}
# Records 0 to 19 are put while a worker is at work, 20 to 29 when it has gone.
PUT, MORE = 20, 30
BACK = 4  # the first record that comes again where a lease is set back
LANES = {lane_of(f"k{n}", 2): f"k{n}" for n in range(50)}


class Scene:
    """A world, what its worker has done, and what is found out about it afterwards."""

    def __init__(self, kind, **config):
        leases = [a_lease(checkpoint=kind.begins)]
        self.world = World(leases=leases, **SHORT, **kind.config, **config)
        self.kind = kind
        self.handled = set()
        self.results = []
        self.before = 0
        self.put_ms = []
        self.preview = None
        self.needs_resume = kind.name == "stop"
        self.failing = set()
        self.slow_s = 0

        async def handle(batch):
            if batch[:1] and int(batch[0].data) % 2:
                await asyncio.sleep(self.slow_s)
            if {int(record.data) for record in batch} & self.failing:
                raise ValueError("not this one")
            if kind.name == "window":
                count = batch.state.get("n", 0) + len(batch)
                self.results += [count] if batch.window.is_final else []
                return {"state": {"n": count}}
            return None

        self.world.handler._script = handle

    async def put(self, first, end):
        for n in range(first, end):
            await self.world.clock.sleep_ms(1_000)
            self.put_ms.append(self.world.clock.now_ms())
            self.world.stream.put(str(n).encode(), key=LANES[n % 2], shard_id=key(0))

    def place(self, n):
        """Return the sequence number of a record."""
        return self.world.stream.sequence_numbers(key(0))[n]

    def number(self, n):
        return int(self.numbers[n])

    def settle(self):
        """Remember what was handled until now."""
        self.handled = set(self.world.numbers)
        self.before = len(self.world.numbers)
        self.numbers = self.world.stream.sequence_numbers(key(0))
        self.failing = set()

    async def read_on(self):
        """Give the lease to the worker, as the manager does, and let it read what there is."""
        world = self.world
        if world.lease().lease_owner != ME:
            await world.leases.apply(lease_changes.assign(world.lease(), ME))
        await world.turn(turn_ms=60_000)
        return self.came

    @property
    def came(self):
        return self.world.numbers[self.before :]

    @property
    def summed_up(self):
        """Return how many records are in the windows' results, and in the one that is open."""
        state = self.world.state.documents["window", key(0)].body["state"]
        return sum(self.results) + json.loads(state).get("n", 0)

    @property
    def operator(self):
        world = self.world
        return Operator(world.leases, FleetState(world.state, world.clock), world.clock)


@dataclass(frozen=True)
class Kind:
    """A kind of note, and how a worker comes to leave it."""

    name: str
    leave: object
    config: dict
    begins: ExtendedSequenceNumber = AT_TRIM_HORIZON
    expires: bool = False  # what was promised expires before it is read
    java: int = 9  # the last record that a Java worker has done
    imported: int = 9  # the last one that another reader has done


async def read_to_the_tip(scene, is_cut_off):
    await scene.put(0, PUT)
    await scene.world.turn(turn_ms=30_000)
    assert ("tip", key(0)) in scene.world.state.documents


async def leave_a_window(scene, is_cut_off):
    await scene.put(0, PUT)
    if is_cut_off:
        await die(scene, "before", checkpoint=0)
    else:
        await scene.world.turn(turn_ms=30_000)
    body = scene.world.state.documents["window", key(0)].body
    assert (body["since"], body["through"]) == ("TRIM_HORIZON:0", f"{scene.place(19)}:0")


async def leave_lanes_ahead(scene, is_cut_off):
    """One lane is slow, and fails at record 9 for ever; the other one goes on to the last one."""
    await scene.put(0, PUT)
    scene.failing, scene.slow_s = {9}, 1.5
    await die(scene, "before" if is_cut_off else "after", checkpoint=2)
    scene.slow_s = 0
    body = scene.world.state.documents["lanes", key(0)].body
    assert body["ahead"]
    assert (body["since"], body["through"]) == (f"{scene.place(2)}:0", f"{scene.place(6)}:0")
    assert str(scene.world.lease().checkpoint) == scene.place(2 if is_cut_off else 6)
    assert set(range(0, PUT, 2)) <= set(scene.world.numbers) < set(range(PUT))


async def leave_stopped(scene, is_cut_off):
    await scene.put(0, PUT)
    scene.failing = {10}
    await scene.world.turn(turn_ms=30_000)
    assert scene.world.told(ShardStopped)


async def leave_a_crash_note(scene, is_cut_off):
    """The process dies at record 10, and again when that is noted."""
    await scene.put(0, PUT)
    world, steps = scene.world, []

    async def kill(batch):
        if b"10" in [record.data for record in batch]:
            steps[-1].died.set()
            await asyncio.Event().wait()

    handle, world.handler._script = world.handler._script, kill
    for _ in range(2):
        steps.append(Steps(only=lambda name: False))
        steps[-1].names.append("in the handler")
        await process(world, steps[-1], turn_ms=30_000)
    world.handler._script = handle
    assert world.state.documents["note", key(0)].body["is_open"]


async def leave_a_pin(scene, is_cut_off):
    await scene.world.turn(turn_ms=15_000)
    assert ("pin", key(0)) in scene.world.state.documents
    await scene.put(0, PUT)


async def die(scene, when, *, checkpoint):
    """Let the process die before or after so many checkpoints have been stored."""
    only = f"{when} leases.apply checkpoint"
    steps = Steps(act_at=checkpoint, only=lambda name: name == only)
    await process(scene.world, steps, turn_ms=30_000)
    assert scene.world.deaths


KINDS = [
    Kind("tip", read_to_the_tip, {"on_trimmed": "jump"}, expires=True, java=22, imported=22),
    Kind("window", leave_a_window, {"tumbling_window_ms": 900_000, "checkpoint_ms": 600_000}),
    Kind(
        "lanes",
        leave_lanes_ahead,
        {"parallelism": 2, "max_batch_records": 1, "checkpoint_ms": 2_000, "max_attempts": 0},
        java=3,
        imported=3,
    ),
    Kind("stop", leave_stopped, {"max_batch_records": 1, "max_attempts": 1}, java=11, imported=11),
    Kind(
        "crash note",
        leave_a_crash_note,
        {"max_batch_records": 1, "max_crashes": 1, "on_exhausted": "skip"},
        java=11,  # As long as it stores nothing, deaths over the next record still count.
        imported=11,
    ),
    Kind("pin", leave_a_pin, {"initial_position": "LATEST"}, begins=AT_LATEST),
]


# --- the ways: each returns the first record that is to come again


async def rewind(scene, target):
    world = scene.world
    reading = ReadPorts(
        source=PolledSource(world.stream, world.clock),
        clock=world.clock,
        events=world.events,
        patience=Patience.of(world.config, clock=world.clock, entropy=SeededEntropy(7)),
    )
    at_work = Rewinder(
        world.config, scene.operator, stream=world.stream, reading=reading, pages_most=60
    )
    if world.lease().lease_owner is not None:
        await world.leases.apply(lease_changes.evict(world.lease()))
    plan = await at_work.preview([key(0)], target, with_children=False)
    pause = Pause("ann", world.clock.now_ms())
    (row,) = await at_work.carry_out(plan, pause, within_ms=10_000, stay_paused=False)
    if row.state is not RewindState.SET_BACK:
        return 0
    assert plan.rows == (row,)
    assert row.is_stopped == scene.needs_resume
    scene.preview = row
    return BACK


async def by_instant(scene):
    instant = ExtendedSequenceNumber(AT_TIMESTAMP, scene.put_ms[BACK])
    return await rewind(scene, RewindTarget(instant))


async def by_sequence(scene):
    return await rewind(scene, RewindTarget(at(scene.number(BACK - 1)), whole_record=True))


async def by_trim_horizon(scene):
    await rewind(scene, RewindTarget(AT_TRIM_HORIZON))
    return 0


async def by_import(scene):
    world, last = scene.world, scene.kind.imported
    world.leases.leases[key(0)] = replace(world.lease(), lease_owner=None)
    incarnation = await world.stream.incarnation()
    position = Position(incarnation, key(0), PointKind.SEQUENCE, done=at(scene.number(last)))
    plan = plan_import(
        Positions(incarnation=incarnation, shards={key(0): position}),
        await world.leases.scan(),
        ShardGraph(await world.stream.list_shards()),
    )
    assert plan.obstacles == ()
    importer = PositionImporter(world.leases, clock=world.clock, state=world.state)
    assert await importer.carry_out(plan) == ["WRITTEN"]
    return last + 1


async def by_release_ended(scene):
    """A person says that a missing shard is over, which is told; then takes it back by hand."""
    world, truly = scene.world, scene.world.stream.list_shards

    def fault(call):
        if call.shard_id == key(0):
            raise ShardGone("not found")

    children = world.stream.split(key(0))
    world.stream.fault = fault

    async def without(*args, **more):
        return [shard for shard in await truly(*args, **more) if shard.shard_id != key(0)]

    world.stream.list_shards = without
    await resume(scene)
    turn = asyncio.create_task(world.turn(turn_ms=60_000))
    record = GoneRecord(world.state)
    while not await record.missed():
        await world.clock.sleep_ms(500)
    assert await scene.operator.end([key(0)], person="ann", within_ms=30_000) == ()
    await turn
    (event,) = world.told(ShardExpired)
    # What its worker had done is no loss, and nothing else is passed over.
    assert event.checkpoint
    world.stream.fault, world.stream.list_shards = lambda call: None, truly
    scene.before = len(world.numbers)
    for child in children:
        del world.leases.leases[child]
    return by_hand_now(scene)


async def by_hand(scene):
    return by_hand_now(scene)


def by_hand_now(scene):
    """Leave owner and counter as they are: nothing but the place says that somebody was here."""
    lease = scene.world.lease()
    stands = at(scene.number(BACK - 1))
    scene.world.leases.leases[key(0)] = replace(lease, checkpoint=stands, lease_owner=ME)
    return BACK


async def by_java(scene):
    """A Java worker takes the lease, checkpoints and is relieved of it."""
    world, java = scene.world, scene.kind.java
    await world.leases.apply(lease_changes.take(world.lease(), "java"))
    await world.leases.apply(lease_changes.checkpoint(world.lease(), at(scene.number(java))))
    await world.leases.apply(lease_changes.assign(world.lease(), ME))
    return java + 1


async def by_making_it_anew(scene):
    del scene.world.leases.leases[key(0)]
    await manage(scene)
    assert scene.world.lease().checkpoint == scene.kind.begins
    return 0


async def manage(scene):
    """Run a turn of the manager."""
    world = scene.world
    manager = LeaseManager(
        world.config,
        ManagerPorts(
            leases=world.leases,
            kcl3=MemoryKcl3Store(),
            state=FleetState(world.state, world.clock),
            stream=world.stream,
            source=PolledSource(world.stream, world.clock),
            launcher=MemoryLauncher(),
            clock=world.clock,
            entropy=SeededEntropy(7),
            events=world.events,
        ),
    )
    slots = {at: kept for at, kept in world.state.documents.items() if at[0] == "slot"}
    await manager.turn()
    world.state.documents |= slots  # However long it was away: it is this worker that reads on.


WAYS = {
    "rewind by instant": by_instant,
    "rewind by sequence": by_sequence,
    "rewind by trim horizon": by_trim_horizon,
    "position import": by_import,
    "release --ended": by_release_ended,
    "hand": by_hand,
    "java": by_java,
    "made anew": by_making_it_anew,
}
# A lease that stands still when it is set forward: the writes before the checkpoint went missing.
CUT_OFF = {"position import", "java"}


async def resume(scene):
    if scene.needs_resume:
        assert await FleetState(scene.world.state, scene.world.clock).resume(key(0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@virtual
async def test_what_a_preview_counts_comes_again_or_is_told_as_lost(kind, way):
    scene = Scene(kind)
    world = scene.world
    await kind.leave(scene, way in CUT_OFF)
    if kind.expires:
        await scene.put(PUT, MORE)
    scene.settle()
    first = await WAYS[way](scene)
    if kind.expires:
        if way == "made anew":
            # Nothing was counted: a day without a reader is what may lose something.
            await world.clock.sleep_ms(25 * HOUR_MS)
            await scene.put(MORE, MORE + 3)
        else:
            world.stream.trim(key(0), keep=3)
    if scene.needs_resume and way != "release --ended":
        await scene.read_on()
        assert scene.came == [], "a stop is a person's to take back"
        await resume(scene)
    await scene.read_on()
    promised = [int(r.data) for r in world.stream._logs[key(0)].records if int(r.data) >= first]
    assert promised
    assert sorted(set(scene.came)) == promised
    assert len(scene.came) == len(promised), "nothing comes twice"
    assert not world.told(RecordSkipped)
    is_lost = kind.expires
    assert bool(world.told(PositionLost)) == is_lost
    if scene.preview is not None and not is_lost:
        again = [n for n in scene.came if n in scene.handled]
        assert len(again) == scene.preview.records
        stands = ExtendedSequenceNumber(*_parts(scene.preview.checkpoint))
        beyond = [n for n in again if at(scene.number(n)) > stands]
        assert len(beyond) == scene.preview.beyond


async def cut_off(scene, way, to):
    """Begin to set a lease back, so often, and end before it is touched."""
    refused, truly = [], scene.world.leases.apply

    async def apply(change):
        if change.operation in ("rewind", "checkpoint"):
            refused.append(change.operation)
            raise Throttled("not now")
        return await truly(change)

    scene.world.leases.apply = apply
    if way == "rewind":
        assert await rewind(scene, RewindTarget(at(scene.number(to)))) == 0
    else:
        with pytest.raises(Throttled):
            await by_import(scene)
    scene.world.leases.apply = truly
    assert refused


@pytest.mark.parametrize(
    ("way", "to", "has"),
    [
        ("rewind", (3,), MORE),
        ("rewind", (3, 3), MORE),
        ("import", (), MORE),
        # Of two to two places the second spares nothing: in doubt a state is stale.
        ("rewind", (3, 5), MORE - PUT),
    ],
)
@virtual
async def test_a_window_is_whole_though_a_setting_back_was_cut_off(way, to, has):
    (kind,) = (kind for kind in KINDS if kind.name == "window")
    scene = Scene(kind)
    await kind.leave(scene, way == "import")
    scene.settle()
    for place in to or (0,):
        await cut_off(scene, way, place)
    await scene.put(PUT, MORE)
    await scene.read_on()
    assert scene.summed_up == has


FAR = 12  # a record beyond the checkpoint, and not the last one that was done
AIMS = {
    "instant": lambda scene, n: RewindTarget(ExtendedSequenceNumber(AT_TIMESTAMP, scene.put_ms[n])),
    "record": lambda scene, n: RewindTarget(at(scene.number(n - 1)), whole_record=True),
    "user record": lambda scene, n: RewindTarget(at(scene.number(n - 1))),
}


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize(
    ("name", "is_cut_off"),
    [("lanes", False), ("lanes", True), ("window", True), ("pin", False)],
)
@virtual
async def test_a_rewind_to_beyond_the_checkpoint_passes_nothing_over(name, is_cut_off, aim):
    """What was not done there lies before the target; to go there would lose it."""
    (kind,) = (kind for kind in KINDS if kind.name == name)
    scene = Scene(kind)
    await kind.leave(scene, is_cut_off)
    scene.settle()
    stands = scene.world.lease().checkpoint
    await rewind(scene, AIMS[aim](scene, FAR))
    done_ahead = {n for n in scene.handled if stands.is_sentinel or at(scene.number(n)) > stands}
    assert bool(done_ahead) == (scene.preview is not None)
    if scene.preview is not None:
        assert max(done_ahead) > FAR
        assert scene.preview.to == scene.preview.checkpoint
        # Who dies in a batch has done more than it has noted: that comes again anyway.
        unnoted = len(done_ahead) - scene.preview.beyond
        assert scene.preview.records == scene.preview.beyond
        assert 0 <= unnoted <= (2 if name == "lanes" and is_cut_off else 0)
        assert "not all before that was done" in scene.preview.why
    await scene.read_on()
    assert set(scene.came) == done_ahead | (set(range(PUT)) - scene.handled)
    assert len(scene.came) == len(set(scene.came))


@pytest.mark.parametrize("aim", AIMS)
@virtual
async def test_a_rewind_to_beyond_all_that_was_done_leaves_the_lease_as_it_is(aim):
    (kind,) = (kind for kind in KINDS if kind.name == "lanes")
    scene = Scene(kind)
    await kind.leave(scene, is_cut_off=False)
    scene.settle()
    assert max(scene.handled) == PUT - 2
    await rewind(scene, AIMS[aim](scene, PUT - 1))
    assert scene.preview is None
    await scene.read_on()
    assert set(scene.came) == set(range(PUT)) - scene.handled


@virtual
async def test_a_count_of_what_lies_beyond_a_checkpoint_that_has_expired_is_of_what_there_is():
    (kind,) = (kind for kind in KINDS if kind.name == "lanes")
    scene = Scene(kind, on_trimmed="jump")
    await kind.leave(scene, is_cut_off=False)
    scene.settle()
    scene.world.stream.trim(key(0), keep=10)
    await rewind(scene, AIMS["instant"](scene, FAR))
    await scene.read_on()
    assert scene.came == list(range(10, PUT))
    assert len(scene.world.told(PositionLost)) == 1
    assert scene.preview.records == len([n for n in scene.handled if n >= 10])


def _parts(text):
    number, _, sub = text.partition(":")
    return number, int(sub or 0)


OURS = [way for way in WAYS if way not in ("hand", "java")]


@pytest.mark.parametrize("way", OURS)
def test_the_generation_is_raised_before_a_lease_is_touched(way):
    """Whoever is cut off in between has made notes stale, and set nothing back."""

    async def scenario():
        (kind,) = (kind for kind in KINDS if kind.name == "window")
        scene = Scene(kind)
        world, steps = scene.world, []
        await kind.leave(scene, way in CUT_OFF)
        scene.settle()

        def changing(change):
            if change.operation in ("rewind", "create", "checkpoint"):
                steps.append(change.operation)

        def writing(call, kind, name):
            if call == "write" and kind in (GENERATION, "gone"):
                steps.append(kind)

        world.leases.before, world.state.before = changing, writing
        await WAYS[way](scene)
        decided = {"release --ended": "gone", "position import": "checkpoint"}
        touched = decided.get(way, "create" if way == "made anew" else "rewind")
        raised = steps.index(GENERATION)
        if touched == "gone":
            # Its worker writes such documents, too; behind the decision it ends the lease.
            assert "gone" in steps[raised:]
            assert "checkpoint" not in steps[:raised]
        else:
            assert raised < steps.index(touched)
        return world

    world = run_virtual(scenario())
    assert world.state.documents[GENERATION, key(0)].version == 1


@virtual
async def test_a_lease_that_is_there_by_then_is_not_made_stale_by_who_would_have_made_it():
    """A worker that ends a shard makes leases for its children, and may have begun them."""
    (kind,) = (kind for kind in KINDS if kind.name == "window")
    scene = Scene(kind)
    await kind.leave(scene, is_cut_off=False)
    lease = scene.world.leases.leases.pop(key(0))
    get = scene.world.leases.get

    async def made_meanwhile(lease_key):
        scene.world.leases.leases.setdefault(lease_key, lease)
        return await get(lease_key)

    scene.world.leases.get = made_meanwhile
    await manage(scene)
    assert scene.world.lease().checkpoint == lease.checkpoint
    assert (GENERATION, key(0)) not in scene.world.state.documents


@pytest.mark.parametrize(("way", "is_stopped"), [("trim horizon", False), ("instant", True)])
@virtual
async def test_what_expires_behind_a_rewind_is_told_and_stops_who_did_not_ask_for_the_oldest(
    way, is_stopped
):
    """Of a busy stream the oldest record expires while it is asked for."""
    (kind,) = (kind for kind in KINDS if kind.name == "tip")
    scene = Scene(dataclasses.replace(kind, config={"on_trimmed": "stop"}))
    await kind.leave(scene, is_cut_off=False)
    scene.settle()
    await WAYS[f"rewind by {way}"](scene)
    scene.world.stream.trim(key(0), keep=10)
    await scene.read_on()
    (event,) = scene.world.told(PositionLost)
    assert event.policy == ("stop" if is_stopped else "jump")
    assert bool(scene.world.told(ShardStopped)) == is_stopped
    scene.needs_resume = is_stopped
    await resume(scene)
    await scene.read_on()
    assert scene.came == list(range(10, PUT))
    assert len(scene.world.told(PositionLost)) == 1


@virtual
async def test_a_rewind_of_which_nothing_has_expired_tells_of_no_loss():
    (kind,) = (kind for kind in KINDS if kind.name == "tip")
    scene = Scene(kind)
    await kind.leave(scene, is_cut_off=False)
    scene.settle()
    await by_trim_horizon(scene)
    await scene.read_on()
    assert scene.came == list(range(PUT))
    assert not scene.world.told(PositionLost)
