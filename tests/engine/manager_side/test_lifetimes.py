"""
What a fleet keeps is bounded by the leases that live, whatever was resharded and set back before.

The manager is the real one, in a new invocation each minute, over a state table that refuses some
writes; the stream is drawn, and workers leave behind what workers write. `make test` draws 300
reshards and 30 rewinds; SHARDFLEET_TEST_DRAWN=1000 (`make whole`) 10,000 and 1,000.
"""

import os
import random
from collections import Counter
from itertools import pairwise

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.cleanup import is_over
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.engine.manager.history import PLACE_DOCUMENTS
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.beside import generation_of, raise_generation
from shardfleet.engine.state.kinds import GLANCES, HANDOVERS, OF_A_LEASE, SIGHTINGS, SUSPECTS
from shardfleet.engine.state.rows import read_rows
from shardfleet.errors import ShardfleetError, Throttled
from shardfleet_testkit.memory import MemoryStateStore
from tests.engine.manager_side.fleet_kit import Fleet, four_shards, shard
from tests.engine.state.documents_kit import FIXTURES, VERSION, kept
from tests.virtual import virtual

DRAWN = int(os.environ.get("SHARDFLEET_TEST_DRAWN", "30"))
RESHARDS, REWINDS = 10 * DRAWN, DRAWN
TURN_MS, TURNS_A_MINUTE = 20_000, 3
OPEN = range(4, 33)
RETAINED_MS = 30 * 60_000
BODIES = {
    kind: {"known_ms": 1} if kind == "gone" else kept(FIXTURES / VERSION / f"{kind}.json").body
    for kind in OF_A_LEASE - {"generation"}
}
REFUSED = ["", "", "", "sightings", "finished", "loads", "generation", "plan"]
BODIES["stop"] |= {"attempts": 0}  # One that a person has taken back.


class Refusing(MemoryStateStore):
    """A table that refuses a kind of documents for a time."""

    def __init__(self):
        super().__init__()
        self.refuses = ""
        self.refused = 0

    async def write(self, kind, id, body, **how):  # noqa: A002 - the port's name
        if kind == self.refuses:
            self.refused += 1
            raise Throttled("no")
        return await super().write(kind, id, body, **how)

    def expire(self):
        """Take away what happened in turns: it goes by itself, in a week, and is not counted."""
        for key in self.expires_ms:
            self.documents.pop(key, None)
        self.expires_ms.clear()


class Stream:
    """Draws splits and merges of shards whose leases live, and lets go of what is old."""

    def __init__(self, fleet, rng):
        self._fleet, self._rng = fleet, rng
        self._closed_ms = {}
        self.reshards = 0

    def reshard(self):
        """Split a shard, or merge two neighbours, that have been begun."""
        shards, leases = self._fleet.stream.shards, self._fleet.leases.leases
        begun = [
            each
            for each in sorted(shards, key=lambda each: each.hash_key_range.start)
            if each.is_open and each.shard_id in leases
            and not leases[each.shard_id].checkpoint.is_sentinel
        ]  # fmt: skip
        is_split = sum(each.is_open for each in shards) < self._rng.choice(OPEN)
        if is_split and begun:
            parents = [self._rng.choice(begun)]
            ranges = parents[0].hash_key_range.halves
        else:
            pairs = [
                (a, b)
                for a, b in pairwise(begun)
                if a.hash_key_range.end + 1 == b.hash_key_range.start
            ]
            if not pairs:
                return
            parents = list(self._rng.choice(pairs))
            first, last = (each.hash_key_range for each in parents)
            ranges = (replace(first, end=last.end),)
        self.reshards += 1
        now_ms, first_number = self._fleet.clock.now_ms(), 4 + len(self._closed_ms) * 2
        for parent in parents:
            shards[shards.index(parent)] = replace(parent, ending_sequence_number="9" * 9)
            self._closed_ms[parent.shard_id] = now_ms
        ids = [each.shard_id for each in parents] + [None]
        shards += [
            Shard(
                shard_id=key_of(first_number + n),
                hash_key_range=covered,
                starting_sequence_number=str(100 + first_number + n),
                parent_shard_id=ids[0],
                adjacent_parent_shard_id=ids[1],
            )
            for n, covered in enumerate(ranges)
        ]

    def let_go(self):
        """Take away shards that were closed before the retention and whose lease is over."""
        oldest_ms, leases = self._fleet.clock.now_ms() - RETAINED_MS, self._fleet.leases.leases
        self._fleet.stream.shards[:] = [
            each
            for each in self._fleet.stream.shards
            if self._closed_ms.get(each.shard_id, oldest_ms) >= oldest_ms or each.shard_id in leases
        ]


class Workers:
    """Do to the leases what workers do, and leave behind what they write."""

    def __init__(self, fleet, rng):
        self._fleet, self._rng = fleet, rng
        self.written = set()

    async def work(self):
        """Begin, write, and end what is closed; parents before children."""
        fleet, leases = self._fleet, self._fleet.leases.leases
        graph = ShardGraph(fleet.stream.shards)
        for key in sorted(leases):
            lease = leases[key]
            if lease.is_finished or lease.lease_owner is None:
                continue
            if any(p in leases and not leases[p].is_finished for p in lease.parent_shard_ids):
                continue
            if lease.checkpoint.is_sentinel:
                leases[key] = replace(lease, checkpoint=ExtendedSequenceNumber("500"))
            elif not graph.shards[key].is_open:
                end = replace(lease, checkpoint=AT_SHARD_END, child_shard_ids=graph.children(key))
                leases[key] = replace(end, lease_owner=None)
            await self._leave_behind(key)
        self._delete_as_java(leases)

    async def _leave_behind(self, key):
        store = self._fleet.store
        for kind in sorted(BODIES):
            if (kind, key) not in store.documents:
                await MemoryStateStore.write(store, kind, key, BODIES[kind], expected_version=None)
                self.written.add((kind, key))

    def _delete_as_java(self, leases):
        """Delete a finished lease whose children have begun, as a leader of the KCL does."""
        over = [
            key
            for key, lease in leases.items()
            if lease.is_finished
            and leases.keys().isdisjoint(lease.parent_shard_ids)
            and all(c in leases and not leases[c].checkpoint.is_sentinel
                    for c in lease.child_shard_ids)
        ]  # fmt: skip
        if over and self._rng.random() < 0.2:
            del leases[self._rng.choice(over)]


async def rewind(fleet, rng):
    """Set a lease back as `shardfleet rewind` does."""
    leases = fleet.leases.leases
    key = rng.choice(sorted(key for key, lease in leases.items() if not lease.is_finished))
    before = await generation_of(fleet.store, key)
    await raise_generation(fleet.store, key, now_ms=fleet.clock.now_ms())
    assert (await generation_of(fleet.store, key)).number > before.number
    leases[key] = replace(leases[key], checkpoint=AT_TRIM_HORIZON)


def key_of(number):
    return f"shardId-{number:012d}"


async def minute(fleet, workers, *, refuses=""):
    """Run an invocation of the manager, and the workers meanwhile."""
    fleet.manager = LeaseManager(fleet.config, fleet.ports())
    for turn in range(TURNS_A_MINUTE):
        fleet.store.refuses = "" if turn else refuses
        try:
            await fleet.manager.turn()
        except ShardfleetError:
            assert refuses
        fleet.store.refuses = ""
        await fleet.beat(*(each.slot.slot_id for each in await fleet.state.slots()))
        await workers.work()
        fleet.renew()
        await fleet.clock.sleep_ms(TURN_MS)
    fleet.store.expire()


async def kept_beyond(fleet):
    """Return what is kept of leases that are over, and of shards that are not listed any more."""
    living, listed = fleet.leases.leases.keys(), {each.shard_id for each in fleet.stream.shards}
    kinds = (SIGHTINGS, HANDOVERS, GLANCES, SUSPECTS)
    rows = {kind: (await read_rows(fleet.store, kind)).keys() - living for kind in kinds}
    rows["loads"] = (await fleet.state.loads()).leases.keys() - living
    rows["finished"] = await fleet.state.finished() - listed
    documents = {key for key in fleet.store.documents if key[0] in OF_A_LEASE}
    return {
        **{kind: keys for kind, keys in rows.items() if keys},
        **{kind: key for kind, key in documents if key not in living},
    }


@virtual
async def test_documents_and_rows_are_bounded_by_the_living_leases_after_any_reshards_and_rewinds():
    rng = random.Random(45)
    fleet = Fleet(four_shards(), leases_per_worker=100, min_workers=2, max_workers=2)
    fleet.store = Refusing()
    fleet.state = type(fleet.state)(fleet.store, fleet.clock)
    fleet.manager = LeaseManager(fleet.config, fleet.ports())
    stream, workers, rewinds = Stream(fleet, rng), Workers(fleet, rng), 0
    while stream.reshards < RESHARDS or rewinds < REWINDS:
        for _ in range(rng.randrange(9)):
            stream.reshard()
        await minute(fleet, workers, refuses=rng.choice(REFUSED))
        if rewinds * RESHARDS < stream.reshards * REWINDS:
            rewinds += 1
            await rewind(fleet, rng)
        stream.let_go()
        workers.written = {e for e in workers.written if e[1] in fleet.leases.leases}
        assert not workers.written - fleet.store.documents.keys()
    for _ in range(90):  # A generation is kept for an hour.
        await minute(fleet, workers)
        stream.let_go()
    assert await kept_beyond(fleet) == {}
    made = Counter(each.lease_key for each in fleet.named("LeaseCreated"))
    assert [key for key, times in made.items() if times > 1] == []
    assert fleet.store.refused
    most = max(len(fleet.leases.leases), PLACE_DOCUMENTS)
    counted = Counter(kind for kind, _ in fleet.store.documents)
    assert {kind: count for kind, count in counted.items() if count > most} == {}


CLOSED = shard(0, 0, 16, closed=True)
SPLIT = [CLOSED, shard(4, 0, 8, parents=(0,)), shard(5, 8, 16, parents=(0,))]


@pytest.mark.parametrize(
    ("number", "leases", "listed", "finished", "over"),
    [
        (0, (0, 4, 5), SPLIT, (0,), False),  # its lease is there
        (0, (4, 5), SPLIT, (0,), True),
        (0, (4, 5), SPLIT, (), False),  # nothing says that it is done with
        (4, (0, 5), SPLIT, (0,), False),  # its lease is lost, and made again
        (1, (0, 4, 5), SPLIT, (0,), True),  # aged out
        (6, (0, 4, 5), SPLIT, (0,), False),  # a child that is not listed yet
        (1, (0, 4), SPLIT[:2], (0,), False),  # a listing with holes proves nothing
        (1, (), (), (), False),
    ],
)
def test_a_shard_is_over_without_a_lease_only_if_none_will_be_made(
    number, leases, listed, finished, over
):
    found = is_over(
        key_of(number),
        leases={key_of(n) for n in leases},
        graph=ShardGraph(listed),
        finished={key_of(n) for n in finished},
    )
    assert found == over
    assert not is_over("imported", leases=(), graph=ShardGraph(SPLIT), finished=())


@virtual
async def test_of_a_lease_that_is_about_to_be_made_anew_the_generation_stays():
    """`shardfleet rewind` raises it, and makes the lease of a shard that was done with."""
    fleet = Fleet(SPLIT)
    await fleet.manager.turn()
    leases = fleet.leases.leases
    leases[key_of(0)] = replace(leases[key_of(0)], checkpoint=AT_SHARD_END)
    await fleet.manager.turn()
    for number in (4, 5):
        begun = replace(leases[key_of(number)], checkpoint=ExtendedSequenceNumber("500"))
        leases[key_of(number)] = begun
    await fleet.manager.turn()
    assert key_of(0) not in leases
    assert key_of(0) in await fleet.state.finished()
    await raise_generation(fleet.store, key_of(0), now_ms=fleet.clock.now_ms())
    for minutes in (59, 2):
        assert (await generation_of(fleet.store, key_of(0))).number
        await fleet.clock.sleep_ms(minutes * 60_000)
        fleet.manager = LeaseManager(fleet.config, fleet.ports())
        await fleet.manager.turn()
    assert not (await generation_of(fleet.store, key_of(0))).number


@virtual
async def test_who_comes_too_late_to_make_a_lease_spares_what_its_window_has():
    """A manager that was frozen: somebody has made the lease, and its owner has read on."""
    fleet = Fleet(SPLIT)
    apply, free = fleet.leases.apply, Lease(lease_key=key_of(0), checkpoint=AT_TRIM_HORIZON)
    begun = replace(free, checkpoint=ExtendedSequenceNumber("500"), lease_counter=9)

    async def after_another(change):
        if change.lease_key == key_of(0):
            fleet.leases.leases[key_of(0)] = begun
        return await apply(change)

    fleet.leases.apply = after_another
    await fleet.manager.turn()
    for _ in range(2):
        found = await generation_of(fleet.store, key_of(0))
        assert found.number
        assert 0 in found.numbers_for(begun)
        assert 0 not in found.numbers_for(free)
        del fleet.leases.leases[key_of(0)]
        await fleet.manager.turn()
