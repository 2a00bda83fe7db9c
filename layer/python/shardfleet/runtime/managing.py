"""The lease manager's Lambda function; all of its engine is imported in Lambda's initialisation."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from msgspec.structs import replace

from shardfleet.adapters.dynamodb.kcl3 import DynamoDBKcl3Store
from shardfleet.adapters.step_functions import StepFunctionsLauncher
from shardfleet.config import WIRED
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.turn import ManagerPorts
from shardfleet.engine.ports import WorkerLauncher
from shardfleet.engine.shard.polling import PolledSource
from shardfleet.engine.state.fleet_state import MANAGER, FleetState
from shardfleet.errors import ConfigurationError
from shardfleet.runtime import bootstrap, invocation
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads
from shardfleet.runtime.handler_call import LambdaContext

REPLY_VERSION = 1
# Ours. A turn over 10,000 leases makes some 200,000 objects that live until its end, and next to no
# circles of them; at Python's own 700 the collector looks through all of them several times, which
# took two fifths of the turn (`benchmarks/bench_manager_turn.py`).
ALLOCATIONS_BETWEEN_LOOKS = (50_000, 20, 100)


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
    sandbox = invocation.kept_sandbox()
    sandbox.events.about(request_id=context.aws_request_id)
    turns = asyncio.run(_manage(sandbox, context))
    return {"version": REPLY_VERSION, "turns": turns}


def collect_seldom() -> None:
    """
    Let Python's collector leave alone what was imported, and look through the rest seldom.

    Of the function's whole process, so its module asks for it and nobody else's.
    """
    gc.freeze()
    gc.set_threshold(*ALLOCATIONS_BETWEEN_LOOKS)


async def _manage(sandbox: Sandbox, context: LambdaContext) -> int:
    left_ms = context.get_remaining_time_in_millis() - invocation.MARGIN_MS
    async with invocation.invocation(sandbox, context, MANAGER, scheduled_runs=1) as threads:
        ports = manager_ports(sandbox, threads, worker_launcher(sandbox, threads))
        ports = replace(ports, function=context.invoked_function_arn)
        if sandbox.config.spill:
            # No other fleet's start waits for it.
            from shardfleet.engine.manager.spill import beside_processes  # noqa: PLC0415

            ports = beside_processes(sandbox.config, ports)
        run_ms = min(sandbox.config.max_manager_ms, left_ms)
        return await run_manager(sandbox.config, ports, run_ms=run_ms)


def manager_ports(sandbox: Sandbox, threads: TurnThreads, launcher: WorkerLauncher) -> ManagerPorts:
    """Return the manager's ports: the tables, the stream, and what starts workers."""
    stream, config = bootstrap.stream(sandbox, threads), sandbox.config
    tables = bootstrap.tables_of(sandbox, threads)
    return ManagerPorts(
        leases=bootstrap.lease_store(sandbox, threads),
        kcl3=DynamoDBKcl3Store(config.lease_table, tables, own=config.kcl_tables),
        state=FleetState(bootstrap.state_store(sandbox, threads), sandbox.clock),
        stream=stream,
        source=PolledSource(stream, sandbox.clock),
        launcher=launcher,
        clock=sandbox.clock,
        entropy=sandbox.entropy,
        events=sandbox.events,
    )


def worker_launcher(sandbox: Sandbox, threads: TurnThreads) -> StepFunctionsLauncher:
    """
    Return the state machine that runs workers.

    Raises:
        ConfigurationError: no state machine is configured.

    """
    if not sandbox.config.state_machine_arn:
        raise ConfigurationError("SHARDFLEET_STATE_MACHINE_ARN: missing; the manager needs it")
    clients, wired = sandbox.clients, WIRED[sandbox.config.stream_calls]
    return StepFunctionsLauncher(
        sandbox.config.state_machine_arn,
        client=clients.wired_states if wired else clients.step_functions,
        pool=threads.streams,
    )
