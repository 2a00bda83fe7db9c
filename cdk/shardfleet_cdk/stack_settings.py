"""
The context of the repository's own stack, read and checked.

Keys begin with ``shardfleet:``. The CDK's command line overrides any of them, as text:
``-c shardfleet:stream=arn:aws:kinesis:...``, or an object as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.lambda_platform import MACHINES, RUNTIMES
from shardfleet_ops.template.arns import CONSUMER, FUNCTION, KEY, STREAM, TOPIC, ArnKind, arn_fault

PREFIX = "shardfleet:"
POLLING, FAN_OUT = "polling", "fan-out"
_NAME = re.compile(r"[\w-]{1,64}")  # Of a Lambda function.
# Of `MonitoringOptions`; the topics by their ARNs.
MONITORING_OPTIONS = (
    *("page", "notice", "alarms", "by_cause", "retention_hours", "runbook", "dashboard"),
)
ALARM_SETTINGS = ("threshold", "datapoints", "periods", "level")
CHOICES = {"architecture": MACHINES, "runtime": RUNTIMES, "removal": ("retain", "destroy")}
WORKER_OPTIONS = ("memory_mb", "timeout_s", "environment", "reserved_concurrency", "max_loops")


def _setting(default: Any, kinds: tuple[type, ...], doc: str) -> Any:
    return field(default=default, metadata={"kinds": kinds, "doc": doc})


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSettings:
    """
    What `cdk.json` says about the stack; each key's meaning is its field's ``doc``.

    Raises:
        ConfigurationError: lists every key that is wrong.

    """

    stream: str | Mapping[str, Any] = _setting(
        None, (str, dict), 'the stream: {"shards": 4} for a new one, or an existing one\'s ARN'
    )
    handler: str = _setting(
        "functions/handler", (str,), "folder of the handler's code, relative to cdk.json"
    )
    function: str = _setting("handler:handle", (str,), "module:function in that folder")
    handler_function: str = _setting(
        "",
        (str,),
        "name or ARN of an existing Lambda function, of any runtime, which is invoked with the "
        "records instead of a handler in a folder; empty: the folder's",
    )
    config: Mapping[str, Any] = _setting(None, (dict, type(None)), "fields of FleetConfig")
    worker: Mapping[str, Any] = _setting(
        None, (dict, type(None)), f"of the worker function: {', '.join(WORKER_OPTIONS)}"
    )
    spill: bool = _setting(
        default=False,
        kinds=(bool,),
        doc="true: Lambda runs only what no process of `shardfleet work --stack` takes",
    )
    reading: str = _setting(
        POLLING,
        (str,),
        f"{POLLING}; {FAN_OUT}: records are pushed by a consumer that is made; or the ARN of one",
    )
    architecture: str = _setting("arm64", (str,), "processor of the functions: arm64 or x86_64")
    runtime: str = _setting("python3.14", (str,), f"their Python: {', '.join(RUNTIMES)}")
    sdk_services: Sequence[str] | None = _setting(
        None,
        (list, type(None)),
        'services that the handler calls, by boto3\'s names, as ["ses"]: the functions then bring '
        "an SDK that knows only these and the fleet's own, for a quicker cold start",
    )
    stream_key: str = _setting(
        "", (str,), "ARN of the key that an existing stream is encrypted with"
    )
    lease_table_key: str = _setting(
        "", (str,), "ARN of the key that an existing lease table is encrypted with"
    )
    lease_table: str = _setting("", (str,), "name of an existing lease table; empty makes one")
    monitoring: Mapping[str, Any] | bool = _setting(
        default=True,
        kinds=(dict, bool),
        doc=f"false for no dashboard and no alarms, or any of {', '.join(MONITORING_OPTIONS)}",
    )
    removal: str = _setting(
        "retain", (str,), "tables, stream and logs when the stack goes: retain or destroy"
    )

    def __post_init__(self) -> None:
        """Report all problems at once."""
        problems = [
            f"{PREFIX}{f.name}: {getattr(self, f.name)!r} found, expected: {f.metadata['doc']}"
            for f in fields(self)
            if not isinstance(getattr(self, f.name), f.metadata["kinds"])
        ]
        if not all(isinstance(name, str) for name in self.sdk_services or ()):
            problems.append(f"{PREFIX}sdk_services: {self.sdk_services!r} found, names expected")
        function = str(self.handler_function)
        if function and not _NAME.fullmatch(function):
            problems += _arn_problems("handler_function", function, FUNCTION)
        if self.reading not in (POLLING, FAN_OUT):
            problems += _arn_problems("reading", self.reading, CONSUMER)
        problems += [
            f"{PREFIX}{name}: {getattr(self, name)!r} found, one of {', '.join(allowed)} allowed"
            for name, allowed in CHOICES.items()
            if getattr(self, name) not in allowed
        ]
        if isinstance(self.stream, str):
            problems += _arn_problems("stream", self.stream, STREAM)
        if isinstance(self.stream, Mapping):
            shards = self.stream.get("shards")
            if self.stream.keys() != {"shards"} or not isinstance(shards, int) or shards < 1:
                problems.append(
                    f'{PREFIX}stream: {dict(self.stream)!r} found, {{"shards": n}} expected'
                )
        problems += [
            f"{PREFIX}worker: {name!r} found, one of {', '.join(WORKER_OPTIONS)} allowed"
            for name in self.worker or {}
            if name not in WORKER_OPTIONS
        ]
        problems += self._key_problems()
        problems += _monitoring_problems(self.monitoring)
        if problems:
            message = "context: " + "; ".join(problems)
            raise ConfigurationError(message)

    def _key_problems(self) -> Iterator[str]:
        """Yield what is wrong with the keys: of what is made here, CloudFormation knows the key."""
        existing = {"stream_key": isinstance(self.stream, str), "lease_table_key": self.lease_table}
        for name, exists in existing.items():
            found = getattr(self, name)
            yield from _arn_problems(name, str(found), KEY) if found else ()
            if found and not exists:
                yield (
                    f"{PREFIX}{name}: {found!r} found, allowed only with an existing one "
                    f"({PREFIX}{name.removesuffix('_key')})"
                )


def read_settings(get: Callable[[str], Any]) -> StackSettings:
    """
    Read the settings from a context.

    Args:
        get: returns a context value by its full key, None when there is none.

    Raises:
        ConfigurationError: lists every key that is wrong.

    """
    found = {f.name: get(PREFIX + f.name) for f in fields(StackSettings)}
    return StackSettings(
        **{name: _parsed(name, value) for name, value in found.items() if value is not None}
    )


def _monitoring_problems(found: object) -> list[str]:
    if not isinstance(found, Mapping):
        return []
    where = f"{PREFIX}monitoring"
    problems = [
        f"{where}: {name!r} found, one of {', '.join(MONITORING_OPTIONS)} allowed"
        for name in found
        if name not in MONITORING_OPTIONS
    ]
    for name in ("page", "notice"):
        if name in found:
            problems += _arn_problems(f"monitoring: {name}", str(found[name]), TOPIC)
    problems += [
        f"{where}: {name}: {found[name]!r} found, true or false expected"
        for name in ("dashboard", "by_cause")
        if not isinstance(found.get(name, True), bool)
    ]
    alarms = found.get("alarms", {})
    for alarm, wanted in alarms.items() if isinstance(alarms, Mapping) else [("alarms", alarms)]:
        known = isinstance(wanted, Mapping) and wanted.keys() <= set(ALARM_SETTINGS)
        if not known and wanted is not False:
            allowed = f"false, or an object of {', '.join(ALARM_SETTINGS)}"
            problems.append(f"{where}: {alarm}: {wanted!r} found, {allowed} expected")
    return problems


def _arn_problems(name: str, text: str, kind: ArnKind) -> Iterator[str]:
    if fault := arn_fault(text, kind):
        yield f"{PREFIX}{name}: {fault}"


def _parsed(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if name in ("monitoring", "spill") and value in ("true", "false"):
        return value == "true"
    if not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        message = f"context: {PREFIX}{name}: no JSON: {error}"
        raise ConfigurationError(message) from error
