"""What the manager keeps of its turns: differences with reasons, bounded, never in the way."""

from msgspec.structs import replace

from shardfleet.domain import turn as domain_turn
from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.reasons import Quoted
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.domain.turn_log import Entry, Happening
from shardfleet.engine.manager import history as turn_history
from shardfleet.engine.manager.history import KEPT_MS, History, KeptTurn
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.errors import Throttled
from shardfleet_testkit.memory import MemoryStateStore
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet, shard
from tests.virtual import virtual

NUMBERS = [f"shardId-{n:012d}" for n in range(8)]


async def story(fleet, subject):
    """Return what happened to a lease or a slot, over all kept turns."""
    turns = await History(fleet.store).turns(since_ms=0)
    return [entry for turn in turns for entry in turn.entries if entry.subject == subject]


@virtual
async def test_a_new_fleet_tells_how_every_lease_came_to_its_worker():
    fleet = Fleet(leases_per_worker=2)
    await running_fleet(fleet)
    for key in NUMBERS[:4]:
        entries = await story(fleet, key)
        assert [entry.what for entry in entries] == [
            Happening.CREATED,
            Happening.WAITS,
            Happening.ASSIGNED,
        ]
        assert all(entry.reason for entry in entries)
    (started,) = await story(fleet, "s0001")
    assert (started.what, started.worker_id) == (Happening.SLOT_STARTED, "f-s0001")
    assert str(started.reason) == (
        "the fleet needs 2 workers: 4 leases to read, 2 at most in a slot"
    )
    places = await History(fleet.store).places()
    assert {key[-1]: place.entry.worker_id for key, place in places.items()} == {
        "0": "f-s0001",
        "1": "f-s0002",
        "2": "f-s0001",
        "3": "f-s0002",
    }


@virtual
async def test_a_plan_of_any_size_fits_its_document_and_no_turn_fails_by_it(monkeypatch):
    """An item holds 400 KB: what is left out is what tells least."""
    fleet = Fleet(leases_per_worker=1, max_workers=4, assignment="greedy", leases_to_acquire=1)
    await running_fleet(fleet)
    long = "x" * 200
    children = [f"shardId-{n:012d}" for n in range(1_000, 3_000)]
    for number, key in enumerate(children):
        parents = (NUMBERS[number % 4], f"{key}-{long}")
        child = replace(fleet.leases.leases[NUMBERS[0]], lease_key=key, lease_owner=None)
        fleet.leases.leases[key] = replace(child, parent_shard_ids=parents)
    read = plan_lease_cleanup

    def kept(shards, leases, **options):
        found = read(shards, leases, **options)
        return replace(found, delete=(), kept=tuple((key, Quoted(long)) for key in children))

    monkeypatch.setattr(domain_turn, "plan_lease_cleanup", kept)
    problems = tuple(Quoted(f"{n} {long}") for n in range(1_000))
    synced = domain_turn.plan_lease_sync

    def confused(*arguments, **options):
        return replace(synced(*arguments, **options), problems=problems)

    monkeypatch.setattr(domain_turn, "plan_lease_sync", confused)
    report = await fleet.manager.turn()
    body = await fleet.state.plan()
    assert body["at_ms"] == report.at_ms
    assert (len(body["problems"]), len(body["left"])) == (1_000, 1_000)
    assert 0 < len(body["kept"]) < 1_000
    left = len(report.plan.assignment.left) - 1_000
    assert body["left_out"] == {"left": left, "kept": 2_000 - len(body["kept"])}


@virtual
async def test_a_turn_in_which_nothing_happened_is_not_kept():
    fleet = Fleet(leases_per_worker=2)
    await running_fleet(fleet)
    await fleet.manager.turn()
    before = len(await fleet.store.list("turn"))
    for manager in (fleet.manager, LeaseManager(fleet.config, fleet.ports())):
        fleet.renew()
        await fleet.clock.sleep_ms(20_000)
        await fleet.beat("s0001", "s0002")
        await manager.turn()
    assert len(await fleet.store.list("turn")) == before


@virtual
async def test_kept_turns_expire_after_a_week():
    fleet = Fleet()
    await fleet.manager.turn()
    turns = await fleet.store.list("turn")
    assert turns
    for document in turns:
        assert fleet.store.expires_ms["turn", document.id] == document.body["at_ms"] + KEPT_MS
    assert not {kind for kind, _ in fleet.store.expires_ms} - {"turn"}


@virtual
async def test_what_workers_did_between_two_turns_is_told_by_the_next():
    fleet = Fleet([shard(0, 0, 16)], min_workers=1)
    await running_fleet(fleet)
    await fleet.clock.sleep_ms(20_000)
    parent = fleet.leases.leases[NUMBERS[0]]
    owner = parent.lease_owner
    fleet.stream.shards = [
        shard(0, 0, 16, closed=True),
        shard(1, 0, 8, parents=[0]),
        shard(2, 8, 16, parents=[0]),
    ]
    ended = replace(parent, checkpoint=AT_SHARD_END, child_shard_ids=tuple(NUMBERS[1:3]))
    child = replace(parent, lease_key=NUMBERS[1], parent_shard_ids=(NUMBERS[0],))
    fleet.leases.leases |= {
        NUMBERS[0]: ended,
        NUMBERS[1]: replace(child, checkpoint=ExtendedSequenceNumber("205")),
    }
    await fleet.beat("s0001")
    await fleet.manager.turn()
    finished = (await story(fleet, NUMBERS[0]))[-2]
    assert (finished.what, finished.worker_id) == (Happening.FINISHED, owner)
    appeared = (await story(fleet, NUMBERS[1]))[0]
    assert (appeared.what, appeared.worker_id) == (Happening.APPEARED, owner)
    assert NUMBERS[0] in str(appeared.reason)
    made = [entry.what for entry in await story(fleet, NUMBERS[2])]
    assert made == [Happening.CREATED, Happening.ASSIGNED]


@virtual
async def test_a_lost_race_is_told_and_the_place_is_what_is_found_later():
    fleet = Fleet([shard(0, 0, 16)])
    await fleet.manager.turn()
    await fleet.beat("s0001")
    apply = fleet.leases.apply

    async def somebody_was_first(change):
        lease = fleet.leases.leases[change.lease_key]
        if change.operation == "assign":
            fleet.leases.leases[lease.lease_key] = replace(lease, lease_owner="java")
        return await apply(change)

    fleet.leases.apply = somebody_was_first
    await fleet.manager.turn()
    await fleet.clock.sleep_ms(10_000)
    await fleet.manager.turn()
    what = [entry.what for entry in await story(fleet, NUMBERS[0])]
    assert what[-2:] == [Happening.REFUSED, Happening.TAKEN]
    place = (await History(fleet.store).places())[NUMBERS[0]]
    assert (place.entry.worker_id, place.since_ms) == ("java", fleet.clock.now_ms())


@virtual
async def test_a_table_that_refuses_fails_no_turn_and_the_next_turn_tells_both():
    fleet = Fleet([shard(0, 0, 16)])
    write = fleet.store.write
    refused = []

    async def refuse(kind, *args, **kwargs):
        if kind in ("turn", "places"):
            refused.append(kind)
            raise Throttled
        return await write(kind, *args, **kwargs)

    fleet.store.write = refuse
    await fleet.manager.turn()
    assert refused
    fleet.store.write = write
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert [entry.what for entry in await story(fleet, NUMBERS[0])] == [
        Happening.CREATED,
        Happening.WAITS,
        Happening.ASSIGNED,
    ]


@virtual
async def test_more_entries_than_a_document_holds_are_kept_in_several_and_the_rest_is_counted(
    monkeypatch,
):
    monkeypatch.setattr(turn_history, "ROWS_PER_DOCUMENT", 10)
    monkeypatch.setattr(turn_history, "DOCUMENTS_MOST", 3)
    store = MemoryStateStore()
    entries = [Entry(what=Happening.CREATED, subject=f"{n:03d}") for n in range(47)]
    await History(store).write_turn(5, entries)
    turns = await History(store).turns(since_ms=0)
    assert [len(turn.entries) for turn in turns] == [10, 10, 10]
    assert sum(turn.left_out for turn in turns) == 17
    assert [e for turn in turns for e in turn.entries] == entries[:30]
    await History(store).write_turn(5, entries[:1])
    assert len(await store.list("turn")) == 4
    assert await History(store).turns(since_ms=6) == []
    await store.write("turn", "x", {"at_ms": 7, "entries": []}, expected_version=None)
    assert await History(store).turns(since_ms=7) == [KeptTurn(7, ())]


@virtual
async def test_of_more_places_than_fit_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(turn_history, "PLACE_DOCUMENTS", 1)
    monkeypatch.setattr(turn_history, "PLACES_PER_DOCUMENT", 3)
    fleet = Fleet(leases_per_worker=4)
    await fleet.manager.turn()
    assert len(await History(fleet.store).places()) == 3
