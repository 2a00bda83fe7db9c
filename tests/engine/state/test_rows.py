"""Rows stay in their buckets: what one write is refused loses no row, and none outlives its key."""

import pytest

from shardfleet.domain.balance.loads import Loads, WorkerUse
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import FINISHED, LOADS, SIGHTINGS
from shardfleet.engine.state.rows import read_rows, write_rows
from shardfleet.errors import Throttled
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import MemoryStateStore
from tests.virtual import virtual

# From these many rows to those; what comes sorts before all that is there.
CHANGES = [(0, 3), (3, 4), (333, 334), (334, 333), (500, 501), (1_200, 1_203), (1_200, 40), (40, 0)]


class Refusing(MemoryStateStore):
    """A store that refuses one write or deletion, counted from when it is told to."""

    left = -1

    async def write(self, kind, id, body, **how):  # noqa: A002 - the port's name
        self.refuse()
        return await super().write(kind, id, body, **how)

    async def delete(self, kind, id, **how):  # noqa: A002 - the port's name
        self.refuse()
        return await super().delete(kind, id, **how)

    def refuse(self):
        self.left -= 1
        if self.left == 0:
            raise Throttled("no")


def rows_of(count):
    """Return so many rows, the newest with the least key."""
    return {f"shardId-{9_999 - n:012d}": n for n in range(count)}


@pytest.mark.parametrize(("before", "after"), CHANGES)
@virtual
async def test_whichever_write_is_refused_no_row_is_missing_of_those_that_stay(before, after):
    refused = 0
    while True:
        refused += 1
        store = Refusing()
        await write_rows(store, FINISHED, rows_of(before))
        store.left = refused
        try:
            await write_rows(store, FINISHED, rows_of(after))
        except Throttled:
            kept = await read_rows(store, FINISHED)
            assert not rows_of(min(before, after)).keys() - kept.keys()
            # The next turn knows what it reads, and writes what was left.
            await write_rows(store, FINISHED, rows_of(after))
        else:
            assert refused > 1
            return
        assert await read_rows(store, FINISHED) == rows_of(after)


@virtual
async def test_a_row_more_changes_one_document():
    store = MemoryStateStore()
    await write_rows(store, SIGHTINGS, rows_of(5_000))
    before = dict(store.documents)
    await write_rows(store, SIGHTINGS, rows_of(5_001))
    assert len(store.documents) == len(before)
    assert sum(store.documents[key] != each for key, each in before.items()) == 1


@virtual
async def test_documents_as_an_earlier_release_numbered_them_are_read_and_replaced():
    store = MemoryStateStore()
    for n in range(2):
        body = {"leases": f'{{"shardId-{n}":1}}'}
        await store.write(FINISHED, f"{n:04d}", body, expected_version=None)
    rows = await read_rows(store, FINISHED)
    assert rows == {"shardId-0": 1, "shardId-1": 1}
    await write_rows(store, FINISHED, rows)
    assert [each.id for each in await store.list(FINISHED)] == ["0001-0000"]
    assert await read_rows(store, FINISHED) == rows


@virtual
async def test_loads_of_leases_and_workers_that_are_gone_are_gone():
    store = MemoryStateStore()
    state = FleetState(store, VirtualClock())
    use = WorkerUse(1, 2, 3)
    for count in (5_000, 3):
        # A worker may be named as a shard is.
        loads = Loads(rows_of(count), dict.fromkeys(rows_of(count), use))
        await state.write_loads(loads)
        assert await state.loads() == loads
    assert len(await store.list(LOADS)) == 1
