"""
The two Lambda functions: lease manager and worker.

Everything is imported when the first invocation needs it, so that a cold start loads no more than
its own side; the user's code comes last of all (hazard H16).
"""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from shardfleet.runtime.bootstrap import (
    Sandbox,
    TurnThreads,
    fleet_state,
    lease_store,
    open_sandbox,
    stream_reader,
    worker_launcher,
)

if TYPE_CHECKING:
    from shardfleet.runtime.lambda_context import LambdaContext

REPLY_VERSION = 1
# Kept back at the end of a manager's invocation: joining threads, flushing metrics.
MANAGER_MARGIN_MS = 5_000
# Kept back for joining threads at the end of either.
JOIN_MARGIN_MS = 1_000


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


async def _manage(sandbox: Sandbox, context: LambdaContext) -> int:
    from shardfleet.engine.lease_manager import ManagerPorts  # noqa: PLC0415 - its side only
    from shardfleet.engine.manager_loop import run_manager  # noqa: PLC0415 - its side only

    threads = TurnThreads(sandbox.config)
    left_ms = context.get_remaining_time_in_millis() - MANAGER_MARGIN_MS
    try:
        ports = ManagerPorts(
            leases=lease_store(sandbox, threads),
            state=fleet_state(sandbox, threads),
            stream=stream_reader(sandbox, threads),
            launcher=worker_launcher(sandbox, threads),
            clock=sandbox.clock,
            entropy=sandbox.entropy,
            events=sandbox.events,
        )
        run_ms = min(sandbox.config.manager_run_ms, left_ms)
        return await run_manager(sandbox.config, ports, run_ms=run_ms)
    finally:
        await _leave(sandbox, threads, context=context)


async def _leave(sandbox: Sandbox, threads: TurnThreads, *, context: LambdaContext) -> None:
    """Flush the metrics and join the threads; a thread that goes on ends the process (H10)."""
    sandbox.events.flush()
    left_ms = context.get_remaining_time_in_millis() - JOIN_MARGIN_MS
    if not await threads.close(within_ms=max(0, left_ms)):
        sandbox.process.end("a call of the SDK outlived its turn")


@cache
def _sandbox() -> Sandbox:
    return open_sandbox(os.environ)
