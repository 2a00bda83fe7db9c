"""
The one typer application; every command of the project is registered here.

How to add a command. Write a module in this package whose functions only parse arguments, and
register it below, in the order in which `--help` shall list it:

* one command: a row of `_COMMANDS`, in the group of `--help` that it belongs to;
* a group: the module makes `group = typer.Typer(...)`, a row of `_GROUPS`.

A command module imports at its top only typer, rich, the standard library, and of this library
what is pure and small; what the command works with is imported inside the function, so that
`shardfleet --help` stays quick and a missing extra hurts only the command that needs it. A test
asserts that no SDK is loaded.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
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
    top,
    what_if,
    where,
    work,
)
from shardfleet_ops.cli.fleet_access import ENVIRONMENT
from shardfleet_ops.cli.telling import complain, say

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXTRA_OF = {
    "aws_cdk": "cdk",
    "cbor2": "local",
    "ministack": "local",
    "orjson": "local",
    "pyarrow": "spark",
    "pyspark": "spark",
    "zstandard": "cli",
}
"""Which extra has a package that a command imports."""

app = typer.Typer(
    name="shardfleet",
    help="A fleet of Lambda functions that consumes Kinesis the way the KCL does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"shardfleet {version('shardfleet')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    show_version: Annotated[  # noqa: ARG001 - its callback answers
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    profile: Annotated[
        str, typer.Option(metavar="NAME", help="Of the AWS configuration; as AWS_PROFILE.")
    ] = "",
    region: Annotated[str, typer.Option(metavar="REGION", help="Of AWS; as AWS_REGION.")] = "",
) -> None:
    """A fleet of Lambda functions that consumes Kinesis the way the KCL does."""
    if profile:
        os.environ["AWS_PROFILE"] = profile
        # The SDK prefers keys of the environment to any profile: who names one wants it.
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            os.environ.pop(name, None)
    if region:
        os.environ["AWS_REGION"] = os.environ["AWS_DEFAULT_REGION"] = region


_COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Begin": {
        "init": init.init,
        "template": cloudformation.template,
        "work": work.work,
        "demo": demo.demo,
        "config": configuration.config,
    },
    "Look": {
        "status": status.status,
        "leases": status.leases,
        "top": top.top,
        "dashboard": dashboard.dashboard,
        "where": where.where,
        "explain": explain.explain,
        "what-if": what_if.what_if,
        "logs": logs.logs,
        "doctor": doctor.doctor,
        "cost": cost.cost,
    },
    "Records": {
        "tail": tail.tail,
        "put": put.put,
        "redrive": redrive.redrive,
    },
    "Act": {
        "pause": operating.pause,
        "resume": operating.resume,
        "drain": operating.drain,
        "release": operating.release,
        "rewind": rewind.rewind,
        "migrate": migrate.migrate,
        "documents": documents.documents,
    },
    "Prove": {
        "simulate": simulate.simulate,
        "chaos": demo.chaos,
        "acceptance": acceptance.acceptance,
    },
}
_GROUPS = {
    "local": (local.group, "Begin"),
    "pipeline": (pipeline.group, "Records"),
    "position": (position.group, "Act"),
}

# `work` takes every option of the configuration by its name, and says itself which there are.
_TAKES_MORE = {"allow_extra_args": True, "ignore_unknown_options": True}

for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        _settings = _TAKES_MORE if _name == "work" else None
        app.command(_name, context_settings=_settings, rich_help_panel=_panel)(_command)
for _name, (_group, _panel) in _GROUPS.items():
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


def run(arguments: list[str] | None = None) -> int:
    """
    Run the application and turn an error of ours into one message and an exit code.

    Args:
        arguments: what follows the command's name; the process's own when left out.

    Returns:
        The exit code: 0, `EXIT_FAILED`, `EXIT_WRONG_INPUT`, or what the command asked for.

    """
    try:
        given, form = _in_form(_of_all_first(arguments))
        with _written_as(form):
            app(args=given, prog_name="shardfleet")
    except ShardfleetError as error:
        complain(error)
        is_input = isinstance(settled(error), ConfigurationError)
        return EXIT_WRONG_INPUT if is_input else EXIT_FAILED
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_OF:
            raise
        complain(ExtraMissing("this command", error.name, EXTRA_OF[error.name]))
        return EXIT_WRONG_INPUT
    except BrokenPipeError:  # Whoever reads has read enough.
        return EXIT_FAILED
    except OSError as error:
        complain(_of_system(error))
        return EXIT_WRONG_INPUT if isinstance(error, _NOT_THERE) else EXIT_FAILED
    except Exception as error:
        module = type(error).__module__
        if module.startswith("shardfleet_cdk."):  # Which is not imported here: it starts Node.
            complain(error)
            return EXIT_WRONG_INPUT
        if not module.startswith("botocore."):
            raise
        complain(f"AWS: {str(error).rstrip('.')}. {ENVIRONMENT}")
        return EXIT_FAILED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILED
    return 0


_OF_ALL = ("--profile", "--region")
_FORMS = ("json", "yaml", "table")
_NOT_THERE = (
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def _of_all_first(arguments: list[str] | None) -> list[str]:
    """Return arguments with those of every command first, wherever a person wrote them."""
    given = iter(sys.argv[1:] if arguments is None else arguments)
    first: list[str] = []
    rest: list[str] = []
    for each in given:
        if each == "--":
            rest += [each, *given]
        elif each in _OF_ALL:
            value = next(given, "")
            if not value or value.startswith("-"):
                raise ConfigurationError(f"{each}: its value is missing")
            first += [each, value]
        else:
            (first if each.startswith(tuple(f"{name}=" for name in _OF_ALL)) else rest).append(each)
    return first + rest


def _in_form(arguments: list[str]) -> tuple[list[str], str]:
    """Return the arguments with `--json` for `-o json` and `-o yaml`, and which form it is."""
    if "-o" not in arguments[: (*arguments, "--").index("--")]:
        return arguments, "table"
    at = arguments.index("-o")
    form = "".join(arguments[at + 1 : at + 2])
    if form not in _FORMS:
        raise ConfigurationError(f"-o {form}: {', '.join(_FORMS)} is what there is")
    as_json = [] if form == "table" else ["--json"]
    return [*arguments[:at], *as_json, *arguments[at + 2 :]], form


@contextmanager
def _written_as(form: str) -> Iterator[None]:
    if form != "yaml":
        yield
        return
    from shardfleet_ops.cli.yaml_output import YamlWriter

    writer = YamlWriter(sys.stdout)
    with redirect_stdout(writer):
        try:
            yield
        finally:
            writer.flush()


def _of_system(error: OSError) -> str:
    """Return what a person can do about what the machine refuses."""
    where = f"{error.filename}: " if error.filename else ""
    cure = _CURES.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{cure}"


_CURES = {
    errno.ENOSPC: "; free some space, or write elsewhere",
    errno.EDQUOT: "; free some space, or write elsewhere",
    errno.EMFILE: "; allow more open files: ulimit -n 4096",
}
