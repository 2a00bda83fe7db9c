"""The producer for code without an event loop: the same, on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from shardfleet.engine.producer.sending import Producer
from shardfleet.engine.producer.settings import ProducerCounts, Receipt, ShardFlow
from shardfleet.kpl.packing import OutgoingRecord

T = TypeVar("T")


class BlockingProducer:
    """
    A ``Producer`` whose calls block; they may come from any threads.

    Records of a key keep the order of the calls of one thread. ``put`` costs a switch between two
    threads, so give it many records at a time. Use it with ``with``, or call ``close``.

    Args:
        make: makes the producer, inside the thread of the loop.

    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="shardfleet-producer", daemon=True)
        self._thread.start()
        try:
            self._producer = self._run(_made(make))
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._stop()

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

    def put(self, *records: OutgoingRecord, aggregate: bool = False) -> None:
        """Buffer records, waiting for room if need be; see ``Producer.put``."""
        self._run(self._producer.put(*records, aggregate=aggregate))

    def flush(self) -> None:
        """Return when the stream has everything that ``put`` took; see ``Producer.flush``."""
        self._run(self._producer.flush())

    def close(self) -> None:
        """
        Flush and end the thread; nothing can be sent any more.

        Raises:
            Throttled, InvalidRecord, StreamGone: as ``flush``; the thread has ended all the same.

        """
        if self._loop.is_closed():
            return
        try:
            self.flush()
        finally:
            self._stop()

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            call.close()
            raise RuntimeError("this producer is closed: make another one to send more")
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
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


async def _made(make: Callable[[], T]) -> T:
    return make()
