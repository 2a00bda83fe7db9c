"""`shardfleet status`, `leases` and `top`: what the fleet is doing."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from shardfleet.cli.application_access import ApplicationOption, ApplicationTable, with_reading
from shardfleet.cli.fleet_access import DEFAULT_STACK, FleetAccess, JsonOption, StackOption
from shardfleet.cli.telling import plain_table
from shardfleet.domain.explain.fleet_view import (
    FleetReading,
    FleetSummary,
    LeaseRow,
    LeaseState,
    SlotRow,
    lease_rows,
    slot_rows,
    summary,
)

_COLOURS = {
    "READING": "green",
    "HANDOVER": "cyan",
    "WAITING": "blue",
    "FINISHED": "dim",
    "UNOWNED": "yellow",
    "PAUSED": "magenta",
    "ASLEEP": "blue",
    "EXPIRED": "red",
    "STOPPED": "bold red",
}
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
_FIGURES = ("leases", "lag", "counter", "heartbeat")
# A shard id, and a checkpoint, differ at their ends.
_TAIL_OF_CHECKPOINT = 18


def status(
    *,
    stack: StackOption = DEFAULT_STACK,
    application: ApplicationOption = "",
    as_json: JsonOption = False,
) -> None:
    """Show the fleet in a few lines: leases by state, worker slots, lag, the last plan's age."""
    reading = with_reading(stack, application, _read)
    if as_json:
        slots = [asdict(row) for row in slot_rows(reading)]
        typer.echo(json.dumps(asdict(summary(reading)) | {"slot_rows": slots}, indent=2))
        return
    console = Console(highlight=False)
    console.print(_summary_text(reading))
    console.print(slot_table(slot_rows(reading)))


def leases(
    *,
    stack: StackOption = DEFAULT_STACK,
    application: ApplicationOption = "",
    finished: Annotated[bool, typer.Option("--finished", help="Finished leases, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every lease: its owner, state, checkpoint and lag, and what it waits for."""
    reading = with_reading(stack, application, _read)
    rows = _rows(reading, finished=finished)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    Console(highlight=False).print(lease_table(rows))


def top(
    *,
    stack: StackOption = DEFAULT_STACK,
    application: ApplicationOption = "",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between readings.", min=1.0)
    ] = 2.0,
    rounds: Annotated[
        int, typer.Option(help="Readings before it ends; 0: until Ctrl-C.", min=0)
    ] = 0,
) -> None:
    """Show the fleet live, until Ctrl-C: the slots, and the unfinished leases furthest behind."""
    from rich.live import Live

    async def show(fleet: FleetAccess | ApplicationTable) -> None:
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            shown = 0
            while True:
                live.update(_screen(await fleet.reading()), refresh=True)
                shown += 1
                if shown == rounds:
                    return
                await asyncio.sleep(every)

    try:
        with_reading(stack, application, show)
    except KeyboardInterrupt:
        return


async def _read(fleet: FleetAccess | ApplicationTable) -> FleetReading:
    return await fleet.reading()


def _rows(reading: FleetReading, *, finished: bool) -> list[LeaseRow]:
    return [row for row in lease_rows(reading) if finished or row.state is not LeaseState.FINISHED]


def _screen(reading: FleetReading) -> Group:
    rows = sorted(_rows(reading, finished=False), key=lambda row: -(row.lag_ms or -1))
    return Group(_summary_text(reading), slot_table(slot_rows(reading)), lease_table(rows))


def _summary_text(reading: FleetReading) -> Text:
    found = summary(reading)
    text = Text()
    text.append(f"leases   {_counts(found.leases)}\n")
    text.append(f"slots    {_counts(found.slots)}\n")
    text.append(f"lag      {_lag_words(found)}\n")
    if found.workers:
        text.append(f"others   {', '.join(found.workers)} (no slots of this fleet)\n")
    planned = "never" if found.plan_age_ms is None else f"{_time(found.plan_age_ms)} ago"
    text.append(f"planned  {planned}")
    return text


def _counts(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{count} {str(state).lower()}" for state, count in counts.items()) or "none"


def _lag_words(found: FleetSummary) -> str:
    if found.lag_ms is None:
        return "unknown" if found.lag_unknown else "none: nothing is left to read"
    unknown = f", unknown for {found.lag_unknown}" if found.lag_unknown else ""
    return f"at most {_time(found.lag_ms)}{unknown}"


def slot_table(rows: list[SlotRow]) -> Table:
    """Show worker slots, one per row."""
    table = plain_table("slot", "worker", "state", "leases", "lag", "heartbeat", "", right=_FIGURES)
    for row in rows:
        table.add_row(
            row.slot_id,
            row.worker_id,
            row.state.lower(),
            str(row.leases),
            _time(row.lag_ms),
            _time(row.heartbeat_ms),
            _slot_remarks(row),
        )
    return table


def _slot_remarks(row: SlotRow) -> str:
    crashed = f"{row.crashes} crashes in a row" if row.crashes else ""
    return ", ".join(filter(None, ("draining" if row.draining else "", crashed)))


def lease_table(rows: list[LeaseRow]) -> Table:
    """Show leases, one per row."""
    table = plain_table(
        "lease", "state", "owner", "checkpoint", "lag", "counter", "", right=_FIGURES
    )
    for row in rows:
        table.add_row(
            row.lease_key,
            Text(row.state.lower(), style=_COLOURS[row.state]),
            row.owner or "",
            _shortened(row.checkpoint),
            _time(row.lag_ms),
            str(row.counter),
            row.why,
        )
    return table


def _shortened(checkpoint: str) -> str:
    tail = checkpoint[-_TAIL_OF_CHECKPOINT:]
    return checkpoint if len(tail) == len(checkpoint) else f"…{tail}"


def _time(duration_ms: int | None) -> str:
    """Return a duration as a person says it; empty when it is unknown."""
    if duration_ms is None:
        return ""
    if duration_ms < _SECOND:
        return f"{duration_ms} ms"
    for unit_ms, name in ((_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s")):
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {name}"
    raise AssertionError(duration_ms)
