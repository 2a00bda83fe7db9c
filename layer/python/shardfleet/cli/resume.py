"""`shardfleet resume`: let stopped shards go on."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from shardfleet.cli.fleet_access import DEFAULT_STACK, StackOption, with_fleet

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess


def resume(
    *,
    shard: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SHARD]...", help="Ids of stopped shards. None: list them."),
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    every: Annotated[bool, typer.Option("--all", help="Every stopped shard.")] = False,
) -> None:
    """Let shards that were stopped by a failing record go on, from that record."""

    async def let_go_on(fleet: "FleetAccess") -> None:
        await _let_go_on(fleet, shard or [], every=every)

    with_fleet(stack, let_go_on)


async def _let_go_on(fleet: "FleetAccess", given: list[str], *, every: bool) -> None:
    from shardfleet.errors import ConfigurationError

    console = Console(highlight=False)
    state = fleet.state
    stopped = {note.lease_key: note for note in await state.stops()}
    unknown = [shard for shard in given if shard not in stopped]
    if unknown:
        raise ConfigurationError(
            f"not stopped: {', '.join(unknown)}; stopped are: {', '.join(stopped) or 'none'}"
        )
    shards = list(stopped) if every else given
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
