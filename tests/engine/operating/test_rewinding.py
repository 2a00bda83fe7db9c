"""Setting leases back: what a preview says is what comes again, and nothing else."""

import asyncio

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_SHARD_END,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.shard.reader import ReadPorts
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.errors import ConfigurationError, OutcomeUnknown
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import aggregate
from shardfleet.records import StreamRecord
from shardfleet_ops.operate.pause import Operator
from shardfleet_ops.operate.rewind import Rewinder
from shardfleet_ops.positions.rewinds import RewindState, RewindTarget
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.operating.test_migrating import saying_nothing_at_first
from tests.engine.worker_side.worker_kit import ME, OTHER, World, a_lease, key
from tests.virtual import virtual

ANN = Pause("ann", 5)
OLDEST = RewindTarget(AT_TRIM_HORIZON)


def since(instant_ms):
    return ExtendedSequenceNumber(AT_TIMESTAMP, instant_ms)


def a_world(**world):
    return World(**{"idle_end_ms": 600000, **world})


def rewinder(world, *, pages_most=60):
    operator = Operator(world.leases, world.ports().fleet_state, world.clock)
    reading = ReadPorts(
        source=PolledSource(world.stream, world.clock),
        clock=world.clock,
        events=world.events,
        patience=Patience.of(world.config, clock=world.clock, entropy=SeededEntropy(7)),
    )
    return Rewinder(
        world.config, operator, stream=world.stream, reading=reading, pages_most=pages_most
    )


async def carry_out(world, target, *numbers, with_children=False, **options):
    at_work = rewinder(world)
    keys = [key(number) for number in numbers or (0,)]
    plan = await at_work.preview(keys, target, with_children=with_children)
    options = {"within_ms": 60_000, "stay_paused": False} | options
    return plan, await at_work.carry_out(plan, ANN, **options)


async def read_on(world, *numbers):
    """Give the leases back to the worker, as the manager does, and let it read what there is."""
    for number in numbers or (0,):
        if not world.lease(number).lease_owner:
            await world.leases.apply(lease_changes.assign(world.lease(number), ME))
    before = len(world.numbers)
    await world.turn(turn_ms=100_000)
    return world.numbers[before:]


def put_aggregate(world, first, last, *, shard=0):
    records = [OutgoingRecord(f"k{n}", str(n).encode()) for n in range(first, last + 1)]
    return world.stream.put(aggregate(records), key="a", shard_id=key(shard))


def targets(world):
    """Return a target of each kind, and from where on records come again."""
    plain = world.put_numbers
    return {
        "oldest": (OLDEST, 0),
        "record": (RewindTarget(ExtendedSequenceNumber(plain[3]), whole_record=True), 4),
        "aggregate": (RewindTarget(ExtendedSequenceNumber(plain[5]), whole_record=True), 15),
        "inside": (RewindTarget(ExtendedSequenceNumber(plain[5], 6)), 12),
        "instant": (RewindTarget(since(world.put_ms[2])), 2),
    }


async def fill(world):
    """Records 0 to 4, an aggregate of 5 to 14, then 15 to 19; one second apart."""
    world.put_numbers, world.put_ms = [], []
    for n in [*range(5), None, *range(15, 20)]:
        await world.clock.sleep_ms(1_000)
        world.put_ms.append(world.clock.now_ms())
        data = str(n).encode()
        number = (
            put_aggregate(world, 5, 14)
            if n is None
            else world.stream.put(data, key=f"k{n}", shard_id=key(0))
        )
        world.put_numbers.append(number)


@pytest.mark.parametrize("name", ["oldest", "record", "aggregate", "inside", "instant"])
@virtual
async def test_exactly_what_the_preview_counts_comes_again(name):
    world = a_world()
    await fill(world)
    await world.turn(turn_ms=100_000)
    assert world.numbers == list(range(20))
    target, first = targets(world)[name]
    wrote = len(world.leases.changes)
    plan = await rewinder(world).preview([key(0)], target, with_children=False)
    assert len(world.leases.changes) == wrote
    assert await PauseRecord(world.state).read() == Pauses()

    turn = asyncio.create_task(world.turn())
    plan, (row,) = await carry_out(world, target)
    await turn
    assert (row.state, row.records, row.complete) == (RewindState.SET_BACK, 20 - first, True)
    assert plan.rows[0].records == row.records
    assert row.bytes == sum(len(str(n)) for n in range(first, 20))
    assert await read_on(world) == list(range(first, 20))
    assert await PauseRecord(world.state).read() == Pauses()


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ([5_000, 3_000, 9_000, 4_000], (3_000, 9_000)),
        ([0, 3_000, 0, 4_000], (3_000, 4_000)),  # 0: Kinesis did not say.
        ([0, 0, 0, 0], (None, None)),
    ],
)
@virtual
async def test_the_first_and_the_last_arrival_are_so_by_time_whatever_the_order_of_the_records(
    arrivals, expected
):
    """K28: Kinesis promises nothing about the order of arrival times."""
    world = a_world()

    def uneven(_shard_id, page):
        records = [
            StreamRecord(r.data, r.partition_key, r.sequence_number, arrival_ms)
            for r, arrival_ms in zip(page.records, arrivals, strict=False)
        ]
        return replace(page, records=records)

    world.put(0, 3)
    await world.turn(turn_ms=100_000)
    world.stream.alter = uneven
    (row,) = (await rewinder(world).preview([key(0)], OLDEST, with_children=False)).rows
    assert (row.first_arrived_ms, row.last_arrived_ms) == expected


@virtual
async def test_a_checkpoint_inside_an_aggregate_counts_as_far_as_it_goes():
    world = a_world()
    await fill(world)
    number = world.put_numbers[5]
    world.leases.leases[key(0)] = a_lease(checkpoint=ExtendedSequenceNumber(number, 2))
    (row,) = (await rewinder(world).preview([key(0)], OLDEST, with_children=False)).rows
    assert row.records == 8


@virtual
async def test_records_handled_until_the_lease_is_given_up_are_in_the_count():
    world = a_world(checkpoint_ms=1_000)
    world.put(0, 9)
    turn = asyncio.create_task(world.turn())
    await world.run_until(lambda: len(world.numbers) == 10)
    plan = await rewinder(world).preview([key(0)], OLDEST, with_children=False)
    world.put(10, 14)
    rows = await rewinder(world).carry_out(plan, ANN, within_ms=60_000, stay_paused=False)
    await turn
    assert rows[0].records == 15
    assert await read_on(world) == list(range(15))


@virtual
async def test_a_lease_that_nobody_gives_up_is_not_touched_and_not_left_paused():
    world = a_world()
    world.put(0, 4)
    world.leases.leases[key(0)] = a_lease(lease_owner=OTHER, checkpoint=ExtendedSequenceNumber("3"))
    _, (row,) = await carry_out(world, OLDEST)
    assert row.state is RewindState.HELD
    assert key(0) in row.why
    assert world.leases.operations() == []
    assert await PauseRecord(world.state).read() == Pauses()


@virtual
async def test_what_was_paused_before_stays_paused_and_so_does_what_shall():
    world = a_world()
    world.put(0, 4)
    free = a_lease(lease_owner=None, checkpoint=ExtendedSequenceNumber("3"))
    world.leases.leases[key(0)] = free
    record = PauseRecord(world.state)
    await record.change(lambda pauses: pauses.with_leases([key(0)], Pause("ben", 1)))
    await carry_out(world, OLDEST)
    assert (await record.read()).of(key(0)).by == "ben"
    await record.change(lambda pauses: pauses.without_leases([key(0)]))
    world.leases.leases[key(0)] = free
    await carry_out(world, OLDEST, stay_paused=True)
    assert (await record.read()).of(key(0)).by == "ann"


@pytest.mark.parametrize(
    ("checkpoint", "target"),
    [
        (AT_TRIM_HORIZON, OLDEST),
        (ExtendedSequenceNumber("2"), RewindTarget(ExtendedSequenceNumber("4"))),
        (ExtendedSequenceNumber("2"), RewindTarget(ExtendedSequenceNumber("2"))),
        (
            ExtendedSequenceNumber(AT_TIMESTAMP, 7),
            RewindTarget(ExtendedSequenceNumber(AT_TIMESTAMP, 9)),
        ),
    ],
)
@virtual
async def test_a_lease_that_stands_before_the_target_is_left(checkpoint, target):
    """A rewind never skips."""
    world = a_world()
    world.put(0, 4)
    world.leases.leases[key(0)] = a_lease(lease_owner=None, checkpoint=checkpoint)
    _, (row,) = await carry_out(world, target)
    assert row.state is RewindState.LEFT
    assert world.lease().checkpoint == checkpoint


@pytest.mark.parametrize("kind", ["set back before", "pinned"])
@pytest.mark.parametrize(
    ("aim", "first"),
    [("oldest", 0), ("earlier", 1), ("record", 1), ("same", None), ("later", None), ("far", None)],
)
@virtual
async def test_of_a_lease_that_stands_at_an_instant_what_is_before_it_is_told_by_arrival(
    kind, aim, first
):
    """It stands at record 3: to go to record 1 is back, to go to record 4 would be forward."""
    world = a_world()
    await fill(world)
    at_ms = world.put_ms
    pin = {"instant_ms": at_ms[3], "created_ms": 0}
    await world.state.write("pin", key(0), pin, expected_version=None)
    checkpoint = AT_LATEST if kind == "pinned" else since(at_ms[3])
    world.leases.leases[key(0)] = a_lease(lease_owner=None, checkpoint=checkpoint)
    target = {
        "oldest": OLDEST,
        "earlier": RewindTarget(since(at_ms[1])),
        "record": RewindTarget(ExtendedSequenceNumber(world.put_numbers[0])),
        "same": RewindTarget(since(at_ms[3])),
        "later": RewindTarget(since(at_ms[4])),
        "far": RewindTarget(ExtendedSequenceNumber(world.put_numbers[3])),
    }[aim]
    _, (row,) = await carry_out(world, target)
    if first is None:
        assert (row.state, world.lease().checkpoint) == (RewindState.LEFT, checkpoint)
    else:
        assert (row.state, row.records) == (RewindState.SET_BACK, 0)
        assert await read_on(world) == list(range(first, 20))


@virtual
async def test_an_instant_after_everything_handled_is_left():
    world = a_world()
    world.put(0, 4)
    await world.clock.sleep_ms(60_000)
    free = a_lease(lease_owner=None, checkpoint=ExtendedSequenceNumber("5"))
    world.leases.leases[key(0)] = free
    target = RewindTarget(since(world.clock.now_ms() - 1_000))
    _, (row,) = await carry_out(world, target)
    assert (row.state, world.lease()) == (RewindState.LEFT, free)


@pytest.mark.parametrize(("number", "sub"), [("999", 0), ("3", 1)])
@virtual
async def test_a_record_that_is_not_in_the_shard_is_refused(number, sub):
    world = a_world()
    world.put(0, 4)
    stands = ExtendedSequenceNumber("1000")
    world.leases.leases[key(0)] = a_lease(lease_owner=None, checkpoint=stands)
    target = RewindTarget(ExtendedSequenceNumber(number, sub), whole_record=not sub)
    with pytest.raises(ConfigurationError, match="no such record"):
        await carry_out(world, target)


@virtual
async def test_a_lease_at_the_tip_that_has_read_nothing_can_be_set_back_and_repeats_nothing():
    world = a_world()
    world.put(0, 4)
    world.leases.leases[key(0)] = a_lease(lease_owner=None, checkpoint=AT_LATEST)
    _, (row,) = await carry_out(world, OLDEST)
    assert (row.state, row.records) == (RewindState.SET_BACK, 0)
    assert await read_on(world) == [0, 1, 2, 3, 4]


@virtual
async def test_a_lag_that_nobody_tells_is_not_the_end_of_a_count():
    world = a_world()
    world.put(0, 20)
    await world.turn(turn_ms=100_000)
    saying_nothing_at_first(world.stream, 3)
    plan = await rewinder(world).preview([key(0)], OLDEST, with_children=False)
    assert (plan.rows[0].records, plan.rows[0].complete) == (21, True)


@pytest.mark.parametrize(
    "target", [since(0), ExtendedSequenceNumber("1")], ids=["instant", "record"]
)
@virtual
async def test_where_all_pages_that_are_looked_at_are_empty_that_is_said_and_nothing_is_moved(
    target,
):
    """K20: empty pages before the first record are normal, and prove nothing."""
    world = a_world()
    world.put(0, 20)
    await world.turn(turn_ms=100_000)
    stands = world.lease().checkpoint
    saying_nothing_at_first(world.stream, 3)
    at_work = rewinder(world, pages_most=2)
    (row,) = (await at_work.preview([key(0)], RewindTarget(target), with_children=False)).rows
    assert (row.state, world.lease().checkpoint) == (RewindState.LEFT, stands)
    assert row.why == "2 pages from there had no record: look further (--pages)"


@virtual
async def test_a_count_that_is_too_long_says_so_and_the_rewind_is_whole():
    world = a_world()
    world.put(0, 1_499)
    await world.turn(turn_ms=100_000)
    at_work = rewinder(world, pages_most=1)
    plan = await at_work.preview([key(0)], OLDEST, with_children=False)
    assert (plan.rows[0].records, plan.rows[0].complete) == (1_000, False)


@pytest.mark.parametrize("landed", [True, False])
@virtual
async def test_a_write_without_an_answer_is_looked_up(landed):
    world = a_world()
    world.put(0, 4)
    world.leases.leases[key(0)] = a_lease(lease_owner=None, checkpoint=ExtendedSequenceNumber("5"))
    left = [1]

    def lose(change, *_):
        if change.operation == "rewind" and left[0]:
            left[0] -= 1
            raise OutcomeUnknown("lost")

    setattr(world.leases, "after" if landed else "before", lose)
    _, (row,) = await carry_out(world, OLDEST)
    assert row.state is RewindState.SET_BACK
    assert world.leases.operations() == ["rewind"]
    assert await read_on(world) == [0, 1, 2, 3, 4]


@virtual
async def test_who_takes_the_lease_in_between_keeps_it_as_it_is():
    """A worker of another making knows nothing of pauses (L12 is conditional on no owner)."""
    world = a_world()
    world.put(0, 4)
    world.leases.leases[key(0)] = a_lease(lease_owner=None, checkpoint=ExtendedSequenceNumber("5"))

    def take(change):
        if change.operation == "rewind":
            lease = world.lease()
            taken = replace(lease, lease_owner="java", lease_counter=lease.lease_counter + 1)
            world.leases.leases[key(0)] = taken

    world.leases.before = take
    _, (row,) = await carry_out(world, OLDEST)
    assert (row.state, row.owner) == (RewindState.HELD, "java")
    assert world.lease().checkpoint == ExtendedSequenceNumber("5")


# --- relatives


async def split(world):
    """Put 0 to 4 into a shard, split it, put 5 to 9 into the children; all is handled."""
    world.put(0, 4)
    world.stream.split(key(0))
    for n in range(5, 10):
        world.put(n, number=1 + n % 2)
    await world.turn(turn_ms=100_000)
    assert sorted(world.numbers) == list(range(10))
    assert world.lease(0).checkpoint == AT_SHARD_END


@virtual
async def test_a_finished_shard_is_set_back_and_its_children_are_named_as_ahead():
    world = a_world()
    await split(world)
    plan, (row,) = await carry_out(world, OLDEST)
    assert (row.records, row.children_ahead) == (5, (key(1), key(2)))
    assert plan.rows[0].checkpoint == "SHARD_END"
    before = world.lease(1).checkpoint
    assert await read_on(world, 0) == [0, 1, 2, 3, 4]
    assert world.lease(0).checkpoint == AT_SHARD_END
    assert world.lease(1).checkpoint == before


@virtual
async def test_with_its_children_everything_comes_again_parents_first():
    world = a_world()
    await split(world)
    turn = asyncio.create_task(world.turn())
    _, rows = await carry_out(world, OLDEST, with_children=True)
    await turn
    assert [row.records for row in rows] == [5, 2, 3]
    assert not any(row.children_ahead for row in rows)
    again = await read_on(world, 0, 1, 2)
    assert again[:5] == [0, 1, 2, 3, 4]
    assert sorted(again) == list(range(10))


@virtual
async def test_if_one_of_a_family_is_held_none_is_set_back():
    world = a_world()
    await split(world)
    world.leases.leases[key(2)] = replace(world.lease(2), lease_owner="java")
    for number in (0, 1):
        world.leases.leases[key(number)] = replace(world.lease(number), lease_owner=None)
    wrote = world.leases.operations()
    _, rows = await carry_out(world, OLDEST, with_children=True, within_ms=2_000)
    assert {row.state for row in rows} == {RewindState.HELD}
    assert world.leases.operations() == wrote


@virtual
async def test_a_parent_without_a_lease_is_named_as_not_read_again():
    world = a_world()
    await split(world)
    del world.leases.leases[key(0)]
    at_work = rewinder(world)
    plan = await at_work.preview([key(1)], OLDEST, with_children=False)
    assert plan.unleased == (key(0),)


@virtual
async def test_a_shard_that_has_left_the_stream_is_gone():
    world = a_world()
    plan, (row,) = await carry_out(world, OLDEST, 7)
    assert (row.state, plan.keys) == (RewindState.GONE, ())


@virtual
async def test_a_misrouted_aggregate_that_workers_drop_is_not_counted():
    world = a_world(misrouted="kpl")
    put_aggregate(world, 0, 9)
    world.put(10)
    low = HashKeyRange(0, 1)
    number = world.stream.put(b"11", key="k11", shard_id=key(0))
    world.leases.leases[key(0)] = a_lease(
        lease_owner=None, hash_key_range=low, checkpoint=ExtendedSequenceNumber(number)
    )
    (row,) = (await rewinder(world).preview([key(0)], OLDEST, with_children=False)).rows
    assert row.records == 2
