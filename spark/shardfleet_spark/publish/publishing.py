"""
The thread that publishes, beside the driver: one round in each interval, while batches run.

It lives in the one process beside Spark's driver and ends with it. Spark waits for it twice only:
before the first batch, until the leases are owned, and at the end, until they are given up.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from threading import Event, Lock, Thread, current_thread, main_thread
from typing import Any

from shardfleet.domain.refusals import Doubt
from shardfleet.errors import OutcomeUnknown, Throttled, Unsettled
from shardfleet_spark.offsets.lineage import CommittedStanding
from shardfleet_spark.publish.publisher import Publisher
from shardfleet_spark.read.sealing import persist
from shardfleet_spark.read.shard_pages import FetchPorts

# Spark stops a query within seconds; a table that does not answer must not hold it up.
_STOP_WITHIN_S = 10.0


def leave_in_order() -> None:
    """
    Let a plea to end (SIGTERM) unwind the process, so that its reader is stopped.

    Spark ends the process beside its driver by that signal, which would cut it off on the spot.
    """
    is_main = current_thread() is main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: object) -> None:
    # Spark asks twice; the leases take a moment to give up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


class Publishing:
    """
    Publishes what Spark has committed, in the background.

    Args:
        publisher: of this query.
        ports: for the patience at the beginning.
        interval_ms: from one round to the next.
        lives: tells whether the driver is still there; without it nothing may be renewed.

    """

    def __init__(
        self,
        publisher: Publisher,
        ports: FetchPorts,
        *,
        interval_ms: int,
        lives: Callable[[], bool] = lambda: True,
    ) -> None:
        """Start no thread yet."""
        self._publisher = publisher
        self._ports = ports
        self._interval_ms = interval_ms
        self._lives = lives
        self._standing: CommittedStanding | None = None
        self._thread: Thread | None = None
        self._stopped = Event()
        self._one_at_a_time = Lock()
        self._failure: Exception | None = None
        self._doubt = Doubt()

    def committed(self, standing: CommittedStanding) -> None:
        """
        Take what Spark has committed; the first time, own the leases of what is read.

        Raises:
            ShardfleetError: the query must not go on: a lease is another's, or the table cannot
                be used.
            Exception: a bug ended the thread; a query that goes on would renew nothing.

        """
        if self._failure is not None:
            raise self._failure
        self._standing = standing
        if self._thread is None:
            with self._one_at_a_time:
                asyncio.run(persist(lambda: self._publisher.begin(standing), self._ports))
            self._stopped.clear()
            self._thread = Thread(target=self._go_on, name="shardfleet-publishing", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Publish what is committed, and give the leases up: no batch follows."""
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join(_STOP_WITHIN_S)
        if self._failure is None and not self._thread.is_alive():
            self._round(self._last())
        self._thread = None

    def report(self) -> dict[str, Any]:
        """Return what a person may want to know, for the query progress."""
        return {"leases": len(self._publisher.leases), "trouble": self._publisher.trouble}

    def _go_on(self) -> None:
        while not self._stopped.wait(self._interval_ms / 1000) and self._lives():
            assert self._standing is not None
            self._round(self._publisher.publish(self._standing))
            if self._failure is not None:
                return

    async def _last(self) -> None:
        assert self._standing is not None
        async with asyncio.timeout(_STOP_WITHIN_S):
            await self._publisher.publish(self._standing)
            await self._publisher.release()

    def _round(self, work: Coroutine[Any, Any, None]) -> None:
        with self._one_at_a_time:
            try:
                asyncio.run(work)
                self._doubt.clear()
            except (Throttled, OutcomeUnknown, TimeoutError) as error:
                self._publisher.trouble = str(error) or type(error).__name__
                is_believed = self._doubt.believes(error, self._ports.clock.monotonic_ms())
                if isinstance(error, Unsettled) and is_believed:
                    self._failure = error.verdict
            except Exception as error:  # noqa: BLE001 - told by the next batch, which must not be
                self._failure = error
