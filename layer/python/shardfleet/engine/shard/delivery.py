"""
The records of one shard, handed over batch by batch until each is handled, given up or waits.

Progress never passes a record that is not done (protocol.md §8 row 1). A failing record is tried
again with back-off, and holds its own shard only. Before a record is given up it is known exactly:
the last attempts are made with one record at a time, so that no innocent neighbour is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.failures import FailureAction, decide_failure
from shardfleet.domain.delivery.progress import BatchProgress
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import Clock, DeadLetters, EventSink, FailedRecords
from shardfleet.engine.retry import Patience
from shardfleet.engine.shard.crash_notes import CrashNotes
from shardfleet.engine.shard.dispatch import (
    Delivery,
    Dispatcher,
    cut_batch,
    position_of,
    positions_of,
)
from shardfleet.engine.shard.reader import Page
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import ConfigurationError, OutcomeUnknown, ShardfleetError, Throttled
from shardfleet.events import (
    BatchFailed,
    RecordNotKept,
    RecordSkipped,
    ShardStopped,
    WriteDelayed,
)
from shardfleet.records import Record


class StoppedByPolicy(Exception):
    """The shard was stopped; the stop is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPorts:
    """What delivering works with; ``dead_letters`` is None when records are never skipped."""

    dispatcher: Dispatcher
    checkpointer: Checkpointer
    notes: CrashNotes
    state: FleetState
    dead_letters: DeadLetters | None
    clock: Clock
    events: EventSink
    patience: Patience


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
        self._attempt = 1
        # While set, no record beyond this goes along: it has not failed with the others.
        self._again_through: ExtendedSequenceNumber | None = None
        # While set, records up to here go one at a time: one of them fails, none is known to.
        self._alone_through: ExtendedSequenceNumber | None = None
        # How the batch failed: a record that fails alone in the same way is the one that did. The
        # second is None once the record that is first now has failed in a way of its own.
        self._batch_error: str | None = None
        self._suspected_error: str | None = None
        self._flushed_ms = ports.clock.monotonic_ms() - config.checkpoint_ms

    async def deliver(self, page: Page) -> None:
        """
        Hand over a page to its last record.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left.
            StoppedByPolicy: a record failed too often.
            HandlerTimedOut: the process must end.

        """
        records = page.records
        while waiting := await records.waiting(self._config.batch_records_most):
            batch = self._next_batch(waiting)
            positions = positions_of(batch)
            deaths = self._ports.notes.condemned(self._held.lease_key, positions[0])
            if deaths:
                error = f"the process died {deaths} times while it handled this record (H9)"
                await self._give_up(batch[0], error=error, attempts=deaths)
                self._ports.notes.passed(self._held.lease_key, positions[:1])
                self._back_to_normal()
                records.drop(1)
            else:
                records.drop(await self._try(batch, positions, lag_ms=page.lag_ms))
        if records.end is not None:
            self._held.note_progress(records.end)
        await self.flush_if_due()

    def _next_batch(self, records: Sequence[Record]) -> Sequence[Record]:
        config = self._config
        batch = cut_batch(
            records,
            records_most=config.batch_records_most,
            bytes_most=config.batch_bytes_most,
        )
        if self._alone_through is not None:
            if position_of(batch[0]) <= self._alone_through:
                return batch[:1]
            self._back_to_normal()
        through = self._again_through
        if through is not None:
            batch = [record for record in batch if position_of(record) <= through]
        if self._ports.notes.is_charged(self._held.lease_key):
            positions = positions_of(batch)
            return batch[: self._ports.notes.most_records(self._held.lease_key, positions)]
        return batch

    async def _try(
        self,
        batch: Sequence[Record],
        positions: Sequence[ExtendedSequenceNumber],
        *,
        lag_ms: int,
    ) -> int:
        """Make one handler call; return how many records are done or given up."""
        delivery = Delivery(
            records=batch, positions=positions, attempt=self._attempt, lag_ms=lag_ms
        )
        result = await self._ports.dispatcher.call(self._held, delivery)
        progress = BatchProgress(positions)
        # A reply without an error means that all is done, whatever else it says.
        progress.complete_through(len(batch) if result.error is None else result.done_count)
        safe = progress.safe()
        if safe is not None:
            self._held.note_progress(safe)
            await self.flush_if_due(force=self._ports.notes.suspicious)
        if result.error is not None and not progress.is_complete:
            return await self._after_failure(batch, done=result.done_count, error=result.error)
        self._next_head()
        return len(batch)

    async def _after_failure(self, batch: Sequence[Record], *, done: int, error: str) -> int:
        """Decide about the first record that is not done."""
        config, ports = self._config, self._ports
        if done or (self._suspected_error is not None and error != self._suspected_error):
            # This call is the first that the record is known to fail.
            self._attempt = 1
            self._suspected_error = None
        failed = batch[done]
        decision = decide_failure(
            self._attempt,
            config.max_attempts,
            on_exhausted=config.on_exhausted,
            back_off=ports.patience.back_off_ms(self._attempt),
        )
        ports.events.emit(
            BatchFailed(
                lease_key=self._held.lease_key,
                worker_id=ports.checkpointer.worker_id,
                position=str(position_of(failed)),
                attempt=self._attempt,
                reason=decision.reason,
                error=error,
            )
        )
        is_known = len(batch) == 1
        if decision.action is not FailureAction.RETRY and is_known:
            await self._give_up(failed, error=error, attempts=self._attempt)
            self._back_to_normal()
            return 1
        self._attempt += 1
        self._again_through = position_of(batch[-1])
        if config.max_attempts and self._attempt >= config.max_attempts and not is_known:
            self._alone_through = position_of(batch[-1])
            self._suspected_error = self._batch_error = error
        await ports.patience.pause(
            decision.back_off_ms or ports.patience.back_off_ms(self._attempt), self._held.halt
        )
        return done

    def _next_head(self) -> None:
        """Begin to count anew; among suspects, as if each had failed with the batch."""
        if self._alone_through is None:
            self._attempt = 1
            self._again_through = None
        else:
            self._attempt = max(2, self._config.max_attempts)
            self._suspected_error = self._batch_error

    def _back_to_normal(self) -> None:
        self._attempt = 1
        self._again_through = None
        self._alone_through = None
        self._suspected_error = self._batch_error = None

    async def _give_up(self, record: Record, *, error: str, attempts: int) -> None:
        """Stop the shard, or keep the record elsewhere in full and go on behind it."""
        if self._config.on_exhausted == "stop":
            await self.stop(str(position_of(record)), error=error, attempts=attempts)
        failed = FailedRecords(
            stream_arn=self._stream_arn,
            records=(record,),
            error=error,
            attempts=attempts,
            worker_id=self._ports.checkpointer.worker_id,
            at_ms=self._ports.clock.now_ms(),
        )
        kept_at = await self._keep(failed)
        self._held.note_progress(position_of(record))
        self._ports.events.emit(
            RecordSkipped(
                lease_key=self._held.lease_key,
                worker_id=self._ports.checkpointer.worker_id,
                position=str(position_of(record)),
                attempts=attempts,
                kept_at=kept_at,
            )
        )
        # At once: another record that kills would have this one counted anew, for ever (H9).
        await self.flush_if_due(force=True)

    async def _keep(self, failed: FailedRecords) -> str:
        """Keep a record elsewhere; as long as that fails, the shard waits."""
        dead_letters = self._ports.dead_letters
        if dead_letters is None:
            message = f"on_exhausted: {self._config.on_exhausted} found, but nothing keeps records"
            raise ConfigurationError(message)
        failures = 0
        while True:
            try:
                return await dead_letters.record(failed)
            except ShardfleetError as error:
                failures += 1
                self._ports.events.emit(
                    RecordNotKept(
                        lease_key=self._held.lease_key,
                        worker_id=failed.worker_id,
                        position=str(position_of(failed.records[0])),
                        error=str(error),
                    )
                )
            await self._ports.patience.pause(
                self._ports.patience.back_off_ms(failures), self._held.halt
            )

    async def stop(self, position: str, *, error: str, attempts: int) -> None:
        """
        Put a stop on record; the shard rests until somebody removes it.

        What came before it does not count any more: once resumed, the record, which may be another
        by then, has all its attempts, and its neighbours go along.

        Raises:
            StoppedByPolicy: always, once it is on record.

        """
        note = StopNote(
            lease_key=self._held.lease_key,
            position=position,
            error=error,
            attempts=attempts,
            worker_id=self._ports.checkpointer.worker_id,
            at_ms=self._ports.clock.now_ms(),
        )
        await self._ports.patience.persist(
            lambda: self._ports.state.write_stop(note), self._held.halt
        )
        self._back_to_normal()
        self._ports.events.emit(
            ShardStopped(
                lease_key=note.lease_key, worker_id=note.worker_id, position=position, error=error
            )
        )
        await self._ports.patience.persist(
            lambda: self._ports.notes.settle(note.lease_key), self._held.halt
        )
        raise StoppedByPolicy(note.error)

    async def flush_if_due(self, *, force: bool = False) -> None:
        """Checkpoint, at most every ``checkpoint_ms``; a refusal is left to the next time."""
        ports, held = self._ports, self._held
        now_ms = ports.clock.monotonic_ms()
        if held.unstored is None:
            return
        if not force and now_ms - self._flushed_ms < self._config.checkpoint_ms:
            return
        self._flushed_ms = now_ms
        try:
            await ports.checkpointer.flush(held)
        except (Throttled, OutcomeUnknown) as error:
            ports.events.emit(
                WriteDelayed(
                    lease_key=held.lease_key,
                    worker_id=ports.checkpointer.worker_id,
                    error=type(error).__name__,
                    age_ms=now_ms - held.confirmed.monotonic_ms,
                )
            )
