"""
What surrounds an invocation, of a worker or of the manager: threads, costs, the sandbox.

An entry point imports this and its own half of the engine, for a worker's start is not to wait for
what only the manager needs.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache

from shardfleet.adapters.telemetry.whole_lines import finish_lines, write_whole_lines
from shardfleet.domain.cost.usage import Consumption, price_of
from shardfleet.engine.ports import StateStore
from shardfleet.engine.state.ledger import Ledger
from shardfleet.errors import ShardfleetError
from shardfleet.events.cost import ConsumptionTold
from shardfleet.runtime import bootstrap
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads, open_sandbox
from shardfleet.runtime.handler_call import LambdaContext

# Kept back at the end of an invocation: joining threads, flushing metrics.
MARGIN_MS = 5_000
# Of it, for joining threads.
JOIN_MARGIN_MS = 1_000
# With less time than this left, the note of what was used is not worth a function that is cut off.
NOTE_MARGIN_MS = 2_500


@asynccontextmanager
async def invocation(
    sandbox: Sandbox,
    context: LambdaContext,
    writer: str,
    *,
    transitions: int = 0,
    scheduled_runs: int = 0,
) -> AsyncIterator[TurnThreads]:
    """
    Provide threads; at the end note the costs, flush metrics and prints, and join the threads.

    A thread that goes on ends the process (H10). Connections that may have died in the rest
    before are dropped, so that no call waits for an answer that nobody gives.
    """
    sandbox.drop_what_may_have_died()
    threads = TurnThreads(sandbox.config)
    meter = Meter(sandbox, context)
    try:
        yield threads
    finally:
        store = bootstrap.state_store(sandbox, threads)
        await meter.keep(writer, store, transitions=transitions, scheduled_runs=scheduled_runs)
        sandbox.events.flush()
        finish_lines()
        left_ms = context.get_remaining_time_in_millis() - JOIN_MARGIN_MS
        if not await threads.close(within_ms=max(0, left_ms)):
            bootstrap.TellingProcess(sandbox).end("a call of the SDK outlived its turn")
        sandbox.rest.begin(sandbox.clock)


class Meter:
    """
    Counts what an invocation uses, from its beginning on, for the fleet's ledger.

    Lambda bills the time from the first instruction to the reply; the time in which a new sandbox
    imports its code is billed too, and not seen here.
    """

    def __init__(self, sandbox: Sandbox, context: LambdaContext) -> None:
        """Begin to count."""
        self._sandbox = sandbox
        self._context = context
        self._began_ms = sandbox.clock.monotonic_ms()
        self._capacity = sandbox.clients.capacity.used_tenths()
        self._bytes = sandbox.events.told_bytes

    async def keep(
        self, writer: str, store: StateStore, *, transitions: int, scheduled_runs: int
    ) -> None:
        """Emit what was used so far, and add it to the ledger if there is time left for it."""
        sandbox = self._sandbox
        read, written = sandbox.clients.capacity.used_tenths()
        duration_ms = sandbox.clock.monotonic_ms() - self._began_ms
        used = Consumption(
            mb_ms=duration_ms * int(self._context.memory_limit_in_mb),
            requests=1,
            transitions=transitions,
            read_tenths=read - self._capacity[0],
            write_tenths=written - self._capacity[1],
            log_bytes=sandbox.events.told_bytes - self._bytes,
            scheduled_runs=scheduled_runs,
        )
        dollars = price_of(used, metric_days=0).total
        sandbox.events.emit(
            ConsumptionTold(
                writer=writer,
                mb_ms=used.mb_ms,
                transitions=used.transitions,
                read_tenths=used.read_tenths,
                write_tenths=used.write_tenths,
                log_bytes=used.log_bytes,
                cost_microdollars=round(dollars * 1_000_000),
            )
        )
        sandbox.events.flush()  # so that what it has written is known
        if self._context.get_remaining_time_in_millis() < NOTE_MARGIN_MS:
            return
        with suppress(ShardfleetError):
            await Ledger(store).add(
                writer, used, metrics=sandbox.events.metric_names, at_ms=sandbox.clock.now_ms()
            )


@cache
def kept_sandbox() -> Sandbox:
    """Return the sandbox of this process, opened when first asked for; its prints are by lines."""
    write_whole_lines()
    return open_sandbox(os.environ)
