"""`shardfleet dashboard`: the deployed CloudWatch dashboard as a web page on this machine."""

from shlex import quote
from typing import Annotated, Any

import typer

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import reaching_aws, with_fleet
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption, find_fleet
from shardfleet_ops.cli.telling import say


def dashboard(
    *,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65_535)] = 0,
    minutes: Annotated[
        int | None, typer.Option(help="How far back (default: as old as the fleet is).", min=1)
    ] = None,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between refreshes.", min=1.0)
    ] = 5.0,
) -> None:
    """Show the fleet's dashboard, alarms and leases in a browser, until Ctrl-C; changes nothing."""
    import boto3

    from shardfleet_local.dashboard.gathering import Gatherer
    from shardfleet_local.dashboard.server import DashboardServer, ShownFleet

    with reaching_aws():
        session: Any = boto3.session.Session()
        name = FleetName(stack, fleet_name)
        dashboards = find_fleet(name).of_type("AWS::CloudWatch::Dashboard")
        if not dashboards:
            raise ConfigurationError(
                f"{name}: this fleet has no dashboard of its own; `monitoring` of its ShardFleet "
                "says whether it has one"
            )
        gatherer = Gatherer(session.client, dashboards[0])
        try:
            server = DashboardServer(
                gatherer,
                fleet=ShownFleet(
                    title=str(name),
                    options=_options(name),
                    reading=lambda: with_fleet(name, lambda fleet: fleet.reading()),
                ),
                every_s=every,
                minutes=minutes,
                port=port,
            )
        except OSError as error:
            raise ConfigurationError(
                f"--port {port}: {error.strerror}; name another one, or 0 for any that is free"
            ) from error
        with server:
            say(f"{server.url} shows {name}, until Ctrl-C")
            try:
                server.wait()
            except KeyboardInterrupt:
                say()


def _options(name: FleetName) -> str:
    fleet = f" --fleet {quote(name.fleet)}" if name.fleet else ""
    return f" --stack {quote(name.stack)}{fleet}"
