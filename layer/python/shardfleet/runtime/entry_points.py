"""
The worker's Lambda function (the manager's: :mod:`shardfleet.runtime.managing`).

All of the worker's engine is imported in Lambda's initialisation, before an invocation's time runs;
the user's code is imported by the turn, after its leases are adopted and renewed (hazard H16).
"""

from __future__ import annotations

import gc

# All that is imported stays: to look through it again and again took a fourteenth of a start.
gc.disable()

import asyncio
import signal
import threading
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from shardfleet.domain.cost.usage import TRANSITIONS_PER_TURN
from shardfleet.domain.slots.slot import SlotInput, TurnOutcome
from shardfleet.engine.worker.turn import WorkerTurn
from shardfleet.runtime import bootstrap, invocation
from shardfleet.runtime.bootstrap import Sandbox
from shardfleet.runtime.handler_call import REDRIVE, LambdaContext

gc.freeze()
gc.enable()

REPLY_VERSION = 1


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
    sandbox = invocation.kept_sandbox()
    if isinstance(event, Mapping) and REDRIVE in event:
        sandbox.events.about(request_id=context.aws_request_id)
        return asyncio.run(_redrive(event[REDRIVE], sandbox, context))
    deadline_ms = sandbox.clock.monotonic_ms() + context.get_remaining_time_in_millis()
    given = SlotInput.from_payload(event)
    sandbox.events.about(request_id=context.aws_request_id, slot_id=given.slot_id)
    outcome = asyncio.run(_work(given, sandbox, context=context, deadline_ms=deadline_ms))
    return {"version": REPLY_VERSION, "outcome": outcome.value}


async def _work(
    given: SlotInput, sandbox: Sandbox, *, context: LambdaContext, deadline_ms: int
) -> TurnOutcome:
    around = invocation.invocation(
        sandbox, context, given.slot_id, transitions=TRANSITIONS_PER_TURN
    )
    async with around as threads:
        ports = bootstrap.worker_ports(sandbox, threads, context)
        ports = replace(ports, manager=bootstrap.CalledManager(sandbox, threads))
        turn = WorkerTurn(given, config=sandbox.config, ports=ports, deadline_ms=deadline_ms)
        # The loop forgets it when it is closed; a program's other threads get no signals.
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, turn.leave)
        return await turn.run()


async def _redrive(event: Any, sandbox: Sandbox, context: LambdaContext) -> dict[str, Any]:
    # A person's command: no slot's cold start waits for it.
    from shardfleet.runtime.redrive import Redrive, records_of  # noqa: PLC0415

    config = sandbox.config
    left_ms = context.get_remaining_time_in_millis() - invocation.MARGIN_MS
    work = Redrive(
        records_of(event),
        stream_arn=config.stream_arn,
        way=config.way,
        timeout_ms=min(config.handler_timeout_ms, left_ms),
        clock=sandbox.clock,
    )
    async with invocation.invocation(sandbox, context, REDRIVE) as threads:
        runner = bootstrap.handler_runner(sandbox, threads, context)
        try:
            result = await work.run(runner)
        finally:
            if not await runner.close():
                bootstrap.TellingProcess(sandbox).end("a call outlived its time-out")
    told = {"done": result.done_count, "error": result.error}
    return {"version": REPLY_VERSION, REDRIVE: told}
