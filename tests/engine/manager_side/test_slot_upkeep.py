"""Slots are started once, repaired when silent, and drained slowly (hazards H2, H3)."""

from shardfleet.domain.slots import ClaimRefused, SlotState, claim
from shardfleet.errors import ConfigurationError
from shardfleet.testing.clock import run_virtual
from shardfleet.testing.memory import ProcessEndedError
from tests.engine.manager_side.fleet_kit import Fleet, invocation, running_fleet


def test_the_intent_is_written_before_the_execution_is_started():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        seen = []
        start = fleet.launcher.start

        async def watched(name, text):
            slot = await fleet.slot("s0001")
            seen.append((slot.state, slot.slot_input().execution_name() == name))
            assert text == slot.slot_input().execution_text()
            return await start(name, text)

        fleet.launcher.start = watched
        await fleet.manager.turn()
        assert seen == [(SlotState.STARTING, True)]

    run_virtual(main())


def test_a_manager_that_died_between_intent_and_start_is_made_good_by_the_next():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        start = fleet.launcher.start

        async def dies(name, text):
            raise ProcessEndedError

        fleet.launcher.start = dies
        try:
            await fleet.manager.turn()
        except ProcessEndedError:
            fleet.launcher.start = start
        assert not fleet.launcher.executions
        await fleet.manager.turn()
        assert list(fleet.launcher.executions) == ["f-s0001-1-0"]
        assert (await fleet.slot("s0001")).start_epoch == 1

    run_virtual(main())


def test_an_execution_closed_before_its_first_heartbeat_raises_the_epoch():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        await fleet.manager.turn()
        fleet.launcher.close("f-s0001-1-0")
        await fleet.manager.turn()
        assert (await fleet.slot("s0001")).start_epoch == 2
        assert "f-s0001-2-0" in fleet.launcher.executions

    run_virtual(main())


def test_a_silent_slot_whose_execution_runs_is_left_alone():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        await running_fleet(fleet)
        await fleet.clock.sleep_ms(60_000)
        await fleet.manager.turn()
        slot = await fleet.slot("s0001")
        assert (slot.state, slot.start_epoch) == (SlotState.RUNNING, 1)

    run_virtual(main())


def test_a_silent_slot_that_continued_as_new_is_left_alone():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        await running_fleet(fleet)
        fleet.launcher.close("f-s0001-1-0")
        await fleet.launcher.start("f-s0001-1-1", "next generation")
        await fleet.clock.sleep_ms(60_000)
        await fleet.manager.turn()
        assert (await fleet.slot("s0001")).start_epoch == 1

    run_virtual(main())


def test_a_slot_whose_execution_is_over_starts_again_under_the_same_worker_id():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        await running_fleet(fleet)
        fleet.launcher.close("f-s0001-1-0")
        await fleet.clock.sleep_ms(60_000)
        await fleet.manager.turn()
        slot = await fleet.slot("s0001")
        assert (slot.state, slot.start_epoch, slot.worker_id) == (
            SlotState.STARTING,
            2,
            "f-s0001",
        )
        assert "f-s0001-2-0" in fleet.launcher.executions

    run_virtual(main())


def test_an_invocation_of_an_older_execution_is_refused():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        await running_fleet(fleet)
        old = invocation(await fleet.slot("s0001"))
        fleet.launcher.close("f-s0001-1-0")
        await fleet.clock.sleep_ms(60_000)
        await fleet.manager.turn()
        slot = await fleet.slot("s0001")
        assert isinstance(claim(slot, old, now_ms=0), ClaimRefused)
        assert not isinstance(claim(slot, invocation(slot), now_ms=0), ClaimRefused)

    run_virtual(main())


def test_a_surplus_of_slots_is_drained_only_when_it_lasts():
    async def main():
        fleet = Fleet(leases_per_worker=2)
        slots = await running_fleet(fleet)
        fleet.config = fleet.manager._config
        object.__setattr__(fleet.manager._config, "leases_per_worker", 4)
        drained = []
        for _ in range(4):
            fleet.renew()
            await fleet.beat(*slots)
            await fleet.manager.turn()
            drained.append([s for s in slots if (await fleet.slot(s)).drain])
        assert drained[:2] == [[], []]
        assert drained[2] == ["s0002"]

    run_virtual(main())


def test_no_slot_is_started_for_a_stream_that_is_done():
    async def main():
        fleet = Fleet(shards=[])
        report = await fleet.manager.turn()
        assert not fleet.launcher.executions
        assert not report.is_awake

    run_virtual(main())


def test_a_slot_that_is_silent_and_cannot_be_examined_counts_as_missing():
    async def main():
        fleet = Fleet(leases_per_worker=4)
        await running_fleet(fleet)

        async def refused(_name):
            raise ConfigurationError("DescribeExecution: AccessDenied")

        fleet.launcher.status = refused
        await fleet.manager.turn()
        assert fleet.named("ManagerTurnDone")[-1].slots_missing == 0
        await fleet.clock.sleep_ms(2 * fleet.config.failover_ms + 1)
        await fleet.manager.turn()
        told = fleet.named("ManagerTurnDone")[-1]
        assert (told.slots_running, told.slots_missing) == (0, 1)

    run_virtual(main())
