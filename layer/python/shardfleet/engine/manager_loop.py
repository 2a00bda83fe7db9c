"""
One manager invocation: several turns at its own pace, one manager at a time (hazard H13).

Prompts are a counter that is read each second; a turn begins early when it has risen. With
nothing awake the invocation does one turn and returns.
"""

from __future__ import annotations

from contextlib import suppress

from shardfleet.config import FleetConfig
from shardfleet.engine.lease_manager import LeaseManager, ManagerPorts
from shardfleet.errors import OutcomeUnknown, ShardfleetError, Throttled
from shardfleet.events import ManagerTurnFailed

PROMPT_POLL_MS = 1_000
# A hold outlives a turn that is slowed by throttling, but not the next scheduled invocation.
LOCK_EXTRA_MS = 10_000


async def run_manager(config: FleetConfig, ports: ManagerPorts, *, run_ms: int) -> int:
    """
    Run turns until ``run_ms`` have gone by or nothing is awake.

    Args:
        config: the fleet's configuration.
        ports: everything the manager asks of the world.
        run_ms: how long this invocation may go on.

    Returns:
        How many turns were completed; 0 when another manager held the lock throughout.

    """
    clock = ports.clock
    holder = ports.entropy.token()
    end_ms = clock.monotonic_ms() + run_ms
    manager = LeaseManager(config, ports)
    turns = 0
    while True:
        hold_ms = config.cycle_ms + LOCK_EXTRA_MS
        prompts = await _take_lock(ports, holder, hold_ms)
        if prompts is not None:
            awake = await _turn(manager, ports)
            turns += awake is not None
            if awake is False:
                break
            next_ms = min(clock.monotonic_ms() + config.cycle_ms, end_ms)
            await _pause(ports, until_ms=next_ms, prompts=prompts)
        else:
            await clock.sleep_ms(PROMPT_POLL_MS)
        if clock.monotonic_ms() >= end_ms:
            break
    # Without an answer the hold runs out by itself.
    with suppress(Throttled, OutcomeUnknown):
        await ports.state.release_lock(holder)
    return turns


async def _take_lock(ports: ManagerPorts, holder: str, hold_ms: int) -> int | None:
    """Take or prolong the turn lock; return the prompts so far, None without lock or answer."""
    try:
        if await ports.state.take_lock(holder, duration_ms=hold_ms) is None:
            return None
        return await ports.state.prompts()
    except (Throttled, OutcomeUnknown):
        return None


async def _turn(manager: LeaseManager, ports: ManagerPorts) -> bool | None:
    """Run one turn; None when it failed (the next one begins anew), else whether awake."""
    try:
        report = await manager.turn()
    except ShardfleetError as error:
        ports.events.emit(ManagerTurnFailed(error=f"{type(error).__name__}: {error}"))
        return None
    return report.is_awake


async def _pause(ports: ManagerPorts, *, until_ms: int, prompts: int) -> None:
    """Wait for the next turn's time or for a prompt, whichever comes first."""
    while (left_ms := until_ms - ports.clock.monotonic_ms()) > 0:
        await ports.clock.sleep_ms(min(left_ms, PROMPT_POLL_MS))
        try:
            if await ports.state.prompts() > prompts:
                return
        except (Throttled, OutcomeUnknown):
            continue
