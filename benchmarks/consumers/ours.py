"""
A worker turn of ours, with all that is around it in Lambda but Lambda itself.

Leases adopted, renewed, checkpointed and given back; the slot's record claimed and closed; the
user's handler in its own thread; metrics written. Only the pace of reading is not held back.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import cache

from msgspec.structs import replace
from protocol import Task, serve

from shardfleet import Batch
from shardfleet.config import FleetConfig
from shardfleet.domain.slots.slot import ask_to_drain, intend_start
from shardfleet.engine.shard.failure_policy import FailurePolicy
from shardfleet.engine.worker.ports import WorkerPorts
from shardfleet.engine.worker.turn import worker_turn
from shardfleet.runtime import bootstrap
from shardfleet.runtime.bootstrap import Sandbox, TurnThreads, open_sandbox
from shardfleet.runtime.delivering import progress_of
from shardfleet.runtime.handler_call import LambdaContext

TURN_MS = 240_000
SLOT, WORKER = "s0001", "bench-s0001"

seen: list[bytes] = []
wanted = 0
all_seen = threading.Event()


def handle(batch: Batch) -> None:
    """Keep the data."""
    seen.extend([record.data for record in batch])
    if len(seen) >= wanted:
        all_seen.set()


class _Context:
    """Lambda's context of one invocation."""

    function_name = "worker"
    aws_request_id = "bench"
    memory_limit_in_mb = 1_769
    invoked_function_arn = "arn:aws:lambda:us-east-1:111122223333:function:worker"

    def get_remaining_time_in_millis(self) -> int:
        """Return a quarter of an hour."""
        return TURN_MS


def consume(task: Task) -> list[bytes]:
    """Run one turn until the handler has seen the last record and everything is given back."""
    global wanted  # noqa: PLW0603 - the handler is found by its name, as in Lambda
    seen.clear()
    all_seen.clear()
    wanted = task.records
    config = FleetConfig(
        fleet="bench",
        stream_arn=task.arn,
        lease_table=task.lease_table,
        state_table=task.state_table,
        handler="ours:handle",
        checkpoint_ms=task.checkpoint_ms,
        failover_ms=3_000,
        read_bytes_per_s=1 << 30,
        busy_read_ms=0,
        misrouted="deliver",
    )
    asyncio.run(turn(config))
    return seen


@cache
def _sandbox(stream_arn: str) -> Sandbox:
    """Return what outlives an invocation in Lambda: the clients."""
    config = FleetConfig(fleet="bench", stream_arn=stream_arn, lease_table="-", state_table="-")
    return open_sandbox(os.environ | config.to_env())


async def turn(config: FleetConfig) -> None:
    """Run one turn until the last record is seen."""
    context: LambdaContext = _Context()
    sandbox = replace(_sandbox(config.stream_arn), config=config)
    threads = TurnThreads(config)
    clock = sandbox.clock
    stream = bootstrap.stream(sandbox, threads)
    ports = WorkerPorts(
        clock=clock,
        entropy=sandbox.entropy,
        leases=bootstrap.lease_store(sandbox, threads),
        state=bootstrap.state_store(sandbox, threads),
        stream=stream,
        source=bootstrap.source(sandbox, threads, stream),
        handler=bootstrap.handler_runner(sandbox, threads, context),
        progress=progress_of(config),
        policy=FailurePolicy(config.policy_terms),
        events=sandbox.events,
        process=sandbox.process,
    )
    slot = intend_start(
        None, slot_id=SLOT, worker_id=WORKER, name_prefix="bench", now_ms=clock.now_ms()
    )
    await ports.fleet_state.write_slot(slot, None)
    deadline_ms = clock.monotonic_ms() + TURN_MS

    async def drain() -> None:
        await asyncio.to_thread(all_seen.wait)
        await ports.fleet_state.update_slot(SLOT, ask_to_drain)

    drained = asyncio.create_task(drain())
    await worker_turn(slot.slot_input(), config=config, ports=ports, deadline_ms=deadline_ms)
    await drained
    sandbox.events.flush()
    await threads.close(within_ms=5_000)


if __name__ == "__main__":
    import sys

    # The handler is imported by its name; it is this module.
    sys.modules["ours"] = sys.modules["__main__"]
    serve(consume)
