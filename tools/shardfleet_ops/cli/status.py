"""`shardfleet status` and `leases`: what the fleet is doing."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import typer
from msgspec import to_builtins
from rich.console import Group
from rich.text import Text

from shardfleet.domain.leases.lease import named_foreign
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import (
    ApplicationOption,
    JsonOption,
    with_reading,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, DeployedOption, FleetName, FleetOption
from shardfleet_ops.cli.telling import RowListing, shown, tell
from shardfleet_ops.cli.watching import watch
from shardfleet_ops.explain.fleet_view import (
    FleetReading,
    FleetSummary,
    LeaseRow,
    LeaseState,
    SlotRow,
    in_words,
    lease_rows,
    slot_rows,
    summary,
)
from shardfleet_ops.explain.spoken import spoken_duration

COLOURS = {
    "READING": "green",
    "HANDOVER": "cyan",
    "WAITING": "blue",
    "FINISHED": "dim",
    "UNOWNED": "yellow",
    "PAUSED": "magenta",
    "ASLEEP": "blue",
    "EXPIRED": "red",
    "FAILING": "bold red",
    "STOPPED": "bold red",
    "UNREADABLE": "bold red",
}
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")]
_FIGURES = ("leases", "lag", "counter", "heartbeat")


def status(
    *,
    stack: DeployedOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    application: ApplicationOption = "",
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the fleet in a few lines: leases by state, worker slots, lag, the last plan's age."""
    if watch:
        _watch(FleetName(stack, fleet_name), application, _status_screen, as_json=as_json)
        return
    reading = with_reading(FleetName(stack, fleet_name), application, lambda fleet: fleet.reading())
    found, slots = summary(reading), slot_rows(reading)
    document = to_builtins(found) | {"slot_rows": [to_builtins(row) for row in slots]}
    tell(document, [*summary_lines(found), slot_table(slots)], as_json=as_json)


def leases(
    *,
    stack: DeployedOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    application: ApplicationOption = "",
    finished: Annotated[bool, typer.Option("--finished", help="Finished leases, too.")] = False,
    watch: WatchOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show every lease: its owner, state, checkpoint and lag, and what it waits for."""
    if watch:
        screen = partial(_leases_screen, finished=finished)
        _watch(FleetName(stack, fleet_name), application, screen, as_json=as_json)
        return
    reading = with_reading(FleetName(stack, fleet_name), application, lambda fleet: fleet.reading())
    rows = _rows(reading, finished=finished)
    tell([to_builtins(row) for row in rows], [lease_table(rows)], as_json=as_json)


def _watch(
    name: FleetName,
    application: str,
    screen: Callable[[FleetReading], Group],
    *,
    as_json: bool,
) -> None:
    """Show what a reading looks like, live, until Ctrl-C."""
    if as_json:
        raise ConfigurationError("--watch is for a person, --json for a program: take one of them")
    watch(name, application, lambda reading, _: screen(reading))


def _status_screen(reading: FleetReading) -> Group:
    return Group(*summary_lines(summary(reading)), slot_table(slot_rows(reading)))


def _leases_screen(reading: FleetReading, *, finished: bool) -> Group:
    return Group(lease_table(_rows(reading, finished=finished)))


def _rows(reading: FleetReading, *, finished: bool) -> list[LeaseRow]:
    return [row for row in lease_rows(reading) if finished or row.state is not LeaseState.FINISHED]


def summary_lines(found: FleetSummary) -> Iterator[str | Text]:
    """Yield the fleet in a few lines, and beneath what is wrong what to do."""
    planned = "never" if found.plan_age_ms is None else f"{_time(found.plan_age_ms)} ago"
    if found.stream_is_gone:
        yield Text("stream   it does not exist any more", COLOURS["FAILING"])
        yield "         To do: name another stream."
    yield f"leases   {in_words(found.leases)}"
    yield f"slots    {in_words(found.slots)}"
    yield f"lag      {_lag_words(found)}"
    if found.workers:
        yield f"others   {', '.join(found.workers)} (no slots of this fleet)"
    if found.foreign_leases:
        yield Text(shown(f"foreign  {named_foreign(found.foreign_leases)}"), COLOURS["FAILING"])
        yield "         Nobody of this fleet touches them."
    yield f"planned  {planned}"
    for name, why in found.unreadable_documents.items():
        yield Text(shown(f"unread   {name}: {why}"), COLOURS["FAILING"])
        yield shown(f"         To do: shardfleet documents {name}")
    for key, running_ms in found.long_calls_ms.items():
        running = f"a call of the handler has been running for {_time(running_ms)}"
        yield Text(shown(f"slow     {key}: {running}"), COLOURS["UNOWNED"])
        yield "         To do: shardfleet doctor"
    for remark, slots in found.remarks.items():
        yield Text(shown(f"remark   {', '.join(slots)}: {remark}."), COLOURS["UNOWNED"])
    for failure in found.failures:
        yield Text(shown(f"failing  {failure.said}"), COLOURS["FAILING"])
        yield f"         To do: {failure.remedy}."


def _lag_words(found: FleetSummary) -> str:
    if found.lag_ms is None:
        return "unknown" if found.lag_unknown else "none: nothing is left to read"
    unknown = f", unknown for {found.lag_unknown}" if found.lag_unknown else ""
    return f"at most {_time(found.lag_ms)}{unknown}"


def slot_table(rows: list[SlotRow]) -> RowListing:
    """Show worker slots, one per row."""
    listing = RowListing(
        ("slot", "worker", "state", "leases", "lag", "heartbeat"),
        right=_FIGURES,
        given_up=("heartbeat", "leases", "lag"),
    )
    for row in rows:
        state = row.state.lower()
        cells = (
            row.slot_id,
            row.worker_id,
            f"{state}, draining" if row.draining else state,
            str(row.leases),
            _time(row.lag_ms),
            _time(row.heartbeat_ms),
        )
        listing.rows.append((cells, ""))
    return listing


def lease_table(rows: list[LeaseRow]) -> RowListing:
    """Show leases, one per row, and beneath it why its state is what it is."""
    listing = RowListing(
        ("lease", "state", "owner", "checkpoint", "lag", "counter"),
        right=_FIGURES,
        given_up=("counter", "checkpoint", "lag", "owner"),
    )
    for row in rows:
        cells = (
            row.lease_key,
            Text(row.state.lower(), style=COLOURS[row.state]),
            row.owner or "",
            row.checkpoint,
            _time(row.lag_ms),
            str(row.counter),
        )
        listing.rows.append((cells, row.why))
    return listing


def _time(duration_ms: int | None) -> str:
    return "" if duration_ms is None else spoken_duration(duration_ms)
