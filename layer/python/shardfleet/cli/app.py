"""
The one typer application; every command of the project is registered here.

How to add a command. Write a module in this package whose functions only parse arguments, and
register it below, in the order in which `--help` shall list it:

* one command: `app.command("name")(module.function)`;
* a group: the module makes `group = typer.Typer(...)`, and `app.add_typer(module.group, name=…)`.

A command module imports at its top only typer, rich, the standard library, and of this library
what is pure and small; what the command works with is imported inside the function, so that
`shardfleet --help` stays quick and a missing extra hurts only the command that needs it. A test
asserts that no SDK is loaded.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from shardfleet.cli import (
    chaos,
    configuration,
    cost,
    dashboard,
    demo,
    doctor,
    explain,
    local,
    operating,
    pipeline,
    position,
    put,
    resume,
    rewind,
    simulate,
    status,
    tail,
    what_if,
    where,
)
from shardfleet.errors import ConfigurationError, ShardfleetError

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2

app = typer.Typer(
    name="shardfleet",
    help="A fleet of Lambda functions that consumes Kinesis the way the KCL does.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardfleet {version('shardfleet')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """A fleet of Lambda functions that consumes Kinesis the way the KCL does."""


app.command("demo")(demo.demo)
app.command("chaos")(chaos.chaos)
app.add_typer(local.group, name="local")
app.add_typer(pipeline.group, name="pipeline")
app.add_typer(position.group, name="position")
app.command("status")(status.status)
app.command("leases")(status.leases)
app.command("top")(status.top)
app.command("dashboard")(dashboard.dashboard)
app.command("where")(where.where)
app.command("explain")(explain.explain)
app.command("what-if")(what_if.what_if)
app.command("tail")(tail.tail)
app.command("put")(put.put)
app.command("pause")(operating.pause)
app.command("resume")(resume.resume)
app.command("drain")(operating.drain)
app.command("release")(operating.release)
app.command("rewind")(rewind.rewind)
app.command("cost")(cost.cost)
app.command("doctor")(doctor.doctor)
app.command("config")(configuration.config)
app.command("simulate")(simulate.simulate)


def run(arguments: list[str] | None = None) -> int:
    """
    Run the application and turn an error of ours into one message and an exit code.

    Args:
        arguments: what follows the command's name; the process's own when left out.

    Returns:
        The exit code: 0, `EXIT_FAILED`, `EXIT_WRONG_INPUT`, or what the command asked for.

    """
    try:
        app(args=arguments, prog_name="shardfleet")
    except ConfigurationError as error:
        sys.stderr.write(f"shardfleet: {error}\n")
        return EXIT_WRONG_INPUT
    except ShardfleetError as error:
        sys.stderr.write(f"shardfleet: {error}\n")
        return EXIT_FAILED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILED
    return 0
