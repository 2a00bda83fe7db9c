"""
What fails, hangs or kills is found, whatever the call and the policy, and nobody else pays (H21).

The table has one row for each kind of call into user code and each way in which it goes wrong; its
outcome for each policy. Every cell is three shards in a real worker, turn after turn, as its state
machine invokes it: shard 0 is guilty, the other two are to be handled whole and never charged.

Long, and one idea: the table, and what no table can say about when suspicion and notes end.
"""

import asyncio
from collections import Counter

import pytest
from msgspec.structs import replace

from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.policies import POLICIES
from shardfleet.domain.leases.changes import assign
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.errors import HandlerNotLoaded, OutcomeUnknown, Throttled
from shardfleet.events.delivery import (
    BatchFailed,
    BatchHandled,
    CrashCharged,
    RecordSkipped,
    WindowSkipped,
)
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import ProcessEndedError
from shardfleet_testkit.memory_handler import MemoryHandler
from tests.engine.worker_side.steps_kit import Steps, process
from tests.engine.worker_side.worker_kit import ME, OTHER, World, key
from tests.virtual import virtual

RAISES, HANGS, KILLS = WAYS = ("raises", "hangs", "kills")
MOST = 3  # of attempts and of deaths
TURN_MS = 40_000
TURNS_MOST = 9
COMMON = {
    "handler_timeout_ms": 4_000,
    "turn_margin_ms": 3_000,
    "max_attempts": MOST,
    "max_crashes": MOST,
    "failed_queue_url": "q",
    "failed_bucket": "b",
    "failed_topic_arn": "arn:aws:sns:eu-central-1:123456789012:t",
}
CONFIGS = {
    "lanes": {"parallelism": 4},
    "in a window": {"tumbling_window_ms": 5_000},
    "window": {"tumbling_window_ms": 5_000},
    "flush": {"checkpoint": "manual"},
}
# By policy, in the order of POLICIES: what becomes of shard 0.
BY_RECORD = {"stop": "stopped", "skip": "skipped", "sqs": "kept", "s3": "kept", "sns": "kept"}
STOPPED = dict.fromkeys(POLICIES, "stopped")
OUTCOMES = {
    **{(kind, way): BY_RECORD for kind in ("records", "lanes", "in a window") for way in WAYS},
    ("window", RAISES): {**STOPPED, "skip": "window skipped"},
    **{("window", way): STOPPED for way in (HANGS, KILLS)},
    **{(kind, way): STOPPED for kind in ("flush", "started", "ended") for way in WAYS},
    # The worker leaves the shard whatever its last hook says; one that raised is told.
    ("stopping", RAISES): dict.fromkeys(POLICIES, "told"),
    **{("stopping", way): STOPPED for way in (HANGS, KILLS)},
    # The lease is another's by then, and so is whether its shard is stopped.
    **{("lease_lost", way): dict.fromkeys(POLICIES, "another's") for way in WAYS},
    **{("load", way): dict.fromkeys(POLICIES, "load") for way in WAYS},
}
HOOKS = {str(hook): hook for hook in Hook}
# Of the worker's own, from before anything was checkpointed.
STAMP = {"generation": 0, "owner": ME, "counter": 1, "switches": 0, "stood": "TRIM_HORIZON:0"}


class Guilty:
    """A process whose handler goes wrong in one kind of call of shard 0, until it is mended."""

    def __init__(self, world, kind, way):
        self.world, self.kind, self.way = world, kind, way
        self.goes_wrong = 0
        self.handled = Counter()

    async def run(self):
        """Run one turn as the state machine does; return whether the process lived."""
        world, steps = self.world, Steps(only=lambda name: False)
        steps.names.append("in user code")
        handler = world.handler = MemoryHandler(world.clock, self._handle, overlaps=True)
        if self.kind in HOOKS:
            handler.hooks = self._hook
        load = handler.load

        async def import_it():
            if self.kind == "load":
                await self._go_wrong()
            await load()

        handler.load = import_it
        self._steps = steps
        dead = len(world.deaths)
        try:
            await process(world, steps, turn_ms=TURN_MS)
        except ProcessEndedError as death:
            world.deaths.append(death)
        is_alive = len(world.deaths) == dead
        fault = "" if is_alive else "Runtime exited with error: exit status 1"
        world.given = replace(world.given, fault=fault)
        return is_alive

    async def _go_wrong(self):
        self.goes_wrong += 1
        if self.way == RAISES and self.kind == "load":
            raise HandlerNotLoaded("no such module", kind="IMPORT")
        if self.way == RAISES:
            raise OSError("never")
        if self.way == KILLS:
            self._steps.died.set()
        await asyncio.Event().wait()

    async def _hook(self, hook, shard):
        await asyncio.sleep(0.01)
        if hook is HOOKS[self.kind] and shard.shard_id == key(0):
            await self._go_wrong()

    async def _handle(self, batch):
        await asyncio.sleep(0.01)
        kind = "records" if batch else "window" if batch.window is not None else "flush"
        if kind != "records" and kind == self.kind and batch.shard_id == key(0):
            await self._go_wrong()
        bad = self.kind in ("records", "lanes", "in a window")
        for record in batch:
            if bad and record.data == b"3":
                await self._go_wrong()
            self.handled[int(record.data)] += 1
        if self.world.config.checkpoint == "manual" and batch.shard_id != key(0):
            batch.checkpoint()
        return {"state": {}} if batch.window is not None else None

    @property
    def outcome(self):
        """Return what became of shard 0, in the words of the table; None: nothing yet."""
        world = self.world
        stop = world.state.documents.get(("stop", key(0)))
        if stop is not None and stop.body["attempts"]:
            return "stopped"
        if skipped := world.told(RecordSkipped):
            return "kept" if skipped[0].kept_at else "skipped"
        if world.told(WindowSkipped):
            return "window skipped"
        failure = world.slot().failure
        if failure is not None and failure.kind is FailureKind.IMPORT:
            return "load"
        if world.lease(0).lease_owner == OTHER:
            return "another's"
        told = [failed.reason for failed in world.told(BatchFailed)]
        return "told" if "hook stopping" in told else None


async def stolen(world):
    await world.run_until(lambda: world.told(BatchHandled))
    await world.clock.sleep_ms(2_000)
    await world.leases.apply(assign(world.lease(0), OTHER))


async def played(kind, way, policy):
    """Let a cell run until its outcome, and one turn further; return world and handler."""
    world = World(shards=3, on_exhausted=policy, **COMMON, **CONFIGS.get(kind, {}))
    guilty = Guilty(world, kind, way)
    for shard in range(3):
        world.put(10 * shard + 1, 10 * shard + 6, number=shard)
    if kind == "ended":
        world.stream.split(key(0))
    thief = asyncio.create_task(stolen(world)) if kind == "lease_lost" else None
    for _ in range(TURNS_MOST):
        await guilty.run()
        if guilty.outcome is not None:
            break
    if thief is not None:
        await thief
    if kind == "load":
        assert guilty.outcome == "load"
        guilty.kind = "nothing"  # Somebody mends the handler.
    for _ in range(2):
        is_alive = await guilty.run()
    assert is_alive, "it goes on dying"
    return world, guilty


CELLS = [
    (kind, way, policy, outcome)
    for (kind, way), outcomes in OUTCOMES.items()
    for policy, outcome in outcomes.items()
]


def test_the_table_has_every_kind_of_call_every_way_and_every_policy():
    kinds = {kind for kind, *_ in CELLS}
    assert {*map(str, CallKind)} | {"lanes", "in a window", "load"} == kinds
    assert len(CELLS) == len(kinds) * len(WAYS) * len(POLICIES) == 150


@pytest.mark.parametrize(("kind", "way", "policy", "outcome"), CELLS)
@virtual
async def test_what_goes_wrong_is_found_and_its_neighbours_go_on(kind, way, policy, outcome):
    world, guilty = await played(kind, way, policy)
    if kind == "load":
        # It is over with the next import, and nobody has to pay for it.
        assert world.slot().failure is None
        assert guilty.handled.keys() >= {*range(1, 7)}
    else:
        assert guilty.outcome == outcome
    if outcome in ("skipped", "kept"):
        assert guilty.handled.keys() >= {*range(1, 7)} - {3}
    if way == RAISES and kind in ("window", "flush", "started", "ended"):
        # A function is asked once more before its shard is left.
        assert guilty.goes_wrong == MOST + (kind == "flush")
    if outcome == "stopped" and way != RAISES:
        stop = world.state.documents["stop", key(0)].body
        assert f"the process died {MOST} times" in stop["error"]
        if kind in list(CallKind) and kind != "records":
            assert stop["error"].startswith(CallKind(kind).in_words)
        # One death in an ordinary turn, unless it was noted as a time-out.
        assert len(world.deaths) <= MOST + 1
    charged = {event.lease_key for event in world.told(CrashCharged)}
    assert charged <= ({key(0)} if way != RAISES else set())
    assert not {("stop", key(1)), ("stop", key(2))} & world.state.documents.keys()
    assert guilty.handled.keys() >= {*range(11, 17), *range(21, 27)}


async def lives(world, script, *, turns, load_ms=0, turn_ms=60_000):
    """Let processes follow one another, each with a handler anew; return how many died."""
    for _ in range(turns):
        world.handler = MemoryHandler(world.clock, script, overlaps=False, load_ms=load_ms)
        await world.turn_that_may_die(turn_ms=turn_ms)
    return len(world.deaths)


@pytest.mark.parametrize(("load_ms", "failover_ms"), [(35_000, 10_000), (10_000, 3_000)])
def test_an_import_of_any_length_does_not_end_the_suspicion(load_ms, failover_ms):
    """E2: suspicion ended with the time since the turn began, before the first call."""

    async def main():
        world = World(shards=3, **COMMON, failover_ms=failover_ms)
        guilty = Guilty(world, "records", KILLS)
        run, load = guilty.run, MemoryHandler.load

        async def slow(handler):
            await world.clock.sleep_ms(load_ms)
            await load(handler)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryHandler, "load", slow)
            for shard in range(3):
                world.put(10 * shard + 1, 10 * shard + 6, number=shard)
            deaths = 0
            while not await run():
                deaths += 1
                assert deaths <= MOST + 1
                world.given = replace(world.given, fault="")
        assert deaths == MOST + 1
        assert guilty.outcome == "stopped"
        assert guilty.handled.keys() >= {1, 2, *range(11, 17), *range(21, 27)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.TURN_MS", 90_000)
        run_virtual(main())


@virtual
async def test_an_outage_charges_only_calls_that_were_made():
    """E3: after the first time-out the next shard was noted, never called, and charged."""
    world = World(shards=4, **{**COMMON, "max_attempts": 10}, on_exhausted="sqs")
    calls, until_ms = Counter(), world.clock.now_ms() + 12_000

    async def out(batch):
        calls.update((batch.shard_id, int(record.data)) for record in batch)
        if world.clock.now_ms() < until_ms:
            await asyncio.Event().wait()

    for shard in range(4):
        world.put(10 * shard, number=shard)
    await lives(world, out, turns=6)
    assert len(world.deaths) >= 2
    for failed in world.dead_letters.kept:
        for record in failed.records:
            assert failed.attempts <= calls[record.shard_id, int(record.data)]
    for charge in world.told(CrashCharged):
        assert charge.crashes <= calls.total()
    assert sum(1 for _ in world.told(CrashCharged)) <= len(world.deaths)
    for shard in range(4):
        charges = [c for c in world.told(CrashCharged) if c.lease_key == key(shard)]
        assert len(charges) <= calls[key(shard), 10 * shard]
    assert {shard for shard, _ in calls} == {key(n) for n in range(4)}


@virtual
async def test_a_note_is_closed_however_late_its_call_returns():
    """E3: a call that returned after the suspicion was over left its note open."""
    world = World(shards=2, **{**COMMON, "handler_timeout_ms": 50_000})
    world.put(1, 3)
    steps = Steps(act_at=0, only=lambda name: name == "before handler.run")
    await process(world, steps, turn_ms=120_000)

    async def slow(batch):
        del batch
        await world.clock.sleep_ms(40_000)

    world.handler = MemoryHandler(world.clock, slow)
    await world.turn(turn_ms=200_000)
    assert world.state.documents["note", key(0)].body["is_open"] is False
    assert not world.told(CrashCharged)


@pytest.mark.parametrize("refused", ["before the call", "after the call"])
def test_a_note_is_closed_though_the_turn_ends_and_the_table_refuses_meanwhile(refused):
    async def main():
        world = World(shards=1, **COMMON)
        world.put(1, 3)
        steps = Steps(act_at=0, only=lambda name: name == "before handler.run")
        await process(world, steps, turn_ms=60_000)
        away = [False]

        def before(call, kind, name):
            if kind == "note" and call == "write" and away[0]:
                raise Throttled(name)

        async def script(batch):
            del batch
            away[0] = refused == "after the call"
            await world.clock.sleep_ms(1_000)
            turn.leave()

        async def back():
            await world.run_until(lambda: away[0])
            await world.clock.sleep_ms(3_000)
            away[0] = False

        world.state.before = before
        world.handler = MemoryHandler(world.clock, script)
        turn = WorkerTurn(
            world.given,
            config=world.config,
            ports=world.ports(),
            deadline_ms=world.clock.monotonic_ms() + 60_000,
        )
        healing = asyncio.create_task(back()) if refused == "after the call" else None
        if refused == "before the call":
            # Landed, but nobody knows: the answer is lost, and then the turn ends.
            write = world.state.write

            async def lost(kind, name, body, **asked):
                result = await write(kind, name, body, **asked)
                if kind == "note" and body["is_open"]:
                    turn.leave()
                    raise OutcomeUnknown("answer lost")
                return result

            world.state.write = lost
        await turn.run()
        if healing is not None:
            await healing
        assert world.state.documents["note", key(0)].body["is_open"] is False

    run_virtual(main())


@virtual
async def test_what_fails_at_first_and_kills_then_is_found():
    """A shard that failed is a suspect as long as it has not done what failed."""
    world = World(shards=3, **{**COMMON, "max_attempts": 0}, on_exhausted="sqs")
    guilty = Guilty(world, "records", KILLS)
    wrong, tries = guilty._go_wrong, Counter()

    async def at_the_second_time():
        tries[len(world.deaths)] += 1
        if tries[len(world.deaths)] == 1:
            raise MemoryError
        await wrong()

    guilty._go_wrong = at_the_second_time
    for shard in range(3):
        world.put(10 * shard + 1, 10 * shard + 6, number=shard)
    for _ in range(TURNS_MOST):
        if await guilty.run():
            break
    assert guilty.outcome == "kept"
    assert guilty.handled.keys() >= {*range(1, 7), *range(11, 17), *range(21, 27)} - {3}
    assert {charge.lease_key for charge in world.told(CrashCharged)} == {key(0)}


@virtual
async def test_what_kills_many_pages_behind_the_checkpoint_is_found():
    """Each turn stores each page, so the next one begins with the page that kills."""
    config = {"records_per_read": 2, "checkpoint_ms": 600_000}
    world = World(shards=3, **COMMON, **config)
    guilty = Guilty(world, "records", KILLS)
    world.put(91, 99)
    world.put(3)
    for shard in (1, 2):
        world.put(10 * shard + 1, 10 * shard + 6, number=shard)
    deaths = 0
    while not await guilty.run():
        deaths += 1
        assert deaths <= MOST + 2
    assert guilty.outcome == "stopped"
    assert {charge.lease_key for charge in world.told(CrashCharged)} == {key(0)}


@virtual
async def test_who_is_acquitted_is_handled_beside_others_and_noted_no_more():
    """An idle shard, and one that nobody can handle, keep their neighbours from nothing."""
    world = World(shards=4, overlaps=True, **{**COMMON, "max_attempts": 0})
    world.put(1, 3, number=0)
    world.put(11, 13, number=1)
    world.put(21, 23, number=2)  # Shard 3 is idle.

    async def script(batch):
        await world.clock.sleep_ms(500)
        if batch.shard_id == key(2):
            raise ValueError("never")

    world.handler = MemoryHandler(world.clock, script, overlaps=True)
    steps = Steps(act_at=0, only=lambda name: name == "before handler.run")
    await process(world, steps, turn_ms=60_000)
    world.handler = MemoryHandler(world.clock, script, overlaps=True)
    turn = asyncio.create_task(world.turn(turn_ms=90_000))
    await world.clock.sleep_ms(20_000)
    before = {k: d.version for k, d in world.state.documents.items() if k[0] == "note"}
    world.handler.running_most = 0
    for n in range(20):
        world.put(100 + n, number=0)
        world.put(200 + n, number=1)
        await world.clock.sleep_ms(700)
    after = {k: d.version for k, d in world.state.documents.items() if k[0] == "note"}
    guilty = "note", key(2)
    assert after.pop(guilty) > before.pop(guilty)
    assert after == before
    assert world.handler.running_most == 2
    await turn
    assert {*range(100, 120), *range(200, 220)} <= set(world.numbers)


@virtual
async def test_who_kills_beside_a_call_that_is_noted_is_charged_itself():
    """One that is no suspect waits for the call of one that is: else that one's note is open."""
    world = World(shards=2, **COMMON, max_batch_records=1)
    guilty = Guilty(world, "records", KILLS)
    handle = guilty._handle

    async def slow(batch):
        if batch.shard_id == key(1):
            await world.clock.sleep_ms(2_000)
        await handle(batch)

    guilty._handle = slow
    world.put(1)
    world.put(11, 16, number=1)
    await world.open_slot()
    await world.change_slot(lambda slot: replace(slot, turn_open=True))

    async def later():
        await world.run_until(lambda: 12 in guilty.handled)
        await world.clock.sleep_ms(500)
        world.put(3)

    feed = asyncio.create_task(later())
    for _ in range(TURNS_MOST):
        if await guilty.run():
            break
    await feed
    assert guilty.outcome == "stopped"
    assert {charge.lease_key for charge in world.told(CrashCharged)} == {key(0)}
    assert guilty.handled.keys() >= {1, *range(11, 17)}


@virtual
async def test_a_death_of_long_ago_is_not_charged_to_who_has_gone_on_since():
    """A note that another worker left open, of a call that has returned in a quiet turn."""
    world = World(shards=1, **COMMON)
    world.put(1, 3)
    await lives(world, None, turns=1)
    first = world.stream.sequence_numbers(key(0))[0]
    for kind in ("records", "started", "stopping"):
        note = {"first": f"{first}:0", "last": f"{first}:0", "count": 1, "crashes": 9}
        body = {**note, "is_open": True, "kind": kind, "stamp": STAMP}
        version = getattr(world.state.documents.get(("note", key(0))), "version", None)
        await world.state.write("note", key(0), body, expected_version=version)
        await world.change_slot(lambda slot: replace(slot, turn_open=True))
        await lives(world, None, turns=1)
        assert not world.told(CrashCharged)
    assert not [place for place in world.state.documents if place[0] == "stop"]


@virtual
async def test_a_note_of_before_kinds_is_of_records():
    world = World(shards=1, **COMMON)
    world.put(1, 3)
    await world.open_slot()
    at = world.stream.sequence_numbers(key(0))[1]
    body = {"first": f"{at}:0", "last": f"{at}:0", "count": 1, "crashes": 2, "is_open": True}
    body["stamp"] = STAMP
    await world.state.write("note", key(0), body, expected_version=None)
    await world.change_slot(lambda slot: replace(slot, turn_open=True))
    await lives(world, None, turns=1)
    (charge,) = world.told(CrashCharged)
    assert (charge.call, charge.crashes) == ("records", 3)
    assert world.state.documents["stop", key(0)].body["position"] == at
