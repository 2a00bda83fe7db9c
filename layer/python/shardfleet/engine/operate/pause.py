"""
What a person does to a fleet: pause, drain, release; each waits until workers have let go.

Nothing is taken away: a worker finishes its batch, checkpoints, and gives the lease up, so that
nothing is lost and nothing comes twice. Only a forced release takes, by the counter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Applied, Lease
from shardfleet.domain.sleep.pauses import Pause, Pauses
from shardfleet.domain.slots.slot import Slot, SlotState, ask_to_drain
from shardfleet.engine.ports import Clock, LeaseStore
from shardfleet.engine.retry import each_of
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.errors import OutcomeUnknown, Throttled

_LOOK_EVERY_MS = 500
_TRIES_MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPorts:
    """What a person works with."""

    leases: LeaseStore
    state: FleetState
    clock: Clock


class Operator:
    """One person at work."""

    def __init__(self, ports: OperatorPorts) -> None:
        """Touch nothing yet."""
        self._ports = ports
        self._record = PauseRecord(ports.state.store)
        self._gone = GoneRecord(ports.state.store)

    async def pauses(self) -> Pauses:
        """Read what is paused."""
        return await self._record.read()

    async def pause(self, lease_keys: Collection[str] | None, pause: Pause) -> Pauses:
        """
        Pause leases, None: all there are and will be; return what was paused before.

        Raises:
            ConfigurationError: too many are paused by name.

        """
        before = await self._record.read()

        def change(pauses: Pauses) -> Pauses:
            if lease_keys is None:
                return replace(pauses, fleet=pauses.fleet or pause)
            return pauses.with_leases(lease_keys, pause)

        await self._record.change(change)
        return before

    async def resume(self, lease_keys: Collection[str] | None) -> None:
        """Take pauses back, None: all of them, and prompt the manager."""
        await self._record.change(
            lambda pauses: Pauses() if lease_keys is None else pauses.without_leases(lease_keys)
        )
        await self._ports.state.prompt_manager()

    async def until_free(self, lease_keys: Collection[str], *, within_ms: int) -> tuple[str, ...]:
        """Wait until nobody has these leases any more; return those that somebody still has."""
        held = tuple(sorted(lease_keys))

        async def look() -> bool:
            nonlocal held
            found = await each_of(held, self._ports.leases.get)
            held = tuple(le.lease_key for le in found if le is not None and _is_held(le))
            return not held

        await self._until(look, within_ms=within_ms)
        return held

    async def drain(self, slot_ids: Collection[str], *, within_ms: int) -> tuple[str, ...]:
        """
        Let slots hand over what they hold and end; return those that have not ended in time.

        A slot that another start has begun meanwhile has ended in between.
        """
        asked: dict[str, int] = {}
        for slot_id in slot_ids:
            written = await self._ports.state.update_slot(slot_id, ask_to_drain)
            if written is not None:
                asked[slot_id] = written.slot.start_epoch
        left = tuple(sorted(asked))

        async def look() -> bool:
            nonlocal left
            found = {each.slot.slot_id: each.slot for each in await self._ports.state.slots()}
            left = tuple(key for key in left if _still_runs(found.get(key), asked[key]))
            return not left

        await self._until(look, within_ms=within_ms)
        return left

    async def force(self, lease_keys: Collection[str]) -> tuple[str, ...]:
        """
        Take leases from whoever has them, by the counter; return those that were taken.

        What was handled since the last checkpoint comes again.
        """
        taken = set()
        for key in sorted(lease_keys):
            for _ in range(_TRIES_MOST):
                lease = await self._ports.leases.get(key)
                # Of a handover the first eviction takes the old owner, the second the next one.
                if lease is None or not _is_held(lease):
                    break
                try:
                    result = await self._ports.leases.apply(lease_changes.evict(lease))
                except (Throttled, OutcomeUnknown):
                    await self._ports.clock.sleep_ms(_LOOK_EVERY_MS)
                    continue
                if isinstance(result, Applied):
                    taken.add(key)
        return tuple(sorted(taken))

    async def decide_over(self, lease_keys: Collection[str], *, person: str) -> None:
        """Note that missed shards are over; their owners end them at their next look."""
        for key in lease_keys:
            await self._gone.decide(key, person=person)

    async def until_over(self, lease_keys: Collection[str], *, within_ms: int) -> tuple[str, ...]:
        """Wait until leases are finished; return those that are not in time."""
        left = tuple(lease_keys)

        async def look() -> bool:
            nonlocal left
            found = [await self._ports.leases.get(key) for key in left]
            left = tuple(le.lease_key for le in found if le is not None and not le.is_finished)
            return not left

        await self._until(look, within_ms=within_ms)
        return left

    async def prompt(self) -> None:
        """Ask the manager for an early turn."""
        await self._ports.state.prompt_manager()

    async def _until(self, look: Callable[[], Awaitable[bool]], *, within_ms: int) -> None:
        clock = self._ports.clock
        end_ms = clock.monotonic_ms() + within_ms
        while True:
            try:
                if await look():
                    return
            except (Throttled, OutcomeUnknown):
                pass
            if clock.monotonic_ms() >= end_ms:
                return
            await clock.sleep_ms(_LOOK_EVERY_MS)


def _is_held(lease: Lease) -> bool:
    return lease.effective_owner is not None and not lease.is_finished


def _still_runs(slot: Slot | None, start_epoch: int) -> bool:
    return (
        slot is not None and slot.start_epoch == start_epoch and slot.state is not SlotState.ENDED
    )
