"""The key of a lease is spelled in one place: whatever it is, shards are read by their own ids."""

import pytest

from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN
from tests.engine.worker_side.worker_kit import World, a_lease, key
from tests.virtual import virtual

FIRST = 900_000_000_000


def spelled(shard_id):
    return key(FIRST + int(shard_id.removeprefix("shardId-")))


@pytest.fixture(autouse=True)
def spelled_otherwise(monkeypatch):
    """Spell keys as nobody does, and still so that they are taken for a fleet's."""

    def of(lease_key, stream_arn):
        number = int(lease_key.removeprefix("shardId-")) - FIRST
        assert number >= 0, f"{lease_key} was spelled elsewhere"
        return ShardRef(stream_arn, key(number))

    monkeypatch.setattr(ShardRef, "of", of)
    monkeypatch.setattr(ShardRef, "lease_key", property(lambda shard: spelled(shard.shard_id)))


@virtual
async def test_a_whole_worker_reads_ends_and_goes_on_with_children():
    world = World(leases=[a_lease(lease_key=spelled(key(0)))])
    world.put(1, 20)
    world.stream.split(key(0))
    world.put(21, 22, number=1)
    world.put(23, 25, number=2)

    await world.turn()

    assert sorted(world.numbers) == list(range(1, 26))
    batches = [call.batch for call in world.handler.calls]
    assert {batch.shard_id for batch in batches} == {key(n) for n in range(3)}
    assert {batch.stream_arn for batch in batches} == {MEMORY_STREAM_ARN}
    assert world.leases.leases.keys() == {spelled(key(n)) for n in range(3)}
    parent = world.leases.leases[spelled(key(0))]
    assert parent.checkpoint == AT_SHARD_END
    assert parent.child_shard_ids == (key(1), key(2))


@virtual
async def test_the_children_of_a_merge_wait_for_both_parents():
    leases = [a_lease(n, lease_key=spelled(key(n))) for n in range(2)]
    world = World(shards=2, leases=leases)
    world.put(1, 5)
    world.put(6, 9, number=1)
    world.stream.merge(key(0), key(1))
    world.put(10, 12, number=2)

    await world.turn()

    assert sorted(world.numbers[:9]) == list(range(1, 10))
    assert world.numbers[9:] == [10, 11, 12]
