"""State machines and schedules of a template: sizes, names, times."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardfleet_ops.template.reading import (
    Template,
    TemplateFault,
    TemplateResource,
    least_length,
    literal,
    number,
    spelled,
)

MACHINE = "AWS::StepFunctions::StateMachine"
DEFINITION_BYTES_MOST = 1_048_576  # CreateStateMachine.definition.
INPUT_BYTES_MOST = 262_144  # Fact S02; EventBridge Scheduler's payload has the same limit.
NAME_MOST = 80  # StartExecution.name, CreateStateMachine.name.
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def states_of(machine: TemplateResource) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the states of a machine by name, also those inside others; none if it has no JSON."""
    for level in _levels(_definition(machine)):
        yield from level["States"].items()


def _definition(machine: TemplateResource) -> object:
    found = machine.properties.get("DefinitionString", machine.properties.get("Definition"))
    if isinstance(found, dict) and "States" in found:
        return found
    try:
        return json.loads(spelled(found))
    except ValueError:
        return None


def _levels(definition: object) -> Iterator[Mapping[str, Any]]:
    """Yield a machine and those inside its states: branches, and what is mapped."""
    if not isinstance(definition, dict) or not isinstance(definition.get("States"), dict):
        return
    yield definition
    for state in definition["States"].values():
        for inside in (*state.get("Branches", ()), state.get("ItemProcessor")):
            yield from _levels(inside)


def arguments_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a task passes on: Arguments in JSONata, Parameters in JSONPath."""
    found = state.get("Arguments", state.get("Parameters"))
    return found if isinstance(found, dict) else {}


def missing_states(template: Template) -> Iterator[TemplateFault]:
    """ASL: what comes next is a state of the same machine; cfn-lint does not look."""
    for machine in template.resources(MACHINE):
        for level in _levels(_definition(machine)):
            states = level["States"]
            wanted = {"StartAt": level.get("StartAt")}
            for name, state in states.items():
                wanted |= {f"{name}.{where}": to for where, to in _successors(state)}
            for where, to in wanted.items():
                if to not in states:
                    yield TemplateFault(
                        certain=True,
                        fact="ASL",
                        where=machine.path,
                        found=f"{where} names the state {to!r}, which there is not",
                        allowed=f"one of {', '.join(states)}",
                        remedy="name a state that exists",
                    )


def _successors(state: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield from ((where, state[where]) for where in ("Next", "Default") if where in state)
    for part in ("Choices", "Catch"):
        for number_of, each in enumerate(state.get(part) or ()):
            if "Next" in each:
                yield f"{part}.{number_of}", each["Next"]


def impatient_tasks(template: Template) -> Iterator[TemplateFault]:
    """H19: a task waits longer than its function may run, or two run at once."""
    for machine in template.resources(MACHINE):
        for name, state in states_of(machine):
            function = _function_of(template, arguments_of(state).get("FunctionName"))
            waits = number(state.get("TimeoutSeconds"))
            # Lambda: a function that says nothing has three seconds.
            runs = (number(function.properties.get("Timeout")) or 3) if function else 0
            if function is not None and waits is not None and waits <= runs:
                yield TemplateFault(
                    certain=True,
                    fact="H19",
                    where=machine.path,
                    found=f"state {name} waits {waits:.0f} s for {function.path}, which may run "
                    f"for {runs:.0f} s: it goes on, or runs again, while the first one runs",
                    allowed="a TimeoutSeconds above the function's time-out",
                    remedy="raise TimeoutSeconds, or lower the function's time-out",
                )


def _function_of(template: Template, value: object) -> TemplateResource | None:
    """Follow an alias and a version to the function."""
    found = template.referenced(value)
    for _ in range(2):
        if found is not None and found.kind in ("AWS::Lambda::Alias", "AWS::Lambda::Version"):
            found = template.referenced(found.properties.get("FunctionName"))
    return found if found is not None and found.kind == "AWS::Lambda::Function" else None


def large_definitions(template: Template) -> Iterator[TemplateFault]:
    """S02: definitions, and the inputs that are written out, have a limit."""
    for machine in template.resources(MACHINE):
        definition = machine.properties.get("DefinitionString")
        if definition is not None and least_length(definition) > DEFINITION_BYTES_MOST:
            yield _too_long(machine, "the definition", least_length(definition))
        for name, state in states_of(machine):
            size = max(len(json.dumps(state.get(part))) for part in ("Arguments", "Parameters"))
            if size > INPUT_BYTES_MOST:
                yield _too_long(machine, f"what state {name} passes on", size)
    for schedule in template.resources("AWS::Scheduler::Schedule"):
        given = (schedule.properties.get("Target") or {}).get("Input")
        if given is not None and least_length(given) > INPUT_BYTES_MOST:
            yield _too_long(schedule, "the target's input", least_length(given))


def _too_long(resource: TemplateResource, what: str, size: int) -> TemplateFault:
    most = DEFINITION_BYTES_MOST if what == "the definition" else INPUT_BYTES_MOST
    return TemplateFault(
        certain=True,
        fact="S02",
        where=resource.path,
        found=f"{what} has {size:,} bytes or more",
        allowed=f"{most:,} bytes",
        remedy="keep what is large in a bucket, and pass its key",
    )


def broken_inputs(template: Template) -> Iterator[TemplateFault]:
    """S02: what a schedule hands to a state machine is JSON, or nothing starts."""
    for schedule in template.resources("AWS::Scheduler::Schedule"):
        target = schedule.properties.get("Target") or {}
        machine = template.referenced(target.get("Arn"))
        given = literal(target.get("Input"))
        if machine is None or machine.kind != MACHINE or given is None:
            continue
        try:
            json.loads(given)
        except ValueError as error:
            yield TemplateFault(
                certain=True,
                fact="S02",
                where=schedule.path,
                found=f"the target's input is no JSON: {error}",
                allowed="a state machine takes JSON",
                remedy="write the input as JSON, such as {}",
            )


def wrong_names(template: Template) -> Iterator[TemplateFault]:
    """S08: names of executions, and of machines that log, have few characters to choose."""
    for machine in template.resources(MACHINE):
        names = {"its name": literal(machine.properties.get("StateMachineName"))}
        for state, found in states_of(machine):
            if str(found.get("Resource", "")).endswith(("startExecution", "startExecution.sync:2")):
                name = literal(arguments_of(found).get("Name"))
                names[f"the execution that state {state} starts"] = (
                    None if name is None or name.startswith("{%") else name
                )
        for what, name in names.items():
            if name is not None and (len(name) > NAME_MOST or not _NAME.fullmatch(name)):
                yield TemplateFault(
                    certain=True,
                    fact="S08",
                    where=machine.path,
                    found=f"{what} is {name!r}, {len(name)} characters",
                    allowed=f"1 to {NAME_MOST} of A-Z, a-z, 0-9, - and _",
                    remedy="choose another name, or none where CloudFormation may choose",
                )
