"""
One call of the user's handler: by its contract; what it returns means the same in both.

Of our own contract it is given the batch. Of Lambda's it is given the event of the event source
mapping, field for field (AWS Lambda developer guide, "Using Lambda with Kinesis"), so that a
handler written for that runs unmodified; two fields are ours and appear only where they say
something: ``subSequenceNumber`` on records out of a KPL aggregate, and ``explicitHashKey``. Its
context tells the time left of its own batch, not of the worker's turn.

The worker's handler thread and the simulation call a handler in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from msgspec import Struct

from shardfleet.adapters.payload_text import payload_text
from shardfleet.domain.delivery.contract import HandlerContract
from shardfleet.domain.delivery.hooks import HANDLE, Hook
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.delivery.replies import FAILURES, failures_of, lowest_failed
from shardfleet.domain.delivery.windows import state_of, too_large
from shardfleet.engine.ports import HandlerResult
from shardfleet.records import Batch, Record, TumblingWindow
from shardfleet.runtime.handler_loading import LoadedHandler

REDRIVE = "redrive"
"""The key of an event that is no slot's: see :mod:`shardfleet.runtime.redrive`."""
_SCHEMA_VERSION = "1.0"


class LambdaContext(Protocol):
    """What is used of the object that the Lambda runtime hands over."""

    @property
    def aws_request_id(self) -> str:
        """Return the id of this invocation."""

    @property
    def invoked_function_arn(self) -> str:
        """Return the ARN it was invoked by, alias or version included."""

    @property
    def memory_limit_in_mb(self) -> int | str:
        """Return the function's memory."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the invocation may still run."""


class BatchContext:
    """
    The invocation's context with the batch's deadline in it.

    Every other attribute (``function_name``, ``memory_limit_in_mb``, ``aws_request_id``, ...) is
    the invocation's own.

    Args:
        invocation: the context of the worker's invocation.
        deadline_ms: when the handler's time-out ends, epoch milliseconds.
        now_ms: the wall clock.

    """

    def __init__(
        self, invocation: LambdaContext, *, deadline_ms: int, now_ms: Callable[[], int]
    ) -> None:
        """Wrap the context of an invocation for one batch."""
        self._invocation = invocation
        self._deadline_ms = deadline_ms
        self._now_ms = now_ms

    def get_remaining_time_in_millis(self) -> int:
        """Return how long this batch may still take; never negative."""
        return max(0, self._deadline_ms - self._now_ms())

    def __getattr__(self, name: str) -> Any:
        """Return the invocation's attribute."""
        return getattr(self._invocation, name)


class EventSource(Struct, frozen=True, kw_only=True):
    """
    What every record of an event says about where it comes from.

    Attributes:
        stream_arn: ``eventSourceARN``.
        region: ``awsRegion``.
        invoke_identity_arn: ``invokeIdentityArn``: who calls the handler. An event source
            mapping names the function's role; a worker names its function.

    """

    stream_arn: str
    region: str
    invoke_identity_arn: str

    @classmethod
    def of(cls, stream_arn: str, *, function_arn: str) -> Self:
        """Take the region from the stream's ARN."""
        parts = stream_arn.split(":")
        region = parts[3] if len(parts) > 3 else ""  # noqa: PLR2004 - arn:partition:service:region
        return cls(stream_arn=stream_arn, region=region, invoke_identity_arn=function_arn)


def kinesis_event(records: Iterable[Record], source: EventSource) -> dict[str, Any]:
    """Return the event for a batch's records: one shard, in order, data in base64."""
    return {"Records": [event_record(record, source) for record in records]}


def event_record(record: Record, source: EventSource) -> dict[str, Any]:
    """Return one record of an event."""
    kinesis: dict[str, Any] = {
        "kinesisSchemaVersion": _SCHEMA_VERSION,
        "partitionKey": record.partition_key,
        "sequenceNumber": record.sequence_number,
        "data": payload_text(record.data),
        "approximateArrivalTimestamp": record.approximate_arrival_ms / 1000,
    }
    if record.aggregated:
        kinesis["subSequenceNumber"] = record.sub_sequence_number
    if record.explicit_hash_key is not None:
        kinesis["explicitHashKey"] = record.explicit_hash_key
    return {
        "kinesis": kinesis,
        "eventSource": "aws:kinesis",
        "eventVersion": _SCHEMA_VERSION,
        "eventID": f"{record.shard_id}:{record.sequence_number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": source.invoke_identity_arn,
        "awsRegion": source.region,
        "eventSourceARN": source.stream_arn,
    }


def window_fields(
    window: TumblingWindow, state: Mapping[str, Any], *, shard_id: str, source: EventSource
) -> dict[str, Any]:
    """Return what the event of a call has beside its records, with tumbling windows."""
    return {
        "window": {"start": _instant(window.start_ms), "end": _instant(window.end_ms)},
        "state": state,
        "shardId": shard_id,
        "eventSourceARN": source.stream_arn,
        "isFinalInvokeForWindow": window.is_final,
        "isWindowTerminatedEarly": window.is_terminated_early,
    }


def _instant(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, tz=UTC):%Y-%m-%dT%H:%M:%SZ}"


def result_of_reply(
    reply: object, batch: Sequence[Record], *, in_window: bool = False
) -> HandlerResult:
    """
    Return how far a batch got, from the reply of a handler of either contract.

    With tumbling windows the reply has the window's state, that of the records that are done.

    Partial batch responses are always honoured, as with ``ReportBatchItemFailures``. A record that
    a reply names has failed, even if the handler had declared it done before.

    Raises:
        InvalidReply: the reply means nothing; as when the handler raises, what it has declared
            done is done.

    """
    state: str | None = None
    if in_window:
        state, reply = state_of(reply)
        if error := too_large(state):
            return HandlerResult(done_count=0, error=error, outgrows=True)
    failures = failures_of(reply)
    if not failures:
        return HandlerResult(done_count=len(batch), state=state)
    done_count = lowest_failed(failures, batch)
    if done_count is None:
        error = (
            f"{FAILURES}: an itemIdentifier names no record of this batch, so all of it has "
            "failed; a record's sequence number is allowed, or number:sub for one of an aggregate"
        )
        return HandlerResult(done_count=0, error=error)
    error = f"{FAILURES}: not handled from record {position_of(batch[done_count])} on"
    return HandlerResult(done_count=done_count, error=error, state=state if done_count else None)


class HandlerCaller:
    """
    Calls one handler: a function, or a shard's object of a class.

    Attributes:
        is_async: whether calls may overlap.
        has_hooks: whether it is a class.

    """

    def __init__(
        self,
        handler: LoadedHandler,
        *,
        context: LambdaContext,
        source: EventSource,
        now_ms: Callable[[], int],
    ) -> None:
        """
        Prepare.

        Args:
            handler: the user's function or class.
            context: of the worker's invocation, for the event contract.
            source: what the records of an event say about where they come from.
            now_ms: the wall clock, called in the handler's thread.

        """
        self.is_async = handler.is_async
        self.has_hooks = handler.is_class
        self._handler = handler
        self._context = context
        self._source = source
        self._now_ms = now_ms
        self._objects: dict[str, Any] = {}

    def call(self, batch: Batch, hook: Hook | None = None) -> HandlerResult:
        """
        Run a synchronous handler in this thread; whatever it raises is raised, or InvalidReply.

        The thread needs an event loop that does not run, for a coroutine function that a decorator
        has hidden behind an ordinary one, and for hooks that are coroutine functions.
        """
        reply = self._invoke(batch, hook)
        if inspect.isawaitable(reply):
            reply = asyncio.get_event_loop().run_until_complete(reply)
        return self._result(reply, batch, hook)

    async def call_async(self, batch: Batch, hook: Hook | None = None) -> HandlerResult:
        """Run a coroutine function on this loop; whatever it raises is raised, or InvalidReply."""
        reply = self._invoke(batch, hook)
        if inspect.isawaitable(reply):
            reply = await reply
        return self._result(reply, batch, hook)

    def _invoke(self, batch: Batch, hook: Hook | None) -> Any:
        if hook is not None:
            return self._tell(hook, batch)
        function = self._handler.function
        if self._handler.is_class:
            function = getattr(self._objects[batch.shard_id], HANDLE)
        if self._handler.contract is HandlerContract.NATIVE:
            return function(batch)
        context = BatchContext(self._context, deadline_ms=batch.deadline_ms, now_ms=self._now_ms)
        event, shard_id = kinesis_event(batch, self._source), batch.shard_id
        if batch.window is not None:
            event |= window_fields(
                batch.window, batch.state, shard_id=shard_id, source=self._source
            )
        return function(event, context)

    def _tell(self, hook: Hook, batch: Batch) -> Any:
        """Call a hook; what has none is told as a function is: by a batch that must be flushed."""
        if hook is Hook.STARTED:
            self._objects[batch.shard_id] = self._handler.function()
        told = self._objects[batch.shard_id]
        if hook.is_last:
            del self._objects[batch.shard_id]
        method = getattr(told, hook, None)
        if method is not None:
            return method(*(batch, batch.deadline_ms)[: len(hook.given)])
        return getattr(told, HANDLE)(batch) if batch.must_flush else None

    def _result(self, reply: object, batch: Batch, hook: Hook | None) -> HandlerResult:
        if hook is None:
            return result_of_reply(reply, batch, in_window=batch.window is not None)
        if hook is not Hook.ENDED:
            return HandlerResult(done_count=0)
        if batch.has_open:
            error = "records are open and no more will come; checkpoint them: shard.checkpoint()"
            return HandlerResult(done_count=0, error=error)
        del self._objects[batch.shard_id]
        return HandlerResult(done_count=0)
