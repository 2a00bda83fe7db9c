"""
What the simulated peer does to leases is what the real KCL did in a recorded history.

The histories are of ``tests/interop/recording.py``, which says what happens in them; the same
happens here to two simulated peers.
"""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from shardfleet.adapters.dynamodb.items import ENTITY_TYPE, item_from_fields
from shardfleet.config import FleetConfig
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.changes import fields_of
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet_testkit.memory import MemoryKcl3Store, MemoryStateStore
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from shardfleet_testkit.simulation.actors import SimulationLoop
from shardfleet_testkit.simulation.faults import FaultMix, Faults
from shardfleet_testkit.simulation.functions import Functions, Services
from shardfleet_testkit.simulation.java_leader import Kcl3World
from shardfleet_testkit.simulation.streams import TrueStream
from shardfleet_testkit.simulation.surroundings import Surroundings
from shardfleet_testkit.simulation.tables import LeaseTable
from shardfleet_testkit.simulation.wire import Outage
from tests.interop.history import LeaseHistory

HISTORIES = Path(__file__).parent / "histories"
REAL = {name: json.loads((HISTORIES / f"kcl-{name}.json").read_text("utf-8"))
        for name in ("2.7", "3.1")}  # fmt: skip
SHARDS, HELD, STRANGER = 8, 2, "stranger"
PATIENCE_S = 600
# The KCL takes a worker for active whose row is as old at most (protocol.md §2.6).
FRESH_MS = 60_000
# The KCL deletes finished leases after five minutes.
LEFT_TO_THE_MANAGER = {("item gone",)}
SOMEBODY = SimpleNamespace(name="somebody", worker_id="", frozen_ms=0, faults=[], execution=(0, 0))


def item_of(lease):
    """Return a lease as an item, without what only the KCL 3.5 and we write."""
    item = None if lease is None else item_from_fields(fields_of(lease))
    return item and {name: value for name, value in item.items() if name != ENTITY_TYPE}


class Rows(MemoryKcl3Store):
    """Rows whose writes are told."""

    def __init__(self, told):
        super().__init__()
        self.told = told

    async def write(self, row):
        await super().write(row)
        self.told(row.worker_id)


class Peers:
    """Two peers and a stranger, in a world where nothing goes wrong."""

    def __init__(self, *, leads, seed):
        self.history = LeaseHistory(strangers=[STRANGER])
        faults = Faults(seed, FaultMix.none())
        self.around = Surroundings(seed, faults, renew_ms=3_333, checkers=())
        self.around.seers["lease_written"].append(self.heard)
        rows = Rows(lambda worker: self.history.row(self.around.now_ms, worker))
        self.stream = TrueStream(self.around, shards=SHARDS)
        self.table = LeaseTable(self.around)
        services = Services(
            leases=self.table,
            state=MemoryStateStore(),
            stream=self.stream,
            lease_outage=Outage(),
            state_outage=Outage(),
            kcl3=Kcl3World(rows=rows) if leads else None,
        )
        config = FleetConfig(
            fleet="none", stream_arn=MEMORY_STREAM_ARN, lease_table="leases", state_table="state"
        )
        self.functions = Functions(
            self.around, services, config=config, worker_box_ms=90_000, handlers_overlap=False
        )
        self.stranger_stays = True

    def heard(self, write):
        key, before, after = write.change.lease_key, item_of(write.before), item_of(write.after)
        self.history.write(write.at_ms, key, before=before, after=after)

    async def run(self):
        await self.make_leases()
        for work in (self.renew(), self.produce()):
            self.around.spawn(work, "outside")
        self.functions.peer(1)
        await self.until(lambda: self.held("java-1") == SHARDS - HELD)
        second = self.functions.peer(2)
        await self.until(lambda: self.held("java-2") >= 3)
        owners = self.owners()
        self.stream.split(next(key for key in self.by_hash() if owners[key] == "java-2"))
        await self.until(self.is_resharded)
        self.stream.merge(*self.by_hash()[-2:])
        await self.until(self.is_resharded)
        await asyncio.sleep(60)
        second.kill()
        await self.until(lambda: not self.held("java-2"))
        self.stranger_stays = False
        await self.until(lambda: not self.held(STRANGER))
        for actor in list(self.functions.alive):
            actor.kill()

    async def make_leases(self):
        for number, key in enumerate(self.by_hash()):
            lease = Lease(
                lease_key=key,
                checkpoint=AT_TRIM_HORIZON,
                lease_owner=STRANGER if number < HELD else None,
                hash_key_range=self.stream.memory.shard(key).hash_key_range,
            )
            await self.table.apply(lease_changes.create(lease), SOMEBODY)

    async def renew(self):
        while self.stranger_stays:
            for lease in list(self.table.store.leases.values()):
                if lease.lease_owner == STRANGER:
                    renewed = await self.table.apply(lease_changes.renew(lease), SOMEBODY)
                    assert isinstance(renewed, Applied)
            await asyncio.sleep(3)

    async def produce(self):
        for number in range(100_000):
            self.stream.put(f"key-{number % 40}", users=1 + number % 3)
            await asyncio.sleep(0.1)

    def by_hash(self):
        memory = self.stream.memory
        return sorted(memory.open_shard_ids, key=lambda key: memory.shard(key).hash_key_range.start)

    def owners(self):
        leases = self.table.store.leases.values()
        return {le.lease_key: le.effective_owner for le in leases if not le.is_finished}

    def held(self, worker):
        return list(self.owners().values()).count(worker)

    def is_resharded(self):
        owners = self.owners()
        return set(self.by_hash()) == owners.keys() and all(owners.values())

    async def until(self, condition):
        for _ in range(2 * PATIENCE_S):
            if condition():
                return
            await asyncio.sleep(0.5)
        raise TimeoutError(self.owners())


def history(*, leads, seed):
    async def run():
        peers = Peers(leads=leads, seed=seed)
        await peers.run()
        return json.loads(json.dumps(peers.history.body()))

    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        return runner.run(run())


@pytest.fixture(scope="module", params=["2.7", "3.1"])
def both(request):
    """The real history, and those of a few seeds together."""
    name = request.param
    return name, REAL[name], [history(leads=name == "3.1", seed=seed) for seed in (1, 2, 3)]


class Move(NamedTuple):
    """A change of an owner, as a history has it: ``leaseOwner``, ``checkpointOwner``."""

    at_ms: int
    lease: int
    before: list
    after: list
    is_finished: bool
    row_age_ms: int | None


def moves(told):
    return [Move(*each) for each in told["moves"]]


def handovers(told):
    return [each for each in moves(told) if each.after[1] and not each.before[1]]


def test_it_writes_what_the_kcl_writes_and_nothing_else(both):
    _, real, simulated = both

    found = {tuple(kind) for told in simulated for kind in told["kinds"]}

    assert found == {tuple(kind) for kind in real["kinds"]} - LEFT_TO_THE_MANAGER


def test_it_renews_as_often(both):
    _, real, simulated = both
    _, middle, most = real["between_renewals_ms"]

    for told in simulated:
        assert told["between_renewals_ms"][1] == pytest.approx(middle, rel=0.1)
        assert told["between_renewals_ms"][2] <= most


def test_what_nobody_has_is_its_as_soon(both):
    """The KCL 2 takes at once, the leader of a KCL 3 has a row and gives with its second run."""
    _, real, simulated = both

    for told in simulated:
        assert moves(told)[5].at_ms == pytest.approx(moves(real)[5].at_ms, abs=5_000)


def test_rows_are_written_as_often_and_by_a_kcl_3_alone(both):
    name, real, simulated = both

    for told in (real, *simulated):
        spread = told["between_rows_ms"]
        assert bool(spread) == (name == "3.1")
        if spread:
            assert spread[1] == pytest.approx(30_000, rel=0.1)


def test_a_kcl_3_gives_leases_to_workers_with_fresh_rows_and_no_others(both):
    name, real, simulated = both
    if name == "2.7":
        assert not any(handovers(told) for told in (real, *simulated))
        return

    for told in (real, *simulated):
        assert handovers(told)
        given = [each for each in moves(told) if each.after[0] not in (None, each.before[0])]
        assert {each.after[0] for each in given} == {"java-1", "java-2"}
        assert all(each.row_age_ms is not None for each in given)
        assert max(each.row_age_ms for each in given) <= FRESH_MS


def test_only_a_kcl_2_takes_what_another_worker_reads(both):
    name, real, simulated = both

    for told in (real, *simulated):
        stolen = [
            each
            for each in moves(told)
            if each.before == ["java-1", None]
            and each.after == ["java-2", None]
            and not each.is_finished
        ]
        assert bool(stolen) == (name == "2.7")


def test_what_a_stranger_renews_is_left_to_it(both):
    _, real, simulated = both

    for told in (real, *simulated):
        lost_ms = [each.at_ms for each in moves(told) if each.before[0] == STRANGER]
        assert len(lost_ms) == HELD
        assert min(lost_ms) > max(each.at_ms for each in moves(told) if each.before[0] == "java-2")
