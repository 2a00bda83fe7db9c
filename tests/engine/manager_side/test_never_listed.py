"""Leases in the table of shards that the stream never had: not assigned, deleted or counted."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import NeverListed
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.errors import ConfigurationError
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet, shard
from tests.virtual import virtual

OURS = [f"shardId-{n:012d}" for n in range(4)]
"""The shards of the kit's stream; an application of another stream may have eight."""
FREE, HELD, FINISHED, CHILD = (f"shardId-{n:012d}" for n in range(4, 8))
STRANGERS = {
    FREE: Lease(lease_key=FREE, checkpoint=AT_TRIM_HORIZON, lease_counter=3),
    HELD: Lease(lease_key=HELD, checkpoint=AT_TRIM_HORIZON, lease_owner="java-1"),
    FINISHED: Lease(lease_key=FINISHED, checkpoint=AT_SHARD_END, child_shard_ids=(CHILD,)),
    CHILD: Lease(lease_key=CHILD, checkpoint=AT_TRIM_HORIZON, parent_shard_ids=(FINISHED,)),
}


async def turns(fleet, slots, *, times):
    for _ in range(times):
        await fleet.clock.sleep_ms(15_000)
        fleet.renew(*OURS)
        await fleet.beat(*slots)
        report = await fleet.manager.turn()
    return report


@virtual
async def test_those_of_an_application_of_a_larger_stream_are_left_as_they_are():
    fleet = Fleet()
    slots = await running_fleet(fleet)
    fleet.leases.leases |= STRANGERS
    await turns(fleet, slots, times=12)
    assert {key: fleet.leases.leases[key] for key in STRANGERS} == STRANGERS
    (done,) = fleet.named("ManagerTurnDone")[-1:]
    assert (done.total_leases, done.unclaimed_leases, done.expired_leases) == (4, 0, 0)
    assert [event.leases for event in fleet.named("ForeignLeasesFound")] == [4]


@virtual
async def test_a_fleet_does_not_begin_beside_them():
    fleet = Fleet()
    fleet.leases.leases |= STRANGERS
    with pytest.raises(ConfigurationError, match=FREE):
        await fleet.manager.turn()
    assert fleet.leases.leases == STRANGERS


@virtual
async def test_in_the_middle_of_a_reshard_none_is_taken_and_none_of_ours_is_let_go():
    """Its children are not listed yet (awslabs/amazon-kinesis-client issue 164)."""
    fleet = Fleet()
    slots = await running_fleet(fleet)
    fleet.leases.leases |= STRANGERS
    await turns(fleet, slots, times=1)
    whole, fleet.stream.shards = fleet.stream.shards, fleet.stream.shards[:2]
    report = await turns(fleet, slots, times=12)
    assert [lease.lease_key for lease in report.plan.leases] == OURS
    assert {key: fleet.leases.leases[key] for key in STRANGERS} == STRANGERS
    fleet.stream.shards = whole
    report = await turns(fleet, slots, times=1)
    assert [lease.lease_key for lease in report.plan.leases] == OURS


@virtual
async def test_what_a_worker_gave_back_as_never_listed_is_not_assigned_again():
    """A parent of the same id as one of ours, which no reshard has closed: it might be a child."""
    fleet = Fleet()
    slots = await running_fleet(fleet)
    fleet.leases.leases[CHILD] = child = replace(STRANGERS[CHILD], parent_shard_ids=OURS[:1])
    note = GoneNote(lease_key=CHILD, first_ms=1, unlisted_ms=1, reason=NeverListed())
    await GoneRecord(fleet.store).write(note, None)
    await turns(fleet, slots, times=4)
    assert fleet.leases.leases[CHILD] == child
    assert fleet.named("ManagerTurnDone")[-1].stopped_shards == 0
    # Once it is listed it is ours, whatever was noted.
    split = shard(7, 0, 2, parents=(0,)), shard(8, 2, 4, parents=(0,))
    fleet.stream.shards = [shard(0, 0, 4, closed=True), *fleet.stream.shards[1:], *split]
    report = await turns(fleet, slots, times=1)
    assert CHILD in {lease.lease_key for lease in report.plan.leases}
