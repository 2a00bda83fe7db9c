"""
Manual checkpoints: what the handler has returned from is open until it checkpoints it.

What is open, and within which bounds, is decided in :mod:`shardfleet.domain.delivery.open_records`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.open_records import OpenRecords
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.delivery import done_of
from shardfleet.engine.shard.dispatch import Joining, cut_batch
from shardfleet.engine.shard.progress import Progress
from shardfleet.events.delivery import CheckpointAwaited
from shardfleet.records import Record, ShardLife, leave_open, place_of


class ManualProgress(Progress):
    """One batch after another, done as far as the handler has checkpointed."""

    last_calls = 2  # The last one may checkpoint what the one before has returned from.

    def begin_life(self) -> None:
        """Know of nothing that is open: it comes again."""
        super().begin_life()
        config = self.config
        self._life = ShardLife()
        self._has_called = False
        self._open = OpenRecords(
            records_most=config.max_open_records,
            bytes_most=config.max_open_bytes,
            age_most_ms=config.max_open_age_ms,
        )

    @property
    def has_open(self) -> bool:
        """Return whether records are delivered that are not checkpointed."""
        return bool(self._open)

    async def work_through(self, records: UserRecords) -> None:
        """Hand over the records of a page; where none came, the handler may checkpoint."""
        self._has_called = False
        await super().work_through(records)
        if self.has_open and not self._has_called:
            await self.offer(must_flush=self._is_full())

    async def room(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Have the handler checkpoint until there is room, and return which records fit."""
        await self._drain("a bound is reached", lambda: self.has_open and self._is_full())
        left = self._open
        return cut_batch(waiting, records_most=left.records_left, bytes_most=left.bytes_left)

    async def call(self, batch: Sequence[Record]) -> HandlerResult:
        """Hand over a batch, which is open when the call has returned."""
        now_ms, handed = self.ports.clock.monotonic_ms(), self._life.handed
        self._has_called = True
        result = await self.ports.dispatcher.call(
            self.held,
            batch,
            attempt=self.attempts.attempt,
            join=self._joining(must_flush=self._open.is_full(now_ms, adding=batch)),
        )
        done = done_of(batch, result)
        self._open.add(batch[:done], now_ms=now_ms)
        self.returned()
        # What failed comes again, and is not done by what was said before.
        handed = place_of(batch[done - 1]) if done else handed
        self._life.handed, self._life.through = handed, min(self._life.through, handed)
        return result

    async def offer(
        self,
        *,
        hook: Hook | None = None,
        kind: CallKind = CallKind.FLUSH,
        join: Joining | None = None,
        must_flush: bool = False,
    ) -> None:
        """Call the handler without records; it may checkpoint what is open."""
        is_last = must_flush or (hook is Hook.STOPPING and self.has_open)
        await super().offer(hook=hook, kind=kind, join=join or self._joining(must_flush=is_last))

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Go on behind a position once nothing before it is open."""
        self._open.pass_by(position)
        self.returned()

    async def finish(self) -> None:
        """
        Wait until what is open of a shard that has ended is checkpointed (KCL ``shardEnded``).

        Raises:
            Halted: it was not, and comes again.
            StoppedByPolicy: ``ended`` failed too often.

        """
        await self._drain("the shard has ended", lambda: self.has_last_call, hook=Hook.ENDED)

    @property
    def has_last_call(self) -> bool:
        """Return whether the handler is to be called once more before the shard is left."""
        return self.has_open or self.is_begun

    async def _drain(
        self, reason: str, lasts: Callable[[], bool], *, hook: Hook | None = None
    ) -> None:
        """Call the handler without records until it has checkpointed enough."""
        is_told = False
        while lasts():
            await self.offer(must_flush=self.has_open, hook=hook)
            if not lasts():
                return
            if self.has_open and not is_told:
                is_told = True
                self.ports.events.emit(
                    CheckpointAwaited(
                        lease_key=self.held.lease_key,
                        worker_id=self.ports.checkpointer.worker_id,
                        records=len(self._open),
                        reason=reason,
                    )
                )
            await self.ports.patience.pause(self.config.idle_read_ms, self.held.halt)

    def _is_full(self) -> bool:
        return self._open.is_full(self.ports.clock.monotonic_ms())

    def returned(self) -> None:
        """Note as progress what the handler has checkpointed of what it has."""
        number, sub = self._life.through
        through = ExtendedSequenceNumber(str(number), sub) if sub >= 0 else None
        if done := self._open.close(through):
            self.held.note_progress(done)

    def _joining(self, *, must_flush: bool) -> Joining:
        """Return what makes a batch part of the shard's life."""
        return partial(leave_open, life=self._life, must_flush=must_flush)
