"""
What a person does to a fleet: pause, drain, release; each waits until workers have let go.

Nothing is taken away: a worker finishes its batch, checkpoints, and gives the lease up, so that
nothing is lost and nothing comes twice. Only a forced release takes, by the counter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.slot import Slot, SlotState, ask_to_drain
from shardfleet.engine.ports import Clock, LeaseStore
from shardfleet.engine.retry import each_of
from shardfleet.engine.state.beside import raise_generation
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.errors import MalformedDocument, OutcomeUnknown, Throttled

_LOOK_EVERY_MS = 500
_TRIES_MOST = 10


class Operator:
    """
    One person at work.

    Attributes:
        leases: the lease table.
        state: the fleet-state table.
        clock: this machine's.

    """

    def __init__(self, leases: LeaseStore, state: FleetState, clock: Clock) -> None:
        """Touch nothing yet."""
        self.leases = leases
        self.state = state
        self.clock = clock
        self._record = PauseRecord(state.store)

    @staticmethod
    def in_use(
        leases: Iterable[Lease], slots: Iterable[Slot]
    ) -> tuple[dict[str, str | None], dict[str, str]]:
        """Return unfinished leases, by key, and who has them; and slots, and their workers."""
        live = (slot for slot in slots if slot.state is not SlotState.ENDED)
        return (
            {lease.lease_key: lease.effective_owner for lease in leases if not lease.is_finished},
            {slot.slot_id: slot.worker_id for slot in live},
        )

    async def pauses(self) -> Pauses:
        """Read what is paused."""
        return await self._record.read()

    async def pause(self, lease_keys: Collection[str] | None, pause: Pause) -> Pauses:
        """
        Pause leases, None: all there are and will be; return what was paused before.

        Raises:
            ConfigurationError: too many are paused by name.

        """
        before = await self.pauses()

        def paused(pauses: Pauses) -> Pauses:
            if lease_keys is None:
                return replace(pauses, fleet=pauses.fleet or pause)
            return pauses.with_leases(lease_keys, pause)

        await self._record.change(paused, whatever_was=lease_keys is None)
        return before

    async def resume(self, lease_keys: Collection[str] | None) -> None:
        """
        Take pauses back, None: all of them, and prompt the manager.

        Where what is paused cannot be read, no pause of single leases is taken back.
        """
        if lease_keys is None:
            await self._record.change(lambda _: Pauses(), whatever_was=True)
        else:
            with suppress(MalformedDocument):
                await self._record.change(lambda pauses: pauses.without_leases(lease_keys))
        await self.state.prompt_manager()

    async def go_on(self) -> None:
        """Take back the pause of the whole fleet alone, and prompt the manager."""
        await self.change_pauses(lambda pauses: replace(pauses, fleet=None))
        await self.state.prompt_manager()

    async def change_pauses(self, change: Callable[[Pauses], Pauses]) -> None:
        """Change what is asked of the fleet, whatever others change meanwhile."""
        await self._record.change(change)

    async def until_free(
        self,
        lease_keys: Collection[str],
        *,
        within_ms: int,
        of: Collection[str | None] | None = None,
    ) -> tuple[str, ...]:
        """
        Wait until nobody has these leases any more; return those that somebody still has.

        Args:
            lease_keys: which.
            within_ms: how long to wait.
            of: ids of workers: it is enough that none of these has them; None: anybody's.

        """

        def is_held(lease: Lease) -> bool:
            return _is_held(lease) and (of is None or lease.effective_owner in of)

        return await self._until_none(lease_keys, is_held, within_ms=within_ms)

    async def drain(self, slot_ids: Collection[str], *, within_ms: int) -> tuple[str, ...]:
        """
        Let slots hand over what they hold and end; return those that have not ended in time.

        A slot that another start has begun meanwhile has ended in between.
        """
        asked: dict[str, int] = {}
        for slot_id in slot_ids:
            written = await self.state.update_slot(slot_id, ask_to_drain)
            if written is not None:
                asked[slot_id] = written.slot.start_epoch

        async def still_running(left: Sequence[str]) -> list[str]:
            slots = {each.slot.slot_id: each.slot for each in await self.state.slots()}
            return [key for key in left if _still_runs(slots.get(key), asked[key])]

        return await self._until(asked, still_running, within_ms=within_ms)

    async def let_go(
        self,
        lease_keys: Collection[str],
        pause: Pause,
        *,
        whole: bool,
        of: Collection[str | None],
        within_ms: int,
    ) -> tuple[str, ...]:
        """
        Pause leases and wait until workers have given them up; return those that they have not.

        Args:
            lease_keys: which.
            pause: why.
            whole: the fleet is paused, with what is still to come.
            of: ids of workers that heed it.
            within_ms: how long to wait.

        """
        await self.pause(None if whole else lease_keys, pause)
        await self.state.prompt_manager()
        return await self.until_free(lease_keys, of=of, within_ms=within_ms)

    async def drain_fleet(
        self, owners: Mapping[str, str | None], slots: Mapping[str, str], pause: Pause, *, ms: int
    ) -> tuple[str, ...]:
        """
        Pause the fleet, and let its slots hand over and end; return what has not ended in time.

        Args:
            owners: leases, and who has each.
            slots: and their workers.
            pause: why.
            ms: how long to wait for the slots, and then for the leases.

        """
        workers = slots.values()
        ours = [key for key, owner in owners.items() if owner in workers]
        await self.pause(None, pause)
        left = await self.drain(slots, within_ms=ms)
        await self.state.prompt_manager()
        return (*left, *await self.until_free(ours, of=workers, within_ms=ms))

    async def release(
        self, lease_keys: Collection[str], slot_ids: Collection[str], pause: Pause, *, ms: int
    ) -> tuple[str, ...]:
        """
        Let workers give leases up, and slots all of theirs and end; return what is left.

        Nothing stays paused that was not before, whatever happens.
        """
        before = await self.pause(lease_keys, pause)
        try:
            held = await self.until_free(lease_keys, within_ms=ms)
        finally:
            await self.resume(set(lease_keys) - before.leases.keys())
        left = await self.drain(slot_ids, within_ms=ms)
        await self.state.prompt_manager()
        return (*held, *left)

    async def take(self, lease_keys: Collection[str]) -> tuple[str, ...]:
        """Take leases by force, and let the manager assign them; nothing is left."""
        await self.force(lease_keys)
        await self.state.prompt_manager()
        return ()

    async def let_go_on(self, lease_keys: Collection[str], *, whole: bool) -> None:
        """Take stops and pauses of leases back; ``whole``: all pauses that there are."""
        for key in lease_keys:
            await self.state.resume(key)
        await self.resume(None if whole else lease_keys)

    async def force(self, lease_keys: Collection[str]) -> None:
        """
        Take leases from whoever has them, by the counter.

        What was handled since the last checkpoint comes again.
        """
        for key in sorted(lease_keys):
            for _ in range(_TRIES_MOST):
                lease = await self.leases.get(key)
                # Of a handover the first eviction takes the old owner, the second the next one.
                if lease is None or not _is_held(lease):
                    break
                try:
                    await self.leases.apply(lease_changes.evict(lease))
                except (Throttled, OutcomeUnknown):
                    await self.clock.sleep_ms(_LOOK_EVERY_MS)

    async def end(
        self, lease_keys: Collection[str], *, person: str, within_ms: int
    ) -> tuple[str, ...]:
        """
        Note that missed shards are over; their owners end them at their next look.

        Wait until the leases are finished, and return those that are not in time.
        """
        for key in lease_keys:
            await raise_generation(self.state.store.raw, key, now_ms=self.clock.now_ms())
            await GoneRecord(self.state.store).decide(key, person=person)
        return await self._until_none(
            lease_keys, lambda lease: not lease.is_finished, within_ms=within_ms
        )

    async def _until_none(
        self, lease_keys: Collection[str], are_meant: Callable[[Lease], bool], *, within_ms: int
    ) -> tuple[str, ...]:
        async def look(left: Sequence[str]) -> list[str]:
            leases = await each_of(left, self.leases.get)
            return [each.lease_key for each in leases if each is not None and are_meant(each)]

        return await self._until(lease_keys, look, within_ms=within_ms)

    async def _until(
        self,
        keys: Collection[str],
        look: Callable[[Sequence[str]], Awaitable[list[str]]],
        *,
        within_ms: int,
    ) -> tuple[str, ...]:
        """Look which keys are left, again and again, until none is or the time is over."""
        clock = self.clock
        end_ms = clock.monotonic_ms() + within_ms
        left = sorted(keys)
        while True:
            with suppress(Throttled, OutcomeUnknown):
                left = await look(left)
            if not left or clock.monotonic_ms() >= end_ms:
                return tuple(left)
            await clock.sleep_ms(_LOOK_EVERY_MS)


def _is_held(lease: Lease) -> bool:
    return lease.effective_owner is not None and not lease.is_finished


def _still_runs(slot: Slot | None, start_epoch: int) -> bool:
    return (
        slot is not None and slot.start_epoch == start_epoch and slot.state is not SlotState.ENDED
    )
