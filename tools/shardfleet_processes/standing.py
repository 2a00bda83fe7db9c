"""
The manager in a process: it stands for manager for as long as it lives, and never rests.

Several processes do so; the turn lock lets one work (hazard H13). It is held for the failover time
and prolonged each third of it, beside the turns: a dead manager is replaced soon, and a slow turn
loses nothing but the lock, for every write has a condition of its own. Each process carries one
slot, so there are as many as processes, or as leases where those are fewer.

In a fleet that spills the leader judges heartbeats by its own clock (hazard H15), and a process
leads for days: one whose clock differs from the stream's by the failover time leaves it to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.lease import ChangeKind, ChangeResult, LeaseChange
from shardfleet.domain.slots.rooms import Rooms
from shardfleet.engine.manager.loop import PROMPT_POLL_MS
from shardfleet.engine.manager.turn import LeaseManager, ManagerPorts
from shardfleet.engine.ports import LeaseStore
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.fleet_state import MANAGER
from shardfleet.engine.state.kinds import LOCK
from shardfleet.errors import ShardfleetError, StaleEpoch, told
from shardfleet.events.manager import ManagerTurnFailed
from shardfleet_processes.offers import OfferLauncher

Holds = Callable[[], Awaitable[bool]]

_MOMENT_MS = 100  # Whether this process has the lock costs nothing to ask.
# At first slots start and ask for leases: who has just begun to lead looks more often for so long.
_EAGER_FOR_MS, _EAGER_MS = 10_000, 200
_CLOCK_CHECK_MS = 60_000  # Each is a DescribeStreamSummary.


class FencedLeases:
    """
    The ``LeaseStore`` port of a manager that makes no lease once somebody else leads.

    Every other write has a condition that a lease that was changed meanwhile refuses. Of one that
    was finished and deleted nothing is left to refuse by: who was frozen would have all of its
    shard read again.
    """

    def __init__(self, leases: LeaseStore, holds: Holds) -> None:
        """Ask whether the lock is still held before a lease is made."""
        self._leases = leases
        self._holds = holds
        self.survey = leases.survey
        self.scan = leases.scan
        self.keys_owned_by = leases.keys_owned_by
        self.get = leases.get

    async def apply(self, change: LeaseChange) -> ChangeResult:
        """
        Apply a change as the port does.

        Raises:
            StaleEpoch: it makes a lease, and another process leads.

        """
        if change.kind is ChangeKind.PUT and not await self._holds():
            raise StaleEpoch(f"{change.operation} of {change.lease_key}: another process leads")
        return await self._leases.apply(change)


class StandingManager:
    """
    Runs the manager's turns whenever this process has the lock.

    Args:
        config: the fleet's.
        ports: everything the manager asks of the world.
        offers: what its launcher is, looked at by this process.

    """

    def __init__(self, config: FleetConfig, ports: ManagerPorts, offers: OfferLauncher) -> None:
        """Nothing is asked yet."""
        self._config = config
        fenced = FencedLeases(ports.leases, self._holds)
        self._ports = ports = replace(ports, leases=fenced, rooms=self._rooms)
        self._offers = offers
        self._token: int | None = None
        self._is_known = False
        self._manager = LeaseManager(config, ports)
        self._hosts = 0  # at the last turn
        self._prompts = 0
        self._due_ms = self._eager_ms = self._clock_due_ms = 0
        self._is_off = False

    async def run(self, halt: Halt) -> None:
        """Stand for manager until halted; then the next one may begin at once."""
        await asyncio.gather(self._hold(halt), self._work(halt))
        with suppress(ShardfleetError):
            if self._leads:
                await self._manager.losses.remember()
            await self._ports.state.release_lock(self._offers.host)

    async def _hold(self, halt: Halt) -> None:
        """Take the lock and prolong it."""
        config, state = self._config, self._ports.state
        hold_ms, host = config.failover_ms, self._offers.host
        while not halt.is_set:
            try:
                if config.spill and await self._has_wrong_clock():
                    if self._leads:
                        self._token = None
                        await state.release_lock(host)
                    await halt.wait(config.renew_ms)
                    continue
                longest_ms = hold_ms + config.clock_skew_ms
                token = await state.take_lock(
                    host, duration_ms=hold_ms, longest_ms=longest_ms, token=self._token
                )
                if token is not None and not self._leads:
                    self._due_ms, self._is_known = 0, False
                    self._eager_ms = self._ports.clock.monotonic_ms() + _EAGER_FOR_MS
                self._token = token
            except ShardfleetError as error:
                self._tell(error)
            await halt.wait(config.renew_ms)

    async def _has_wrong_clock(self) -> bool:
        """Return whether this machine's clock is far from the stream's."""
        clock = self._ports.clock
        if clock.monotonic_ms() >= self._clock_due_ms:
            service_ms = (await self._ports.stream.incarnation()).service_ms
            self._clock_due_ms = clock.monotonic_ms() + _CLOCK_CHECK_MS
            off_ms = 0 if service_ms is None else abs(service_ms - clock.now_ms())
            self._is_off = off_ms > self._config.failover_ms
            if self._is_off:
                error = f"this machine's clock is {off_ms // 1000} s off: set it; another one leads"
                self._ports.events.emit(ManagerTurnFailed(error=error))
        return self._is_off

    @property
    def _leads(self) -> bool:
        return self._token is not None

    async def _holds(self) -> bool:
        """Return whether the lock is this process's by what the table says, whatever the time."""
        found = await self._ports.state.store.get(LOCK, MANAGER)
        lock = None if found is None else found.body
        return lock is not None and lock.holder == self._offers.host

    async def _work(self, halt: Halt) -> None:
        """Look each second whether a turn is due."""
        clock, pause_ms = self._ports.clock, min(PROMPT_POLL_MS, self._config.renew_ms)
        while not halt.is_set:
            try:
                if not self._leads:  # Who leads next has seen by then which owners are lost.
                    await self._manager.losses.look()
                elif await self._is_due():
                    self._due_ms = clock.monotonic_ms() + self._config.cycle_ms
                    await self._turn()
            except ShardfleetError as error:
                self._tell(error)
            is_eager = clock.monotonic_ms() < self._eager_ms
            await halt.wait(_EAGER_MS if is_eager else pause_ms if self._leads else _MOMENT_MS)

    async def _is_due(self) -> bool:
        manager, now_ms = self._manager, self._ports.clock.monotonic_ms()
        prompts = await self._ports.state.prompts()
        is_prompted, self._prompts = prompts > self._prompts, prompts
        if now_ms >= self._due_ms or is_prompted:
            return True
        if self._offers.hosts != self._hosts or await manager.losses.look():
            return True
        if self._config.spill and self._offers.is_overdue(self._config.spill_after_ms):
            return True
        prober = manager.prober
        looked_ms = prober.looked_ms or 0
        is_look_due = prober.has_sleepers and now_ms - looked_ms >= self._config.probe_ms
        return is_look_due and await prober.look()

    async def _turn(self) -> None:
        await self._offers.forget_the_dead()
        if not self._is_known:
            await self._offers.publish(self._config.to_env())
            self._is_known = True
        await self._manager.turn()

    async def _rooms(self) -> Rooms:
        rooms = await self._offers.rooms()
        self._hosts = len(rooms.hosts)
        return rooms

    def _tell(self, error: ShardfleetError) -> None:
        self._ports.events.emit(ManagerTurnFailed(error=told(error)))
