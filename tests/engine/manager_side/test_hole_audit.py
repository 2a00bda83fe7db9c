"""A lease that a foreign hand deletes is made again, so that nothing is skipped."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.reasons import LeaseLostUnseen
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.engine.manager.history import History
from shardfleet.engine.manager.observe import began_ms
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.ports import ListingFilter
from shardfleet.engine.state.kinds import PIN
from tests.engine.manager_side.fleet_kit import Fleet, four_shards, running_fleet, shard
from tests.virtual import virtual

KEYS = [f"shardId-{n:012d}" for n in range(8)]


async def read_fleet(**options):
    """Bring a fleet to the point where every shard has been read."""
    fleet = Fleet(leases_per_worker=4, **options)
    await running_fleet(fleet)
    for key, lease in fleet.leases.leases.items():
        fleet.leases.leases[key] = replace(lease, checkpoint=ExtendedSequenceNumber("150"))
    return fleet


def began_with(fleet, shards):
    """Let the stream say that these were open at any instant it is asked about."""
    listed = fleet.stream.list_shards

    async def as_of(listing=ListingFilter.NONE, *, instant_ms=None):
        if listing is ListingFilter.AT_TIMESTAMP:
            return shards
        return await listed(listing, instant_ms=instant_ms)

    fleet.stream.list_shards = as_of


async def turns(fleet, count, *, every_ms=20_000):
    """Let so many managers have a turn each: nothing is remembered but in the tables."""
    for _ in range(count):
        await fleet.clock.sleep_ms(every_ms)
        fleet.renew()
        await fleet.beat(*[d.id for d in await fleet.store.list("slot")])
        await LeaseManager(fleet.config, fleet.ports()).turn()


@virtual
async def test_at_latest_a_lost_lease_is_made_at_the_third_sighting_and_not_at_latest():
    fleet = await read_fleet(initial_position="LATEST")
    del fleet.leases.leases[KEYS[1]]
    await turns(fleet, 2)
    assert KEYS[1] not in fleet.leases.leases
    assert fleet.named("LeaseHealed") == []
    await turns(fleet, 1)
    assert str(fleet.leases.leases[KEYS[1]].checkpoint) == "TRIM_HORIZON"
    assert fleet.leases.leases[KEYS[1]].lease_owner
    (healed,) = fleet.named("LeaseHealed")
    assert healed.lease_key == KEYS[1]
    assert healed.reason == LeaseLostUnseen()
    place = (await History(fleet.store).places())[KEYS[1]]
    assert place.entry.worker_id == fleet.leases.leases[KEYS[1]].lease_owner


@virtual
async def test_turns_in_quick_succession_are_one_sighting():
    fleet = await read_fleet(initial_position="LATEST")
    del fleet.leases.leases[KEYS[1]]
    await turns(fleet, 4, every_ms=1_000)
    assert KEYS[1] not in fleet.leases.leases


@virtual
async def test_a_lease_that_is_back_in_time_is_no_suspect_any_more():
    fleet = await read_fleet(initial_position="LATEST")
    lease = fleet.leases.leases.pop(KEYS[1])
    await turns(fleet, 2)
    fleet.leases.leases[KEYS[1]] = lease
    await turns(fleet, 4)
    del fleet.leases.leases[KEYS[1]]
    await turns(fleet, 2)
    assert fleet.named("LeaseHealed") == []


@pytest.mark.parametrize("initial", ["TRIM_HORIZON", "AT_TIMESTAMP"])
@virtual
async def test_elsewhere_a_lost_lease_is_made_at_once_and_told_all_the_same(initial):
    fleet = await read_fleet(initial_position=initial, initial_timestamp_ms=1_700_000_000_000)
    del fleet.leases.leases[KEYS[1]]
    await turns(fleet, 1)
    assert str(fleet.leases.leases[KEYS[1]].checkpoint) == initial
    assert [each.lease_key for each in fleet.named("LeaseHealed")] == [KEYS[1]]


@virtual
async def test_the_first_leases_of_a_fleet_are_no_repair():
    fleet = Fleet()
    fleet.stream.shards = four_shards()
    await running_fleet(fleet)
    assert fleet.named("LeaseHealed") == []


@virtual
async def test_a_shard_that_was_closed_before_the_fleet_began_is_left_alone():
    before = [shard(0, 0, 16, closed=True)]
    now = [shard(1, 0, 8, parents=[0]), shard(2, 8, 16, parents=[0])]
    fleet = Fleet([*before, *now], leases_per_worker=4, initial_position="LATEST")
    began_with(fleet, now)
    await running_fleet(fleet)
    for key, lease in fleet.leases.leases.items():
        fleet.leases.leases[key] = replace(
            lease, checkpoint=ExtendedSequenceNumber("150"), parent_shard_ids=()
        )
    del fleet.leases.leases[KEYS[1]]
    await turns(fleet, 3)
    assert sorted(fleet.leases.leases) == KEYS[1:3]
    assert str(fleet.leases.leases[KEYS[1]].checkpoint) == "TRIM_HORIZON"


@virtual
async def test_what_is_done_with_is_kept_before_its_lease_is_deleted():
    """A split of 0 was read; of its line every lease is lost later: it begins behind 0."""
    now = [shard(0, 0, 4, closed=True), *four_shards()[1:]]
    now += [shard(4, 0, 2, parents=[0]), shard(5, 2, 4, parents=[0])]
    fleet = await read_fleet()
    fleet.stream.shards = now
    leases = fleet.leases.leases
    ended = replace(leases[KEYS[0]], checkpoint=AT_SHARD_END, lease_owner=None)
    leases[KEYS[0]] = replace(ended, child_shard_ids=(KEYS[4], KEYS[5]))
    for key in KEYS[4:6]:
        child = replace(leases[KEYS[1]], lease_key=key, parent_shard_ids=(KEYS[0],))
        leases[key] = replace(child, hash_key_range=None)
    kept = []
    write = fleet.leases.apply

    async def apply(change):
        if change.operation == "delete":
            kept.append((change.lease_key, await fleet.state.finished()))
        return await write(change)

    fleet.leases.apply = apply
    await turns(fleet, 1)
    assert kept == [(KEYS[0], {KEYS[0]})]
    del leases[KEYS[4]], leases[KEYS[5]]
    await turns(fleet, 1)
    assert sorted(leases) == KEYS[1:6]
    assert {str(leases[key].checkpoint) for key in KEYS[4:6]} == {"TRIM_HORIZON"}


async def begun_without(missing, *, since):
    """Begin at LATEST; one create is lost, and the stream has moved on when the next turn comes."""
    fleet = Fleet(leases_per_worker=4, initial_position="LATEST")
    began_with(fleet, list(fleet.stream.shards))
    await running_fleet(fleet)
    del fleet.leases.leases[missing]
    began_ms = (await fleet.store.read(PIN, missing)).body["instant_ms"]
    fleet.stream.shards = since
    await turns(fleet, 1)
    return fleet, began_ms


async def pins(fleet):
    """Return the instant of each pin."""
    return {pin.id: pin.body["instant_ms"] for pin in await fleet.store.list(PIN)}


@virtual
async def test_a_lease_that_a_fleets_first_turn_lost_begins_with_the_others_although_it_was_split():
    since = [shard(0, 0, 4, closed=True), *four_shards()[1:]]
    since += [shard(4, 0, 2, parents=[0]), shard(5, 2, 4, parents=[0])]
    fleet, began_ms = await begun_without(KEYS[0], since=since)
    assert sorted(fleet.leases.leases) == KEYS[:4]
    assert str(fleet.leases.leases[KEYS[0]].checkpoint) == "LATEST"
    assert (await pins(fleet))[KEYS[0]] == began_ms


@virtual
async def test_children_of_what_the_first_turn_lost_begin_when_the_fleet_did_once_it_aged_out():
    since = four_shards()[1:]
    since += [shard(4, 0, 2, parents=[0]), shard(5, 2, 4, parents=[0])]
    fleet, began_ms = await begun_without(KEYS[0], since=since)
    assert sorted(fleet.leases.leases) == KEYS[1:6]
    found = await pins(fleet)
    assert [found[key] for key in KEYS[4:6]] == [began_ms, began_ms]


@virtual
async def test_pins_of_an_earlier_life_of_the_stream_do_not_tell_when_a_fleet_began():
    fleet = Fleet(leases_per_worker=4, initial_position="LATEST")
    await fleet.state.pin(KEYS[7], instant_ms=5, created_ms=fleet.stream.created_ms - 1)
    assert await began_ms(fleet.store, fleet.stream.created_ms) is None
    await fleet.state.pin(KEYS[6], instant_ms=9, created_ms=fleet.stream.created_ms)
    assert await began_ms(fleet.store, fleet.stream.created_ms) == 9


@virtual
async def test_a_merge_of_which_one_parent_left_the_stream_unread_does_not_hold_up_javas_worker():
    """Seed 1904, NoRecordLost: it waits for a lease of each parent, and nobody made the other."""
    fleet = await read_fleet()
    for number, lease in enumerate(list(fleet.leases.leases.values())):
        fleet.leases.leases[lease.lease_key] = replace(
            lease, lease_owner="java-1", lease_counter=lease.lease_counter + number
        )
    merged = shard(9, 0, 8, parents=(0, 1))
    fleet.stream.shards = [shard(1, 4, 8, closed=True), *four_shards()[2:], merged]
    del fleet.leases.leases[KEYS[0]]
    await turns(fleet, 2)
    assert KEYS[0] not in fleet.leases.leases
    await turns(fleet, 1)
    gone = fleet.leases.leases[KEYS[0]]
    assert gone.is_finished
    assert gone.child_shard_ids == (merged.shard_id,)
    await turns(fleet, 3)
    assert fleet.leases.leases[KEYS[0]].is_finished  # Kept until the child has begun (C4).
