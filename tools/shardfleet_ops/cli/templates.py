"""
Templates before they are deployed: where they lie, and what is known to be wrong with them.

The facts are this library's own (`shardfleet_ops.template`). cfn-lint, where it is installed,
adds AWS's schemas: of each resource, of IAM's policies and actions, and of the states language.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_bytes, read_json
from shardfleet_ops.template.judging import judge
from shardfleet_ops.template.machines import MACHINE
from shardfleet_ops.template.reading import Template, TemplateFault, spelled

NO_LINTER = (
    "cfn-lint is not installed, so AWS's schemas of resources, policies and state machines were "
    "not asked (pip install cfn-lint)"
)
# The CDK says twice what depends on what, and names zones where it knows the region.
IGNORED_RULES = ("W3005", "W3010")
# Whether the resources of a policy fit its actions; off unless it is asked for.
ADDED_RULES = ("I3510",)
_MESSAGE_MOST = 200
_NO_REGION = "us-east-1"
_ACCOUNT = "111122223333"


def read_templates(place: Path) -> list[Template]:
    """
    Read a template, or all of a cloud assembly: nested ones and those of stages too.

    Args:
        place: a template in JSON, or the folder that ``cdk synth`` writes.

    Raises:
        ConfigurationError: there is none, or it is no template in JSON.

    """
    if place.is_dir():
        files = sorted(place.rglob("*.template.json"))
        if not files:
            raise ConfigurationError(
                f"{place}: no *.template.json found; a template, or the folder that cdk synth "
                "writes (cdk.out), is expected"
            )
        return [_read(file) for file in files]
    return [_read(place)]


def _read(file: Path) -> Template:
    try:
        with file.open("rb") as opened:
            text = read_bytes(opened)
        body = read_json(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{file}: no template in JSON: {error}; cdk synth writes such to cdk.out"
        ) from error
    if not isinstance(body, dict) or not isinstance(body.get("Resources"), dict):
        raise ConfigurationError(f"{file}: no template: it has no Resources")
    stack = _stack(file)
    return Template(
        name=file.name.removesuffix(".json").removesuffix(".template"),
        body=body,
        size=len(text),
        region=_region(stack),
        read_ms=round(time.time() * 1_000),
        paths=_paths(stack, file.parent),
    )


def _stack(file: Path) -> Mapping[str, Any]:
    """Return what the assembly's manifest says of a template's stack; nothing without one."""
    manifest = file.parent / "manifest.json"
    if not manifest.is_file():
        return {}
    artifacts = json.loads(manifest.read_text("utf-8")).get("artifacts", {}).values()
    named = (
        each for each in artifacts if each.get("properties", {}).get("templateFile") == file.name
    )
    return next(named, {})


def _region(stack: Mapping[str, Any]) -> str:
    region = str(stack.get("environment", "")).rpartition("/")[2]
    return "" if region == "unknown-region" else region


def _paths(stack: Mapping[str, Any], folder: Path) -> dict[str, str]:
    metadata = dict(stack.get("metadata", {}))
    if "additionalMetadataFile" in stack:
        file = folder / stack["additionalMetadataFile"]
        metadata |= json.loads(file.read_text("utf-8"))
    return {
        entry["data"]: path
        for path, entries in metadata.items()
        for entry in entries
        if entry["type"] == "aws:cdk:logicalId"
    }


def faults_of(template: Template) -> list[TemplateFault]:
    """Return what the facts find, then what cfn-lint finds if it is installed."""
    return [*judge(template), *_linted(template)]


def has_linter() -> bool:
    """Return whether cfn-lint is installed."""
    return find_spec("cfnlint") is not None


def _linted(template: Template) -> Iterator[TemplateFault]:
    if not has_linter():
        return
    from cfnlint.api import lint
    from cfnlint.config import ManualArgs

    region = template.region or _NO_REGION
    config = ManualArgs(
        regions=[region], ignore_checks=[*IGNORED_RULES], include_checks=[*ADDED_RULES]
    )
    body = _written_out(template, region)
    paths = {resource.logical_id: resource.path for resource in template.resources()}
    for match in lint(json.dumps(body), config=config):
        at: Sequence[Any] = match.path or ()
        resource = str(at[1]) if at[:1] == ["Resources"] else ""
        rest = ".".join(str(part) for part in (at[2:] if resource else at))
        yield TemplateFault(
            certain=match.rule.severity == "error",
            fact=f"cfn-lint {match.rule.id}",
            where=paths.get(resource, template.name),
            found=f"{rest}: {_shortened(match.message)}",
            allowed=match.rule.shortdesc,
            remedy=f"see {match.rule.source_url}",
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _MESSAGE_MOST else text[:_MESSAGE_MOST] + " …"


def _written_out(template: Template, region: str) -> dict[str, Any]:
    """Return the template with state machines as plain text: joined ones are not looked into."""
    # cfn-lint knows the services' actions as ARNs of the partition aws only.
    known = {"Partition": "aws", "Region": region, "AccountId": _ACCOUNT}
    body: dict[str, Any] = json.loads(json.dumps(template.body))
    for machine in template.resources(MACHINE):
        text = spelled(machine.properties.get("DefinitionString", ""))
        for name, value in known.items():
            text = text.replace(f"<AWS::{name}>", value)
        if text:
            body["Resources"][machine.logical_id]["Properties"]["DefinitionString"] = text
    return body
