"""
Where a shard stands between reading and checkpoint: what its consumer asks, and nothing else.

What all ways of delivering have in common is here: one batch after another, calls without records
for a handler's object, and the checkpoint, which follows what is done (h11's connection asks its
tables, a consumer its progress). Each way is a module of :mod:`shardfleet.engine.delivery`, and
overrides what it does otherwise. A fleet has one; the composition root chooses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.retry import Halted
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.delivery import ShardDelivery
from shardfleet.engine.shard.dispatch import Joining
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.errors import OutcomeUnknown, StaleEpoch, Throttled, kind_of
from shardfleet.events.delivery import BatchFailed
from shardfleet.events.worker import WriteDelayed
from shardfleet.records import Record


class Progress:
    """
    How far the records of one held lease are; it is their one lane, too.

    With every option off, a record is done when its call has returned.

    Attributes:
        last_calls: how many handler calls may follow one another after a turn's time is over.
        renewals_store: a renewal stores all that a checkpoint would.
        attempts: at the records.
        idle_failures: how often in a row a call without records failed.
        is_begun: the handler's object was told ``started``, and no last hook yet.

    """

    last_calls: ClassVar[int] = 1
    renewals_store: ClassVar[bool] = True

    def __init__(self, held: HeldLease, *, config: FleetConfig, ports: DeliveryPorts) -> None:
        """
        Begin with nothing delivered.

        Args:
            held: the lease.
            config: limits and attempts.
            ports: the failure policy, the dispatcher and the rest.

        """
        self.held = held
        self.config = config
        self.ports = ports
        self.attempts = ports.notes.attempts(held.lease_key)
        self.attempts.begin_anew()
        self.delivery = ShardDelivery(held, config=config, ports=ports)
        self.stop = self.delivery.stop
        self.flushed_ms = ports.clock.monotonic_ms() - config.checkpoint_ms
        self._stored = held.lease.checkpoint
        self._flushing = asyncio.Lock()
        self._call_records = config.max_call_records
        self.begin_life()

    def begin_life(self) -> None:
        """Know of nothing that is open."""
        self.idle_failures = 0
        self.is_begun = False

    # --- what a way of delivering does otherwise

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Go on behind what is done, given up, or nothing that a handler gets."""
        self.held.note_progress(position)

    @property
    def has_open(self) -> bool:
        """Return whether records are delivered that are not done."""
        return False

    @property
    def is_busy(self) -> bool:
        """Return whether the shard is to be read on although nothing comes."""
        return self.has_open

    @property
    def goes_on(self) -> bool:
        """Return whether anything was done since the shard was begun, if there was anything."""
        return True

    @property
    def has_last_call(self) -> bool:
        """Return whether the handler is to be called once more before the shard is left."""
        return self.is_begun

    async def recall(self) -> None:
        """
        Learn what is noted beside the checkpoint, before the shard is read on from there.

        Raises:
            Halted: asked to stop, or the lease is lost.

        """

    async def work_through(self, records: UserRecords) -> None:
        """Hand over the records of a page, to the last one."""
        self._page = records
        while waiting := await records.waiting(self._call_records):
            await self.delivery.hand_over(waiting, self)
        if records.end is not None:
            self.pass_by(records.end)

    async def room(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Return which of the next records may go now, once any may; none: look again."""
        return waiting

    async def call(self, batch: Sequence[Record]) -> HandlerResult:
        """Make one handler call."""
        return await self.ports.dispatcher.call(self.held, batch, attempt=self.attempts.attempt)

    def returned(self) -> None:
        """Take over what a call without records has answered."""

    async def worn_out(self, error: str, kind: CallKind) -> None:
        """
        Do what is next after a call without records that has used up its attempts.

        Raises:
            StoppedByPolicy: the shard is stopped: no record is at fault, so none can be given up
                instead, whatever the policy.

        """
        words = f"{kind.in_words.removeprefix('hook ')}: {error}"
        await self.stop(self.held.done_text, error=words, attempts=self.idle_failures)

    # --- what a consumer asks for

    async def begin(self) -> None:
        """
        Have the shard's handler object made and told ``started``, until that has returned.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left.
            StoppedByPolicy: it failed too often.
            HandlerTimedOut: the process must end.

        """
        while self.ports.dispatcher.has_hooks and not self.is_begun:
            await self.offer(hook=Hook.STARTED)

    async def take(self, records: UserRecords) -> None:
        """
        Take the records of a page, and checkpoint if that is due.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left.
            StoppedByPolicy: a record failed too often.
            HandlerTimedOut: the process must end.

        """
        await self.work_through(records)
        await self.flush_if_due(at_once=self.ports.notes.follows_death)

    def acquit(self, page: RecordsPage, *, brings: bool) -> None:
        """End the suspicion of a death, if all that was read is done and stored."""
        # A page on the way that brings nothing proves nothing (hazard H6), nor does one that has
        # but the record that was done last.
        has_read = brings or page.lag_ms == 0
        if has_read and not self.has_open and self.held.unstored is None:
            self.ports.notes.acquit(self.held.lease_key)

    async def stop_if_it_kills(self) -> None:
        """
        Stop a shard whose calls without records kill the process: there is nothing to give up.

        Raises:
            StoppedByPolicy: they did, ``max_crashes`` times.

        """
        killer = self.ports.notes.killer(self.held.lease_key)
        if killer is not None:
            error = f"{killer.kind.in_words}: the process died {killer.crashes} times in it"
            await self.stop(self.held.done_text, error=error, attempts=killer.crashes)

    async def finish(self) -> None:
        """
        Have the object of a shard that has ended told so, until that has returned.

        Raises:
            Halted: it was not, and comes again.
            StoppedByPolicy: ``ended`` failed too often.

        """
        while self.is_begun:
            await self.offer(hook=Hook.ENDED)
            if self.is_begun:
                await self.ports.patience.pause(self.config.idle_read_ms, self.held.halt)

    async def leave(self) -> None:
        """
        Let the handler checkpoint what is open, once; whatever is not comes again.

        An object is told ``stopping``, or ``lease_lost`` where that is known by then; it is told
        nothing when there is no time left.

        Raises:
            HandlerTimedOut: the process must end.
            StaleEpoch: another invocation has taken over.

        """
        try:
            await self.rest()
            with suppress(Halted):
                if self.held.is_held and self.has_last_call:
                    await self.offer(hook=Hook.STOPPING)
            if not self.held.is_held:
                await self.lose()
        except StaleEpoch:
            await self.lose()
            raise
        self.begin_life()

    async def rest(self) -> None:
        """Write down how far the shard is, before it is left."""

    async def lose(self) -> None:
        """
        Tell the handler's object that the shard is somebody else's, after its last call.

        Raises:
            HandlerTimedOut: a call does not end; the process must.

        """
        with suppress(Halted):
            if self.is_begun:
                await self.offer(hook=Hook.LEASE_LOST)

    # --- what they have in common

    async def done(self, count: int, *, given_up: bool) -> None:
        """Go on behind the first of the waiting records."""
        position = position_of(self._page.records[count - 1])
        self._page.drop(count)
        self.pass_by(position)
        notes = self.ports.notes
        is_suspect = notes.follows_death and notes.is_suspect(self.held.lease_key)
        await self.flush_if_due(at_once=given_up or is_suspect)

    async def offer(
        self,
        *,
        hook: Hook | None = None,
        kind: CallKind = CallKind.FLUSH,
        join: Joining | None = None,
    ) -> None:
        """Call the handler without records, for a hook or what a way of delivering has."""
        dispatcher = self.ports.dispatcher
        if hook is not None and dispatcher.has_hooks:
            kind = CallKind(hook)
        result = await dispatcher.call(
            self.held, (), attempt=self.idle_failures + 1, kind=kind, hook=hook, join=join
        )
        if hook is not None and (hook.is_last or result.error is None):
            # Before anything that may raise: nothing follows an object's last hook.
            self.is_begun = hook is Hook.STARTED and dispatcher.has_hooks
        if hook is not Hook.LEASE_LOST:
            self.returned()
            await self.flush_if_due(at_once=self.ports.notes.follows_death)
        if result.error is None:
            self.idle_failures = 0
        else:
            await self._after_idle_failure(result.error, kind, hook=hook)

    async def _after_idle_failure(self, error: str, kind: CallKind, *, hook: Hook | None) -> None:
        """Do what is next after a call without records that failed."""
        ports = self.ports
        self.idle_failures += 1
        ports.events.emit(
            BatchFailed(
                lease_key=self.held.lease_key,
                worker_id=ports.checkpointer.worker_id,
                position=self.held.done_text,
                attempt=self.idle_failures,
                reason=kind.in_words,
                error=error,
            )
        )
        if hook is not None and hook.is_last:
            return
        if 0 < self.config.max_attempts <= self.idle_failures:
            await self.worn_out(error, kind)
            return
        back_off_ms = ports.patience.back_off_ms(self.idle_failures)
        await ports.patience.pause(back_off_ms, self.held.halt)

    async def flush_if_due(self, *, at_once: bool = False) -> None:
        """
        Checkpoint, at most every ``checkpoint_ms``; a refusal is left to the next time.

        What a renewal has stored meanwhile is not written again: each write is paid for.
        """
        now_ms, held = self.ports.clock.monotonic_ms(), self.held
        if self.renewals_store and held.lease.checkpoint != self._stored:
            self._stored = held.lease.checkpoint
            self.flushed_ms = max(self.flushed_ms, held.confirmed.monotonic_ms)
        if at_once or now_ms - self.flushed_ms >= self.config.checkpoint_ms:
            await self.flush(now_ms)

    async def flush(self, now_ms: int) -> None:
        """Checkpoint what is not stored yet, unless that is being done."""
        ports, held = self.ports, self.held
        if held.unstored is None or self._flushing.locked():
            return
        self.flushed_ms = now_ms
        try:
            async with self._flushing:
                await ports.checkpointer.flush(held)
        except (Throttled, OutcomeUnknown) as error:
            ports.events.emit(
                WriteDelayed(
                    lease_key=held.lease_key,
                    worker_id=ports.checkpointer.worker_id,
                    error=kind_of(error),
                    age_ms=now_ms - held.confirmed.monotonic_ms,
                )
            )
