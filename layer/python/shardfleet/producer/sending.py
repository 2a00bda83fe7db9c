"""
What a caller sees of a producer: calls, their checks, and the bound on what may wait.

How records travel is decided in ``courier`` and ``lanes``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from shardfleet.engine.ports import Clock, Entropy, StreamWriter
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.calls import Columns, Part, PutCall, checked, checked_alone
from shardfleet.producer.courier import Courier
from shardfleet.producer.settings import (
    ProducerCounts,
    ProducerSettings,
    Receipt,
    ShardAnswer,
    ShardFlow,
)

# Behind so many bytes of puts, others have their turn: requests leave while a loop of puts goes on,
# and what they carry is still in the processor's cache.
_UNSEEN_BYTES_MOST = 1 << 17
_Send = tuple[PutCall, asyncio.Future[None]]


class Producer:
    """
    Sends records to one stream, from one event loop; calls may overlap.

    Records of a key are accepted in the order in which calls gave them, whatever their mixture of
    ``send`` and ``put``. Nothing runs in the background while nothing waits, so there is nothing
    to close; ``async with`` flushes at the end.

    Args:
        writer: the stream.
        clock: for pauses and pace.
        entropy: for jitter.
        settings: limits.
        observe: called with what each request did to each shard; must not raise.

    Attributes:
        settings: limits.
        received: records that calls gave so far.

    """

    def __init__(
        self,
        writer: StreamWriter,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: ProducerSettings | None = None,
        observe: Callable[[ShardAnswer], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self.settings = settings or ProducerSettings()
        self._courier = Courier(
            writer,
            clock=clock,
            entropy=entropy,
            settings=self.settings,
            observe=observe,
            on_failure=self._give_up,
        )
        self.received = 0
        self._buffered = 0
        self._unseen_bytes = 0
        # What came one by one since the loop had its turn, which is taken together.
        self._singles: list[OutgoingRecord] = []
        self._singles_bytes = 0
        self._singles_ms = 0
        self._are_aggregated = False
        self._taken_in: asyncio.AbstractEventLoop | None = None
        self._sends: set[PutCall] = set()
        self._unflushed: dict[int, PutCall] = {}
        self._failures: list[BaseException] = []
        self._for_room: deque[asyncio.Future[None]] = deque()
        self._flushes: list[asyncio.Future[None]] = []

    @property
    def counts(self) -> ProducerCounts:
        """Return what has happened so far."""
        return self._courier.counts

    @property
    def buffered_bytes(self) -> int:
        """Return data and keys that ``put`` has taken and the stream has not."""
        return self._buffered

    @property
    def pending(self) -> int:
        """Return how many records wait or are on their way; what is given up does not."""
        calls = (*self._sends, *self._unflushed.values())
        return len(self._singles) + sum(call.left for call in calls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            await self.flush()

    @property
    def flows(self) -> list[ShardFlow]:
        """Return batch size, pause and what waits, per shard that was sent to."""
        self._take_singles()
        return self._courier.lanes.flows()

    async def send(
        self, records: Iterable[OutgoingRecord], *, aggregate: bool = False
    ) -> list[Receipt]:
        """
        Send records and return, in their order, where each was accepted.

        Args:
            records: per partition key in the order in which they shall be read.
            aggregate: pack records of one shard together, as far as they fit.

        Raises:
            InvalidRecord: a record breaks a limit of Kinesis, and nothing has been sent; or the
                service refuses one of them as it is.
            Throttled: still refused after ``give_up_ms``.
            StreamGone: there is no such stream.

        Some records may have been accepted then; none is on its way any more.

        """
        return await self._receipts(self._begin(list(records), aggregate=aggregate))

    def submit(
        self, records: Iterable[OutgoingRecord], *, aggregate: bool = False
    ) -> asyncio.Task[list[Receipt]]:
        """
        Begin what ``send`` does, before anything that is given later, and return its task.

        Raises:
            InvalidRecord: as ``send``; its other errors are the task's.

        """
        begun = self._begin(list(records), aggregate=aggregate)
        return asyncio.create_task(self._receipts(begun), name="shardfleet receipts")

    def _begin(self, records: Sequence[OutgoingRecord], *, aggregate: bool) -> _Send | None:
        if not records:
            return None
        columns, size = checked(records, record_bytes=self.settings.record_bytes)
        self._take_singles()
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        receipts: list[Receipt | None] = [None] * len(records)

        def on_over(call: PutCall) -> None:
            self._sends.remove(call)
            _resolve(over)
            self._wake()

        delivery = PutCall(
            aggregate=aggregate,
            until_ms=self._clock.monotonic_ms() + self.settings.give_up_ms,
            left=len(records),
            on_over=on_over,
            receipts=receipts,
        )
        placed = columns._replace(places=range(len(records)))
        self._courier.accept(Part(delivery, placed, size), due_ms=0)
        self._sends.add(delivery)
        self.received += len(records)
        return delivery, over

    async def _receipts(self, begun: _Send | None) -> list[Receipt]:
        if begun is None:
            return []
        delivery, over = begun
        try:
            await over
        except asyncio.CancelledError as error:
            delivery.fail(error, delivery.left)
            self._courier.forget()
            raise
        if delivery.error is not None:
            await self._courier.part_with(delivery)
            raise delivery.error
        return [receipt for receipt in delivery.receipts or () if receipt is not None]

    async def put(self, *records: OutgoingRecord, aggregate: bool = False) -> None:
        """
        Buffer records and return; ``flush`` says whether they were accepted.

        Waits for room while ``buffer_bytes`` or more are waiting for the stream.

        Raises:
            InvalidRecord: a record breaks a limit of Kinesis; none of this call is buffered.

        """
        if len(records) == 1:
            (record,) = records
            size = checked_alone(record, record_bytes=self.settings.record_bytes)
            if self._buffered >= self.settings.buffer_bytes or self._for_room:
                await self.room()
            self._add_single(record, size, aggregate=aggregate)
        elif records:
            columns, size = checked(records, record_bytes=self.settings.record_bytes)
            await self.room()
            self.buffer(columns, size, aggregate=aggregate)
        if self._unseen_bytes >= _UNSEEN_BYTES_MOST:
            self._unseen_bytes = 0
            await asyncio.sleep(0)

    def _add_single(self, record: OutgoingRecord, size: int, *, aggregate: bool) -> None:
        """Leave a record to be taken with those that come before the loop has its turn."""
        if self._singles and aggregate is not self._are_aggregated:
            self._take_singles()
        if not self._singles:
            self._are_aggregated, self._singles_ms = aggregate, self._clock.monotonic_ms()
        self._singles.append(record)
        self._singles_bytes += size
        self._buffered += size
        self._unseen_bytes += size
        self.received += 1
        loop = asyncio.get_running_loop()
        if loop is not self._taken_in:  # One that has ended takes nothing any more.
            self._taken_in = loop
            loop.call_soon(self._take_singles)

    def _take_singles(self) -> None:
        """Take what came one by one; whatever comes next comes behind it."""
        self._taken_in = None
        if not self._singles:
            return
        records, self._singles = self._singles, []
        size, self._singles_bytes = self._singles_bytes, 0
        columns, _ = checked(records, record_bytes=size)
        self._take(
            columns, size, aggregate=self._are_aggregated, now_ms=self._singles_ms, one_each=True
        )

    async def room(self) -> None:
        """Wait until less than ``buffer_bytes`` wait, behind others who do: calls keep order."""
        most = self.settings.buffer_bytes
        while self._buffered >= most or self._for_room:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._for_room.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._for_room.remove(turn)
                self._wake()
                raise
            self._for_room.remove(turn)
            if self._buffered < most:
                break

    def buffer(self, columns: Columns, size: int, *, aggregate: bool) -> None:
        """Do what ``put`` does with what ``checked`` returned, without waiting for room."""
        self._take_singles()
        self._buffered += size
        self._unseen_bytes += size
        self.received += len(columns.keys)
        self._take(columns, size, aggregate=aggregate, now_ms=self._clock.monotonic_ms())

    def _take(
        self,
        columns: Columns,
        size: int,
        *,
        aggregate: bool,
        now_ms: int,
        one_each: bool = False,
    ) -> None:
        """Hand on what came at an instant, in one call or in one for each record."""

        def on_over(delivery: PutCall) -> None:
            self._buffered -= size
            del self._unflushed[id(delivery)]
            if delivery.error is not None:
                self._failures += [delivery.error] * (delivery.given_up if one_each else 1)
            self._wake()

        delivery = PutCall(
            aggregate=aggregate,
            until_ms=now_ms + self.settings.give_up_ms,
            left=len(columns.keys),
            on_over=on_over,
        )
        self._unflushed[id(delivery)] = delivery
        due_ms = now_ms + self.settings.linger_ms
        self._courier.accept(Part(delivery, columns, size), due_ms=due_ms)

    async def flush(self) -> None:
        """
        Send at once what waits, of ``put`` and ``submit``; return when the stream has all of it.

        Raises:
            Throttled, InvalidRecord, StreamGone: some of what ``put`` took was given up; said
                once, with the number of failed calls in a note (of a ``BlockingProducer``, those
                that were taken together are one).

        """
        self._take_singles()
        while self._unflushed or self._sends:
            self._take_singles()
            self._courier.hurry()
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes.append(flushed)
            await flushed
        if self._failures:
            first, count = self._failures[0], len(self._failures)
            self._failures.clear()
            first.add_note(f"{count} calls of put failed since the last flush; this is the first")
            raise first

    def _give_up(self, error: Exception) -> None:
        for call in (*self._sends, *self._unflushed.values()):
            call.fail(error, call.left)

    def _wake(self) -> None:
        """Wake those who wait for room, or for the end of everything."""
        if self._buffered < self.settings.buffer_bytes:
            for turn in self._for_room:
                _resolve(turn)
        if not self._unflushed and not self._sends:
            while self._flushes:
                _resolve(self._flushes.pop())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
