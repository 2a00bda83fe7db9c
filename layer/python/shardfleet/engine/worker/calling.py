"""
Calling the manager from a worker: for children that find no room with it, and after its death.

While nothing moves no manager runs between two looks of the schedule, so what a worker prompts
would wait for the next one, and a look that is cut off costs a whole minute more. A hold of the
turn lock that has run out, and was not let go of, is a manager that died (hazard H13). After each
hold one worker calls, by compare-and-set of the prompt; it alone calls again while nothing came of
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from shardfleet.config import MANAGER_EVERY_MS, FleetConfig
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ports import Clock, EventSink, ManagerCall, Written
from shardfleet.engine.retry import Halt, Halted, Signal
from shardfleet.engine.state.fleet_state import MANAGER, FleetState
from shardfleet.engine.state.kinds import LOCK, PROMPT
from shardfleet.errors import MalformedLease, ShardfleetError, kind_of
from shardfleet.events.worker import ManagerCalled


class CallPorts(Struct, frozen=True, kw_only=True):
    """What calling works with."""

    state: FleetState
    checkpointer: Checkpointer
    clock: Clock
    events: EventSink
    manager: ManagerCall


class ManagerWatch:
    """Looks whether a manager is to be called, until the turn ends."""

    def __init__(self, ports: CallPorts, *, config: FleetConfig) -> None:
        """Begin with nobody waiting."""
        self._ports = ports
        self._config = config
        self._waiting: set[str] = set()
        self._until_ms = 0
        self._news = Signal()
        self._called = 0  # the hold after which this worker called

    def see_to(self, lease_keys: Iterable[str]) -> None:
        """Have these leases given to somebody; in a minute the schedule has had its own look."""
        self._waiting.update(lease_keys)
        self._until_ms = self._ports.clock.monotonic_ms() + MANAGER_EVERY_MS
        self._news.set()

    async def run(self, halt: Halt) -> None:
        """Look each failover time, and at once when there is news, until halted."""
        with suppress(Halted):
            while True:
                await halt.unless(self._news, within_ms=self._config.failover_ms)
                self._news.clear()
                with suppress(ShardfleetError):  # The next look will do.
                    await self._look()

    async def _look(self) -> None:
        ports = self._ports
        if ports.clock.monotonic_ms() >= self._until_ms:
            self._waiting.clear()
        self._waiting = {key for key in sorted(self._waiting) if await self._is_unowned(key)}
        found = await ports.state.store.get(LOCK, MANAGER)
        if found is None or found.body is None or not found.body.function:
            return
        lock, skew_ms = found.body, self._config.clock_skew_ms
        if lock.until_ms and lock.until_ms + skew_ms >= ports.clock.now_ms():
            return  # It is at work, and reads prompts.
        if (self._waiting or lock.until_ms) and await self._is_mine_to_call(found.version):
            error = ""
            try:
                await ports.manager.call(lock.function)
            except ShardfleetError as refusal:
                error = f"{kind_of(refusal)}: {refusal}"
            waiting, died = len(self._waiting), lock.until_ms > 0
            ports.events.emit(ManagerCalled(waiting=waiting, died=died, error=error))

    async def _is_unowned(self, lease_key: str) -> bool:
        """Return whether nobody has a lease that could be read at once."""
        checkpointer = self._ports.checkpointer
        try:
            lease = await checkpointer.read(lease_key)
        except MalformedLease:
            return False  # Told when it was to be created.
        if lease is None or lease.is_finished or lease.effective_owner is not None:
            return False
        return not await checkpointer.unfinished_parents(lease)

    async def _is_mine_to_call(self, hold: int) -> bool:
        """Return whether no other worker calls after this hold."""
        if self._called == hold:
            return True
        store = self._ports.state.store
        found = await store.get(PROMPT, MANAGER)
        if found is not None and found.body is not None and found.body.hold == hold:
            return False
        version = found.version if found is not None else None
        result = await store.raw.write(PROMPT, MANAGER, {"hold": hold}, expected_version=version)
        if isinstance(result, Written):
            self._called = hold
        return self._called == hold
