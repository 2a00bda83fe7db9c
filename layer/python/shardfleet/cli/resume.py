"""`shardfleet resume`: let stopped and paused shards go on."""

from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardfleet.cli.approval import DryRunOption
from shardfleet.cli.fleet_access import (
    DEFAULT_STACK,
    FleetAccess,
    JsonOption,
    StackOption,
    with_fleet,
)
from shardfleet.cli.telling import tell
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.errors import ConfigurationError

if TYPE_CHECKING:
    from shardfleet.domain.delivery.stops import StopNote


def resume(
    *,
    shard: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SHARD]...", help="Stopped or paused shards. None: list them."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Everything stopped or paused, also after a drain.")
    ] = False,
    stack: StackOption = DEFAULT_STACK,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let shards go on that a failing record stopped, or that a person paused."""

    async def let_go_on(fleet: FleetAccess) -> None:
        from shardfleet.engine.operate.pause import Operator, OperatorPorts

        ports = OperatorPorts(leases=fleet.leases, state=fleet.state, clock=fleet.clock)
        operator = Operator(ports)
        stopped = {note.lease_key: note for note in await fleet.state.stops()}
        pauses = await operator.pauses()
        _check(shard or [], stopped, pauses)
        chosen = [*stopped, *pauses.leases] if every else shard or []
        is_wanted = bool(chosen or (every and pauses.fleet)) and not dry_run
        document = _document(chosen, stopped, pauses, written=is_wanted)
        lines = _all(stopped, pauses)
        if chosen or every:
            lines = _goes_on(chosen, stopped, pauses, every=every)
        tell(document, lines, as_json=as_json)
        if is_wanted:
            for key in chosen:
                await fleet.state.resume(key)
            await operator.resume(None if every else chosen)

    with_fleet(stack, let_go_on)


def _check(given: list[str], stopped: "dict[str, StopNote]", pauses: Pauses) -> None:
    unknown = [shard for shard in given if shard not in stopped and shard not in pauses.leases]
    if unknown and pauses.fleet:
        raise ConfigurationError(
            f"not stopped, and not paused by name: {', '.join(unknown)}; the whole fleet is "
            f"{pauses.fleet}; resume it with --all"
        )
    if unknown:
        raise ConfigurationError(
            f"not stopped: {', '.join(unknown)}; stopped are: {', '.join(stopped) or 'none'}; "
            f"paused are: {', '.join(pauses.leases) or 'none'}"
        )


def _goes_on(
    chosen: Collection[str], stopped: "dict[str, StopNote]", pauses: Pauses, *, every: bool
) -> Iterator[str]:
    for key in chosen:
        goes_on = f" from {stopped[key].position}" if key in stopped else f": was {pauses.of(key)}"
        yield f"{key} goes on{goes_on}"
    if every and pauses.fleet:
        yield f"The fleet goes on: was {pauses.fleet}"


def _all(stopped: "dict[str, StopNote]", pauses: Pauses) -> Iterator[str]:
    for note in stopped.values():
        yield (
            f"{note.lease_key} is stopped at {note.position} after {note.attempts} attempts: "
            f"{note.error}"
        )
    if pauses.fleet:
        yield f"The whole fleet is {pauses.fleet}"
    for key, pause in sorted(pauses.leases.items()):
        yield f"{key} is {pause}"
    if not stopped and not pauses.leases and not pauses.fleet:
        yield "No shard is stopped, and none is paused."


def _document(
    chosen: Collection[str], stopped: "dict[str, StopNote]", pauses: Pauses, *, written: bool
) -> dict[str, Any]:
    fleet = [{"lease_key": None, **asdict(pauses.fleet)}] if pauses.fleet else []
    paused = [{"lease_key": key, **asdict(each)} for key, each in sorted(pauses.leases.items())]
    return {
        "written": written,
        "resumed": list(chosen) if written else [],
        "stopped": [asdict(note) for note in stopped.values()],
        "paused": [*fleet, *paused],
    }
