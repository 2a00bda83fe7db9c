"""`shardfleet doctor`: what is wrong with a deployed fleet, or with a template, and the remedy."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import to_builtins
from rich.text import Text

from shardfleet_ops.cli.fleet_access import JsonOption, reaching_aws
from shardfleet_ops.cli.fleets import (
    DEFAULT_STACK,
    FleetName,
    FleetNotSeen,
    FleetOption,
    StackOption,
)
from shardfleet_ops.cli.telling import say, shown, tell

_ERROR, _WARNING = ("error", "bold red"), ("warning", "yellow")
_HEALTHY = "Nothing is wrong that the doctor knows of."


def doctor(
    *,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    before: Annotated[
        Path | None,
        typer.Option(
            metavar="TEMPLATE",
            help="Look at a template in JSON, or at all in cdk.out, before they are deployed.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look at tables, functions, stream, schedule and clock; name what is wrong; change nothing."""
    failed = (
        _look_at_templates(before, as_json)
        if before
        else _look_at_fleet(FleetName(stack, fleet_name), as_json)
    )
    if failed:
        raise typer.Exit(1)


def _look_at_fleet(name: FleetName, as_json: bool) -> bool:
    from shardfleet_ops.cli.examination import examine
    from shardfleet_ops.explain.doctor import Finding, Severity, diagnose

    with reaching_aws():
        try:
            findings = diagnose(examine(name))
        except FleetNotSeen as error:
            findings = [Finding(Severity.ERROR, "fleet-not-seen", error.found, error.remedy)]
    lines: list[str | Text] = []
    for each in findings:
        grave = each.severity is Severity.ERROR
        lines += [_headed(each.found, grave=grave), f"  {each.remedy}."]
    tell([to_builtins(each) for each in findings], lines or [_HEALTHY], as_json=as_json)
    return any(each.severity is Severity.ERROR for each in findings)


def _look_at_templates(place: Path, as_json: bool) -> bool:
    from shardfleet_ops.cli.templates import NO_LINTER, faults_of, has_linter, read_templates

    faults = [
        {"stack": template.name, **to_builtins(fault)}
        for template in read_templates(place)
        for fault in faults_of(template)
    ]
    lines: list[str | Text] = []
    for each in faults:
        said = f"{each['where']}: {each['found']} ({each['fact']})"
        allowed, remedy = f"  Allowed: {each['allowed']}.", f"  To do: {each['remedy']}."
        lines += [_headed(said, grave=each["certain"]), allowed, remedy]
    tell(faults, lines or [_HEALTHY], as_json=as_json)
    if not has_linter():
        say(NO_LINTER + ".", err=True)
    return any(each["certain"] for each in faults)


def _headed(found: str, *, grave: bool) -> Text:
    return Text.assemble(_ERROR if grave else _WARNING, shown(f": {found}."))
