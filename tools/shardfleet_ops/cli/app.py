"""
The one typer application, and what becomes of an error that a command raises.

How to add a command. Write a module in this package whose functions only parse arguments, and give
it a row of `commands.py`: of a function, or of the `typer.Typer` of a group.

A command module imports at its top only typer, rich, the standard library, and of this library
what is pure and small; what the command works with is imported inside the function, so that a
missing extra hurts only the command that needs it. A test asserts that no SDK is loaded. This one
imports less, so that `shardfleet --help` stays quick: what an error needs, once there is one.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated

import typer

from shardfleet_ops.cli.commands import CommandGroup

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
    cls=CommandGroup,
    help="A fleet of Lambda functions that consumes Kinesis the way the KCL does.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from shardfleet_ops.cli.telling import say

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
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILED
    except BrokenPipeError:  # Whoever reads has read enough.
        return EXIT_FAILED
    except Exception as error:
        code = _told(error)
        if not code:
            raise
        return code
    return 0


def _told(error: Exception) -> int:
    """Tell a person what has failed, and return the exit code; 0: it is a fault of ours."""
    from shardfleet.errors import ConfigurationError, ShardfleetError, settled
    from shardfleet.faces import ExtraMissing
    from shardfleet_ops.cli.fleet_access import ENVIRONMENT
    from shardfleet_ops.cli.telling import complain

    if isinstance(error, ShardfleetError):
        complain(error)
        is_input = isinstance(settled(error), ConfigurationError)
        return EXIT_WRONG_INPUT if is_input else EXIT_FAILED
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRA_OF:
        complain(ExtraMissing("this command", error.name, EXTRA_OF[error.name]))
        return EXIT_WRONG_INPUT
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        error = error.__context__  # What pathlib makes of a link that leads to itself.
    if isinstance(error, OSError):
        complain(_of_system(error))
        return EXIT_WRONG_INPUT if isinstance(error, _NOT_THERE) else EXIT_FAILED
    module = type(error).__module__
    if module.startswith("shardfleet_cdk."):  # Which is not imported here: it starts Node.
        complain(error)
        return EXIT_WRONG_INPUT
    if module.startswith("botocore."):
        complain(f"AWS: {str(error).rstrip('.')}. {ENVIRONMENT}")
        return EXIT_FAILED
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
                from shardfleet.errors import ConfigurationError

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
        from shardfleet.errors import ConfigurationError

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
