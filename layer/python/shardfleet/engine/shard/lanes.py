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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.attempts import Attempts
from shardfleet.domain.delivery.lanes import DoneAhead, LanesNote, OpenLanes
from shardfleet.domain.delivery.progress import position_text
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.retry import ATTEMPTS_MOST, Halted, Signal
from shardfleet.engine.shard.deaggregation import UserRecords
from shardfleet.engine.shard.faults import CONCERNS_ALL
from shardfleet.engine.shard.ports import DeliveryPorts
from shardfleet.errors import HandlerTimedOut, OutcomeUnknown, Throttled
from shardfleet.records import Record


class GoOn(Protocol):
    """Goes on behind what is done."""

    def __call__(self, count: int, *, given_up: bool) -> Awaitable[None]:
        """Note that the first records that wait are done, or given up, and checkpoint if due."""


class FlushIfDue(Protocol):
    """Checkpoints when that is due."""

    def __call__(self, *, at_once: bool) -> Awaitable[None]:
        """Checkpoint if it is due, or at once."""


class ShardLane(Struct, frozen=True):
    """
    Records that go one batch after another.

    Attributes:
        attempts: at them.
        done: is told how many of the first are done, or given up.

    """

    attempts: Attempts
    done: GoOn


HandOver = Callable[[Sequence[Record], ShardLane], Awaitable[None]]


class ShardLanes:
    """Hands the records of one held lease to the handler, side by side."""

    def __init__(
        self,
        held: HeldLease,
        *,
        config: FleetConfig,
        ports: DeliveryPorts,
        hand_over: HandOver,
        flush: FlushIfDue,
    ) -> None:
        """
        Begin with nothing open.

        Args:
            held: the lease.
            config: how many lanes, and limits.
            ports: the fleet state, attempts and crash notes.
            hand_over: makes the next call, or gives up, of the records that wait in a lane.
            flush: checkpoints.

        """
        self._held = held
        self._config = config
        self._ports = ports
        self._hand_over = hand_over
        self._flush = flush
        self._moved = Signal()
        self._telling = asyncio.Lock()
        self._begin_anew(DoneAhead())

    def _begin_anew(self, ahead: DoneAhead) -> None:
        self._lanes = OpenLanes(
            self._width,
            records_most=self._config.max_open_records,
            bytes_most=self._config.max_lanes_bytes,
            ahead=ahead,
        )
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failure: Exception | None = None
        self._is_resting = False
        self._told: LanesNote | None = None
        self._prepare()

    def _prepare(self) -> None:
        """Begin with no attempts, but those at what the process may have died over."""
        count, notes = self._lanes.count, self._ports.notes
        lone = [notes.attempts(self._held.lease_key)]
        attempts = lone if count == 1 else [notes.new_attempts() for _ in range(count)]
        self._each = [
            ShardLane(these, partial(self._done, index)) for index, these in enumerate(attempts)
        ]

    @property
    def _width(self) -> int:
        is_suspect = self._ports.notes.is_suspect(self._held.lease_key)
        return 1 if is_suspect else self._config.parallelism

    @property
    def has_open(self) -> bool:
        """Return whether records wait in a lane, or are being handled."""
        return bool(len(self._lanes))

    @property
    def has_moved(self) -> bool:
        """Return whether the checkpoint may move on since the shard was begun."""
        return self._lanes.through is not None or not self.has_open

    async def begin(self) -> None:
        """
        Learn what is done beyond the checkpoint.

        Raises:
            Halted: asked to stop.

        """
        held, beside = self._held, self._ports.beside
        note = await self._ports.patience.persist(lambda: beside.lanes(held.lease_key), held.halt)
        known, checkpoint = held.lanes or note, held.unstored or held.lease.checkpoint
        self._begin_anew(known.done_ahead(checkpoint) if known else DoneAhead())
        self._told = note

    async def deliver(self, records: UserRecords) -> None:
        """
        Put the records of a page into their lanes; they may be open still when this returns.

        Raises:
            Halted: asked to stop, or the lease is lost.
            Exception: what a lane raised.

        """
        while waiting := await records.waiting(self._config.max_batch_records):
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
            self._lanes.pass_by(records.end)
            self._note_if_level()

    async def finish(self) -> None:
        """
        Wait until nothing is open, at the end of the shard.

        Raises:
            Halted: asked to stop, or the lease is lost.
            Exception: what a lane raised.

        """
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

    async def rest(self) -> Exception | None:
        """
        Settle, and note how far each lane is.

        Returns:
            What a lane raised, if nobody was told yet.

        Raises:
            HandlerTimedOut: a call does not end; the process must.

        """
        await self.settle()
        patience = self._ports.patience
        for failures in range(1, ATTEMPTS_MOST + 1):
            if not self._held.is_held or await self.note():
                break
            await patience.clock.sleep_ms(patience.back_off_ms(failures))
        failure, self._failure = self._failure, None
        return failure

    async def note(self) -> bool:
        """Note how far each lane is, then what may be checkpointed; False: not all of it now."""
        async with self._telling:
            through = self._lanes.through
            is_noted = await self._write_note()
            if through is not None:
                # Without the note more comes again, which is no reason to have the shard wait.
                self._held.note_progress(through)
            return is_noted

    def _note_if_level(self) -> None:
        """Let the checkpoint follow at once where that takes no note."""
        is_level = not self._lanes.ahead and not (self._told and self._told.ahead)
        if is_level and self._lanes.through is not None:
            self._held.note_progress(self._lanes.through)

    async def _write_note(self) -> bool:
        lanes, since = self._lanes, self._held.lease.checkpoint
        if not lanes.ahead and not (self._told and self._told.ahead):
            self._held.lanes = None
            return True
        self._held.lanes = note = LanesNote.of(
            self._held.lease_key,
            since=since,
            through=lanes.through or self._held.unstored or since,
            ahead=lanes.ahead,
            between=tuple(map(position_text, self._held.on_its_way)),
        )
        # What is on its way since the same note was written can only be what that one names.
        if self._told is not None and note == replace(self._told, between=note.between):
            return True
        try:
            await self._ports.beside.write_lanes(note)
        except (Throttled, OutcomeUnknown):
            return False
        self._told = note
        return True

    def _start(self) -> None:
        for index in range(self._lanes.count):
            if index not in self._tasks and self._lanes.waiting(index, 1):
                name = f"lane {index} of {self._held.lease_key}"
                self._tasks[index] = asyncio.create_task(self._work(index), name=name)

    async def _work(self, index: int) -> None:
        most = self._config.max_call_records
        try:
            while not (self._is_resting or self._failure):
                waiting = self._lanes.waiting(index, most)
                if not waiting:
                    break
                await self._hand_over(waiting, self._each[index])
        except Halted:
            pass
        except Exception as error:  # noqa: BLE001 - raised by whoever waits for the lanes
            if isinstance(error, HandlerTimedOut):
                # Nobody rests before the process ends, but the lease may be given back till then.
                with suppress(Exception):  # What is told is what went wrong first.
                    await self.note()
            self._failure = self._failure or error
            if isinstance(error, CONCERNS_ALL):
                self._held.halt.set()  # Who reads meanwhile is not to wait for the next page.
        finally:
            del self._tasks[index]
            self._moved.set()

    async def _done(self, index: int, count: int, *, given_up: bool) -> None:
        self._lanes.done(index, count)
        self._note_if_level()
        self._moved.set()
        is_suspect = self._ports.notes.is_suspect(self._held.lease_key)
        await self._flush(at_once=given_up or is_suspect)

    async def _wait(self) -> None:
        """Wait until a lane has made a step."""
        self._moved.clear()
        await self._held.halt.unless(self._moved)

    def _tell_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            self._is_resting = True
            raise failure
