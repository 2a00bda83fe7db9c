"""`shardfleet resume`: let stopped shards go on."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from shardfleet.engine.fleet_state import FleetState, StopNote


def resume(
    *,
    shard: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SHARD]...", help="Ids of stopped shards. None: list them."),
    ] = None,
    state_table: Annotated[
        str,
        typer.Option(metavar="TABLE", help="The fleet-state table (stack output StateTable)."),
    ],
    every: Annotated[bool, typer.Option("--all", help="Every stopped shard.")] = False,
) -> None:
    """Let shards that were stopped by a failing record go on, from that record."""
    from botocore.exceptions import BotoCoreError

    from shardfleet.errors import ConfigurationError

    try:
        asyncio.run(_resume(state_table, shard or [], every=every))
    except BotoCoreError as error:
        raise ConfigurationError(
            f"{error} Region, credentials and endpoint come from the environment, as for the AWS "
            "command line"
        ) from error


async def _resume(state_table: str, shards: list[str], *, every: bool) -> None:
    from shardfleet.adapters.aws_clients import AwsClients, ConnectionLimits
    from shardfleet.adapters.dynamodb_leases import TablePools
    from shardfleet.adapters.fleet_state import DynamoDBStateStore
    from shardfleet.adapters.system import SystemClock
    from shardfleet.adapters.thread_pool import ThreadPool
    from shardfleet.engine.fleet_state import FleetState

    clients = AwsClients(ConnectionLimits(writes=1, reads=1, streams=1))
    pools = TablePools(
        writes=ThreadPool("writes", threads=1),
        reads=ThreadPool("reads", threads=1),
        write_client=clients.table_writes,
        read_client=clients.table_reads,
    )
    state = FleetState(DynamoDBStateStore(state_table, pools), SystemClock())
    try:
        stopped = {note.lease_key: note for note in await state.stops()}
        await _let_go_on(state, stopped, list(stopped) if every else shards)
    finally:
        await pools.writes.close(within_ms=10_000)
        await pools.reads.close(within_ms=10_000)


async def _let_go_on(
    state: "FleetState", stopped: dict[str, "StopNote"], shards: list[str]
) -> None:
    from shardfleet.errors import ConfigurationError

    console = Console(highlight=False)
    unknown = [shard for shard in shards if shard not in stopped]
    if unknown:
        raise ConfigurationError(
            f"not stopped: {', '.join(unknown)}; stopped are: {', '.join(stopped) or 'none'}"
        )
    if not shards:
        for note in stopped.values():
            console.print(
                f"{note.lease_key} is stopped at {note.position} after {note.attempts} attempts: "
                f"{note.error}"
            )
        if not stopped:
            console.print("No shard is stopped.")
        return
    for shard in shards:
        await state.resume(shard)
        console.print(f"{shard} goes on from {stopped[shard].position}")
    await state.prompt_manager()
