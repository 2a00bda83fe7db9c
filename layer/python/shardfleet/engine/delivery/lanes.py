"""
The lanes of one shard at work: a task for each that has records, until it has none.

What goes into which lane, and what is done without a gap, is decided in
:mod:`shardfleet.domain.delivery.lanes`. How far lanes are done beyond the checkpoint is noted in
the fleet state, before the checkpoint is written that the note is for: a worker that dies, and the
next one that has the shard, repeat what was done since, and nothing else.

While it is in doubt which records have killed a process, there is one lane (hazard H9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import Attempts
from shardfleet.domain.delivery.lanes import DoneAhead, LanesNote, OpenLanes
from shardfleet.domain.delivery.progress import position_text
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.retry import ATTEMPTS_MOST, Halted, Signal
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.delivery import StoppedByPolicy
from shardfleet.engine.shard.faults import CONCERNS_ALL
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.engine.shard.progress import Progress
from shardfleet.engine.state.kinds import LANES
from shardfleet.errors import (
    HandlerTimedOut,
    MalformedDocument,
    OutcomeUnknown,
    StaleEpoch,
    Throttled,
)
from shardfleet.records import Record


class OneLane:
    """A lane: its records go one batch after another."""

    def __init__(self, lanes: LaneProgress, index: int, attempts: Attempts) -> None:
        """Have the attempts at its records."""
        self.attempts = attempts
        self._lanes = lanes
        self._index = index

    async def room(self, waiting: Sequence[Record]) -> Sequence[Record]:
        """Return all: no more are in the lanes than there is room for."""
        return waiting

    async def call(self, batch: Sequence[Record]) -> HandlerResult:
        """Make one handler call."""
        lanes = self._lanes
        return await lanes.ports.dispatcher.call(lanes.held, batch, attempt=self.attempts.attempt)

    async def done(self, count: int, *, given_up: bool) -> None:
        """Go on behind the first records of the lane, and checkpoint if that is due."""
        await self._lanes.lane_done(self._index, count, given_up=given_up)


class LaneProgress(Progress):
    """Batches of several lanes side by side; done is what is done without a gap."""

    renewals_store = False  # How far each lane is beyond the checkpoint goes first.

    def __init__(self, held: HeldLease, *, config: FleetConfig, ports: DeliveryPorts) -> None:
        """Begin with nothing open, as any progress does."""
        super().__init__(held, config=config, ports=ports)
        self._moved = Signal()
        self._telling = asyncio.Lock()
        self._begin_anew(DoneAhead())

    def _begin_anew(self, ahead: DoneAhead) -> None:
        self._lanes = OpenLanes(
            self._width,
            records_most=self.config.max_open_records,
            bytes_most=self.config.max_lanes_bytes,
            ahead=ahead,
        )
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        self._is_resting = False
        self._told: LanesNote | None = None
        self._prepare()

    def _prepare(self) -> None:
        """Begin with no attempts, but those at what the process may have died over."""
        count, notes = self._lanes.count, self.ports.notes
        lone = [notes.attempts(self.held.lease_key)]
        attempts = lone if count == 1 else [notes.new_attempts() for _ in range(count)]
        self._each = [OneLane(self, index, these) for index, these in enumerate(attempts)]

    @property
    def _width(self) -> int:
        is_suspect = self.ports.notes.is_suspect(self.held.lease_key)
        return 1 if is_suspect else self.config.parallelism

    @property
    def has_open(self) -> bool:
        """Return whether records wait in a lane, or are being handled."""
        return bool(len(self._lanes))

    @property
    def goes_on(self) -> bool:
        """Return whether the checkpoint may move on since the shard was begun."""
        return self._lanes.through is not None or not self.has_open

    async def begin(self) -> None:
        """Learn what is done beyond the checkpoint, then as any progress does."""
        held = self.held
        note = await self.ports.patience.persist(self._recalled, held.halt)
        known, checkpoint = held.lanes or note, held.done
        self._begin_anew(known.done_ahead(checkpoint) if known else DoneAhead())
        self._told = note
        await super().begin()

    async def _recalled(self) -> LanesNote | None:
        """Read the note; what cannot be read comes again."""
        with suppress(MalformedDocument):
            note, _ = await self.ports.beside.recall(LANES, self.held.lease_key)
            return note
        return None

    async def work_through(self, records: UserRecords) -> None:
        """Put the records of a page into their lanes; they may be open still when this returns."""
        while waiting := await records.waiting(self.config.max_batch_records):
            self._tell_failure()
            if self._lanes.count != self._width and not self.has_open:
                self._lanes.deal(self._width)
                self._prepare()
            # Another number of lanes deals keys out otherwise: one of them would be in two lanes.
            taken = self._lanes.take(waiting) if self._lanes.count == self._width else 0
            records.drop(taken)
            self._start()
            if not taken:
                await self._wait()
            await asyncio.sleep(0)
        self._tell_failure()
        if records.end is not None:
            self.pass_by(records.end)
        if self.ports.notes.is_suspect(self.held.lease_key):
            await self._finish_open()

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Go on behind a position once nothing before it is open."""
        self._lanes.pass_by(position)
        self._note_if_level()

    async def finish(self) -> None:
        """Wait until nothing is open, then as any progress does."""
        await self._finish_open()
        await super().finish()

    async def _finish_open(self) -> None:
        while self.has_open:
            self._tell_failure()
            await self._wait()
        self._tell_failure()

    async def settle(self) -> None:
        """
        Begin no more calls, and let those that run come to their end; nothing is written.

        Raises:
            HandlerTimedOut: a call does not end; the process must.

        """
        self._is_resting = True
        while self._tasks:
            if isinstance(self._failure, HandlerTimedOut):
                raise self._failure
            running = list(self._tasks.values())
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)

    async def leave(self) -> None:
        """
        Settle, note how far each lane is, and leave as any progress does.

        Raises:
            HandlerTimedOut: a call does not end; the process must.
            Exception: what a lane raised, if nobody was told yet.

        """
        await self.settle()
        await self._keep_noting()
        failure, self._failure = self._failure, None
        if isinstance(failure, StaleEpoch):
            await self.lose()
            raise failure
        await super().leave()
        if failure is not None and not isinstance(failure, StoppedByPolicy):
            raise failure

    async def lose(self) -> None:
        """Begin no more calls, then as any progress does."""
        await self.settle()
        await super().lose()

    async def flush(self, now_ms: int) -> None:
        """Note how far each lane is, then checkpoint."""
        self.flushed_ms = now_ms
        await self.note()
        await super().flush(now_ms)

    async def _keep_noting(self) -> None:
        """Note how far each lane is, as often as it takes."""
        patience = self.ports.patience
        for failures in range(1, ATTEMPTS_MOST + 1):
            if not self.held.is_held or await self.note():
                break
            await patience.clock.sleep_ms(patience.back_off_ms(failures))

    async def note(self) -> bool:
        """Note how far each lane is, then what may be checkpointed; False: not all of it now."""
        async with self._telling:
            through = self._lanes.through
            is_noted = await self._write_note()
            if through is not None:
                # Without the note more comes again, which is no reason to have the shard wait.
                self.held.note_progress(through)
            return is_noted

    def _note_if_level(self) -> None:
        """Let the checkpoint follow at once where that takes no note."""
        is_level = not self._lanes.ahead and not (self._told and self._told.ahead)
        if is_level and self._lanes.through is not None:
            self.held.note_progress(self._lanes.through)

    async def _write_note(self) -> bool:
        lanes, since = self._lanes, self.held.lease.checkpoint
        if not lanes.ahead and not (self._told and self._told.ahead):
            self.held.lanes = None
            return True
        self.held.lanes = note = LanesNote.of(
            self.held.lease_key,
            since=since,
            through=lanes.through or self.held.unstored or since,
            ahead=lanes.ahead,
            between=tuple(map(position_text, self.held.on_its_way)),
        )
        # What is on its way since the same note was written can only be what that one names.
        if self._told is not None and note == replace(self._told, between=note.between):
            return True
        try:
            await self.ports.beside.write(LANES, note)
        except (Throttled, OutcomeUnknown):
            return False
        self._told = note
        return True

    def _start(self) -> None:
        for index in range(self._lanes.count):
            if index not in self._tasks and self._lanes.waiting(index, 1):
                name = f"lane {index} of {self.held.lease_key}"
                self._tasks[index] = asyncio.create_task(self._work(index), name=name)

    async def _work(self, index: int) -> None:
        most = self.config.max_call_records
        try:
            while not (self._is_resting or self._failure):
                waiting = self._lanes.waiting(index, most)
                if not waiting:
                    break
                await self.delivery.hand_over(waiting, self._each[index])
        except Halted:
            pass
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the lanes
            if isinstance(error, HandlerTimedOut):
                # Nobody rests before the process ends, but the lease may be given back till then.
                with suppress(Exception):  # What is told is what went wrong first.
                    await self.note()
            self._failure = self._failure or error
            if isinstance(error, CONCERNS_ALL):
                self.held.halt.set()  # Who reads meanwhile is not to wait for the next page.
        finally:
            del self._tasks[index]
            self._moved.set()

    async def lane_done(self, index: int, count: int, *, given_up: bool) -> None:
        """Go on behind the first records of a lane, and checkpoint if that is due."""
        self._lanes.done(index, count)
        self._note_if_level()
        self._moved.set()
        is_suspect = self.ports.notes.is_suspect(self.held.lease_key)
        await self.flush_if_due(at_once=given_up or is_suspect)

    async def _wait(self) -> None:
        """Wait until a lane has made a step."""
        self._moved.clear()
        await self.held.halt.unless(self._moved)

    def _tell_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            self._is_resting = True
            raise failure
