"""
What an invocation has used, put into the fleet's ledger at its end.

Lambda bills the time from the first instruction to the reply; the time in which a new sandbox
imports its code is billed too, and not seen here.
"""

from __future__ import annotations

from contextlib import suppress

from shardfleet.domain.cost.estimate import Consumption, price_of
from shardfleet.engine.ports import StateStore
from shardfleet.engine.state.ledger import Ledger
from shardfleet.errors import ShardfleetError
from shardfleet.events.cost import ConsumptionTold
from shardfleet.runtime.bootstrap import Sandbox
from shardfleet.runtime.lambda_context import LambdaContext

# With less time than this left the note is not worth a function that is cut off.
LEAST_MS = 2_500
_MICRO = 1_000_000


class InvocationMeter:
    """Counts from the beginning of an invocation."""

    def __init__(self, sandbox: Sandbox, context: LambdaContext) -> None:
        """Begin now."""
        self._sandbox = sandbox
        self._context = context
        self._began_ms = sandbox.clock.monotonic_ms()
        self._capacity = sandbox.clients.capacity.used_tenths()
        self._bytes = sandbox.events.told_bytes

    async def keep(
        self, writer: str, store: StateStore, *, transitions: int, scheduled_runs: int
    ) -> None:
        """Tell what was used up to now, and add it to the ledger if there is time left for it."""
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
                cost_microdollars=round(dollars * _MICRO),
            )
        )
        sandbox.events.flush()  # so that what it has written is known
        if self._context.get_remaining_time_in_millis() < LEAST_MS:
            return
        with suppress(ShardfleetError):
            await Ledger(store).add(
                writer, used, metrics=sandbox.events.metric_names, at_ms=sandbox.clock.now_ms()
            )
