"""The manager and sleeping shards: looked at once per period, woken rather than lost."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reading.pages import StartKind
from shardfleet.domain.reasons import Asleep, Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.sleep.sleep import Glance, Nap
from shardfleet.domain.stream.sequence import AT_LATEST, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.kinds import GLANCES, NAP, TIP
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.rows import read_rows, write_rows
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import IteratorExpired, ShardGone, Throttled
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.memory import MemoryStateStore
from shardfleet_testkit.memory_stream import MemoryStream
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.virtual import virtual

HOUR_MS = 3_600_000


def key(number):
    return f"shardId-{number:012d}"


class SleepingFleet(Fleet):
    """A fleet of which shards sleep: what its workers have left is written by hand."""

    def __init__(self, *, shards=2, **options):
        super().__init__(**{"sleep": True, **options})
        self.stream = MemoryStream(self.clock, shards=shards)
        self.manager = LeaseManager(self.config, self.ports())

    def again(self):
        """Let another invocation of the manager begin, which remembers nothing."""
        self.manager = LeaseManager(self.config, self.ports())

    async def put_to_sleep(self, *numbers, done=None, after="", since_ms=None):
        """Leave a nap and a lease without an owner, as a worker does."""
        for number in numbers:
            now_ms = self.clock.now_ms() if since_ms is None else since_ms
            checkpoint = done or AT_TRIM_HORIZON
            known = self.leases.leases.get(key(number))
            self.leases.leases[key(number)] = Lease(
                lease_key=key(number),
                checkpoint=checkpoint,
                lease_counter=known.lease_counter + 1 if known else 5,
                hash_key_range=self.stream.shard(key(number)).hash_key_range,
            )
            nap = Nap(
                lease_key=key(number),
                worker_id="f-s0001",
                since_ms=now_ms,
                done=checkpoint,
                after=after,
            )
            assert await NapRecord(self.store).begin(nap)

    def looks(self, number=None):
        """Return when shards were read, milliseconds."""
        reads = [call for call in self.stream.calls if call.operation == "get_records"]
        return [call.at_ms for call in reads if number in (None, int(call.shard_id[-3:]))]

    def woken(self):
        return {int(e.lease_key[-3:]): str(e.reason) for e in self.named("LeaseWoken")}

    @property
    def told(self):
        return self.named("ManagerTurnDone")[-1]


def a_fleet(**options):
    return SleepingFleet(**options)


def in_fleet(scenario, **options):
    async def main():
        return await scenario(SleepingFleet(**options))

    return run_virtual(main())


@virtual
async def test_a_fleet_that_sleeps_wants_no_slots_and_nobody_is_alarmed():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    report = await fleet.manager.turn()

    assert fleet.owners() == {0: None, 1: None}
    assert report.plan.slots.wanted == 0
    assert not report.plan.is_awake
    assert fleet.launcher.executions == {}
    told = fleet.told
    assert (told.sleeping_leases, told.unclaimed_leases, told.slots_missing) == (2, 0, 0)
    assert (told.leases_of_unknown_lag, told.millis_behind_latest_max) == (0, 0)
    assert isinstance(dict(report.plan.assignment.left)[key(0)], Asleep)
    assert fleet.looks(0) == fleet.looks(1) == [0]


@virtual
async def test_the_first_record_wakes_its_shard_and_starts_a_slot_in_the_same_turn():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    await fleet.manager.turn()
    fleet.stream.put(b"1", shard_id=key(1))
    await fleet.clock.sleep_ms(60_000)
    fleet.again()
    report = await fleet.manager.turn()

    assert fleet.woken() == {1: "records came"}
    assert report.plan.slots.wanted == 1
    assert len(fleet.launcher.executions) == 1
    assert report.plan.is_awake
    assert fleet.told.sleeping_leases == 1
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert fleet.owners() == {0: None, 1: "f-s0001"}


@virtual
async def test_a_look_moves_no_checkpoint_and_takes_no_lease():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    fleet.stream.put(b"1", shard_id=key(1))
    before = dict(fleet.leases.leases)
    await fleet.manager.turn()
    assert fleet.leases.leases == before
    assert [c.shard_id for c in fleet.stream.calls if c.operation == "get_records"] == [
        key(0),
        key(1),
    ]


@virtual
async def test_a_closed_shard_is_woken_for_its_end():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    await fleet.manager.turn()
    fleet.stream.split(key(0))
    fleet.again()
    await fleet.manager.turn()
    assert fleet.woken() == {0: "it is closed: its end is to be read"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Throttled, "it could not be looked at, 2 times in a row"),
        (IteratorExpired, "its iterator was too old, 2 times in a row"),
        (ShardGone, "the stream no longer has it"),
    ],
)
@virtual
async def test_what_cannot_be_looked_at_is_woken_rather_than_lost(error, reason):
    fleet = a_fleet()

    def fault(call):
        if call.operation == "get_records" and call.shard_id == key(0):
            raise error("no")

    await fleet.put_to_sleep(0, 1)
    fleet.stream.fault = fault
    for _ in range(2):
        fleet.again()
        await fleet.manager.turn()
        await fleet.clock.sleep_ms(60_000)
    assert fleet.woken() == {0: reason}


@virtual
async def test_an_empty_answer_with_lag_wakes():
    fleet = a_fleet(shards=1)
    await fleet.put_to_sleep(0)
    fleet.stream.alter = lambda shard_id, page: replace(page, millis_behind_latest=3)
    await fleet.manager.turn()
    assert fleet.woken() == {0: "it is no longer at its tip"}


def starts(fleet):
    return [call.start for call in fleet.stream.calls if call.operation == "shard_iterator"]


@virtual
async def test_a_look_begins_behind_what_the_worker_has_read_and_goes_on_from_there():
    fleet = a_fleet(shards=1)
    number = fleet.stream.put(b"1", shard_id=key(0))
    done = ExtendedSequenceNumber(number)
    await fleet.put_to_sleep(0, done=done, after=number or "")
    for _ in range(10):
        fleet.again()
        await fleet.manager.turn()
        await fleet.clock.sleep_ms(60_000)
    assert fleet.woken() == {}
    (start,) = starts(fleet)
    assert (start.kind, start.sequence_number) == (StartKind.AFTER_SEQUENCE_NUMBER, number)


@virtual
async def test_iterators_are_stored_before_they_are_too_old_and_not_at_each_look():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    written = []
    for _ in range(10):
        fleet.again()
        await fleet.manager.turn()
        document = fleet.store.documents[GLANCES, "0001-0000"]
        written.append(document.version)
        await fleet.clock.sleep_ms(60_000)
    assert written == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len(starts(fleet)) == 2


@virtual
async def test_after_a_long_absence_of_the_manager_a_look_begins_anew_and_misses_nothing():
    fleet = a_fleet(shards=1)
    number = fleet.stream.put(b"1", shard_id=key(0))
    done = ExtendedSequenceNumber(number)
    await fleet.put_to_sleep(0, done=done, after=number or "")
    await fleet.manager.turn()
    await fleet.clock.sleep_ms(HOUR_MS)
    fleet.again()
    await fleet.manager.turn()
    assert len(starts(fleet)) == 2
    assert fleet.woken() == {}
    fleet.stream.put(b"2", shard_id=key(0))
    await fleet.clock.sleep_ms(HOUR_MS)
    fleet.again()
    await fleet.manager.turn()
    assert fleet.woken() == {0: "records came"}


@pytest.mark.parametrize(("days_kept", "wakes"), [(1, True), (7, False)])
@virtual
async def test_what_came_and_expired_while_nobody_looked_is_no_silence(days_kept, wakes):
    fleet = a_fleet()
    fleet.stream = MemoryStream(fleet.clock, retention_ms=days_kept * 24 * HOUR_MS)
    fleet.again()
    number = fleet.stream.put(b"1")
    await fleet.put_to_sleep(0, done=ExtendedSequenceNumber(number), after=number)
    await fleet.manager.turn()
    if wakes:
        fleet.stream.put(b"2")
    await fleet.clock.sleep_ms(25 * HOUR_MS)
    fleet.again()
    await fleet.manager.turn()
    assert list(fleet.woken().values()) == ["its position is older than the retention"] * wakes


@virtual
async def test_a_lease_at_latest_is_looked_at_from_its_pin_and_never_from_a_newer_tip():
    """Hazards H6, H7: a probe at LATEST begins at another now each time."""
    fleet = a_fleet(shards=1)
    created_ms = (await fleet.stream.incarnation()).created_ms
    pin = fleet.clock.now_ms() - 5_000
    await fleet.state.pin(key(0), instant_ms=pin, created_ms=created_ms)
    fleet.stream.put(b"1", shard_id=key(0))
    await fleet.clock.sleep_ms(10_000)
    await fleet.put_to_sleep(0, done=AT_LATEST)
    await fleet.manager.turn()
    (start,) = starts(fleet)
    assert (start.kind, start.instant_ms) == (StartKind.AT_TIMESTAMP, pin)
    assert fleet.woken() == {0: "records came"}


@pytest.mark.parametrize("records", [1, 0])
@virtual
async def test_when_a_shard_wakes_it_is_on_record_that_it_was_read_to_its_tip_until_then(records):
    fleet = a_fleet(shards=1)
    number = fleet.stream.put(b"1", shard_id=key(0)) if records else ""
    done = ExtendedSequenceNumber(number) if records else AT_TRIM_HORIZON
    await fleet.put_to_sleep(0, done=done, after=number)
    for _ in range(3):
        await fleet.manager.turn()
        quiet_ms = fleet.clock.now_ms()
        await fleet.clock.sleep_ms(60_000)
        fleet.again()
    fleet.stream.put(b"2", shard_id=key(0))
    await fleet.manager.turn()
    body = fleet.store.documents[TIP, key(0)].body
    assert (body["at_ms"], body["done"]) == (quiet_ms, str(done))


@virtual
async def test_somebody_else_in_the_lease_table_switches_sleep_off_until_an_hour_without_them():
    fleet = a_fleet()
    await fleet.put_to_sleep(0)
    fleet.leases.leases[key(1)] = Lease(
        lease_key=key(1), checkpoint=AT_TRIM_HORIZON, lease_owner="java-1"
    )
    report = await fleet.manager.turn()

    reason = "java-1 shares the lease table, and would take a lease that nobody renews"
    assert fleet.woken() == {0: reason}
    assert fleet.told.sleep_off == 1
    assert str(report.plan.sleepers.off) == reason
    (switched,) = fleet.named("SleepSwitched")
    assert (switched.is_on, str(switched.reason)) == (False, reason)
    plan = await fleet.state.plan()
    assert plan["sleep_off"] == {"is": "OtherApplication", "owner": "java-1"}
    assert fleet.looks() == []

    lease = fleet.leases.leases[key(1)]
    fleet.leases.leases[key(1)] = replace(lease, lease_owner=None)
    await fleet.clock.sleep_ms(HOUR_MS - 1)
    await fleet.manager.turn()
    assert fleet.told.sleep_off == 1
    await fleet.clock.sleep_ms(1)
    await fleet.manager.turn()
    assert fleet.told.sleep_off == 0
    assert [event.is_on for event in fleet.named("SleepSwitched")] == [False, True]


@virtual
async def test_a_sleeping_lease_that_somebody_else_took_is_left_to_them():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    await fleet.manager.turn()
    lease = fleet.leases.leases[key(0)]
    fleet.leases.leases[key(0)] = replace(lease, lease_owner="java-1", lease_counter=9)
    await fleet.manager.turn()
    assert fleet.woken().keys() == {0, 1}
    assert fleet.owners()[0] == "java-1"


@virtual
async def test_a_paused_lease_is_not_looked_at_and_sleeps_on_when_it_is_resumed():
    fleet = a_fleet()
    await fleet.put_to_sleep(0, 1)
    await PauseRecord(fleet.store).change(lambda _: Pauses(leases={key(0): Pause("ann", 5)}))
    fleet.stream.put(b"1", shard_id=key(0))
    await fleet.manager.turn()
    assert fleet.looks(0) == []
    assert (fleet.told.paused_leases, fleet.told.sleeping_leases) == (1, 1)
    await PauseRecord(fleet.store).change(lambda _: Pauses())
    await fleet.clock.sleep_ms(60_000)
    await fleet.manager.turn()
    assert fleet.woken() == {0: "records came"}


@virtual
async def test_shards_that_are_not_looked_at_fall_behind():
    """Hazard H18: silence is no health."""
    fleet = a_fleet(shards=1)
    await fleet.put_to_sleep(0)
    await fleet.manager.turn()

    def fault(call):
        if call.operation == "get_records":
            raise Throttled("no")

    fleet.stream.fault = fault
    await fleet.clock.sleep_ms(HOUR_MS)
    await fleet.manager.turn()
    assert fleet.told.sleeping_leases == 1
    assert fleet.told.millis_behind_latest_max >= HOUR_MS


@virtual
async def test_without_the_option_naps_are_nothing_and_nothing_is_looked_at():
    fleet = a_fleet(sleep=False)
    await fleet.put_to_sleep(0, 1)
    report = await fleet.manager.turn()
    assert report.plan.slots.wanted == 1
    assert fleet.looks() == []
    assert fleet.told.sleeping_leases == 0


# --- within one invocation


def seconds(times_ms):
    return [round(at_ms / 1000) for at_ms in times_ms]


@pytest.mark.parametrize(
    ("max_wake_ms", "looks_s"),
    [
        (120_000, [0]),
        (65_000, [0]),
        (60_000, [0, 5]),
        (35_000, [0, 30]),
        (25_000, [0, 20, 40]),
        (10_000, [0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55]),
    ],
)
@virtual
async def test_an_invocation_stays_for_the_looks_that_the_schedule_is_too_rare_for(
    max_wake_ms, looks_s
):
    fleet = a_fleet(max_wake_ms=max_wake_ms)
    await fleet.put_to_sleep(0, 1)
    config = fleet.config
    turns = await run_manager(config, fleet.ports(), run_ms=config.max_manager_ms)
    assert turns == 1
    assert seconds(fleet.looks(0)) == seconds(fleet.looks(1)) == looks_s
    assert round(fleet.clock.monotonic_ms() / 1000) == looks_s[-1]
    period_s = (max_wake_ms - 5_000) / 1000
    gaps = zip(looks_s, [*looks_s[1:], 60], strict=True)
    assert all(later - at <= min(60, period_s) for at, later in gaps)


def test_a_record_between_two_turns_is_found_by_the_next_look_and_answered_by_a_turn_at_once():
    async def scenario(fleet):
        await fleet.put_to_sleep(0, 1)
        config = fleet.config
        loop = asyncio.create_task(run_manager(config, fleet.ports(), run_ms=config.max_manager_ms))
        await fleet.clock.sleep_ms(31_000)
        fleet.stream.put(b"1", shard_id=key(1))
        await fleet.clock.sleep_ms(4_100)
        assert fleet.woken() == {1: "records came"}
        assert len(fleet.launcher.executions) == 1
        await fleet.beat("s0001")
        await fleet.state.prompt_manager()
        await fleet.clock.sleep_ms(1_100)
        assert fleet.owners() == {0: None, 1: "f-s0001"}
        await loop
        # Those still asleep are looked at as before.
        assert seconds(fleet.looks(0)) == list(range(0, 56, 5))

    in_fleet(scenario, max_wake_ms=10_000)


@virtual
async def test_a_shard_woken_at_the_end_of_an_invocation_is_assigned_in_it():
    fleet = a_fleet(max_wake_ms=10_000)
    await fleet.put_to_sleep(0, 1)
    config = fleet.config
    loop = asyncio.create_task(run_manager(config, fleet.ports(), run_ms=config.max_manager_ms))
    await fleet.clock.sleep_ms(54_000)
    fleet.stream.put(b"1", shard_id=key(1))
    await fleet.clock.sleep_ms(2_000)
    await fleet.beat("s0001")
    await fleet.state.prompt_manager()
    await loop
    assert fleet.owners() == {0: None, 1: "f-s0001"}
    assert fleet.clock.monotonic_ms() <= 60_100


@virtual
async def test_while_something_is_awake_those_asleep_are_looked_at_no_more_often():
    fleet = a_fleet(failover_ms=100_000)
    await running_fleet(fleet)
    await fleet.put_to_sleep(0)
    fleet.renew(key(1))
    # What a worker has not taken up yet keeps the manager awake.
    (found,) = await fleet.state.slots()
    slot = replace(found.slot, assign_seq=found.slot.served_seq + 1)
    await fleet.state.write_slot(slot, found.version)
    fleet.stream.calls.clear()
    config = fleet.config
    turns = await run_manager(config, fleet.ports(), run_ms=config.max_manager_ms)
    assert turns == 3
    assert seconds(fleet.looks(0)) == [0, 5]
    assert fleet.looks(1) == []


@virtual
async def test_a_nap_that_was_written_again_meanwhile_is_not_taken_away():
    fleet = a_fleet(shards=1)
    await fleet.put_to_sleep(0)
    ((_, version),) = await NapRecord(fleet.store).naps()
    await fleet.put_to_sleep(0)
    assert not await NapRecord(fleet.store).end(key(0), version)
    assert (NAP, key(0)) in fleet.store.documents


@virtual
async def test_glances_survive_their_documents_also_with_columns_of_a_later_version():
    store, glance = MemoryStateStore(), Glance(12, "AAA=", 11, 13, 1)
    await NapRecord(store).store_glances({key(0): glance})
    rows = await read_rows(store, GLANCES)
    later = {name: [*msgspec.structs.astuple(row), "later"] for name, row in rows.items()}
    await write_rows(store, GLANCES, later)
    assert await NapRecord(store).glances() == {key(0): glance}
