"""
Which lines of a worker function's log belong to a worker or to a shard, and how they read.

A log stream is one sandbox, which serves one invocation at a time, and every line of the engine
names its slot. So what a handler prints belongs to the slot whose invocation runs in that stream;
and to the shards that this invocation has named. Metrics and Lambda's START and END are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from shardfleet.foreign import read_json

# Lambda's own lines, as text or as JSON (Lambda developer guide, "Configuring JSON and plain text
# log formats").
_START = re.compile(r"START RequestId: (\S+)")
_PLATFORM = re.compile(r"(INIT_START|START|END) |\{\"time\":[^{]*\"type\":\"platform\.(?!report)")
_METRICS = '{"_aws"'
_SERVICE = "shardfleet"
# In each line of the engine, and said otherwise or no news.
_COMMON = frozenset(
    {"level", "message", "timestamp", "service", "fleet", "slot_id", "request_id", "location"}
)


class LogEvent(Struct, frozen=True, kw_only=True):
    """
    One line as CloudWatch Logs keeps it.

    Attributes:
        at_ms: epoch milliseconds.
        stream: of one sandbox.
        message: what was written.

    """

    at_ms: int
    stream: str
    message: str


class LogLine(Struct, frozen=True, kw_only=True):
    """
    One line for a person.

    Attributes:
        at_ms: epoch milliseconds.
        slot_id: whose invocation wrote it, empty where that is not known.
        text: in words; several lines for what was written in several.

    """

    at_ms: int
    slot_id: str
    text: str


class _Sandbox(Struct):
    """What is known of the invocation that runs in one sandbox."""

    request_id: str = ""
    slot_id: str = ""
    shards: set[str] = field(default_factory=set)
    waiting: list[LogEvent] = field(default_factory=list)

    def begin(self, request_id: str) -> None:
        self.request_id, self.slot_id = request_id, ""
        self.shards.clear()


class LogFilter:
    """
    Takes the events of a log group, each stream's in order, and gives the lines that belong.

    Args:
        slot_id: only what this slot's invocations wrote; empty: any.
        shard_id: only what is about this shard; empty: any.

    """

    def __init__(self, *, slot_id: str = "", shard_id: str = "") -> None:
        self._slot_id = slot_id
        self._shard_id = shard_id
        self._sandboxes: dict[str, _Sandbox] = {}

    def take(self, event: LogEvent) -> Iterator[LogLine]:
        """Yield the lines that are known to belong by this event, in the order of their stream."""
        sandbox = self._sandboxes.setdefault(event.stream, _Sandbox())
        told = _told(event.message)
        start = _START.match(event.message)
        request_id = start[1] if start else str(told.get("request_id", ""))
        if request_id and request_id != sandbox.request_id:
            yield from self._waited_for(sandbox)
            sandbox.begin(request_id)
        if told:
            sandbox.slot_id = str(told.get("slot_id", sandbox.slot_id))
            if lease_key := told.get("lease_key"):
                sandbox.shards.add(str(lease_key))
        if _PLATFORM.match(event.message) or event.message.startswith(_METRICS):
            return
        if sandbox.request_id and not sandbox.slot_id:
            sandbox.waiting.append(event)  # The next line of the engine tells whose it is.
            return
        yield from self._waited_for(sandbox)
        yield from self._wanted(event, sandbox)

    def rest(self) -> Iterator[LogLine]:
        """Yield what no line of the engine has claimed, when there is no more to take."""
        for sandbox in self._sandboxes.values():
            yield from self._waited_for(sandbox)

    def _waited_for(self, sandbox: _Sandbox) -> Iterator[LogLine]:
        waiting, sandbox.waiting = sandbox.waiting, []
        for event in waiting:
            yield from self._wanted(event, sandbox)

    def _wanted(self, event: LogEvent, sandbox: _Sandbox) -> Iterator[LogLine]:
        if self._slot_id and sandbox.slot_id != self._slot_id:
            return
        if self._shard_id and not self._is_about_shard(event, sandbox):
            return
        text = _in_words(event.message)
        yield LogLine(at_ms=event.at_ms, slot_id=sandbox.slot_id, text=text)

    def _is_about_shard(self, event: LogEvent, sandbox: _Sandbox) -> bool:
        if self._shard_id in event.message:
            return True
        is_handlers = not _told(event.message) and not event.message.startswith("REPORT ")
        return is_handlers and self._shard_id in sandbox.shards


def _told(message: str) -> Mapping[str, Any]:
    """Return the fields of a line of the engine; nothing for any other."""
    if not message.startswith("{") or f'"service":"{_SERVICE}"' not in message:
        return {}
    try:
        found = read_json(message)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _in_words(message: str) -> str:
    told = _told(message)
    if not told:
        return message.rstrip("\n")
    fields = " ".join(f"{key}={value}" for key, value in told.items() if key not in _COMMON)
    return f"{told.get('level', '')} {told.get('message', '')} {fields}".strip()
