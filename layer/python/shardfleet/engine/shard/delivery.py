"""
The records of one shard, handed over call by call until each is handled or given up.

Progress never passes a record that is not done (protocol.md §8 row 1). A failing record is tried
again with back-off, and holds its own lane only; how many go together, and when one is given up,
is decided in :mod:`shardfleet.domain.delivery.attempts`, and carried out here.

From the decoder to the handler a record is in three wrappings: the ``RecordsPage`` that was read,
the ``UserRecords`` taken out of it, and the ``Batch`` that the handler gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Protocol

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import Attempts
from shardfleet.domain.delivery.progress import check_order, position_of
from shardfleet.domain.delivery.stops import StopNote
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import FailedRecords, HandlerResult
from shardfleet.engine.shard.dispatch import cut_batch
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.errors import ShardfleetError
from shardfleet.events.delivery import BatchFailed, RecordNotKept, RecordSkipped, ShardStopped
from shardfleet.records import Record

# Kept together where the handler gets none of them: with base64 and the event's fields about half
# of what an SQS message holds (1 MiB).
_KEPT_RECORDS_MOST = 100
_KEPT_BYTES_MOST = 256 * 1024
_HELD_BACK = "held back by the failure policy"


class StoppedByPolicy(Exception):
    """The shard was stopped; the stop is on record."""


class RecordLane(Protocol):
    """Records of a shard that go one batch after another."""

    @property
    def attempts(self) -> Attempts:
        """Return the attempts at them."""

    async def room(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Return which of the next records may go now, once any may; none: look again."""

    async def call(self, batch: Sequence[Record]) -> HandlerResult:
        """Make one handler call."""

    async def done(self, count: int, *, given_up: bool) -> None:
        """Go on behind the first records that wait, and checkpoint if that is due."""


def done_of(batch: Sequence[Record], result: HandlerResult) -> int:
    """Return how many records are done: without an error all, whatever else a reply says."""
    return len(batch) if result.error is None else result.done_count


class ShardDelivery:
    """Hands the records of one held lease to the handler."""

    def __init__(self, held: HeldLease, *, config: FleetConfig, ports: DeliveryPorts) -> None:
        """
        Begin with nothing delivered.

        Args:
            held: the lease.
            config: limits and attempts.
            ports: the failure policy, the dispatcher and the rest.

        """
        self._held = held
        self._config = config
        self._ports = ports
        self._call_records = config.max_call_records

    async def hand_over(self, waiting: Sequence[Record], lane: RecordLane) -> None:
        """
        Make the next handler call of a lane, or give up what waits there first.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left.
            StoppedByPolicy: a record failed too often.
            HandlerTimedOut: the process must end.

        """
        config = self._config
        if old := self._too_old(waiting):
            await self._give_up_old(old, lane)
            return
        if lane.attempts.charge and (deaths := lane.attempts.deaths_over(waiting[0])):
            error = f"the process died {deaths} times while it handled this record"
            await self._give_up(waiting[:1], lane, error=error, attempts=deaths)
            return
        if admits := self._ports.policy.admits:
            is_admitted = admits(waiting[0])
            waiting = [*takewhile(lambda record: admits(record) == is_admitted, waiting)]
            if not is_admitted:
                await self._give_up(waiting, lane, error=_HELD_BACK, attempts=0)
                return
        waiting = await lane.room(waiting)
        if not waiting:
            return
        batch = cut_batch(
            waiting, records_most=self._call_records, bytes_most=config.max_batch_bytes
        )
        await self._try(batch[: lane.attempts.fitting(batch)], lane)

    async def _try(self, batch: Sequence[Record], lane: RecordLane) -> None:
        """Make one handler call; what fails is given up, or waits for its next one."""
        check_order(batch)
        result = await lane.call(batch)
        if result.outgrows:
            return
        done = done_of(batch, result)
        if done:
            await lane.done(done, given_up=False)
        if result.error is not None and done < len(batch):
            await self._after_failure(batch, lane, done=done, error=result.error)
        else:
            lane.attempts.handled()

    async def _after_failure(
        self, batch: Sequence[Record], lane: RecordLane, *, done: int, error: str
    ) -> None:
        """Do what is next for the first record that is not done."""
        ports, record = self._ports, batch[done]
        failure = lane.attempts.failed(batch, done_count=done, error=error)
        back_off_ms = ports.patience.back_off_ms(failure.attempt)
        means = f": {ports.policy.terms.means}" if failure.gives_up else ""
        ports.events.emit(
            BatchFailed(
                lease_key=self._held.lease_key,
                worker_id=ports.checkpointer.worker_id,
                position=str(position_of(record)),
                attempt=failure.attempt,
                reason=failure.reason + means,
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
        return list(takewhile(lambda each: 0 < each.approximate_arrival_ms < since_ms, waiting))

    async def _give_up_old(self, old: Sequence[Record], lane: RecordLane) -> None:
        age_ms = self._ports.clock.now_ms() - old[0].approximate_arrival_ms
        error = f"{age_ms} ms old, max_record_age_ms is {self._config.max_record_age_ms}"
        attempts = lane.attempts.attempt - 1
        await self._give_up(old, lane, error=error, attempts=attempts, is_too_old=True)

    async def _give_up(
        self,
        records: Sequence[Record],
        lane: RecordLane,
        *,
        error: str,
        attempts: int,
        is_too_old: bool = False,
    ) -> None:
        """Carry the failure policy out for as many as are kept together, and go on behind them."""
        records = cut_batch(records, records_most=_KEPT_RECORDS_MOST, bytes_most=_KEPT_BYTES_MOST)
        failed = FailedRecords(
            stream_arn=self._held.shard.stream_arn,
            records=tuple(records),
            error=error,
            attempts=attempts,
            worker_id=self._ports.checkpointer.worker_id,
            at_ms=self._ports.clock.now_ms(),
            is_too_old=is_too_old,
        )
        kept_at = await self._carried_out(failed)
        if self._ports.policy.terms.stops:
            await self.stop(str(position_of(records[0])), error=error, attempts=attempts)
        for record in records:
            self._ports.events.emit(
                RecordSkipped(
                    lease_key=self._held.lease_key,
                    worker_id=failed.worker_id,
                    position=str(position_of(record)),
                    attempts=attempts,
                    kept_at=kept_at,
                )
            )
        # Stored at once: another record that kills would have this one counted anew, for ever (H9).
        await lane.done(len(records), given_up=True)
        lane.attempts.gave_up(records[-1])

    async def _carried_out(self, failed: FailedRecords) -> str:
        """Return where the policy keeps records; as long as it fails, the shard waits."""
        ports, failures = self._ports, 0
        while True:
            try:
                return await ports.policy.give_up(failed)
            except ShardfleetError as error:
                failures += 1
                ports.events.emit(
                    RecordNotKept(
                        lease_key=self._held.lease_key,
                        worker_id=failed.worker_id,
                        position=str(position_of(failed.records[0])),
                        error=str(error),
                    )
                )
            await ports.patience.pause(ports.patience.back_off_ms(failures), self._held.halt)

    async def stop(self, position: str, *, error: str, attempts: int) -> None:
        """
        Put a stop on record; the shard rests until somebody removes it.

        What came before it does not count any more: once resumed, the record, which may be another
        by then, has all its attempts, and its neighbours go along.

        Raises:
            StoppedByPolicy: always, once it is on record.

        """
        ports, lease_key = self._ports, self._held.lease_key
        ports.notes.attempts(lease_key).begin_anew()
        note = StopNote(
            lease_key=lease_key,
            position=position,
            error=error,
            attempts=attempts,
            worker_id=ports.checkpointer.worker_id,
            at_ms=ports.clock.now_ms(),
        )
        await ports.patience.persist(lambda: ports.state.write_stop(note), self._held.halt)
        ports.events.emit(
            ShardStopped(
                lease_key=lease_key, worker_id=note.worker_id, position=position, error=error
            )
        )
        await ports.patience.persist(lambda: ports.notes.settle(lease_key), self._held.halt)
        raise StoppedByPolicy(note.error)
