"""A fleet in memory as it stands in an account: long names, long numbers, a virtual clock."""

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.balance.migration import IndexStatus
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.ledger import day_of
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryLeaseStore, MemoryStateStore
from shardfleet_testkit.memory_stream import MemoryStream
from tests.cli.memory_access import memory_access
from tests.domain.builders import a_failure, a_lease

# As long as Kinesis's own: 56 digits.
NUMBER = "49590338271490256608559692538361571095921575989136588898"
FIRST, SECOND, SPLIT, FINISHED, MERGED = (f"shardId-{number:012d}" for number in range(5))
WORKERS = "clicks-consumer-s0001", "clicks-consumer-s0002"
STATES = ("healthy", "stopped", "failing", "empty")
# What is readable of a slot that somebody has spoiled: who it is, and not what runs.
SPOILED_SLOT = {"worker_id": WORKERS[0], "state": "RUNNING", "lags_ms": "none"}
CONFIG = FleetConfig(
    fleet="clicks-consumer",
    stream_arn="arn:aws:kinesis:eu-central-1:123456789012:stream/clicks",
    lease_table="clicks-leases",
    state_table="clicks-state",
)


async def clicks_fleet(state):
    """
    Build the fleet: two workers, three shards read, one paused.

    Its state is one of `STATES`, "java" (workers of the KCL beside it), "spoiled" (documents that
    cannot be read) or "begun" (the merged shard is, so that its parent's lease can go).
    """
    clock = VirtualClock()
    now_ms = clock.now_ms()
    stream = _stream(clock)
    documents = FleetState(MemoryStateStore(), clock)
    leases = MemoryLeaseStore([] if state == "empty" else _leases(now_ms))
    if state != "empty":
        for at, worker in enumerate(WORKERS, 1):
            fails = state == "failing" and at == 1
            times = {"first_ms": now_ms - 40_000, "last_ms": now_ms - 1_000}
            slot = Slot(
                slot_id=f"s000{at}",
                worker_id=worker,
                state=SlotState.RUNNING,
                name=f"{worker}-0001",
                start_epoch=1,
                heartbeat_ms=now_ms - 480,
                lags_ms={(FIRST, SECOND)[at - 1]: 90_000 * at},
                failure=a_failure(**times) if fails else None,
            )
            await documents.write_slot(slot, None)
        why = {"by": "ann", "since_ms": now_ms - 60_000, "reason": "a new index is built"}
        body = {"fleet": None, "leases": {SPLIT: why}}
        await documents.store.raw.write("pause", "fleet", body, expected_version=None)
        used = {"mb_ms": 256 * 43_200_000, "requests": 720, "write_tenths": 1_000}
        times = {"began_ms": now_ms - 43_200_000, "until_ms": now_ms}
        page = {"used": used, "metrics": ["lag", "records"]} | times
        ledger = f"ledger {day_of(now_ms)}"
        await documents.store.raw.write(ledger, "manager", page, expected_version=None)
    if state == "stopped":
        await documents.write_stop(_stop(now_ms))
    if state == "begun":
        _begin(leases.leases)
    if state == "spoiled":
        await _spoil(documents.store.raw)
    fleet = memory_access(CONFIG, leases=leases, state=documents, stream=stream, clock=clock)
    if state == "java":
        await _with_java(fleet)
    return fleet


def _stream(clock):
    """Return a stream that has had each shard with a lease: two were merged, and have aged out."""
    stream = MemoryStream(clock, shards=4)
    stream.merge(SPLIT, FINISHED)
    for shard_id in (SPLIT, FINISHED):
        stream.forget_shard(shard_id)
    return stream


def _stop(now_ms):
    return StopNote(
        lease_key=FIRST,
        position=f"{NUMBER}:413",
        error="ValueError: order 7 cannot be shipped",
        attempts=5,
        worker_id=WORKERS[0],
        at_ms=now_ms - 5_000,
    )


def _begin(leases):
    """Let the merged shard have been read from, as its parent's lease knows."""
    leases[MERGED] = a_lease(f"{MERGED} at {NUMBER} by {WORKERS[1]}")
    leases[FINISHED] = replace(leases[FINISHED], child_shard_ids=(MERGED,))


async def _spoil(store):
    """Let documents be unreadable: two that are mended, and a window, which is only dropped."""
    await store.write("slot", "s0001", SPOILED_SLOT, expected_version=1)
    await store.write("stop", FIRST, {"attempts": "many"}, expected_version=None)
    await store.write("window", SECOND, {"state": [1]}, expected_version=None)


async def _with_java(fleet):
    """Give a worker of a KCL 3.5, and one of a KCL 2, a shard; the table has no index."""
    shown, other = "java-1", "java-2"
    fleet.kcl3.rows[shown] = fleet.clock.now_ms() // 1000
    fleet.index.found = IndexStatus.MISSING
    for key, owner in ((FIRST, shown), (SECOND, other)):
        fleet.leases.leases[key] = replace(fleet.leases.leases[key], lease_owner=owner)


def _leases(now_ms):
    first, second = WORKERS
    return [
        a_lease(f"{FIRST} at {NUMBER}:413 by {first} counter 1107"),
        a_lease(f"{SECOND} at {NUMBER} by {second} counter 12"),
        a_lease(f"{SPLIT} at {NUMBER}"),
        a_lease(f"{FINISHED} at SHARD_END"),
        a_lease(f"{MERGED} at AT_TIMESTAMP:{now_ms} by {second}"),
    ]
