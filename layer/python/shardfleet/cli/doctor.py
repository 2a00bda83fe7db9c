"""`shardfleet doctor`: what is wrong with a deployed fleet, and how to mend it."""

from dataclasses import asdict

import typer
from rich.text import Text

from shardfleet.cli.fleet_access import DEFAULT_STACK, JsonOption, StackOption, reaching_aws
from shardfleet.cli.telling import shown, tell


def doctor(*, stack: StackOption = DEFAULT_STACK, as_json: JsonOption = False) -> None:
    """Look at tables, functions, stream, schedule and clock; name what is wrong; change nothing."""
    from shardfleet.cli.examination import examine
    from shardfleet.domain.explain.doctor import Severity, diagnose

    with reaching_aws():
        findings = diagnose(examine(stack))
    styles = {Severity.ERROR: "bold red", Severity.WARNING: "yellow"}
    lines: list[str | Text] = []
    for each in findings:
        severity = (each.severity.lower(), styles[each.severity])
        lines += [Text.assemble(severity, shown(f": {each.found}.")), f"  {each.remedy}."]
    healthy = "Nothing is wrong that the doctor knows of."
    tell([asdict(each) for each in findings], lines or [healthy], as_json=as_json)
    if any(each.severity is Severity.ERROR for each in findings):
        raise typer.Exit(1)
