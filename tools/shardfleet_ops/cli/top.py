"""`shardfleet top`: the fleet live, furthest behind first, or as the keys have it."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from shardfleet_ops.cli.fleet_access import ApplicationOption
from shardfleet_ops.cli.fleets import DEFAULT_STACK, DeployedOption, FleetName, FleetOption
from shardfleet_ops.cli.status import lease_table, slot_table, summary_lines
from shardfleet_ops.cli.watching import WATCHED_EVERY_S, LeaseView, watch
from shardfleet_ops.explain.fleet_view import FleetReading, lease_rows, slot_rows, summary


def top(
    *,
    stack: DeployedOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    application: ApplicationOption = "",
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between readings.", min=1.0)
    ] = WATCHED_EVERY_S,
    rounds: Annotated[
        int, typer.Option(help="Readings before it ends; 0: until Ctrl-C.", min=0)
    ] = 0,
) -> None:
    """Show the fleet live, until q or Ctrl-C; keys sort, filter, scroll and hold the leases."""
    watch(FleetName(stack, fleet_name), application, _screen, every_s=every, rounds=rounds)


def _screen(reading: FleetReading, view: LeaseView | None) -> Group:
    return Group(*_parts(reading, view))


def _parts(reading: FleetReading, view: LeaseView | None) -> Iterator[RenderableType]:
    yield from summary_lines(summary(reading))
    yield slot_table(slot_rows(reading))
    if view is not None:
        yield view.keys_line()
    yield lease_table((view or LeaseView()).rows(lease_rows(reading)))
