"""A manager on the embedded Kinesis at its unkindest: no lease is lost, made twice, or woken."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import ListedMidReshard
from shardfleet.domain.sleep.sleep import Nap
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.state.sleep_state import NapRecord
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.engine.unkind_stream import UnkindStream
from tests.virtual import virtual

KEYS = [f"shardId-{n:012d}" for n in range(3)]
KINDS = ("ChildrenUnlisted", "ParentsListedOpen")  # K05, K06
WRONG = ("LeaseHealed", "LeaseDeleted", "ManagerTurnFailed", "AssignmentLost")


def a_fleet(*, shards=1, **options):
    fleet = Fleet((), **options)
    fleet.stream = UnkindStream(fleet.clock, shards=shards)
    fleet.manager = LeaseManager(fleet.config, fleet.ports())
    return fleet


async def turns(fleet, count):
    """Let so many managers have a turn each, two seconds apart, while workers renew."""
    for _ in range(count):
        await fleet.clock.sleep_ms(2_000)
        fleet.renew()
        await fleet.beat(*[d.id for d in await fleet.store.list("slot")])
        await LeaseManager(fleet.config, fleet.ports()).turn()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("initial_position", ["TRIM_HORIZON", "LATEST"])
@virtual
async def test_a_listing_of_the_middle_of_a_reshard_costs_no_lease_and_tells_no_loss(
    kind, initial_position
):
    fleet = a_fleet(initial_position=initial_position)
    fleet.stream.inject(kind, DelayMs=10_000)
    await running_fleet(fleet)
    fleet.stream.put(1)
    fleet.stream.split(KEYS[0])
    await turns(fleet, 4)
    assert KEYS[0] in fleet.leases.leases
    # The worker reads the end, makes the children's leases as the last page says, and ends.
    parent = fleet.leases.leases[KEYS[0]]
    for child in KEYS[1:]:
        made = Lease(lease_key=child, checkpoint=AT_TRIM_HORIZON, parent_shard_ids=(KEYS[0],))
        fleet.leases.leases.setdefault(child, made)
    fleet.leases.leases[KEYS[0]] = replace(
        parent, checkpoint=AT_SHARD_END, child_shard_ids=tuple(KEYS[1:]), lease_owner=None
    )
    await turns(fleet, 8)
    assert sorted(fleet.leases.leases) == KEYS
    assert fleet.owners() == {0: None, 1: "f-s0001", 2: "f-s0001"}
    assert not any(fleet.named(name) for name in WRONG)
    problems = {type(each.problem) for each in fleet.named("LeaseSyncProblem")}
    assert problems <= {ListedMidReshard}
    assert {str(fleet.leases.leases[k].checkpoint) for k in KEYS[1:]} == {"TRIM_HORIZON"}


@pytest.mark.parametrize("kind", KINDS)
@virtual
async def test_a_fleet_that_begins_in_the_middle_of_a_reshard_begins_with_the_parent(kind):
    fleet = a_fleet()
    await fleet.clock.sleep_ms(1_000)
    fleet.stream.split(KEYS[0])
    fleet.stream.inject(kind, DelayMs=10_000)
    await fleet.manager.turn()
    await turns(fleet, 10)
    # Its children get theirs from whoever reads its end.
    assert fleet.owners() == {0: "f-s0001"}
    assert not any(fleet.named(name) for name in WRONG)


@virtual
async def test_an_idle_shard_that_has_lag_for_once_sleeps_on():
    """K21: only the next iterator says 0."""
    fleet = a_fleet(sleep=True)
    fleet.leases.leases[KEYS[0]] = Lease(
        lease_key=KEYS[0], checkpoint=AT_TRIM_HORIZON, lease_counter=5
    )
    nap = Nap(
        lease_key=KEYS[0],
        worker_id="f-s0001",
        since_ms=fleet.clock.now_ms(),
        done=AT_TRIM_HORIZON,
        after="",
    )
    assert await NapRecord(fleet.store).begin(nap)
    fleet.stream.inject("PhantomLag", Count=1)
    await fleet.manager.turn()
    assert fleet.named("LeaseWoken") == []
    fleet.stream.put(1)
    await fleet.clock.sleep_ms(60_000)
    await LeaseManager(fleet.config, fleet.ports()).turn()
    assert len(fleet.named("LeaseWoken")) == 1
