"""What the balancing compares: measured over seconds, smoothed over turns."""

from msgspec.structs import replace

from shardfleet.domain.balance.loads import Loads, WorkerUse, smoothed
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import Usage
from tests.domain.builders import a_lease


def next_use(before, told, *, kbps=100.0):
    """Return what worker w uses in a turn in which its only lease, always, carries so much."""
    lease = a_lease("0 by w", throughput_kbps=kbps)
    loads = Loads({"0": round(kbps * 1024)}, {} if before is None else {"w": before})
    return smoothed(loads, [lease], {"w": told}).workers["w"]


BEFORE = WorkerUse(102_400, busy=400_000, cpu=200_000)


def test_throughput_is_smoothed_over_turns_and_forgotten_with_the_lease():
    first = smoothed(Loads({"gone": 7}), [a_lease("0", throughput_kbps=100.0), a_lease("1")], {})
    second = smoothed(first, [a_lease("0", throughput_kbps=200.0)], {})

    assert first.leases == {"0": 102_400}
    assert second.leases == {"0": 128_000}


def test_what_a_worker_uses_is_smoothed_over_turns_and_forgotten_with_the_worker():
    use = next_use(BEFORE, Usage(busy=480, cpu=201))

    assert use == WorkerUse(102_400, busy=410_000, cpu=200_125)
    assert use.usage == Usage(busy=410, cpu=200)
    assert smoothed(Loads({}, {"w": BEFORE}), [], {}).workers == {}


def test_nothing_before_is_nothing_to_smooth_with():
    assert next_use(None, Usage(busy=440)) == WorkerUse(102_400, busy=440_000)
    assert next_use(None, Usage()) == WorkerUse(102_400)


def test_a_worker_is_expected_to_use_more_for_leases_that_it_was_given_and_less_without():
    assert next_use(BEFORE, Usage(600, 300), kbps=150.0).usage == Usage(600, 300)
    assert next_use(BEFORE, Usage(520, 300), kbps=150.0).usage == Usage(590, 300)
    assert next_use(BEFORE, Usage(200, 100), kbps=50.0).usage == Usage(200, 100)


def test_a_worker_with_the_leases_it_had_is_not_expected_to_use_more_because_more_is_read():
    """What is read is smoothed, too, and is still rising when all that is used has been told."""
    lease = a_lease("0 by w", throughput_kbps=150.0)
    loads = smoothed(Loads({"0": 102_400}, {"w": BEFORE}), [lease], {"w": Usage(400, 200)})

    assert loads.workers["w"] == WorkerUse(115_200, busy=400_000, cpu=200_000)


def test_nobody_is_expected_to_use_more_than_there_is():
    full = WorkerUse(102_400, busy=900_000, cpu=900_000)

    assert next_use(full, Usage(1_000, 1_000), kbps=150.0).usage == Usage(1_000, 1_000)


def test_what_a_worker_used_for_next_to_nothing_says_nothing_of_what_it_uses_now():
    told = Usage(busy=300, cpu=100)

    assert next_use(WorkerUse(1_024, 50_000, 50_000), told).usage == told
    assert next_use(WorkerUse(0, 50_000, 50_000), told).usage == told
    assert next_use(BEFORE, told, kbps=0.0).usage == told


def test_a_worker_without_anything_to_read_is_smoothed_too():
    before = WorkerUse(0, busy=0, cpu=40_000)

    assert next_use(before, Usage(busy=0, cpu=80), kbps=0.0).usage == Usage(busy=0, cpu=45)


def test_a_worker_that_tells_nothing_yet_uses_what_is_to_be_expected():
    assert next_use(BEFORE, Usage(), kbps=150.0).usage == Usage(busy=600, cpu=300)


def test_what_a_worker_has_ceased_to_tell_is_unknown():
    assert next_use(BEFORE, Usage(cpu=200)).usage == Usage(cpu=200)
    assert next_use(WorkerUse(102_400, cpu=200_000), Usage(9, 200)).usage == Usage(9, 200)


def test_leases_and_slots_are_seen_with_what_was_smoothed():
    loads = Loads({"0": 51_200}, {"w": BEFORE})
    slot = Slot(
        slot_id="s", worker_id="w", state=SlotState.RUNNING, name="n", start_epoch=1, busy=9
    )
    known, unknown = a_lease("0", throughput_kbps=9.0), a_lease("1", throughput_kbps=9.0)

    assert [le.throughput_kbps for le in loads.of_leases([known, unknown])] == [50.0, 9.0]
    assert loads.of_slot(slot).usage == BEFORE.usage
    assert loads.of_slot(replace(slot, worker_id="v")).usage == Usage(busy=9)
