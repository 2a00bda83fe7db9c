"""No document of the manager's outgrows an item of DynamoDB, however large the fleet is."""

from itertools import pairwise

from msgspec.structs import replace

from shardfleet.domain.balance.loads import Loads, WorkerUse
from shardfleet.domain.item_size import value_bytes
from shardfleet.domain.leases.handovers import Handover
from shardfleet.domain.reasons import Quoted
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.shards import Shard
from shardfleet.domain.turn_log import Entry, Happening, Place
from shardfleet.engine.manager.history import History
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import HANDOVERS
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from tests.engine.manager_side.fleet_kit import Fleet
from tests.virtual import virtual

# Developer Guide, "Constraints in DynamoDB": an item holds 400 KB; the rest is for key and version.
BYTES_MOST = 350 * 1024
SHARDS, SLOTS = 10_000, 1_000
KEYS = [f"shardId-{n:012d}" for n in range(SHARDS)]
WORKERS = [f"{'fleet-with-a-long-name-of-its-own-':-<35}{n:05d}" for n in range(SLOTS)]


def too_large(store):
    """Return kind, id and size of what nears the limit."""
    sizes = {key: value_bytes(document.body) for key, document in store.documents.items()}
    return {key: size for key, size in sizes.items() if size > BYTES_MOST}


def shards():
    """Return 10,000 open shards over the whole hash space."""
    edges = [(HASH_KEY_MAX + 1) * n // SHARDS for n in range(SHARDS + 1)]
    ranges = [HashKeyRange(low, high - 1) for low, high in pairwise(edges)]
    return [Shard(shard_id=k, hash_key_range=r) for k, r in zip(KEYS, ranges, strict=True)]


@virtual
async def test_turns_over_10_000_shards_and_1_000_slots_leave_no_document_near_the_limit():
    fleet = Fleet(shards(), leases_per_worker=10, max_workers=SLOTS)
    for _ in range(2):
        report = await fleet.manager.turn()
        assert not too_large(fleet.store)
        await fleet.beat(*[document.id for document in await fleet.store.list("slot")])
    body = await fleet.state.plan()
    assert len(report.plan.assignment.assignments) == SHARDS
    kept = len(body["assigned"])
    assert body["left_out"]["assigned"] == SHARDS - kept
    assert not [each for each in fleet.leases.leases.values() if each.lease_owner is None]


@virtual
async def test_handovers_of_every_lease_and_the_loads_of_all_are_kept_whole():
    store = MemoryStateStore()
    state = FleetState(store, VirtualClock())
    pending = {key: Handover(WORKERS[0], WORKERS[1], 1_700_000_000_000) for key in KEYS}
    loads = Loads(
        dict.fromkeys(KEYS, 2**40),
        dict.fromkeys(WORKERS, WorkerUse(2**40, 1_000_000, 1_000_000)),
    )
    await state.write_handovers(pending)
    await state.write_loads(loads)
    assert await state.handovers() == pending
    assert await state.loads() == loads
    assert not too_large(store)
    await state.write_handovers({})
    assert await state.handovers() == {}
    assert len(await store.list(HANDOVERS)) == 1


@virtual
async def test_places_with_long_reasons_are_cut_and_counted():
    store = MemoryStateStore()
    seen = Entry(what=Happening.CREATED, subject="", reason=Quoted("x" * 1_000))
    places = {key: Place(1_700_000_000_000, replace(seen, subject=key)) for key in KEYS}
    await History(store).write_places({}, places)
    assert not too_large(store)
    assert sum(d.body["left_out"] for d in await store.list("places")) > 0
