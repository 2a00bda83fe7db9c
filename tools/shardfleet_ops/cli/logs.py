"""`shardfleet logs`: the lines of a worker, of a shard, or of all; as they come, if asked."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from shardfleet.adapters.sdk_errors import SdkCall
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import JsonOption, reaching_aws, with_fleet
from shardfleet_ops.cli.fleets import (
    DEFAULT_STACK,
    FleetName,
    FleetOption,
    StackOption,
    find_functions,
)
from shardfleet_ops.cli.instants import instant_ms
from shardfleet_ops.cli.telling import say, say_json
from shardfleet_ops.explain.fleet_view import FleetReading
from shardfleet_ops.explain.log_lines import LogEvent, LogFilter, LogLine

MANAGER = "manager"
_LOOK_EVERY_S = 2.0
# A line may be seen later than one that was written after it; so far back each look begins anew.
_LATE_MS = 30_000


def logs(
    *,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[SHARD|WORKER]", help="A shard's, worker's or slot's id, or manager."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From when on: 15m, epoch ms, ISO 8601.")
    ] = "15m",
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    as_json: JsonOption = False,
) -> None:
    """Print what workers have logged and what your handler has printed; metrics are left out."""
    since_ms = instant_ms("--since", since, now_ms=_now_ms())
    with reaching_aws():
        name = FleetName(stack, fleet_name)
        found = find_functions(name)
        function = found.manager if subject == MANAGER else found.config.worker_function
        reader = _Reader(log_group_of(function), since_ms=since_ms)
        wanted = LogFilter() if subject in (None, MANAGER) else _filter_of(name, str(subject))
        try:
            while True:
                for event in reader.read():
                    for line in wanted.take(event):
                        _print(line, as_json=as_json)
                if not follow:
                    for line in wanted.rest():
                        _print(line, as_json=as_json)
                    return
                time.sleep(_LOOK_EVERY_S)
        except KeyboardInterrupt:
            return


class _Reader:
    """Reads a log group on and on, each line once."""

    def __init__(self, group: str, *, since_ms: int) -> None:
        self._group = group
        self._call = SdkCall(f"FilterLogEvents of {group}")
        self._logs = _client("logs")
        self._from_ms = since_ms
        self._seen: Counter[LogEvent] = Counter()

    def read(self) -> Iterator[LogEvent]:
        """Yield what has come since the last call, in the order of time."""
        again: Counter[LogEvent] = Counter()
        latest_ms = self._from_ms
        # The service gives short and empty pages with a token (fact G06): the paginator goes on.
        pages = self._logs.get_paginator("filter_log_events").paginate(
            logGroupName=self._group, startTime=self._from_ms
        )
        for page in pages:
            for each in self._call.whole(page)["events"]:
                found = self._call.whole(each)
                event = LogEvent(
                    at_ms=found["timestamp"],
                    stream=found["logStreamName"],
                    message=found["message"],
                )
                again[event] += 1
                latest_ms = max(latest_ms, event.at_ms)
                if again[event] > self._seen[event]:
                    yield event
        self._from_ms = max(self._from_ms, latest_ms - _LATE_MS)
        self._seen = Counter({e: n for e, n in again.items() if e.at_ms >= self._from_ms})


def log_group_of(function: str) -> str:
    """Return the log group of a function, as configured or by Lambda's convention."""
    found = _client("lambda").get_function_configuration(FunctionName=function)
    return str(found.get("LoggingConfig", {}).get("LogGroup", f"/aws/lambda/{function}"))


def _client(service: str) -> Any:
    import boto3

    from shardfleet.adapters.clients.aws_clients import client_config

    make: Any = boto3.session.Session().client  # Its overloads name each service by a literal.
    return make(service, config=client_config(1))


def _filter_of(name: FleetName, subject: str) -> LogFilter:
    """
    Return what belongs to a shard or to a worker.

    Raises:
        ConfigurationError: there is no such shard or worker.

    """
    reading: FleetReading = with_fleet(name, lambda fleet: fleet.reading())
    for slot in reading.slots:
        if subject in (slot.slot_id, slot.worker_id):
            return LogFilter(slot_id=slot.slot_id)
    leases = sorted(lease.lease_key for lease in reading.leases)
    if subject in leases:
        return LogFilter(shard_id=subject)
    raise ConfigurationError(
        f"{subject!r} is no shard and no worker of this fleet; workers: "
        f"{', '.join(slot.slot_id for slot in reading.slots) or 'none'}; shards with a lease: "
        f"{', '.join(leases) or 'none'}; or {MANAGER}"
    )


def _print(line: LogLine, *, as_json: bool) -> None:
    if as_json:
        say_json(json.dumps(to_builtins(line)))
        return
    at = datetime.fromtimestamp(line.at_ms / 1000, UTC)
    begin = f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z {line.slot_id or '-'}"
    for text in line.text.splitlines():
        say(f"{begin} {text}")


def _now_ms() -> int:
    return int(time.time() * 1000)
