"""
The one typer application; every command of the project is registered here.

How to add a command. Write a module in this package whose functions only parse arguments, and
register it below, in the order in which `--help` shall list it:

* one command: a row of `_COMMANDS`;
* a group: the module makes `group = typer.Typer(...)`, a row of `_GROUPS`.

A command module imports at its top only typer, rich, the standard library, and of this library
what is pure and small; what the command works with is imported inside the function, so that
`shardfleet --help` stays quick and a missing extra hurts only the command that needs it. A test
asserts that no SDK is loaded.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from shardfleet.errors import ConfigurationError, ShardfleetError, settled
from shardfleet.faces import ExtraMissing
from shardfleet_ops.cli import (
    acceptance,
    cloudformation,
    configuration,
    cost,
    dashboard,
    demo,
    doctor,
    documents,
    explain,
    init,
    local,
    logs,
    migrate,
    operating,
    pipeline,
    position,
    put,
    redrive,
    rewind,
    simulate,
    status,
    tail,
    what_if,
    where,
    work,
)
from shardfleet_ops.cli.telling import complain, say

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXTRA_OF = {"aws_cdk": "cdk", "pyarrow": "spark", "pyspark": "spark"}
"""Which extra has a package that a command imports."""

app = typer.Typer(
    name="shardfleet",
    help="A fleet of Lambda functions that consumes Kinesis the way the KCL does.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"shardfleet {version('shardfleet')}")
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


_COMMANDS: dict[str, Callable[..., None]] = {
    "init": init.init,
    "template": cloudformation.template,
    "work": work.work,
    "demo": demo.demo,
    "chaos": demo.chaos,
    "acceptance": acceptance.acceptance,
    "status": status.status,
    "leases": status.leases,
    "top": status.top,
    "dashboard": dashboard.dashboard,
    "where": where.where,
    "explain": explain.explain,
    "what-if": what_if.what_if,
    "logs": logs.logs,
    "tail": tail.tail,
    "put": put.put,
    "pause": operating.pause,
    "resume": operating.resume,
    "drain": operating.drain,
    "release": operating.release,
    "rewind": rewind.rewind,
    "migrate": migrate.migrate,
    "redrive": redrive.redrive,
    "documents": documents.documents,
    "cost": cost.cost,
    "doctor": doctor.doctor,
    "config": configuration.config,
    "simulate": simulate.simulate,
}
_GROUPS = {"local": local.group, "pipeline": pipeline.group, "position": position.group}

# `work` takes every option of the configuration by its name, and says itself which there are.
_TAKES_MORE = {"allow_extra_args": True, "ignore_unknown_options": True}

for _name, _command in _COMMANDS.items():
    app.command(_name, context_settings=_TAKES_MORE if _name == "work" else None)(_command)
for _name, _group in _GROUPS.items():
    app.add_typer(_group, name=_name)


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
    except ShardfleetError as error:
        complain(error)
        is_input = isinstance(settled(error), ConfigurationError)
        return EXIT_WRONG_INPUT if is_input else EXIT_FAILED
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_OF:
            raise
        complain(ExtraMissing("this command", error.name, EXTRA_OF[error.name]))
        return EXIT_WRONG_INPUT
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILED
    return 0
