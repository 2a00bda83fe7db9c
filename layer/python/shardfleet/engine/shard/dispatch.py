"""
Handler calls: whose turn it is, whether there is time, and what a batch is.

Calls of synchronous handlers never overlap, unless ``handler_threads`` or ``parallelism`` says how
many may at once, of which a shard has one, or one in each lane; the shards take turns, within a
round the one with the oldest record first, so that a shard far behind starves nobody (hazard H17).
A call that the process may die in is noted, and runs alone; after one that has outlived its
time-out none begins, for the process ends (H21).
Records come no faster than the rate allows. Nothing is delivered under a lease that was not
confirmed within the renewal time (H17), and no call starts with less than its time-out left (H10).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.calls import CallKind
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.reading.pacing import Rate, full_bucket, spend, wait_ms
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ownership.lease import HeldLease
from shardfleet.engine.ports import Clock, EventSink, HandlerResult, HandlerRunner
from shardfleet.engine.retry import Halt, Halted, Patience, Signal
from shardfleet.engine.shard.crash_notes import CrashNotes, NotedCall
from shardfleet.engine.shard.usage import UsageMeter
from shardfleet.errors import HandlerTimedOut, OutcomeUnknown, Throttled
from shardfleet.events.delivery import BatchHandled
from shardfleet.records import Batch, Record, arrival_of

Joining = Callable[[Batch], None]


def cut_batch(records: Sequence[Record], *, records_most: int, bytes_most: int) -> Sequence[Record]:
    """Return the next batch: within both limits, but at least one record."""
    batch = records[:records_most]
    sizes = [len(record.data) for record in batch]
    if sum(sizes) <= bytes_most:
        return batch
    return batch[: max(1, bisect_right(list(accumulate(sizes)), bytes_most))]


class _Ticket(Struct, eq=False):
    """A shard that waits for its turn; the least goes first."""

    is_patient: bool
    round: int
    oldest_ms: int
    lease_key: str
    count: int
    kind: CallKind
    noted: Callable[[], NotedCall]
    is_noted: bool
    is_granted: bool = False
    granted: Signal | None = None

    @property
    def turn(self) -> tuple[bool, int, int, str]:
        """Return what it is ordered by."""
        return (self.is_patient, self.round, self.oldest_ms, self.lease_key)


class DispatchPorts(Struct, frozen=True, kw_only=True):
    """What the dispatcher works with."""

    handler: HandlerRunner
    checkpointer: Checkpointer
    notes: CrashNotes
    clock: Clock
    events: EventSink
    patience: Patience
    usage: UsageMeter


class Dispatcher:
    """The one place from which the user's handler is called."""

    def __init__(self, ports: DispatchPorts, *, config: FleetConfig, calls_end_ms: int) -> None:
        """
        Begin a turn.

        Args:
            ports: the handler and what guards it.
            config: limits and the time-out.
            calls_end_ms: monotonic milliseconds by which the last call must be over (H10).

        """
        self._ports = ports
        self._clock = ports.clock
        self._timeout_ms = config.handler_timeout_ms
        self._calls_end_ms = calls_end_ms
        # As late as the turn's last writes may begin.
        self._notes_end_ms = calls_end_ms + config.turn_margin_ms // 3
        self._waiting: list[_Ticket] = []
        self._running = 0
        self._has_noted = False
        self._is_over = False
        self._last_halts: list[Halt] = []
        self._round = 0
        self._rounds_served: dict[str, int] = {}
        self._at_once = config.calls_at_once
        self._rate = Rate(config.handler_records_per_second, burst=0)
        self._bucket = full_bucket(self._rate, now_ms=self._clock.monotonic_ms())
        self._is_timed = False

    @property
    def has_hooks(self) -> bool:
        """Return whether the handler is told of a shard's life."""
        return self._ports.handler.has_hooks

    async def call(
        self,
        held: HeldLease,
        records: Sequence[Record],
        *,
        attempt: int,
        kind: CallKind = CallKind.RECORDS,
        hook: Hook | None = None,
        join: Joining | None = None,
    ) -> HandlerResult:
        """
        Hand records to the handler, as one batch, when it is the shard's turn.

        Args:
            held: the lease; says how far behind the records are.
            records: in shard order; none, where the handler is to checkpoint what is open.
            attempt: 1 for the first.
            kind: what the call is for.
            hook: without records; the last one goes on although asked to stop, while there is time.
            join: adds to the batch what the shard's way of delivering has for the handler.

        Raises:
            Halted: asked to stop, the lease is lost, or there is no time left; nothing was
                handed over, or the answer no longer counts.
            HandlerTimedOut: the call outlived its time-out; the process must end.

        """
        checkpointer = self._ports.checkpointer
        halt = self._out_of_time() if hook and hook.is_last else held.halt
        is_lost = hook is Hook.LEASE_LOST  # Then there is nothing to confirm.
        while True:
            if not (is_lost or await self._confirmed(held, halt)):
                raise Halted
            ticket = self._queued(held, records, kind=kind)
            try:
                self._grant()
                if not ticket.is_granted:
                    ticket.granted = Signal()
                    await halt.unless(ticket.granted)
                self._check_time(halt)
                if is_lost or (
                    checkpointer.is_fresh(held) and await self._note(held, ticket, halt)
                ):
                    batch = self._batch(held, records, attempt)
                    if join is not None:
                        join(batch)
                    return await self._run(held, batch, hook, ticket=ticket)
            finally:
                self._leave(ticket)

    async def _confirmed(self, held: HeldLease, halt: Halt) -> bool:
        """Make sure that the lease is held, and was confirmed within the renewal time."""
        checkpointer = self._ports.checkpointer
        if held.is_held and checkpointer.is_fresh(held):
            return True
        return await self._ports.patience.persist(lambda: checkpointer.confirm(held), halt)

    def _check_time(self, halt: Halt) -> None:
        """
        Go on only where a call may still begin.

        Raises:
            Halted: asked to stop, no time is left for a call, or the process is about to end.

        """
        is_late = self._clock.monotonic_ms() + self._timeout_ms > self._calls_end_ms
        if halt.is_set or is_late or self._is_over:
            raise Halted

    def _batch(self, held: HeldLease, records: Sequence[Record], attempt: int) -> Batch:
        return Batch(
            records,
            shard_id=held.shard.shard_id,
            stream_arn=held.shard.stream_arn,
            millis_behind_latest=held.lag_ms if held.lag_ms >= 0 else None,
            attempt=attempt,
            deadline_ms=self._clock.now_ms() + self._timeout_ms,
        )

    def end(self) -> None:
        """Begin no call any more, whatever the clock says: the process ends (H21)."""
        self._is_over = True
        for halt in self._last_halts:
            halt.set()

    def _out_of_time(self) -> Halt:
        """Return a halt for when no call can be begun any more."""
        halt = self._halt_at(self._calls_end_ms - self._timeout_ms)
        self._last_halts.append(halt)
        if self._is_over:
            halt.set()
        return halt

    def _halt_at(self, at_ms: int) -> Halt:
        halt = Halt()
        left_ms = at_ms - self._clock.monotonic_ms()
        asyncio.get_running_loop().call_later(left_ms / 1000, halt.set)
        return halt

    async def _note(self, held: HeldLease, ticket: _Ticket, halt: Halt) -> bool:
        """Note the call; False if the lease was lost, or grew old, while that took its time."""
        ports, key = self._ports, held.lease_key
        if not ticket.is_noted:
            return held.is_held
        may_begin, call = False, ticket.noted()
        try:
            await ports.patience.persist(lambda: ports.notes.begin(key, call), halt)
            self._check_time(halt)
            may_begin = ports.checkpointer.is_fresh(held)
        finally:
            if not may_begin:
                await self._close_note(held)
        return may_begin

    async def _close_note(self, held: HeldLease) -> None:
        """Close the note of a call that has returned or never began, if there is one."""
        notes, key = self._ports.notes, held.lease_key
        if key not in notes.open:
            return
        # Also when asked to stop: what stays open is charged to the shard.
        with suppress(Halted):
            halt = self._halt_at(self._notes_end_ms)
            await self._ports.patience.persist(lambda: notes.close(key), halt)

    async def _run(
        self, held: HeldLease, batch: Batch, hook: Hook | None, *, ticket: _Ticket
    ) -> HandlerResult:
        ports, key, records = self._ports, held.lease_key, batch[:]
        told = hook if ports.handler.has_hooks else None
        began_ms = ports.clock.monotonic_ms()
        try:
            with ports.usage.call(key):
                run = ports.handler.run(batch) if told is None else ports.handler.tell(told, batch)
                result = await run
        except Exception:
            # No death to charge to the shard: what raised here is told, and tried again.
            await self._close_note(held)
            raise
        if result.timed_out:
            raise await self._timed_out(held, ticket.noted(), where=str(result.error))
        ports.usage.remarks = result.remarks
        done = max(0, min(result.done_count, len(records)))
        ports.events.emit(
            BatchHandled(
                lease_key=key,
                worker_id=ports.checkpointer.worker_id,
                records=len(records),
                done=done,
                attempt=batch.attempt,
                duration_ms=ports.clock.monotonic_ms() - began_ms,
                millis_behind_latest=held.lag_ms,
            )
        )
        await self._close_note(held)
        if ports.notes.follows_death and (done or (not records and result.error is None)):
            ports.notes.acquit_call(key, ticket.kind, done=records[done - 1] if done else None)
        if hook is None and not held.is_held:
            raise Halted
        return replace(result, done_count=done)

    async def _timed_out(self, held: HeldLease, call: NotedCall, *, where: str) -> HandlerTimedOut:
        """Begin no more calls, leave this one noted, and return what ends the process."""
        self.end()
        if call.kind.is_noted:
            with suppress(Throttled, OutcomeUnknown):
                await self._ports.notes.begin(held.lease_key, call)
        without = "without records" if call.kind is CallKind.FLUSH else f"of {call.kind}"
        which = f"from record {call.first} on" if call.count else without
        return HandlerTimedOut(
            f"shard {held.lease_key}: the handler call {which} took "
            f"longer than handler_timeout_ms ({self._timeout_ms}): {where}; a thread cannot be "
            "stopped, so the process ends"
        )

    def _queued(self, held: HeldLease, records: Sequence[Record], *, kind: CallKind) -> _Ticket:
        """Queue for a turn; whoever has the ticket leaves with it."""
        key, notes = held.lease_key, self._ports.notes
        # Each lane of a shard that waits waits for a round of its own.
        ahead = sum(ticket.lease_key == key for ticket in self._waiting)
        noted = partial(NotedCall.of, kind, records)
        if not records:
            noted = partial(noted, done=held.done)
        ticket = _Ticket(
            is_patient=not (notes.follows_death and notes.is_charged(key)),
            round=max(self._round, self._rounds_served.get(key, -1) + 1) + ahead,
            oldest_ms=arrival_of(records) or self._clock.now_ms(),
            lease_key=key,
            count=len(records),
            kind=kind,
            noted=noted,
            is_noted=notes.follows_death and notes.notes(key, kind),
        )
        self._waiting.append(ticket)
        return ticket

    def _leave(self, ticket: _Ticket) -> None:
        """End a turn, or the wait for one; the next ones go."""
        if ticket.is_granted:
            self._running -= 1
            self._has_noted = False  # It was this one, or there was none.
        else:
            self._waiting.remove(ticket)
        self._grant()

    def _grant(self) -> None:
        """Let the next shards go, as many at once as the handler, suspicion and the rate allow."""
        while self._waiting and self._may_go(ticket := min(self._waiting, key=attrgetter("turn"))):
            self._waiting.remove(ticket)
            self._round = max(self._round, ticket.round)
            self._rounds_served[ticket.lease_key] = ticket.round
            self._running += 1
            self._has_noted = ticket.is_noted
            self._spend(ticket.count)
            ticket.is_granted = True
            if ticket.granted is not None:
                ticket.granted.set()
        left_ms = self._left_ms()
        if left_ms and self._waiting and not self._is_timed:
            self._is_timed = True
            asyncio.get_running_loop().call_later(left_ms / 1000, self._grant_in_time)

    def _grant_in_time(self) -> None:
        self._is_timed = False
        self._grant()

    def _may_go(self, ticket: _Ticket) -> bool:
        """Return whether this call may begin now: one that is noted is alone while it runs."""
        if self._is_over or self._has_noted or self._left_ms():
            return False
        if ticket.is_noted:
            return not self._running
        return self._ports.handler.overlaps or self._running < self._at_once

    def _left_ms(self) -> int:
        """Return how long none may begin, because of the records that went."""
        if not self._rate.per_s:
            return 0
        return wait_ms(self._bucket, self._rate, now_ms=self._clock.monotonic_ms())

    def _spend(self, records: int) -> None:
        if self._rate.per_s:
            now_ms = self._clock.monotonic_ms()
            self._bucket, _ = spend(self._bucket, self._rate, amount=records, now_ms=now_ms)
