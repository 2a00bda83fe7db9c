"""A migration is carried out by whoever runs the command, gone on with, turned round, or ended."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.kcl3 import Direction
from shardfleet.domain.balance.migration import IndexStatus, MigrationTask
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.expiry import Sighting
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.reasons import Pause
from shardfleet.domain.slots.slot import SlotState, end
from shardfleet.domain.stream.hash_ranges import WHOLE_HASH_SPACE
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.reader import ReadPorts
from shardfleet.errors import PositionTrimmed, ShardGone
from shardfleet_ops.operate.migrate import Migrator, trimmed_after
from shardfleet_ops.operate.pause import Operator
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import MemoryEvents, MemoryOwnerIndex, SeededEntropy
from shardfleet_testkit.memory_stream import MemoryStream
from tests.domain.builders import a_lease
from tests.engine.manager_side.test_beside_kcl3 import BesideKcl3
from tests.engine.manager_side.test_foreign_holders import JAVA
from tests.virtual import virtual, within

FROM, TO = Direction.FROM_JAVA, Direction.TO_JAVA
WAIT_MS = 60_000


class Moving(BesideKcl3):
    """A shared table on which Java's workers and ours live, and hand over when asked."""

    def __init__(self, **options):
        super().__init__(java=16, leases_per_worker=8, **options)
        self.index = MemoryOwnerIndex()
        self.told = []
        self.is_paused_at_drains = set()

    def migrator(self):
        operator = Operator(self.leases, self.state, self.clock)
        return Migrator(
            self.config, operator, kcl3=self.kcl3, index=self.index, events=self.events,
            person="ann",
        )  # fmt: skip

    async def migrate(self, direction, *, within_ms=WAIT_MS):
        return await self.migrator().run(direction, within_ms=within_ms, tell=self.told.append)

    async def live(self):
        """Let both sides be, until the loop is over."""
        for second in range(10_000):
            await self.second(second)
            await self.clock.sleep_ms(1_000)

    async def second(self, second):
        slots = [found.slot for found in await self.state.slots()]
        alive = {slot.worker_id for slot in slots if slot.state is not SlotState.ENDED}
        for slot in slots:
            if slot.worker_id in alive:
                await self.work(slot)
        if self.javas and self.shows and second % 30 == 0:
            self.kcl3.rows[JAVA] = self.clock.now_ms() // 1000
        living = alive | ({JAVA} if self.javas else set())
        for lease in list(self.leases.leases.values()):
            if lease.checkpoint_owner in living and self.hands_over(lease.checkpoint_owner):
                await self.leases.apply(lease_changes.assign(lease, lease.lease_owner))
            elif lease.effective_owner in living:
                self.renew(lease.lease_key)
            elif lease.effective_owner is None and self.javas and self.takes:
                await self.leases.apply(lease_changes.assign(lease, JAVA))
        if second % 3 == 0:
            await self.manager.turn()

    takes = stands_still = False

    def hands_over(self, _owner):
        return True

    async def work(self, slot):
        if slot.drain:
            self.is_paused_at_drains.add((await self.migrator().look()).is_paused)
            for lease in list(self.leases.leases.values()):
                if lease.effective_owner == slot.worker_id:
                    await self.leases.apply(lease_changes.evict(lease))
            await self.state.update_slot(
                slot.slot_id, lambda s: end(s, served_seq=s.assign_seq, now_ms=self.clock.now_ms())
            )
        elif not self.stands_still:
            await self.beat(slot.slot_id)

    def is_rid_of_java(self):
        return JAVA not in {lease.effective_owner for lease in self.leases.leases.values()}

    def switches(self):
        """Return how many times a lease changed hands by a write of somebody's."""
        kinds = [change.operation for change, _ in self.leases.changes]
        return {kind: kinds.count(kind) for kind in ("take", "initiate_handover", "assign")}


def moving(work, **options):
    """Run work beside a world that lives, and return it."""

    async def main():
        fleet = Moving(**options)
        await fleet.begin()
        fleet.leases.changes.clear()
        world = asyncio.create_task(fleet.live())
        try:
            await work(fleet)
        finally:
            world.cancel()

    run_virtual(main())


async def until(fleet, condition):
    for _ in range(600):
        if condition():
            return
        await fleet.clock.sleep_ms(500)
    raise AssertionError(fleet.held())


@within(moving)
async def test_from_java_each_lease_is_handed_over_once_and_the_command_waits_for_javas_end(
    fleet, /
):
    run = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    assert fleet.switches() == {"take": 0, "initiate_handover": 16, "assign": 16}
    await fleet.clock.sleep_ms(30_000)
    assert fleet.told[-1].step is MigrationTask.AWAIT_JAVAS_END
    assert set(fleet.kcl3.rows) == {JAVA}, "a slot was shown to Java's leader"
    fleet.javas = False
    assert (await run).step is MigrationTask.DONE
    assert await fleet.state.prompts(), "the manager learns of it at its next turn only"
    assert (await fleet.migrator().look()).is_hidden is False
    assert set(fleet.held().values()) == {8}


@within(moving)
async def test_back_to_java_each_lease_is_handed_over_once_and_the_fleet_is_drained(fleet, /):
    run = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    fleet.leases.changes.clear()
    run.cancel()
    assert (await fleet.migrate(TO)).step is MigrationTask.DONE
    assert fleet.held() == {JAVA: 16}
    assert fleet.switches() == {"take": 0, "initiate_handover": 16, "assign": 16}
    snapshot = await fleet.migrator().look()
    assert (snapshot.alive, snapshot.is_paused, snapshot.is_hidden) == ([], True, False)
    # Else the manager would start others in the place of the drained ones.
    assert fleet.is_paused_at_drains == {True}


@within(moving)
async def test_without_the_index_it_is_made_and_a_paused_fleet_is_resumed(fleet, /):
    fleet.index.found = IndexStatus.MISSING
    operator = Operator(fleet.leases, fleet.state, fleet.clock)
    await operator.pause(None, Pause("ann", 1))
    run = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    run.cancel()
    assert [each.step for each in fleet.told[:3]] == [
        MigrationTask.MAKE_INDEX,
        MigrationTask.RESUME,
        MigrationTask.HIDE,
    ]
    assert fleet.index.found is IndexStatus.ACTIVE


@within(moving)
async def test_what_a_kcl_2_holds_is_taken(fleet, /):
    fleet.shows, fleet.kcl3.rows = False, {}
    run = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    assert fleet.switches() == {"take": 16, "initiate_handover": 0, "assign": 0}
    fleet.javas = False
    assert (await run).step is MigrationTask.DONE


@within(moving)
async def test_to_a_kcl_2_the_fleet_is_drained_and_the_leases_wait_for_it(fleet, /):
    fleet.shows, fleet.kcl3.rows = False, {}
    run = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    fleet.javas = False
    await run
    assert (await fleet.migrate(TO, within_ms=20_000)).step is MigrationTask.AWAIT_JAVA
    assert fleet.held() == {None: 16}
    fleet.javas = fleet.takes = True
    assert (await fleet.migrate(TO)).step is MigrationTask.DONE
    assert fleet.held() == {JAVA: 16}


@within(moving)
async def test_leases_go_to_java_once_it_has_shown_a_sign_of_life(fleet, /):
    """A worker that was killed has a fresh row for a minute (KCL 3.1), and nothing else."""
    before = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    before.cancel()
    await fleet.migrator().abort()
    fleet.told.clear()
    fleet.javas = False
    run = asyncio.create_task(fleet.migrate(TO))
    await fleet.clock.sleep_ms(20_000)
    assert [each.step for each in fleet.told] == [MigrationTask.AWAIT_LIFE]
    assert JAVA not in fleet.held()
    fleet.javas = True
    assert (await run).step is MigrationTask.DONE
    assert fleet.held() == {JAVA: 16}


@within(moving)
async def test_who_renews_a_lease_lives(fleet, /):
    given = fleet.migrator()
    await given.look()
    await fleet.clock.sleep_ms(2_000)
    assert JAVA not in (await given.look()).unproven


@within(moving)
async def test_what_others_do_not_do_in_time_ends_the_command_and_another_one_goes_on(fleet, /):
    fleet.hands_over = lambda owner: owner != JAVA
    first = await fleet.migrate(FROM, within_ms=10_000)
    assert (first.step, len(first.leases)) == (MigrationTask.AWAIT_HANDOVERS, 16)
    assert {le.effective_owner for le in fleet.leases.leases.values()} == {JAVA}
    fleet.hands_over = lambda _: True
    again = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    fleet.javas = False
    assert (await again).step is MigrationTask.DONE


@within(moving)
async def test_a_migration_that_is_ended_lets_both_sides_share_again(fleet, /):
    run = asyncio.create_task(fleet.migrate(FROM))
    await until(fleet, fleet.is_rid_of_java)
    run.cancel()
    assert await fleet.migrator().abort() is True
    assert await fleet.migrator().abort() is False
    await until(fleet, lambda: {"f-s0001", "f-s0002"} <= fleet.kcl3.rows.keys())


class Interrupted(Exception):
    """A person has ended the command."""


@pytest.mark.parametrize(
    ("direction", "task"),
    [
        (FROM, MigrationTask.MAKE_INDEX),
        (FROM, MigrationTask.AWAIT_INDEX),
        (FROM, MigrationTask.RESUME),
        (FROM, MigrationTask.HIDE),
        (FROM, MigrationTask.AWAIT_HIDDEN),
        (FROM, MigrationTask.AWAIT_SLOTS),
        (FROM, MigrationTask.MOVE),
        (FROM, MigrationTask.AWAIT_HANDOVERS),
        (FROM, MigrationTask.AWAIT_EXPIRY),
        (FROM, MigrationTask.AWAIT_JAVAS_END),
        (TO, MigrationTask.AWAIT_LIFE),
        (TO, MigrationTask.HIDE),
        (TO, MigrationTask.AWAIT_HIDDEN),
        (TO, MigrationTask.MOVE),
        (TO, MigrationTask.AWAIT_HANDOVERS),
        (TO, MigrationTask.DRAIN),
        (TO, MigrationTask.AWAIT_JAVA),
        (TO, MigrationTask.SHOW),
    ],
)
@within(moving)
async def test_interrupted_at_any_step_and_ended_each_lease_has_an_owner_that_lives(
    fleet, /, direction, task
):
    def tell(step):
        if step.step is task:
            raise Interrupted

    if direction is TO or task is MigrationTask.AWAIT_HIDDEN:
        before = asyncio.create_task(fleet.migrate(FROM))
        await until(fleet, fleet.is_rid_of_java)
        before.cancel()
        await fleet.migrator().abort()
        await until(fleet, lambda: {"f-s0001", "f-s0002"} <= fleet.kcl3.rows.keys())
    if task is MigrationTask.MAKE_INDEX:
        fleet.index.found = IndexStatus.MISSING
    if task in (MigrationTask.RESUME, MigrationTask.AWAIT_EXPIRY):
        why = Pause("bob", fleet.clock.now_ms(), "-")
        await Operator(fleet.leases, fleet.state, fleet.clock).pause(None, why)
    if task is MigrationTask.AWAIT_INDEX:
        fleet.index.found = IndexStatus.CREATING
    fleet.stands_still = task is MigrationTask.AWAIT_SLOTS
    fleet.hands_over = lambda _: task is not MigrationTask.AWAIT_HANDOVERS
    if task in (MigrationTask.AWAIT_EXPIRY, MigrationTask.AWAIT_JAVA):
        fleet.javas = False
        await fleet.clock.sleep_ms(120_000)
    with pytest.raises(Interrupted):
        await fleet.migrator().run(direction, within_ms=WAIT_MS, tell=tell)
    fleet.hands_over, fleet.stands_still = lambda _: True, False
    # Who has been drained stays so; another worker of Java's takes what is free.
    fleet.javas = fleet.takes = fleet.javas or task is MigrationTask.AWAIT_JAVA
    await fleet.migrator().abort()
    await fleet.clock.sleep_ms(120_000)
    found = await fleet.migrator().look()
    assert not found.is_hidden
    living = {JAVA} | {slot.worker_id for slot in found.alive}
    leases = fleet.leases.leases.values()
    assert {(le.lease_owner in living, le.checkpoint_owner) for le in leases} == {(True, None)}
    assert fleet.switches()["take"] == 0


@pytest.mark.parametrize("seconds", range(1, 15))
@pytest.mark.parametrize("direction", [FROM, TO])
@within(moving)
async def test_left_at_any_second_it_ends_where_the_next_command_says(fleet, /, seconds, direction):
    begun = asyncio.create_task(fleet.migrate(FROM))
    await fleet.clock.sleep_ms(1_000 * seconds)
    begun.cancel()
    run = asyncio.create_task(fleet.migrate(direction, within_ms=300_000))
    if direction is FROM:
        await until(fleet, fleet.is_rid_of_java)
        fleet.javas = False
    assert (await run).step is MigrationTask.DONE
    owners = set(fleet.held())
    assert owners == ({"f-s0001", "f-s0002"} if direction is FROM else {JAVA})
    assert fleet.switches()["take"] == 0


def read_by(stream, clock):
    config = FleetConfig(fleet="f", stream_arn="a", lease_table="l", state_table="s")
    return ReadPorts(
        source=PolledSource(stream, clock),
        clock=clock,
        events=MemoryEvents(),
        patience=Patience.of(config, clock=clock, entropy=SeededEntropy(7)),
    )


def saying_nothing_at_first(stream, pages):
    """Let the first pages be empty and without a lag, which the service need not tell."""
    page, left = stream.page, [pages]

    async def told(*asked, **more):
        found = await page(*asked, **more)
        if not left[0]:
            return found
        left[0] -= 1
        return replace(found, records=(), resume_token=found.page_token, millis_behind_latest=None)

    stream.page = told


async def expired_of(leases, reading):
    return await trimmed_after(leases, reading, stream_arn="arn")


@virtual
async def test_a_lag_that_nobody_tells_is_not_the_end_of_what_may_have_expired():
    clock = VirtualClock()
    stream = MemoryStream(clock, shards=1)
    (key,) = stream.open_shard_ids
    first = min(stream.put(b"x", shard_id=key) for _ in range(4))
    stream.trim(key, keep=2)
    saying_nothing_at_first(stream, 3)
    assert await expired_of([a_lease(f"{key} at {first}")], read_by(stream, clock)) == [key]


@virtual
async def test_a_checkpoint_behind_which_records_have_expired_is_found_and_others_are_not():
    clock = VirtualClock()
    stream = MemoryStream(clock, shards=3)
    keys = sorted(stream.open_shard_ids)
    at = {key: min(stream.put(b"x", shard_id=key) for _ in range(4)) for key in keys}
    stream.trim(keys[0], keep=2)
    leases = [a_lease(f"{key} at {at[key]}") for key in keys[:2]]
    leases += [a_lease(f"{keys[2]} at TRIM_HORIZON"), a_lease("gone at SHARD_END")]
    leases.append(a_lease("unknown at 5"))
    assert await expired_of(leases, read_by(stream, clock)) == [keys[0]]


@pytest.mark.parametrize(("error", "trimmed"), [(PositionTrimmed, True), (ShardGone, False)])
@virtual
async def test_a_position_that_the_stream_refuses_as_expired_is_one_behind_which_records_have(
    error, trimmed
):
    clock = VirtualClock()
    stream = MemoryStream(clock, shards=1)

    async def refused(*_, **__):
        raise error("refused")

    stream.page = refused
    found = await expired_of([a_lease("shardId-000000000000 at 5")], read_by(stream, clock))
    assert found == ["shardId-000000000000"] * trimmed


@virtual
async def test_of_a_shard_that_ends_without_a_record_nothing_has_expired():
    clock = VirtualClock()
    stream = MemoryStream(clock, shards=1)

    async def last_page(*_, **__):
        child = ChildShard(
            shard_id="shardId-000000000001",
            parent_shard_ids=("shardId-000000000000", "shardId-000000000002"),
            hash_key_range=WHOLE_HASH_SPACE,
        )
        return RecordsPage(
            records=[], resume_token=None, millis_behind_latest=5, child_shards=(child,)
        )

    stream.page = last_page
    assert await expired_of([a_lease("shardId-000000000000 at 5")], read_by(stream, clock)) == []


@virtual
async def test_a_migration_knows_who_stands_still_by_the_manager_s_looks_before_its_own():
    fleet = Moving()
    await fleet.begin()
    now_ms = fleet.clock.now_ms()
    lease = min(fleet.leases.leases.values(), key=lambda lease: lease.lease_key)
    seen = Sighting(lease.lease_counter, lease.lease_owner, now_ms - 600_000)
    await fleet.state.write_sightings({lease.lease_key: seen})
    migrator = fleet.migrator()
    assert lease.lease_key in (await migrator.look()).expired
    fleet.renew(lease.lease_key)
    assert lease.lease_key not in (await migrator.look()).expired


@virtual
async def test_a_migration_knows_nobody_as_lost_by_how_long_its_own_look_takes():
    """A lease may have been read at the look's beginning, and been renewed since."""
    fleet = Moving()
    await fleet.begin()
    survey = fleet.leases.survey

    async def slow():
        found = await survey()
        await fleet.clock.sleep_ms(600_000)
        return found

    leases, now_ms = fleet.leases.leases.values(), fleet.clock.now_ms()
    seen = {le.lease_key: Sighting(le.lease_counter, le.lease_owner, now_ms) for le in leases}
    await fleet.state.write_sightings(seen)
    fleet.leases.survey = slow
    assert not (await fleet.migrator().look()).expired
