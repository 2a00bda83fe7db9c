"""`shardfleet doctor`: what is wrong with a deployed fleet, and how to mend it."""

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from shardfleet.cli.fleet_access import DEFAULT_STACK, JsonOption, StackOption, reaching_aws


def doctor(*, stack: StackOption = DEFAULT_STACK, as_json: JsonOption = False) -> None:
    """Look at tables, functions, stream, schedule and clock; name what is wrong; change nothing."""
    from shardfleet.cli.examination import examine
    from shardfleet.domain.explain.doctor import Severity, diagnose

    with reaching_aws():
        findings = diagnose(examine(stack))
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in findings], indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        for each in findings:
            style = "bold red" if each.severity is Severity.ERROR else "yellow"
            line = Text.assemble((each.severity.lower(), style), f": {each.found}.")
            console.print(line)
            console.print(f"  {each.remedy}.", markup=False)
        if not findings:
            console.print("Nothing is wrong that the doctor knows of.")
    if any(each.severity is Severity.ERROR for each in findings):
        raise typer.Exit(1)
