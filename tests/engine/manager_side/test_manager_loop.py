"""The manager's invocation: several turns, prompts, one manager at a time (hazard H13)."""

import asyncio

from shardfleet.engine.manager_loop import run_manager
from shardfleet.errors import Throttled
from shardfleet.testing.clock import run_virtual
from tests.engine.manager_side.fleet_kit import Fleet, four_shards


def test_an_invocation_runs_a_turn_each_cycle_until_its_time_is_over():
    async def main():
        fleet = Fleet()
        turns = await run_manager(fleet.config, fleet.ports(), run_ms=50_000)
        assert turns == 3
        assert fleet.clock.monotonic_ms() == 50_000

    run_virtual(main())


def test_with_nothing_awake_an_invocation_does_one_turn_and_returns():
    async def main():
        fleet = Fleet(shards=[])
        assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) == 1
        assert fleet.clock.monotonic_ms() == 0

    run_virtual(main())


def test_a_listing_that_makes_no_sense_is_looked_at_again_in_the_same_invocation():
    async def main():
        fleet = Fleet(shards=four_shards()[:3])
        assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) > 1
        assert await fleet.leases.scan() == []

    run_virtual(main())


def test_a_prompt_brings_the_next_turn_within_a_second():
    async def main():
        fleet = Fleet()
        loop = asyncio.create_task(run_manager(fleet.config, fleet.ports(), run_ms=50_000))
        await fleet.clock.sleep_ms(5_000)
        assert len(fleet.named("ManagerTurnDone")) == 1
        await fleet.state.prompt_manager()
        await fleet.clock.sleep_ms(1_500)
        assert len(fleet.named("ManagerTurnDone")) == 2
        await loop

    run_virtual(main())


def test_two_managers_never_run_turns_at_the_same_time():
    async def main():
        fleet = Fleet()
        first = asyncio.create_task(run_manager(fleet.config, fleet.ports(), run_ms=50_000))
        await fleet.clock.sleep_ms(100)
        ports = fleet.ports()
        object.__setattr__(ports.entropy, "token", lambda: "other")
        assert await run_manager(fleet.config, ports, run_ms=30_000) == 0
        assert await first == 3
        assert await run_manager(fleet.config, ports, run_ms=1_000) == 1

    run_virtual(main())


def test_a_killed_manager_s_lock_runs_out():
    async def main():
        fleet = Fleet()
        assert await fleet.state.take_lock("killed", duration_ms=30_000) is not None
        assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) == 1
        assert fleet.clock.monotonic_ms() >= 30_000

    run_virtual(main())


def test_the_fencing_token_rises_with_each_hold():
    async def main():
        fleet = Fleet()
        first = await fleet.state.take_lock("a", duration_ms=10)
        await fleet.clock.sleep_ms(20)
        second = await fleet.state.take_lock("b", duration_ms=10)
        assert first < second

    run_virtual(main())


def test_a_failed_turn_is_told_and_the_next_cycle_tries_again():
    async def main():
        fleet = Fleet()
        scan, failures = fleet.leases.scan, [Throttled("table"), Throttled("table")]

        async def throttled():
            if failures:
                raise failures.pop()
            return await scan()

        fleet.leases.scan = throttled
        assert await run_manager(fleet.config, fleet.ports(), run_ms=50_000) == 1
        assert len(fleet.named("ManagerTurnFailed")) == 2
        assert len(fleet.leases.leases) == 4

    run_virtual(main())
