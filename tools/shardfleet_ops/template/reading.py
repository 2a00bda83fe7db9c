"""
A CloudFormation template as the checks read it: resources by type, references in angle brackets.

A template is not known whole before it is deployed. A reference is spelled ``<LogicalId>`` or
``<LogicalId.Attribute>``; a length counts what is written out and is therefore the least.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from shardfleet_ops.template.arns import partition_of

_REFERENCE = re.compile(r"<[A-Za-z0-9:.]+>")
_REFERENCED = re.compile(r"<([A-Za-z0-9]+)(?:\.[A-Za-z0-9.]+)?>")


class TemplateFault(Struct, frozen=True, kw_only=True):
    """
    One thing that AWS will refuse, or do otherwise than was meant.

    Attributes:
        certain: the deploy fails, or what it makes does not work; else it may.
        fact: the behaviour of AWS that it is about, stable, e.g. ``"C07"``.
        where: the construct's path, or the logical id where the template does not tell it.
        found: what was found.
        allowed: what AWS allows.
        remedy: what to do.

    """

    certain: bool
    fact: str
    where: str
    found: str
    allowed: str
    remedy: str


class TemplateResource(Struct, frozen=True, kw_only=True):
    """
    One resource of a template.

    Attributes:
        logical_id: its name in the template.
        kind: e.g. ``"AWS::Lambda::Function"``.
        properties: as written.
        deletion: its DeletionPolicy, empty without one.
        path: the construct's path, or the logical id.

    """

    logical_id: str
    kind: str
    properties: Mapping[str, Any]
    deletion: str
    path: str


class Template(Struct, frozen=True, kw_only=True):
    """
    One stack's template.

    Attributes:
        name: of the stack.
        body: the template, parsed.
        size: of its text, bytes.
        region: where it goes, empty where that is not known before the deploy.
        read_ms: when it was read, epoch milliseconds; 0: nobody says.
        paths: logical id to construct path, where the template itself does not tell them.

    """

    name: str
    body: Mapping[str, Any]
    size: int
    region: str = ""
    read_ms: int = 0
    paths: Mapping[str, str] = field(default_factory=dict)

    @property
    def partition(self) -> str:
        """Return the AWS partition, empty where the region is not known."""
        return partition_of(self.region) if self.region else ""

    def resources(self, *kinds: str) -> Iterator[TemplateResource]:
        """Yield the resources of these types, of all types if none is named."""
        for logical_id, found in self.body.get("Resources", {}).items():
            if not kinds or found.get("Type") in kinds:
                yield TemplateResource(
                    logical_id=logical_id,
                    kind=str(found.get("Type", "")),
                    properties=found.get("Properties") or {},
                    deletion=str(found.get("DeletionPolicy", "")),
                    path=self._path(logical_id, found),
                )

    def referenced(self, value: object) -> TemplateResource | None:
        """Return the resource of this template that a value refers to, if it is exactly one."""
        names = _REFERENCED.findall(spelled(value))
        found = self.body.get("Resources", {})
        if len(names) != 1 or names[0] not in found:
            return None
        return next(each for each in self.resources() if each.logical_id == names[0])

    def _path(self, logical_id: str, found: Mapping[str, Any]) -> str:
        metadata = found.get("Metadata") or {}
        path = str(metadata.get("aws:cdk:path") or self.paths.get(logical_id) or logical_id)
        return path.removeprefix("/").removesuffix("/Resource")


def spelled(value: object) -> str:
    """Return a value as text, references in angle brackets; an object as JSON."""
    match value:
        case str():
            return value
        case {"Ref": str(name)}:
            return f"<{name}>"
        case {"Fn::GetAtt": [str(name), attribute]}:
            return f"<{name}.{spelled(attribute)}>"
        case {"Fn::GetAtt": str(name)}:
            return f"<{name}>"
        case {"Fn::Join": [str(separator), list(parts)]}:
            return separator.join(spelled(part) for part in parts)
        case {"Fn::Sub": str(text)} | {"Fn::Sub": [str(text), *_]}:
            return re.sub(r"\$\{([A-Za-z0-9:.]+)\}", r"<\1>", text)
        case _:
            return json.dumps(value, sort_keys=True, default=str)


def literal(value: object) -> str | None:
    """Return a text in which nothing is referred to, None for any other value."""
    return value if isinstance(value, str) and not _REFERENCE.search(value) else None


def number(value: object) -> float | None:
    """Return a number, which templates may spell as text; None for a reference."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


def least_length(value: object) -> int:
    """Return how many characters a value has at least: what is referred to counts as none."""
    return len(_REFERENCE.sub("", spelled(value)))


def listed(value: object) -> Sequence[Any]:
    """Return a list, or the one value that stands for a list of one."""
    if value is None:
        return ()
    return value if isinstance(value, list) else [value]


def variables_of(function: TemplateResource) -> Mapping[str, object]:
    """Return the environment of a Lambda function, empty where it is none that is written out."""
    environment = function.properties.get("Environment") or {}
    found = environment.get("Variables") if isinstance(environment, dict) else None
    return found if isinstance(found, dict) else {}


def texts(value: object) -> Iterator[str]:
    """Yield every text inside a value, joined parts as one, references in angle brackets."""
    match value:
        case str() | {"Fn::Join": _} | {"Fn::Sub": _}:
            yield spelled(value)
        case Mapping():
            for name, inside in value.items():
                yield str(name)
                yield from texts(inside)
        case list():
            for inside in value:
                yield from texts(inside)
        case _:
            pass  # Numbers and flags.
