"""
The records of one shard, handed over batch by batch until each is handled, given up or waits.

Progress never passes a record that is not done (protocol.md §8 row 1). A failing record is tried
again with back-off, and holds its own shard only; how many go together, and when one is given up,
is decided in :mod:`shardfleet.domain.delivery.attempts`, and carried out here.

Longer than most modules, and one idea: what is next for a record, lanes and windows included, each
of which has a module for what it adds.

From the decoder to the handler a record is in three wrappings: the ``RecordsPage`` that was read,
the ``UserRecords`` taken out of it, and the ``Batch`` that the handler gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.open_records import OpenRecords
from shardfleet.domain.delivery.progress import check_order, position_of
from shardfleet.domain.reading.pages import RecordsPage
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import FailedRecords
from shardfleet.engine.retry import Halted
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.dispatch import cut_batch
from shardfleet.engine.shard.giving_up import GivingUp, StoppedByPolicy
from shardfleet.engine.shard.lanes import ShardLane, ShardLanes
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.engine.shard.windows import ShardWindows
from shardfleet.errors import OutcomeUnknown, StaleEpoch, Throttled, kind_of
from shardfleet.events.delivery import (
    BatchFailed,
    CheckpointAwaited,
    RecordSkipped,
    WindowSkipped,
)
from shardfleet.events.worker import WriteDelayed
from shardfleet.records import Batch, Record, ShardLife, leave_open, place_of

# Kept together where they are too old: with base64 and the event's fields about half of what an SQS
# message holds (1 MiB).
_KEPT_RECORDS_MOST = 100
_KEPT_BYTES_MOST = 256 * 1024


class ShardDelivery:
    """Hands the records of one held lease to the handler."""

    def __init__(
        self, held: HeldLease, *, config: FleetConfig, stream_arn: str, ports: DeliveryPorts
    ) -> None:
        """
        Begin with nothing delivered.

        Args:
            held: the lease.
            config: limits, attempts and the failure policy.
            stream_arn: for records that are given up.
            ports: the dispatcher and the rest.

        """
        self._held = held
        self._config = config
        self._stream_arn = stream_arn
        self._ports = ports
        self._attempts = ports.notes.attempts(held.lease_key)
        self._attempts.begin_anew()
        self._giving_up = GivingUp(held, config=config, ports=ports)
        self._lanes: ShardLanes | None = None
        if config.parallelism > 1:
            self._lanes = ShardLanes(
                held,
                config=config,
                ports=ports,
                hand_over=self._hand_over,
                flush=self.flush_if_due,
            )
        self._windows: ShardWindows | None = None
        if config.tumbling_window_ms:
            self._windows = ShardWindows(held, length_ms=config.tumbling_window_ms, ports=ports)
        self._flushed_ms = ports.clock.monotonic_ms() - config.checkpoint_ms
        self._flushing = asyncio.Lock()
        self._calls = 0
        self._begin_life()

    def _begin_life(self) -> None:
        """Know of nothing that is open: with manual checkpoints, it comes again."""
        config = self._config
        self._open = OpenRecords(
            records_most=config.max_open_records,
            bytes_most=config.max_open_bytes,
            age_most_ms=config.max_open_age_ms,
        )
        self._life = ShardLife() if config.checkpoint == "manual" else None
        self._idle_failures = 0
        self._is_begun = False

    @property
    def has_open(self) -> bool:
        """Return whether records are delivered that are not done."""
        return bool(self._open) or (self._lanes is not None and self._lanes.has_open)

    @property
    def is_busy(self) -> bool:
        """Return whether the shard is to be read on although nothing comes."""
        return self.has_open or (self._windows is not None and self._windows.is_open)

    @property
    def goes_on(self) -> bool:
        """Return whether anything was done since the shard was begun, if there was anything."""
        return self._lanes is None or self._lanes.has_moved

    async def recall(self) -> None:
        """
        Learn what a window has beyond the checkpoint, before it is read on from there.

        Raises:
            Halted: asked to stop, or the lease is lost.

        """
        if self._windows is not None:
            await self._windows.recall()

    async def begin(self) -> None:
        """
        Have the shard's handler object made and told ``started``, until that has returned.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left.
            StoppedByPolicy: it failed too often.
            HandlerTimedOut: the process must end.

        """
        if self._lanes is not None:
            await self._lanes.begin()
        while self._ports.dispatcher.has_hooks and not self._is_begun:
            await self._offer(must_flush=False, hook=Hook.STARTED)

    async def deliver(self, records: UserRecords) -> None:
        """
        Hand over the records of a page, to the last one.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left.
            StoppedByPolicy: a record failed too often.
            HandlerTimedOut: the process must end.

        """
        notes, key = self._ports.notes, self._held.lease_key
        if self._lanes is not None:
            await self._lanes.deliver(records)
            if notes.is_suspect(key):
                await self._lanes.finish()
            await self.flush_if_due(at_once=notes.follows_death)
            return
        calls_before = self._calls
        lane = ShardLane(self._attempts, partial(self._done, records))
        while waiting := await records.waiting(self._config.max_call_records):
            await self._hand_over(waiting, lane)
        if records.end is not None:
            self._pass_by(records.end)
        if self._windows is not None and self._windows.is_over():
            await self._end_window(self._windows)
        if self.has_open and self._calls == calls_before:
            await self._offer(must_flush=self._open.is_full(self._ports.clock.monotonic_ms()))
        await self.flush_if_due(at_once=notes.follows_death)

    def acquit(self, page: RecordsPage) -> None:
        """End the suspicion of a death, if all that was read is done and stored."""
        # An empty page on the way proves nothing (hazard H6).
        has_read = page.size > 0 or page.lag_ms == 0
        if has_read and not self.has_open and self._held.unstored is None:
            self._ports.notes.acquit(self._held.lease_key)

    async def stop_if_it_kills(self) -> None:
        """
        Stop a shard whose calls without records kill the process: there is nothing to give up.

        Raises:
            StoppedByPolicy: they did, ``max_crashes`` times.

        """
        killer = self._ports.notes.killer(self._held.lease_key)
        if killer is not None:
            error = f"{killer.kind.in_words}: the process died {killer.crashes} times in it"
            await self.stop(self._done_text, error=error, attempts=killer.crashes)

    @property
    def _done_text(self) -> str:
        return str(self._held.unstored or self._held.lease.checkpoint)

    async def _done(self, records: UserRecords, count: int, *, given_up: bool) -> None:
        """Go on behind the first of the waiting records."""
        position = position_of(records.records[count - 1])
        records.drop(count)
        if self._life is None or given_up:
            self._pass_by(position)
        is_suspect = self._ports.notes.is_suspect(self._held.lease_key)
        await self.flush_if_due(at_once=given_up or is_suspect)

    async def _hand_over(self, waiting: Sequence[Record], lane: ShardLane) -> None:
        """Make the next handler call of a lane, or give up what waits there first."""
        config = self._config
        if old := self._too_old(waiting):
            await self._give_up_old(old, lane)
            return
        deaths = lane.attempts.deaths_over(waiting[0])
        if deaths:
            error = f"the process died {deaths} times while it handled this record"
            await self._give_up(waiting[:1], lane, error=error, attempts=deaths)
            return
        await self._make_room()
        if self._windows is not None:
            waiting = waiting[
                : self._windows.open.fitting(waiting, now_ms=self._ports.clock.now_ms())
            ]
            if not waiting:
                await self._end_window(self._windows)
                return
        batch = cut_batch(
            waiting, records_most=config.max_call_records, bytes_most=config.max_batch_bytes
        )
        if self._life is not None:
            batch = cut_batch(
                batch, records_most=self._open.records_left, bytes_most=self._open.bytes_left
            )
        await self._try(batch[: lane.attempts.fitting(batch)], lane)

    async def finish(self) -> None:
        """
        Wait until what is open of a shard that has ended is checkpointed (KCL ``shardEnded``).

        Raises:
            Halted: it was not, and comes again.
            StoppedByPolicy: ``ended`` failed too often.

        """
        if self._lanes is not None:
            await self._lanes.finish()
        while self._windows is not None and self._windows.is_open:
            await self._end_window(self._windows)
        await self._drained(
            "the shard has ended", lambda: self.has_open or self._is_begun, hook=Hook.ENDED
        )

    async def leave(self) -> None:
        """
        Let the handler checkpoint what is open, once; whatever is not comes again.

        An object is told ``stopping``, or ``lease_lost`` where that is known by then; it is told
        nothing when there is no time left.

        Raises:
            HandlerTimedOut: the process must end.
            StaleEpoch: another invocation has taken over.
            Exception: what a lane raised meanwhile.

        """
        failure = await self._lanes.rest() if self._lanes is not None else None
        try:
            if isinstance(failure, StaleEpoch):
                raise failure
            if self._windows is not None:
                await self._windows.rest()
            with suppress(Halted):
                if self._held.is_held and (self._is_begun or self._open):
                    await self._offer(must_flush=bool(self._open), hook=Hook.STOPPING)
            if not self._held.is_held:
                await self.lose()
        except StaleEpoch:
            await self.lose()
            raise
        self._begin_life()
        if failure is not None and not isinstance(failure, StoppedByPolicy):
            raise failure

    async def lose(self) -> None:
        """
        Tell the handler's object that the shard is somebody else's, after its last call.

        Raises:
            HandlerTimedOut: a call does not end; the process must.

        """
        if self._lanes is not None:
            await self._lanes.settle()
        with suppress(Halted):
            if self._is_begun:
                await self._offer(must_flush=False, hook=Hook.LEASE_LOST)

    async def _make_room(self) -> None:
        """Bring no more records before there is room for them."""
        clock = self._ports.clock
        await self._drained(
            "a bound is reached",
            lambda: self.has_open and self._open.is_full(clock.monotonic_ms()),
        )

    async def _drained(
        self, reason: str, lasts: Callable[[], bool], *, hook: Hook | None = None
    ) -> None:
        """Call the handler without records until it has checkpointed enough."""
        is_told = False
        while lasts():
            await self._offer(must_flush=self.has_open, hook=hook)
            if not lasts():
                return
            if self.has_open and not is_told:
                is_told = True
                self._ports.events.emit(
                    CheckpointAwaited(
                        lease_key=self._held.lease_key,
                        worker_id=self._ports.checkpointer.worker_id,
                        records=len(self._open),
                        reason=reason,
                    )
                )
            await self._ports.patience.pause(self._config.idle_read_ms, self._held.halt)

    async def _end_window(self, windows: ShardWindows) -> None:
        """Have the handler process the result of the window; nothing else comes before it has."""
        await self._offer(must_flush=False, ends_window=True)
        if not self._idle_failures or self._skips_window(windows):
            windows.open.close()
            await self.flush_if_due(at_once=True)

    def _skips_window(self, windows: ShardWindows) -> bool:
        """Return whether the last call of a window is given up; emit an event if so."""
        policy, most, attempts = (
            self._config.failure_policy,
            self._config.max_attempts,
            self._idle_failures,
        )
        if not 0 < most <= attempts or policy.stops or policy.kept_in:
            return False
        self._idle_failures = 0
        self._ports.events.emit(
            WindowSkipped(
                lease_key=self._held.lease_key,
                worker_id=self._ports.checkpointer.worker_id,
                start_ms=windows.open.start_ms,
                end_ms=windows.open.end_ms,
                attempts=attempts,
            )
        )
        return True

    async def _offer(
        self, *, must_flush: bool, hook: Hook | None = None, ends_window: bool = False
    ) -> None:
        """Call the handler without records, for what is open, a hook, or the end of a window."""
        dispatcher = self._ports.dispatcher
        result = await dispatcher.call(
            self._held,
            (),
            attempt=self._idle_failures + 1,
            join=self._joining(must_flush=must_flush, is_final=ends_window),
            hook=hook,
            ends_window=ends_window,
        )
        if hook is not None and (hook.is_last or result.error is None):
            # Before anything that may raise: nothing follows an object's last hook.
            self._is_begun = hook is Hook.STARTED and dispatcher.has_hooks
        if hook is not Hook.LEASE_LOST:
            self._take_checkpoints()
            await self.flush_if_due(at_once=self._ports.notes.follows_death)
        if result.error is None:
            self._idle_failures = 0
            return
        told = hook if dispatcher.has_hooks else None
        kind = CallKind.of(told, has_records=False, ends_window=ends_window)
        await self._after_idle_failure(result.error, kind, hook=hook)

    async def _after_idle_failure(self, error: str, kind: CallKind, *, hook: Hook | None) -> None:
        """Do what is next after a call without records that failed."""
        ports, policy = self._ports, self._config.failure_policy
        self._idle_failures += 1
        ports.events.emit(
            BatchFailed(
                lease_key=self._held.lease_key,
                worker_id=ports.checkpointer.worker_id,
                position=self._done_text,
                attempt=self._idle_failures,
                reason=kind.in_words,
                error=error,
            )
        )
        if hook is not None and hook.is_last:
            return
        if 0 < self._config.max_attempts <= self._idle_failures:
            if kind is CallKind.WINDOW and not (policy.stops or policy.kept_in):
                return  # It is skipped.
            # No record is at fault, so none can be given up instead, whatever the policy.
            told = f"{kind.in_words.removeprefix('hook ')}: {error}"
            await self.stop(self._done_text, error=told, attempts=self._idle_failures)
        back_off_ms = ports.patience.back_off_ms(self._idle_failures)
        await ports.patience.pause(back_off_ms, self._held.halt)

    def _take_checkpoints(self) -> None:
        """Note as progress what the handler has checkpointed of what it has."""
        through = None
        if self._life is not None and self._life.through[1] >= 0:
            number, sub = self._life.through
            through = ExtendedSequenceNumber(str(number), sub)
        if done := self._open.close(through):
            self._held.note_progress(done)

    def _pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Go on behind what no handler gets."""
        if self._windows is not None:
            self._windows.pass_by(position)
            return
        if self._life is None:
            self._held.note_progress(position)
            return
        self._open.pass_by(position)
        self._take_checkpoints()

    def _joining(self, *, must_flush: bool, is_final: bool = False) -> Callable[[Batch], None]:
        """Return what has a batch take part in the shard's life, or its window."""

        def join(batch: Batch) -> None:
            if self._life is not None:
                leave_open(batch, self._life, must_flush=must_flush)
            if self._windows is not None and (batch or is_final):  # Else it is for a hook.
                self._windows.join(batch, is_final=is_final)

        return join

    async def _try(self, batch: Sequence[Record], lane: ShardLane) -> None:
        """Make one handler call; what fails is given up, or waits for its next one."""
        check_order(batch)
        now_ms = self._ports.clock.monotonic_ms()
        self._calls += 1
        handed = (-1, -1) if self._life is None else self._life.handed
        result = await self._ports.dispatcher.call(
            self._held,
            batch,
            attempt=lane.attempts.attempt,
            join=self._joining(
                must_flush=self._life is not None and self._open.is_full(now_ms, adding=batch)
            ),
        )
        if self._windows is not None:
            result = self._windows.take(result)
            if self._windows.open.outgrown:
                return
        # A reply without an error means that all is done, whatever else it says.
        done = len(batch) if result.error is None else result.done_count
        if self._life is not None:
            self._open.add(batch[:done], now_ms=now_ms)
            self._take_checkpoints()
            # What failed comes again, and is not done by what was said before.
            handed = place_of(batch[done - 1]) if done else handed
            self._life.handed, self._life.through = handed, min(self._life.through, handed)
        if done:
            await lane.done(done, given_up=False)
        if result.error is not None and done < len(batch):
            await self._after_failure(batch, lane, done=done, error=result.error)
        else:
            lane.attempts.handled()

    async def _after_failure(
        self, batch: Sequence[Record], lane: ShardLane, *, done: int, error: str
    ) -> None:
        """Do what is next for the first record that is not done."""
        ports, record = self._ports, batch[done]
        failure = lane.attempts.failed(batch, done_count=done, error=error)
        back_off_ms = ports.patience.back_off_ms(failure.attempt)
        ports.events.emit(
            BatchFailed(
                lease_key=self._held.lease_key,
                worker_id=ports.checkpointer.worker_id,
                position=str(position_of(record)),
                attempt=failure.attempt,
                reason=failure.reason,
                error=error,
            )
        )
        if failure.gives_up:
            await self._give_up((record,), lane, error=error, attempts=failure.attempt)
            return
        await ports.patience.pause(back_off_ms, self._held.halt)

    def _too_old(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Return the next records that the handler is not to get because of their age."""
        age_ms = self._config.max_record_age_ms
        if not age_ms:
            return ()
        since_ms = self._ports.clock.now_ms() - age_ms
        # 0: nobody told when it arrived.
        old = list(takewhile(lambda each: 0 < each.approximate_arrival_ms < since_ms, waiting))
        return old and cut_batch(old, records_most=_KEPT_RECORDS_MOST, bytes_most=_KEPT_BYTES_MOST)

    async def _give_up_old(self, old: Sequence[Record], lane: ShardLane) -> None:
        age_ms = self._ports.clock.now_ms() - old[0].approximate_arrival_ms
        most_ms = self._config.max_record_age_ms
        error = f"{age_ms} ms old, max_record_age_ms is {most_ms}"
        attempts = lane.attempts.attempt - 1
        await self._give_up(old, lane, error=error, attempts=attempts, is_too_old=True)

    async def _give_up(
        self,
        records: Sequence[Record],
        lane: ShardLane,
        *,
        error: str,
        attempts: int,
        is_too_old: bool = False,
    ) -> None:
        """Keep records elsewhere in full, stop the shard, or go on behind them: by policy."""
        policy, position = self._config.failure_policy, position_of(records[0])
        kept_at = ""
        if policy.kept_in:
            failed = FailedRecords(
                stream_arn=self._stream_arn,
                records=tuple(records),
                error=error,
                attempts=attempts,
                worker_id=self._ports.checkpointer.worker_id,
                at_ms=self._ports.clock.now_ms(),
                is_too_old=is_too_old,
            )
            kept_at = await self._giving_up.keep(failed)
        if policy.stops:
            await self.stop(str(position), error=error, attempts=attempts)
        for record in records:
            self._ports.events.emit(
                RecordSkipped(
                    lease_key=self._held.lease_key,
                    worker_id=self._ports.checkpointer.worker_id,
                    position=str(position_of(record)),
                    attempts=attempts,
                    kept_at=kept_at,
                )
            )
        # Stored at once: another record that kills would have this one counted anew, for ever (H9).
        await lane.done(len(records), given_up=True)
        lane.attempts.gave_up(records[-1])

    async def stop(self, position: str, *, error: str, attempts: int) -> None:
        """
        Put a stop on record; the shard rests until somebody removes it.

        What came before it does not count any more: once resumed, the record, which may be another
        by then, has all its attempts, and its neighbours go along.

        Raises:
            StoppedByPolicy: always, once it is on record.

        """
        self._attempts.begin_anew()
        await self._giving_up.stop(position, error=error, attempts=attempts)

    async def flush_if_due(self, *, at_once: bool = False) -> None:
        """Checkpoint, at most every ``checkpoint_ms``; a refusal is left to the next time."""
        ports, held = self._ports, self._held
        now_ms = ports.clock.monotonic_ms()
        if not at_once and now_ms - self._flushed_ms < self._config.checkpoint_ms:
            return
        if self._lanes is not None:
            self._flushed_ms = now_ms
            await self._lanes.note()
        if self._windows is not None:
            self._flushed_ms = now_ms
            await self._windows.note()
        if held.unstored is None or self._flushing.locked():
            return
        self._flushed_ms = now_ms
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
