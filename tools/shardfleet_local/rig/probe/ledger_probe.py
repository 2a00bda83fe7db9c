"""
The witness inside the worker: it calls the stack's own handler and writes down what was handled.

The embedded AWS names it as the handler (`SHARDFLEET_HANDLER=ledger_probe:handle`) by injected
environment variables, so the deployed template and the user's code stay as they are.

    SHARDFLEET_LEDGER_HANDLER  the handler to call, module:function
    SHARDFLEET_LEDGER_FILE     the ledger, appended to

Each call of the handler that handles anything adds one line, by a single write on a descriptor
opened with O_APPEND: so lines of many processes never mix, and their order in the file is the
order in which batches were finished. `ledger.py` reads it.
"""

import base64
import functools
import hashlib
import inspect
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from shardfleet.domain.delivery.replies import failures_of, lowest_failed
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import InvalidReply
from shardfleet.runtime.handler_loading import is_async, load_handler

HANDLER_VARIABLE = "SHARDFLEET_LEDGER_HANDLER"
FILE_VARIABLE = "SHARDFLEET_LEDGER_FILE"
CONTRACT_VARIABLE = "SHARDFLEET_HANDLER_CONTRACT"

UNKNOWN_SUB = -1
"""The event source mapping's event does not say which record of an aggregate a record was."""

Row = tuple[str, int, str]
"""Sequence number, sub-sequence number, digest: one handled record."""


def digest(partition_key: str, data: bytes) -> str:
    """Return 16 hexadecimal characters that stand for a record's key and payload."""
    found = hashlib.blake2b(partition_key.encode(), digest_size=8)
    found.update(b"\0")
    found.update(data)
    return found.hexdigest()


def witnessed(handler: Callable[..., Any], note: Callable[..., None]) -> Any:
    """
    Wrap a handler of either contract, synchronous or not.

    Args:
        handler: `handle(batch)` or `handler(event, context)`.
        note: takes the shard id and the `rows` that were handled; called before the wrapper ends.

    """

    def report(given: Any, reply: Any, *, failed: bool) -> None:
        shard_id, rows = (
            _rows_of_event(given, reply, failed=failed)
            if isinstance(given, Mapping)
            else _rows_of_batch(given, reply, failed=failed)
        )
        if rows:
            note(shard_id, rows=rows)

    async def ended(given: Any, call: Awaitable[Any]) -> Any:
        try:
            reply = await call
        except Exception:
            report(given, None, failed=True)
            raise
        report(given, reply, failed=False)
        return reply

    if is_async(handler):

        @functools.wraps(handler)
        async def handle_async(given: Any, *more: Any) -> Any:
            return await ended(given, handler(given, *more))

        return handle_async

    @functools.wraps(handler)
    def handle_sync(given: Any, *more: Any) -> Any:
        try:
            reply = handler(given, *more)
        except Exception:
            report(given, None, failed=True)
            raise
        if inspect.isawaitable(reply):
            return ended(given, reply)
        report(given, reply, failed=False)
        return reply

    return handle_sync


def witnessed_class(found: Any, note: Callable[..., None]) -> type:
    """Return a handler class whose objects' ``handle`` is wrapped so; its hooks are as they are."""

    class Witnessed(found):  # type: ignore[misc]
        __wrapped__ = found

        def __init__(self) -> None:
            super().__init__()
            self.handle = witnessed(super().handle, note)

    return Witnessed


def _rows_of_batch(batch: Any, reply: Any, *, failed: bool) -> tuple[str, list[Row]]:
    """Read a native batch up to the first failure, or what was declared done before an error."""
    places = [(record.sequence_number, record.sub_sequence_number) for record in batch]
    done = batch.done_count if failed else _done(reply, places, declared=batch.done_count)
    rows = [
        (*place, digest(record.partition_key, record.data))
        for place, record in zip(places[:done], batch[:done], strict=True)
    ]
    return batch.shard_id, rows


def _rows_of_event(event: Mapping[str, Any], reply: Any, *, failed: bool) -> tuple[str, list[Row]]:
    """Read an event of the event source mapping, up to the first failure."""
    records: Sequence[Mapping[str, Any]] = event["Records"]
    told = [record["kinesis"] for record in records]
    places = [(each["sequenceNumber"], each.get("subSequenceNumber", 0)) for each in told]
    done = 0 if failed else _done(reply, places, declared=0)
    rows = [
        (
            kinesis["sequenceNumber"],
            UNKNOWN_SUB,
            digest(kinesis["partitionKey"], base64.b64decode(kinesis["data"])),
        )
        for kinesis in told[:done]
    ]
    return records[0]["eventID"].partition(":")[0], rows


def _done(reply: object, places: Sequence[tuple[str, int]], *, declared: int) -> int:
    """Return how many leading records a reply says are done, as the worker understands it."""
    try:
        failures = failures_of(reply)
    except InvalidReply:
        return declared
    return lowest_failed(failures, [ExtendedSequenceNumber(*place) for place in places]) or 0


def append(path: str, shard_id: str, *, rows: list[Row]) -> None:
    """Add one line to the ledger with one write."""
    line = {"at_ms": time.time_ns() // 1_000_000, "pid": os.getpid(), "shard": shard_id}
    text = json.dumps({**line, "rows": rows}, separators=(",", ":")) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _load() -> Any:
    found = load_handler(
        os.environ[HANDLER_VARIABLE], contract=os.environ.get(CONTRACT_VARIABLE, "auto")
    )
    note = functools.partial(append, os.environ[FILE_VARIABLE])
    return (witnessed_class if found.is_class else witnessed)(found.function, note)


def __getattr__(name: str) -> Any:
    """Load the handler when the fleet asks for it, so that tests may import this module."""
    if name == "handle":
        return _load()
    raise AttributeError(name)
