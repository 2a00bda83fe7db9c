"""
What a worker learns from its slot record while it runs: assignments, drain, being overtaken.

At each renewal tick the record is read consistently (hazard H16); the index of the lease table is
only a safety net, and the base item always decides. An assignment that was announced but never
written is looked for during one failover time, then it counts as served (H2).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from msgspec import Struct

from shardfleet.config import FleetConfig
from shardfleet.domain.refusals import Doubt
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import Usage
from shardfleet.engine.ownership.checkpointer import Adoption, Checkpointer
from shardfleet.engine.ports import Clock, EventSink, LeaseStore
from shardfleet.engine.retry import Halt
from shardfleet.engine.shard.usage import UsageMeter
from shardfleet.engine.worker.slot import SlotRecord
from shardfleet.errors import (
    MalformedDocument,
    OutcomeUnknown,
    ShardfleetError,
    Throttled,
    kind_of,
    settled,
)
from shardfleet.events.worker import SlotDelayed, WorkerBeat

# Utilisation that has changed by so many thousandths is told at the next tick, not with the next
# sign of life.
_USAGE_STEP = 50
_HANDOVER_POLL_MS = 500
# A slot that has begun to hold nothing looks as often for so long: it was started for leases that
# wait, and each of them has waited for its start already.
_HUNGRY_MS = 10_000
_INDEX_TICKS = 3  # the index is asked at each third tick


class TurnStop(IntEnum):
    """Why a turn stops; of two reasons the greater one counts."""

    TIME = 1
    DRAIN = 2
    IDLE = 3
    FAILURE = 4
    STALE = 5
    TIMED_OUT = 6


class WatchPorts(Struct, frozen=True, kw_only=True):
    """What watching works with."""

    record: SlotRecord
    checkpointer: Checkpointer
    leases: LeaseStore
    clock: Clock
    events: EventSink
    usage: UsageMeter


class SlotWatch:
    """
    Looks at the slot record until the turn ends.

    Attributes:
        served_seq: the last assignment that needs no more looking for.

    """

    def __init__(
        self,
        ports: WatchPorts,
        *,
        config: FleetConfig,
        claimed: Slot,
        adopted: Callable[[], None],
        stop: Callable[[TurnStop], None],
    ) -> None:
        """
        Begin with the record as claimed.

        Args:
            ports: the record, the leases and the rest.
            config: for the intervals.
            claimed: as claimed.
            adopted: called after leases were adopted.
            stop: called when the turn should stop: to drain, or because the slot has ended.

        """
        self._ports = ports
        self._config = config
        self._adopted = adopted
        self._stop = stop
        self._slot = claimed
        self.served_seq = claimed.served_seq
        self._pending_seq = claimed.served_seq
        self._pending_since_ms = ports.clock.monotonic_ms()
        self._beat_ms = ports.clock.monotonic_ms()
        self._told: frozenset[str] = frozenset()
        self._usage_told = Usage()
        self._idle_since_ms: int | None = None
        self._finished: set[str] = set()
        self._awaited: set[str] = set()
        self._delayed: set[str] = set()
        self._index_doubt = Doubt()

    def lags_ms(self) -> dict[str, int]:
        """Return the lag of each lease held; -1 unknown."""
        now_ms, still_ms = self._ports.clock.monotonic_ms(), self._config.failover_ms
        held = self._ports.checkpointer.held
        return {h.lease_key: h.lag_at(now_ms, still_ms=still_ms) for h in held}

    async def adopt_all(self) -> None:
        """
        Adopt whatever names this worker: assigned, held at the last heartbeat, or in the index.

        Raises:
            StaleEpoch: another invocation has taken over.
            Throttled: try again.

        """
        indexed = await self._indexed()
        await self._adopt([*self._slot.assigned, *self._slot.lags_ms, *indexed])

    async def run(self, halt: Halt) -> None:
        """
        Look at each tick until halted.

        Raises:
            StaleEpoch: another invocation has taken over.
            ShardfleetError: the verdict of what was refused for as long as it is doubted.

        """
        tick, doubt = 0, Doubt()
        while not halt.is_set:
            try:
                await self._look(with_index=tick % _INDEX_TICKS == _INDEX_TICKS - 1)
                doubt.clear()
            except (Throttled, OutcomeUnknown) as error:
                self._delayed_by(error, doubt)
            except MalformedDocument as error:
                # Nobody else can claim a record that cannot be read: what is held goes on.
                self._tell_delay(kind_of(error))
            tick += 1
            await self._rest(halt)

    def _delayed_by(self, error: ShardfleetError, doubt: Doubt) -> None:
        """Emit that a call was refused; raise the verdict once the refusals have lasted."""
        if doubt.believes(error, self._ports.clock.monotonic_ms()):
            raise settled(error) from error
        self._tell_delay(kind_of(error))

    def _tell_delay(self, error: str) -> None:
        slot = self._slot
        self._ports.events.emit(
            SlotDelayed(slot_id=slot.slot_id, worker_id=slot.worker_id, error=error)
        )

    async def _rest(self, halt: Halt) -> None:
        """Wait for the next tick; what is being handed over is looked for more often."""
        clock = self._ports.clock
        pause_ms = _HANDOVER_POLL_MS if self._is_hungry() else self._config.renew_ms
        until_ms = clock.monotonic_ms() + pause_ms
        while not halt.is_set and (left_ms := until_ms - clock.monotonic_ms()) > 0:
            if not self._awaited:
                await halt.wait(left_ms)
                return
            if await halt.wait(min(left_ms, _HANDOVER_POLL_MS)):
                return
            with suppress(Throttled, OutcomeUnknown):
                await self._adopt(sorted(self._awaited))

    async def _look(self, *, with_index: bool) -> None:
        known_seq = self._slot.assign_seq
        self._slot = await self._ports.record.look()
        if self._slot.assign_seq > known_seq:
            # Nobody assigns what is finished: a person has set it back since it was looked at.
            self._finished.difference_update(self._slot.assigned)
            # It is wanted, though what it is to have may be for others to say (KCL 3).
            self._idle_since_ms = None
        keys = [*self._unserved(), *sorted(self._delayed)]
        if with_index:
            keys += await self._indexed()
        await self._adopt(keys)
        self._count_as_served()
        await self._beat_if_due()
        if self._slot.drain or self._slot.state is SlotState.ENDING:
            self._stop(TurnStop.DRAIN)
        elif await self._has_ended():
            self._stop(TurnStop.IDLE)

    def _is_hungry(self) -> bool:
        since_ms, now_ms = self._idle_since_ms, self._ports.clock.monotonic_ms()
        return since_ms is not None and now_ms - since_ms < _HUNGRY_MS

    def _unserved(self) -> tuple[str, ...]:
        slot = self._slot
        return slot.assigned if slot.assign_seq > self.served_seq else ()

    async def _adopt(self, keys: list[str]) -> None:
        checkpointer = self._ports.checkpointer
        wanted = [key for key in keys if key not in self._finished]
        found = await checkpointer.adopt(wanted)
        self._finished |= {key for key, what in found.items() if what is Adoption.FINISHED}
        self._awaited = {k for k in self._awaited - found.keys() if not checkpointer.holds(k)}
        self._awaited |= {key for key, what in found.items() if what is Adoption.AWAITED}
        delayed = {key for key, what in found.items() if what is Adoption.DELAYED}
        self._delayed = (self._delayed - found.keys()) | delayed
        if delayed:
            self._tell_delay(Throttled.__name__)
        if Adoption.ADOPTED in found.values():
            self._adopted()

    async def _indexed(self) -> list[str]:
        """Ask the index; without an answer the next time will do."""
        try:
            keys = list(await self._ports.leases.keys_owned_by(self._slot.worker_id))
        except (Throttled, OutcomeUnknown) as error:
            self._delayed_by(error, self._index_doubt)
            return []
        self._index_doubt.clear()
        return keys

    def _count_as_served(self) -> None:
        slot, now_ms = self._slot, self._ports.clock.monotonic_ms()
        if slot.assign_seq <= self.served_seq:
            return
        if slot.assign_seq != self._pending_seq:
            self._pending_seq, self._pending_since_ms = slot.assign_seq, now_ms
        holds = self._ports.checkpointer.holds
        config = self._config
        limit_ms = config.handover_limit_ms if self._awaited else config.failover_ms
        if (
            all(holds(key) or key in self._finished for key in slot.assigned)
            or now_ms - self._pending_since_ms >= limit_ms
        ):
            self.served_seq = slot.assign_seq

    async def _beat_if_due(self) -> None:
        keys = frozenset(h.lease_key for h in self._ports.checkpointer.held)
        now_ms = self._ports.clock.monotonic_ms()
        usage = self._ports.usage.sample()
        has_changed = (
            keys != self._told
            or usage.differs_from(self._usage_told, by=_USAGE_STEP)
            or self.served_seq > self._slot.served_seq
            or self._awaited  # Their owners let them go once they hear of this one (G2).
            or (self._slot.drain and self._slot.state is SlotState.RUNNING)
        )
        if not has_changed and now_ms - self._beat_ms < self._config.failover_ms:
            return
        signs = self._ports.usage.signs(self._ports.clock.now_ms())
        written = await self._ports.record.beat(self.served_seq, self.lags_ms, usage, signs=signs)
        self._slot = written or self._slot
        is_at_limit = self._is_at_limit(usage) and not self._is_at_limit(self._usage_told)
        self._told = frozenset(self._slot.lags_ms)
        self._usage_told, self._beat_ms = usage, now_ms
        self._ports.events.emit(
            WorkerBeat(
                slot_id=self._slot.slot_id,
                worker_id=self._slot.worker_id,
                held_leases=len(self._told),
            )
        )
        if self._config.spill and is_at_limit:
            await self._ports.record.prompt()  # Processes are as many as there are.

    def _is_at_limit(self, usage: Usage) -> bool:
        return max(usage.utilisation().values(), default=0) >= self._config.target_percent

    async def _has_ended(self) -> bool:
        """End a slot that has held nothing, with nothing to come, for long enough (H2)."""
        now_ms = self._ports.clock.monotonic_ms()
        if self._ports.checkpointer.held or self._unserved() or self._delayed:
            self._idle_since_ms = None
            return False
        if self._idle_since_ms is None:
            self._idle_since_ms = now_ms
        if now_ms - self._idle_since_ms < self._config.idle_end_ms:
            return False
        return await self._ports.record.end(self.served_seq)
