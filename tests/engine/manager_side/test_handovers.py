"""A lease that moves is handed over: begun by the manager, watched, and forced in the end."""

import pytest
from msgspec.structs import replace

from shardfleet.domain.balance.by_count import Assignment, AssignmentKind
from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.reasons import ExchangedToEvenOut
from shardfleet.domain.slots.slot import ask_to_drain, end
from shardfleet.domain.stream.sequence import AT_SHARD_END
from shardfleet.engine.manager.assigner import Assigner
from shardfleet.engine.manager.turn import LeaseManager
from shardfleet.engine.retry import Box
from shardfleet.errors import OutcomeUnknown
from shardfleet_testkit.clock import run_virtual
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.virtual import virtual

OLD, NEW = "f-s0001", "f-s0002"


async def uneven_fleet(**options):
    """Return a fleet of two slots of which the first holds all four leases."""
    fleet = Fleet(leases_per_worker=4, min_workers=2, assignment="count", **options)
    await running_fleet(fleet)
    for key, lease in fleet.leases.leases.items():
        fleet.leases.leases[key] = replace(lease, lease_owner=OLD)
    return fleet


def exchanged(other):
    """Return why a lease is exchanged for another one."""
    return ExchangedToEvenOut("throughput", OLD, 200, NEW, 0, other.lease_key)


def moving(fleet):
    """Return the leases in a handover."""
    return [le for le in fleet.leases.leases.values() if le.checkpoint_owner is not None]


def complete(fleet):
    """End the handovers as the old owner does."""
    for lease in moving(fleet):
        made = lease_changes.assign(lease, lease.lease_owner)
        fleet.leases.leases[lease.lease_key] = lease_changes.apply_change(made, lease).lease


async def pass_time(fleet, *, seconds, turns=True, renew=lambda fleet: fleet.renew()):
    """Let time go by, with renewals and heartbeats each 3 s."""
    for _ in range(0, seconds, 3):
        await fleet.clock.sleep_ms(3_000)
        renew(fleet)
        await fleet.beat("s0001", "s0002")
        if turns:
            await fleet.manager.turn()


@virtual
async def test_a_lease_that_moves_is_handed_over_by_an_owner_that_goes_on_until_then():
    fleet = await uneven_fleet()
    before = dict(fleet.leases.leases)
    await fleet.manager.turn()

    (lease,) = moving(fleet)
    assert (lease.checkpoint_owner, lease.lease_owner) == (OLD, NEW)
    assert lease.lease_counter == before[lease.lease_key].lease_counter
    assert lease.lease_key in (await fleet.slot("s0002")).assigned
    (told,) = fleet.named("LeaseAssigned")[-1:]
    assert (told.kind, told.worker_id) == ("HANDOVER", NEW)


@virtual
async def test_a_lease_in_a_handover_is_not_moved_again_and_counts_for_its_next_owner():
    fleet = await uneven_fleet()
    await fleet.manager.turn()
    first = moving(fleet)
    await pass_time(fleet, seconds=6)

    assert {le.lease_key for le in first} < {le.lease_key for le in moving(fleet)}
    assert len(moving(fleet)) == 2
    complete(fleet)
    await pass_time(fleet, seconds=6)
    assert not moving(fleet)
    assert sorted(fleet.owners().values()) == [OLD, OLD, NEW, NEW]


@virtual
async def test_without_handovers_a_lease_is_stolen_at_once():
    fleet = await uneven_fleet(graceful_handover=False)
    await fleet.manager.turn()

    assert not moving(fleet)
    assert sorted(fleet.owners().values()) == [OLD, OLD, OLD, NEW]
    assert fleet.named("LeaseAssigned")[-1].kind == "STEAL"


@pytest.mark.parametrize("happens", ["finished", "renewed", "handed over by others", "gone"])
@virtual
async def test_no_handover_is_begun_of_a_lease_that_changes_meanwhile(happens):
    """Between the manager's second look and its write; the next turn plans anew."""
    fleet = await uneven_fleet()
    get = fleet.leases.get

    async def get_and_change(key):
        found = await get(key)
        lease = fleet.leases.leases[key]
        moved = replace(lease, lease_counter=lease.lease_counter + 1)
        match happens:
            case "finished":
                fleet.leases.leases[key] = replace(moved, checkpoint=AT_SHARD_END)
            case "renewed":
                fleet.leases.leases[key] = moved
            case "gone":
                del fleet.leases.leases[key]
            case _:
                made = lease_changes.initiate_handover(lease, "java")
                await apply(made)
        return found

    apply = fleet.leases.apply
    fleet.leases.get = get_and_change
    await fleet.manager.turn()

    assert [le.lease_owner for le in moving(fleet)] in ([], ["java"])
    assert [e.worker_id for e in fleet.named("AssignmentLost")] == [NEW]


@pytest.mark.parametrize(
    "state", [{"checkpoint": AT_SHARD_END}, {"lease_owner": "java", "checkpoint_owner": OLD}]
)
@virtual
async def test_no_handover_is_begun_of_what_turns_out_to_be_finished_or_moving(state):
    fleet = await uneven_fleet()
    get = fleet.leases.get

    async def get_changed(key):
        lease = fleet.leases.leases[key]
        fleet.leases.leases[key] = replace(lease, **state)
        return await get(key)

    fleet.leases.get = get_changed
    await fleet.manager.turn()

    assert [e.worker_id for e in fleet.named("AssignmentLost")] == [NEW]
    assert not [le for le in moving(fleet) if le.lease_owner == NEW]


@pytest.mark.parametrize("refused", [False, True])
@virtual
async def test_of_an_exchange_the_lesser_lease_stays_when_the_greater_one_does(refused):
    """Found by the simulation: half an exchange gave more to who had too much."""
    fleet = await uneven_fleet()
    greater, lesser = sorted(fleet.leases.leases.values(), key=lambda le: le.lease_key)[:2]
    lesser = fleet.leases.leases[lesser.lease_key] = replace(lesser, lease_owner=NEW)
    get = fleet.leases.get

    async def get_and_renew(key):
        found = await get(key)
        if refused and key == greater.lease_key:
            fleet.renew(key)
        return found

    fleet.leases.get = get_and_renew
    slots = [await fleet.slot("s0001"), await fleet.slot("s0002")]
    await Assigner(leases=fleet.leases, state=fleet.state, events=fleet.events).carry_out(
        [
            Assignment(lease, taker, AssignmentKind.STEAL, exchanged(other))
            for lease, taker, other in ((greater, NEW, lesser), (lesser, OLD, greater))
        ],
        slots,
        graceful={OLD, NEW},
        box=Box(fleet.clock, 60_000),
    )

    moved = [] if refused else [(greater.lease_key, NEW), (lesser.lease_key, OLD)]
    assert sorted((le.lease_key, le.lease_owner) for le in moving(fleet)) == moved
    lost = [event.lease_key for event in fleet.named("AssignmentLost")]
    assert lost == ([greater.lease_key, lesser.lease_key] if refused else [])


@virtual
async def test_a_handover_that_its_old_owner_does_not_end_is_forced_after_the_time_out():
    fleet = await uneven_fleet(handler_timeout_ms=60_000)
    await fleet.manager.turn()
    (lease,) = moving(fleet)
    limit_ms = fleet.config.handover_limit_ms
    assert limit_ms == 60_000 + 10_000
    await pass_time(fleet, seconds=limit_ms // 1_000)
    assert not fleet.named("HandoverForced")
    await pass_time(fleet, seconds=6)

    told = fleet.named("HandoverForced")[0]
    assert (told.lease_key, told.old_owner, told.worker_id) == (lease.lease_key, OLD, NEW)
    assert limit_ms < told.waited_ms <= limit_ms + 6_000
    now = fleet.leases.leases[lease.lease_key]
    assert (now.lease_owner, now.checkpoint_owner) == (NEW, None)


@virtual
async def test_the_time_of_a_handover_outlives_the_manager_s_invocation():
    fleet = await uneven_fleet()
    await fleet.manager.turn()
    await pass_time(fleet, seconds=45, turns=False)
    fleet.manager = LeaseManager(fleet.config, fleet.ports())
    await fleet.manager.turn()
    assert not fleet.named("HandoverForced")

    await fleet.manager.turn()
    await pass_time(fleet, seconds=fleet.config.handover_limit_ms // 1_000, turns=False)
    fleet.manager = LeaseManager(fleet.config, fleet.ports())
    await fleet.manager.turn()
    assert fleet.named("HandoverForced")


@virtual
async def test_a_lease_whose_old_owner_is_lost_in_the_handover_expires_and_waits_no_longer():
    fleet = await uneven_fleet()
    await fleet.manager.turn()
    (lease,) = moving(fleet)

    def renew(fleet):
        fleet.renew(*(key for key in fleet.leases.leases if key != lease.lease_key))

    await pass_time(fleet, seconds=24, renew=renew)

    now = fleet.leases.leases[lease.lease_key]
    assert (now.lease_owner, now.checkpoint_owner) == (NEW, None)
    assert not fleet.named("HandoverForced")


@virtual
async def test_a_next_owner_that_ends_before_the_handover_does_not_keep_the_lease():
    fleet = await uneven_fleet()
    await fleet.manager.turn()
    (lease,) = moving(fleet)
    await fleet.state.update_slot("s0002", ask_to_drain)
    await fleet.state.update_slot("s0002", lambda s: end(s, served_seq=s.assign_seq, now_ms=1))
    complete(fleet)
    fleet.renew(*(key for key in fleet.leases.leases if key != lease.lease_key))
    await fleet.manager.turn()

    assert fleet.leases.leases[lease.lease_key].lease_owner == OLD


def test_a_handover_cut_off_at_any_write_of_the_manager_is_completed():
    async def main(cut_at):
        fleet = await uneven_fleet()
        writes = 0
        apply, write = fleet.leases.apply, fleet.store.write

        def count():
            nonlocal writes
            writes += 1
            if writes == cut_at:
                raise OutcomeUnknown

        async def cut_apply(change):
            count()
            return await apply(change)

        async def cut_write(*args, **kwargs):
            count()
            return await write(*args, **kwargs)

        fleet.leases.apply, fleet.store.write = cut_apply, cut_write
        for _ in range(6):
            try:
                await fleet.manager.turn()
            except OutcomeUnknown:
                fleet.manager = LeaseManager(fleet.config, fleet.ports())
            finally:
                complete(fleet)
                fleet.renew()
                await fleet.beat("s0001", "s0002")
        assert sorted(fleet.owners().values()) == [OLD, OLD, NEW, NEW]
        return writes

    total = run_virtual(main(10**6))
    for cut_at in range(1, min(total, 60) + 1):
        run_virtual(main(cut_at))
