"""
The two Lambda functions: lease manager and worker.

All of the engine is imported in Lambda's initialisation, before an invocation's time runs; the
user's code is imported by the turn, after its leases are adopted and renewed (hazard H16).
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from typing import Any

from shardfleet.domain.cost.estimate import TRANSITIONS_PER_TURN, Consumption, price_of
from shardfleet.domain.slots.slot import SlotInput, TurnOutcome
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import StateStore
from shardfleet.engine.state.fleet_state import MANAGER, FleetState
from shardfleet.engine.state.ledger import Ledger
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.errors import ShardfleetError
from shardfleet.events.cost import ConsumptionTold
from shardfleet.runtime import bootstrap
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads, open_sandbox
from shardfleet.runtime.handler_call import REDRIVE, LambdaContext

REPLY_VERSION = 1
# Kept back at the end of a manager's invocation: joining threads, flushing metrics.
MANAGER_MARGIN_MS = 5_000
# Kept back for joining threads at the end of either.
JOIN_MARGIN_MS = 1_000
# With less time than this left, the note of what was used is not worth a function that is cut off.
NOTE_MARGIN_MS = 2_500


def manager_handler(event: object, context: LambdaContext) -> dict[str, Any]:
    """
    Run the lease manager for up to ``manager_run_ms``, less when nothing is awake.

    Args:
        event: the schedule's or first run's; nothing is read from it.
        context: Lambda's.

    Returns:
        ``{"version": 1, "turns": n}``.

    """
    del event
    sandbox = _sandbox()
    sandbox.events.about(request_id=context.aws_request_id)
    turns = asyncio.run(_manage(sandbox, context))
    return {"version": REPLY_VERSION, "turns": turns}


def worker_handler(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    """
    Run one turn of a worker slot; SIGTERM ends it in good order, and the next one goes on.

    Args:
        event: the state machine's, see :class:`shardfleet.domain.slots.slot.SlotInput`; or records
            that were given up, see :mod:`shardfleet.runtime.redrive`.
        context: Lambda's.

    Returns:
        ``{"version": 1, "outcome": "CONTINUE" | "IDLE" | "DRAINED" | "FAILED"}``, or
        ``{"version": 1, "redrive": {"done": n, "error": None or why it is not all}}``.

    Raises:
        ConfigurationError: the input or the environment cannot be read.

    """
    sandbox = _sandbox()
    if isinstance(event, Mapping) and REDRIVE in event:
        sandbox.events.about(request_id=context.aws_request_id)
        return asyncio.run(_redrive(event[REDRIVE], sandbox, context))
    deadline_ms = sandbox.clock.monotonic_ms() + context.get_remaining_time_in_millis()
    given = SlotInput.from_payload(event)
    sandbox.events.about(request_id=context.aws_request_id, slot_id=given.slot_id)
    outcome = asyncio.run(_work(given, sandbox, context=context, deadline_ms=deadline_ms))
    return {"version": REPLY_VERSION, "outcome": outcome.value}


async def _manage(sandbox: Sandbox, context: LambdaContext) -> int:
    left_ms = context.get_remaining_time_in_millis() - MANAGER_MARGIN_MS
    async with _invocation(sandbox, context, MANAGER, scheduled_runs=1) as threads:
        stream = bootstrap.stream(sandbox, threads)
        ports = ManagerPorts(
            leases=bootstrap.lease_store(sandbox, threads),
            kcl3=bootstrap.kcl3_store(sandbox, threads),
            state=FleetState(bootstrap.state_store(sandbox, threads), sandbox.clock),
            stream=stream,
            source=stream,
            launcher=bootstrap.worker_launcher(sandbox, threads),
            clock=sandbox.clock,
            entropy=sandbox.entropy,
            events=sandbox.events,
        )
        run_ms = min(sandbox.config.manager_most_ms, left_ms)
        return await run_manager(sandbox.config, ports, run_ms=run_ms)


async def _work(
    given: SlotInput, sandbox: Sandbox, *, context: LambdaContext, deadline_ms: int
) -> TurnOutcome:
    transitions = TRANSITIONS_PER_TURN
    async with _invocation(sandbox, context, given.slot_id, transitions=transitions) as threads:
        stream = bootstrap.stream(sandbox, threads)
        ports = WorkerPorts(
            clock=sandbox.clock,
            entropy=sandbox.entropy,
            leases=bootstrap.lease_store(sandbox, threads),
            state=bootstrap.state_store(sandbox, threads),
            stream=stream,
            source=stream,
            handler=bootstrap.handler_runner(sandbox, threads, context),
            dead_letters=bootstrap.dead_letters(sandbox, threads, context=context),
            events=sandbox.events,
            process=bootstrap.TellingProcess(sandbox),
            cpu=sandbox.cpu,
        )
        turn = WorkerTurn(given, config=sandbox.config, ports=ports, deadline_ms=deadline_ms)
        # The loop forgets it when it is closed; a program's other threads get no signals.
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, turn.leave)
        return await turn.run()


async def _redrive(event: Any, sandbox: Sandbox, context: LambdaContext) -> dict[str, Any]:
    # A person's command: no slot's cold start waits for it.
    from shardfleet.runtime.redrive import Redrive, records_of  # noqa: PLC0415

    config = sandbox.config
    left_ms = context.get_remaining_time_in_millis() - MANAGER_MARGIN_MS
    work = Redrive(
        records_of(event),
        stream_arn=config.stream_arn,
        is_manual=config.checkpoint == "manual",
        timeout_ms=min(config.handler_timeout_ms, left_ms),
        clock=sandbox.clock,
    )
    async with _invocation(sandbox, context, REDRIVE) as threads:
        runner = bootstrap.handler_runner(sandbox, threads, context)
        try:
            result = await work.run(runner)
        finally:
            if not await runner.close():
                bootstrap.TellingProcess(sandbox).end("a call outlived its time-out")
    told = {"done": result.done_count, "error": result.error}
    return {"version": REPLY_VERSION, REDRIVE: told}


@asynccontextmanager
async def _invocation(
    sandbox: Sandbox,
    context: LambdaContext,
    writer: str,
    *,
    transitions: int = 0,
    scheduled_runs: int = 0,
) -> AsyncIterator[TurnThreads]:
    """
    Provide threads; at the end note the costs, flush the metrics and join the threads.

    A thread that goes on ends the process (H10). Connections that may have died in the rest
    before are dropped, so that no call waits for an answer that nobody gives.
    """
    sandbox.drop_what_may_have_died()
    threads = TurnThreads(sandbox.config)
    meter = _Meter(sandbox, context)
    try:
        yield threads
    finally:
        store = bootstrap.state_store(sandbox, threads)
        await meter.keep(writer, store, transitions=transitions, scheduled_runs=scheduled_runs)
        sandbox.events.flush()
        left_ms = context.get_remaining_time_in_millis() - JOIN_MARGIN_MS
        if not await threads.close(within_ms=max(0, left_ms)):
            bootstrap.TellingProcess(sandbox).end("a call of the SDK outlived its turn")
        sandbox.rest.begin(sandbox.clock)


class _Meter:
    """
    Counts what an invocation uses, from its beginning on, for the fleet's ledger.

    Lambda bills the time from the first instruction to the reply; the time in which a new sandbox
    imports its code is billed too, and not seen here.
    """

    def __init__(self, sandbox: Sandbox, context: LambdaContext) -> None:
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
def _sandbox() -> Sandbox:
    return open_sandbox(os.environ)
