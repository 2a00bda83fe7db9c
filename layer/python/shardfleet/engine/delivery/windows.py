"""
The tumbling window of one shard at work: its calls, and its state kept beside the checkpoint.

What is of a window is decided in :mod:`shardfleet.domain.delivery.windows`. The state is written
to the fleet state with the position that it stands for, and the checkpoint follows: a worker that
dies before that write, and the next one that has the shard, repeat the calls since, with the state
of before; behind it they go on from there.

Two may write at a time, one of them without knowing that the lease is another's. So each write is
by compare-and-set, and who finds that somebody else wrote asks the lease table, after it has read
what there is: only the owner goes on, and what a former one writes later is refused to that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.progress import position_text
from shardfleet.domain.delivery.windows import (
    EMPTY,
    STATE,
    ShardWindow,
    WindowNote,
    fits_item,
    read_state,
)
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.retry import ATTEMPTS_MOST
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.engine.shard.progress import Progress
from shardfleet.engine.state.kinds import WINDOW
from shardfleet.errors import (
    ConfigurationError,
    MalformedDocument,
    OutcomeUnknown,
    ShardfleetError,
    Throttled,
)
from shardfleet.events.delivery import WindowSkipped
from shardfleet.records import Batch, Record

# Each round answers a write of a former owner, which can make one more at most.
_ROUNDS_MOST = 8


class WindowProgress(Progress):
    """
    One batch after another; how far they are done is in the window that is open.

    Attributes:
        open: the window, if any.

    """

    renewals_store = False  # What is beside the checkpoint goes first.

    def __init__(self, held: HeldLease, *, config: FleetConfig, ports: DeliveryPorts) -> None:
        """Begin with none, as any progress does."""
        super().__init__(held, config=config, ports=ports)
        self.open = ShardWindow(config.tumbling_window_ms)
        self._through: ExtendedSequenceNumber | None = None
        self._told = WindowNote(lease_key=held.lease_key, since="", through="")
        self._told_state = EMPTY
        self._version: int | None = None

    @property
    def is_busy(self) -> bool:
        """Return whether a window waits for its end."""
        return self.open.is_open

    async def recall(self) -> None:
        """
        Go on with the window that is open behind the checkpoint, if there is one.

        Raises:
            Halted: asked to stop, or the lease is lost.
            ConfigurationError: its state cannot be fetched from where it is kept.
            ProtocolError: somebody has changed what was kept.

        """
        held, patience = self.held, self.ports.patience
        self.open.close()
        self._through = None
        await patience.persist(self._read, held.halt)
        if self._told.is_for(held.done):
            state = await patience.persist(self._fetch, held.halt)
            read_state(state)
            self.open.go_on(self._told, state=state)
            self._told_state = state
            held.note_progress(self._told.done)

    async def _read(self) -> None:
        note, self._version = await self.ports.beside.recall(WINDOW, self.held.lease_key)
        self._told = note or WindowNote(lease_key=self.held.lease_key, since="", through="")

    async def _fetch(self) -> str:
        if not self._told.kept_at:
            return self._told.state
        if self.ports.window_states is None:
            raise ConfigurationError(
                f"shard {self.held.lease_key}: the state of its window is at "
                f"{self._told.kept_at}, and failed_bucket is not set; set it again"
            )
        return await self.ports.window_states.fetch(self._told.kept_at)

    async def work_through(self, records: UserRecords) -> None:
        """Hand over the records of a page; a window that is over by then ends."""
        await super().work_through(records)
        if self._is_over():
            await self._end()

    async def room(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Return which of the next records are of the open window; none: it has ended."""
        count = self.open.fitting(waiting, now_ms=self.ports.clock.now_ms())
        if not count:
            await self._end()
        return waiting[:count]

    async def call(self, batch: Sequence[Record]) -> HandlerResult:
        """Hand over a batch of the window, and take over the state that is answered."""
        result = await self.ports.dispatcher.call(
            self.held,
            batch,
            attempt=self.attempts.attempt,
            join=partial(self._join, is_final=False),
        )
        if result.outgrows:
            return replace(result, outgrows=self.open.outgrow())
        if result.state is None:
            return result
        if self.ports.window_states is None and not fits_item(result.state):
            error = (
                f"{STATE}: {len(result.state.encode())} bytes of JSON found, which an item of "
                "DynamoDB has no room for; set failed_bucket (FleetTables(failed_bucket=...)), or "
                "keep less"
            )
            return HandlerResult(done_count=0, error=error)
        self.open.state = result.state
        return result

    def _join(self, batch: Batch, *, is_final: bool) -> None:
        """Have a batch be of the window; the state is its own to change."""
        batch.window = self.open.call(is_final=is_final)
        batch.state = read_state(self.open.state)

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Note that up to here everything is in the state, or is nothing that a handler gets."""
        self._through = position

    def _is_over(self) -> bool:
        """Return whether the shard's last read shows that nothing more comes of the window."""
        clock, held = self.ports.clock, self.held
        read_ms = clock.now_ms() - (clock.monotonic_ms() - held.read_ms)
        return held.lag_ms == 0 and self.open.is_over(read_ms)

    async def _end(self) -> None:
        """Have the handler process the result of the window; nothing else comes before it has."""
        await self.offer(kind=CallKind.WINDOW, join=partial(self._join, is_final=True))
        if not self.idle_failures:
            self.open.close()
            await self.flush_if_due(at_once=True)

    async def worn_out(self, error: str, kind: CallKind) -> None:
        """
        Give up the last call of a window, where records are skipped, too.

        Raises:
            StoppedByPolicy: the shard is stopped.

        """
        if kind is not CallKind.WINDOW or not self.ports.policy.terms.only_skips:
            await super().worn_out(error, kind)
        attempts, self.idle_failures = self.idle_failures, 0
        self.ports.events.emit(
            WindowSkipped(
                lease_key=self.held.lease_key,
                worker_id=self.ports.checkpointer.worker_id,
                start_ms=self.open.start_ms,
                end_ms=self.open.end_ms,
                attempts=attempts,
            )
        )

    async def finish(self) -> None:
        """End the window of a shard that has ended, then as any progress does."""
        while self.open.is_open:
            await self._end()
        await super().finish()

    async def flush(self, now_ms: int) -> None:
        """Write down how far the window is, then checkpoint."""
        self.flushed_ms = now_ms
        await self.note()
        await super().flush(now_ms)

    async def rest(self) -> None:
        """Write down how far it is, before the shard is left; what is not written comes again."""
        patience = self.ports.patience
        for failures in range(1, ATTEMPTS_MOST + 1):
            if not self.held.is_held or await self.note():
                return
            await patience.clock.sleep_ms(patience.back_off_ms(failures))

    async def note(self) -> bool:
        """Write down how far it is, and let the checkpoint follow; False: not now."""
        through = self._through
        if through is None:
            return True
        if self.open.is_open or self._told.is_open:
            try:
                if not await self._write(through):
                    return False
            except (Throttled, OutcomeUnknown):
                return False
        self.held.note_progress(through)
        return True

    async def _write(self, through: ExtendedSequenceNumber) -> bool:
        """Write the note as the owner; False: the lease is lost."""
        held, beside = self.held, self.ports.beside
        note = WindowNote(
            lease_key=held.lease_key,
            since=position_text(held.lease.checkpoint),
            through=position_text(through),
            start_ms=self.open.start_ms,
            state=self.open.state,
            between=tuple(map(position_text, held.on_its_way)),
        )
        before = self._told
        told = replace(
            before, since=note.since, between=note.between, state=self._told_state, kept_at=""
        )
        if note == told:
            return True
        note = await self._kept(note)
        for _ in range(_ROUNDS_MOST):
            version = await beside.replace(WINDOW, note, self._version)
            if version is not None:
                self._told, self._told_state, self._version = note, self.open.state, version
                await self._drop(before)
                return True
            try:
                found, version = await beside.recall(WINDOW, held.lease_key)
                before = found or before
            except MalformedDocument as error:
                version = error.version  # What is open here is the window's state.
            # Before that nobody knows whether it is a former owner's, or that of the next one.
            if not await self.ports.checkpointer.renew(held):
                return False
            self._version = version
        raise OutcomeUnknown(f"window of {held.lease_key}: not written in {_ROUNDS_MOST} rounds")

    async def _kept(self, note: WindowNote) -> WindowNote:
        """Keep a state elsewhere that an item has no room for."""
        states = self.ports.window_states
        if fits_item(note.state) or states is None:
            return note
        # A place of its own for each: nobody overwrites what a note names.
        place = await states.keep(note.lease_key, self.ports.entropy.token(), note.state)
        return replace(note, state="", kept_at=place)

    async def _drop(self, before: WindowNote) -> None:
        """Delete what no note names any more; what is left costs its storage and nothing else."""
        if before.kept_at and self.ports.window_states is not None:
            with suppress(ShardfleetError):
                await self.ports.window_states.drop(before.kept_at)
