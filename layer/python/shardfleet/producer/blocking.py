"""The producer for code without an event loop: the same, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from msgspec import Struct

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.calls import Columns, checked, checked_alone, joined
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerCounts, Receipt, ShardFlow

T = TypeVar("T")


class _Run(Struct, eq=False):
    """
    What calls of one kind gave, one after another.

    Attributes:
        aggregate: whether the records may travel in aggregates.
        is_one_each: whether each call gave one record.
        given: the records then; otherwise the columns of each call, and their bytes.

    """

    aggregate: bool
    is_one_each: bool
    given: list[Any]

    def columns(self) -> tuple[Columns, int]:
        """Return all records, and the bytes of their data and keys."""
        if self.is_one_each:  # They were checked when they came.
            return checked(self.given, record_bytes=sys.maxsize)
        columns, sizes = zip(*self.given, strict=True)
        return joined(columns), sum(sizes)


class BlockingProducer:
    """
    A ``Producer`` whose calls block; they may come from any threads.

    Records of a key keep the order of the calls of one thread. ``put`` of one record at a time is
    made for loops: it leaves the record in a list, which the loop's thread takes as a whole when
    it has its turn. Use it with ``with``, or call ``close``.

    Args:
        make: makes the producer, or what opens and closes it, inside the thread of the loop.

    """

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Producer]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_closed = False
        self._given: list[_Run] = []
        self._given_bytes = 0
        self._thread = threading.Thread(target=self._serve, name="shardfleet-producer", daemon=True)
        self._thread.start()
        try:
            self._context = self._run(_made(make))
            self._producer = self._run(_awaited(self._context.__aenter__()))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._end(kind, error, trace)

    @property
    def counts(self) -> ProducerCounts:
        """Return what has happened so far; the numbers may still change."""
        return self._producer.counts

    @property
    def flows(self) -> list[ShardFlow]:
        """Return batch size, pause and what waits, per shard that was sent to."""
        return self._run(_made(lambda: self._producer.flows))

    def send(self, records: Iterable[OutgoingRecord], *, aggregate: bool = False) -> list[Receipt]:
        """Send records and return where each was accepted; see ``Producer.send``."""
        return self._run(self._producer.send(list(records), aggregate=aggregate))

    def submit(
        self, records: Iterable[OutgoingRecord], *, aggregate: bool = False
    ) -> Future[list[Receipt]]:
        """
        Begin what ``send`` does, and return its future.

        Per thread and key, what was put before goes before these records, and what is put later
        behind them. A record that breaks a limit is an error of the future, too.
        """
        outgoing, receipts = list(records), Future[list[Receipt]]()
        receipts.set_running_or_notify_cancel()

        def begin() -> None:
            try:
                task = self._producer.submit(outgoing, aggregate=aggregate)
            except Exception as error:  # noqa: BLE001 - whoever asks the future hears of it.
                receipts.set_exception(error)
            else:
                task.add_done_callback(partial(_hand_on, receipts))

        with self._lock:
            self._raise_if_closed()
            self._given = []  # What is put from now on goes into a list of its own, taken later.
            self._loop.call_soon_threadsafe(begin)
        return receipts

    def put(self, *records: OutgoingRecord, aggregate: bool = False) -> None:
        """Buffer records, waiting for room if need be; see ``Producer.put``."""
        if not records:
            return
        settings, is_one = self._producer.settings, len(records) == 1
        what: OutgoingRecord | tuple[Columns, int]
        if is_one:
            (what,) = records
            size = checked_alone(what, record_bytes=settings.record_bytes)
        else:
            what = _, size = checked(records, record_bytes=settings.record_bytes)
        if self._given_bytes + self._producer.buffered_bytes >= settings.buffer_bytes:
            self._run(self._producer.room())
        with self._lock:
            self._raise_if_closed()
            runs = self._given
            if not runs:  # Within the lock: a flush that follows must come after it.
                self._loop.call_soon_threadsafe(self._take, runs)
            if (
                not runs
                or runs[-1].aggregate is not aggregate
                or runs[-1].is_one_each is not is_one
            ):
                runs.append(_Run(aggregate, is_one, []))
            runs[-1].given.append(what)
            self._given_bytes += size

    def flush(self) -> None:
        """Return when the stream has everything that ``put`` took; see ``Producer.flush``."""
        self._run(self._producer.flush())

    def close(self) -> None:
        """
        Flush and end the thread; nothing can be sent any more.

        Raises:
            Throttled, InvalidRecord, StreamGone: as ``flush``; the thread has ended all the same.

        """
        self._end(None, None, None)

    def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            self._wait_for(_awaited(self._context.__aexit__(kind, error, trace)))
        finally:
            self._stop()

    def _take(self, runs: list[_Run]) -> None:
        """Buffer what ``put`` has left in a list; in the loop's thread."""
        with self._lock:
            if runs is self._given:
                self._given = []
        for run in runs:
            columns, size = run.columns()
            self._producer.buffer(columns, size, aggregate=run.aggregate)
            with self._lock:
                self._given_bytes -= size

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise RuntimeError("this producer is closed: make another one to send more")

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            self._raise_if_closed()
        except RuntimeError:
            call.close()
            raise
        return self._wait_for(call)

    def _wait_for(self, call: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C in the caller's thread: what is not sent yet is not sent.
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def _stop(self) -> None:
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _hand_on(receipts: Future[list[Receipt]], task: asyncio.Task[list[Receipt]]) -> None:
    if task.cancelled():
        receipts.set_exception(CancelledError("the producer was closed"))
    elif (error := task.exception()) is not None:
        receipts.set_exception(error)
    else:
        receipts.set_result(task.result())


async def _made(make: Callable[[], T]) -> T:
    return make()


async def _awaited(call: Awaitable[T]) -> T:
    return await call
