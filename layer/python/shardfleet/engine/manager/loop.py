"""
One manager invocation: several turns at its own pace, one manager at a time (hazard H13).

Prompts are a counter that is read each second; a turn begins early when it has risen, or when an
owner is found lost by a look at the leases each third of the failover time. With
nothing awake, or nothing that moves, the invocation does one turn and returns: the schedule's next
one is soon enough. Where a process leads it changes nothing, and tells what the alarms watch. While
shards sleep it stays for the looks
at them that the schedule is too rare for, and takes a turn when one of them is to be woken (H14).
"""

from __future__ import annotations

from contextlib import suppress

from shardfleet.config import MANAGER_EVERY_MS, WAKING_MS, FleetConfig
from shardfleet.engine.manager.turn import LeaseManager, ManagerPorts
from shardfleet.errors import ConfigurationError, ShardfleetError, kind_of, settled
from shardfleet.events.manager import ManagerLockedOut, ManagerTurnFailed

PROMPT_POLL_MS = 1_000
# A hold outlives a turn that is slowed by throttling, but not the next scheduled invocation.
LOCK_EXTRA_MS = 10_000
_HELD_BY_ANOTHER = "another manager holds the turn lock"


async def run_manager(config: FleetConfig, ports: ManagerPorts, *, run_ms: int) -> int:
    """
    Run turns until ``run_ms`` have gone by or nothing is awake.

    Args:
        config: the fleet's configuration.
        ports: everything the manager asks of the world.
        run_ms: how long this invocation may go on.

    Returns:
        How many turns were completed; 0 when another manager held the lock throughout.

    Raises:
        ConfigurationError: the lock was refused throughout, for what only a person can mend.

    """
    return await _Run(config, ports, run_ms=run_ms).run()


class _Run:
    """One invocation."""

    def __init__(self, config: FleetConfig, ports: ManagerPorts, *, run_ms: int) -> None:
        self._config = config
        self._ports = ports
        self._holder = ports.entropy.token()
        self._began_ms = ports.clock.monotonic_ms()
        self._obstacle = ""  # why there is no lock now
        self._refusal: ShardfleetError | None = None  # which is the obstacle
        self._was_answered = False  # about the lock, once at least
        self._had_lock = False
        self._manager = LeaseManager(config, ports)
        self._most_ms = ports.clock.monotonic_ms() + run_ms
        self._end_ms = self._within(config.manager_run_ms)
        # The last look is no earlier: the first one of the next invocation comes in time then.
        self._linger_ms = self._within(config.linger_ms)

    def _within(self, duration_ms: int) -> int:
        """Return so long from now, but not beyond what this invocation is given."""
        return min(self._ports.clock.monotonic_ms() + duration_ms, self._most_ms)

    async def run(self) -> int:
        """Run turns; return how many were completed."""
        turns = 0
        while True:
            prompts = await self._take_lock()
            if prompts is None:
                if self._obstacle == _HELD_BY_ANOTHER and await self._is_led_by_process():
                    await self._watch()
                    break
                await self._ports.clock.sleep_ms(PROMPT_POLL_MS)
                if self._ports.clock.monotonic_ms() >= self._end_ms:
                    self._tell_if_locked_out()
                    break
                continue
            self._had_lock = True
            awake = await self._turn()
            turns += awake is not None
            stays = awake is not False and not self._manager.rests
            if not await self._pause(awake=stays, prompts=prompts):
                with suppress(ShardfleetError):
                    await self._manager.losses.remember()
                break
        # Without an answer the hold runs out by itself.
        with suppress(ShardfleetError):
            await self._ports.state.release_lock(self._holder)
        # Once it was answered the right is there; the last try alone may be refused by mistake.
        if not self._was_answered and isinstance(self._refusal, ConfigurationError):
            raise self._refusal
        return turns

    async def _take_lock(self) -> int | None:
        """Take or prolong the turn lock; return the prompts so far, None without lock or answer."""
        state, left_ms = self._ports.state, self._linger_ms - self._ports.clock.monotonic_ms()
        config = self._config
        hold_ms = max(config.cycle_ms, left_ms) + LOCK_EXTRA_MS
        longest_ms = max(config.cycle_ms, config.linger_ms) + LOCK_EXTRA_MS + config.clock_skew_ms
        try:
            token = await state.take_lock(
                self._holder,
                duration_ms=hold_ms,
                longest_ms=longest_ms,
                function=self._ports.function,
            )
            prompts = await state.prompts() if token is not None else None
            self._obstacle, self._was_answered = _HELD_BY_ANOTHER, True
            return prompts
        except ShardfleetError as error:
            self._obstacle, self._refusal = _words(error), settled(error)
        return None

    async def _is_led_by_process(self) -> bool:
        """Return whether a process has the lock, which it does not give away."""
        rooms = self._ports.rooms
        with suppress(ShardfleetError):
            return rooms is not None and await self._ports.state.leader() in (await rooms()).hosts
        return False

    async def _watch(self) -> None:
        try:
            await self._manager.watch()
        except ShardfleetError as error:
            self._tell(error)

    def _tell_if_locked_out(self) -> None:
        """Emit that an invocation got no lock at all; an overlap of seconds is no such."""
        if not self._had_lock:
            waited_ms = self._ports.clock.monotonic_ms() - self._began_ms
            event = ManagerLockedOut(waited_ms=waited_ms, reason=self._obstacle)
            self._ports.events.emit(event)

    async def _turn(self) -> bool | None:
        """Run one turn; None when it failed (the next one begins anew), else whether awake."""
        try:
            report = await self._manager.turn()
        except ShardfleetError as error:
            self._tell(error)
            return None
        return report.plan.is_awake

    async def _pause(self, *, awake: bool, prompts: int) -> bool:
        """
        Wait for the next turn's time, for a prompt, or for a shard that is to be woken.

        Returns:
            Whether there is to be another turn.

        """
        clock = self._ports.clock
        turn_ms = clock.monotonic_ms() + self._config.cycle_ms
        stay_ms = self._end_ms if awake else clock.monotonic_ms()
        if self._manager.prober.has_sleepers:
            stay_ms = max(stay_ms, self._linger_ms)
        while True:
            if await self._looks():
                # Its slot asks for leases as soon as it has started.
                self._end_ms = max(self._end_ms, self._within(WAKING_MS))
                return True
            now_ms = clock.monotonic_ms()
            if now_ms >= stay_ms:
                return now_ms < self._end_ms and await self._is_prompted(prompts)
            works = awake and now_ms < self._end_ms
            if works and (turn_ms <= now_ms or await self._loses()):
                return True
            until_ms = min(stay_ms, turn_ms if works and turn_ms < self._end_ms else stay_ms)
            watch_ms = self._manager.losses.next_ms if works else until_ms
            until_ms = min(until_ms, self._next_look_ms(), watch_ms)
            await clock.sleep_ms(max(0, min(until_ms - now_ms, PROMPT_POLL_MS)))
            if await self._is_prompted(prompts):
                return clock.monotonic_ms() < stay_ms

    async def _is_prompted(self, prompts: int) -> bool:
        with suppress(ShardfleetError):
            return await self._ports.state.prompts() > prompts
        return False

    async def _loses(self) -> bool:
        """Look for lost owners if it is time; return whether one is to be replaced."""
        with suppress(ShardfleetError):
            return await self._manager.losses.look()
        return False

    def _next_look_ms(self) -> int:
        """Return when the sleeping shards are to be looked at; never, if there are none."""
        looked_ms = self._manager.prober.looked_ms
        if looked_ms is None or not self._manager.prober.has_sleepers:
            return self._most_ms + MANAGER_EVERY_MS
        next_ms = looked_ms + self._config.probe_ms
        return min(next_ms, self._linger_ms) if looked_ms < self._linger_ms else next_ms

    async def _looks(self) -> bool:
        """Look at the sleeping shards if it is time; return whether one is to be woken."""
        if self._ports.clock.monotonic_ms() < self._next_look_ms():
            return False
        try:
            return await self._manager.prober.look()
        except ShardfleetError as error:
            self._tell(error)
            return False

    def _tell(self, error: ShardfleetError) -> None:
        self._ports.events.emit(ManagerTurnFailed(error=_words(error)))


def _words(error: ShardfleetError) -> str:
    return f"{kind_of(error)}: {error}"
