"""Before a command writes: what it would do is shown, and somebody says yes."""

import getpass
import sys
from typing import Annotated

import typer

from shardfleet_ops.cli.telling import say

YesOption = Annotated[
    bool, typer.Option("--yes", help="Do it; without this you are asked, or nothing is changed.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever finds it like this.")
]
WaitOption = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", help="How long workers may take.", min=0.0),
]
DEFAULT_WAIT_S = 120.0
# So that what follows in a script (`drain && destroy`) does not take it for done.
EXIT_NOT_DONE = 1


def approved(*, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Return whether to go on: `--yes`, or a yes typed at a terminal; a program is not asked."""
    if dry_run or yes:
        return yes and not dry_run
    if as_json or not sys.stdin.isatty():
        say("Nothing was changed; --yes does it.", err=as_json)
        return False
    return typer.confirm("Do it?")


def exit_code(*, done: bool, dry_run: bool) -> int:
    """Return the exit code of a command that writes: what was asked for and not done is no 0."""
    return 0 if done or dry_run else EXIT_NOT_DONE


def person() -> str:
    """Return who acts, for the record: the user of this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
