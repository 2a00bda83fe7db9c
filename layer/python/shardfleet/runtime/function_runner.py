"""
A handler that is a Lambda function of its own, of any runtime, with a role of its own.

It is invoked as the event source mapping would, with the event of one shard's records and its reply
honoured, in order. A batch is cut by the bytes of its events, for Lambda takes 6 MB of JSON where a
batch is limited by payload. Calls of different shards overlap.

What Lambda refuses for now is waited for and is no attempt at a record; what the function raises,
returns amiss or takes too long for is one; a function that is gone is nothing that a record could
help. An invocation without an answer may still be running: it is waited for as long as the function
may take, so that the next attempt does not run beside it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.adapters.invoked_function import FunctionAnswer, InvokedFunction
from shardfleet.adapters.thread_pool import ThreadPool
from shardfleet.domain.delivery.hooks import Hook
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.delivery.windows import STATE_BYTES_MOST
from shardfleet.domain.refusals import Doubt
from shardfleet.engine.ports import HandlerResult
from shardfleet.engine.retry import Patience
from shardfleet.errors import InvalidReply, OutcomeUnknown, Throttled, settled
from shardfleet.records import Batch, Record
from shardfleet.runtime.handler_call import (
    EventSource,
    event_record,
    result_of_reply,
    window_fields,
)
from shardfleet.runtime.handler_errors import told_by_lambda

T = TypeVar("T")

# "Request must be smaller than 6291456 bytes for the InvokeFunction operation" (Lambda quotas).
EVENT_BYTES_LIMIT = 6 * 1024 * 1024
# What an event says of a window is the state, and little else.
WINDOW_BYTES = STATE_BYTES_MOST + 1024
_FRAME = (b'{"Records": [', b", ", b"]}")
_ERROR_CHARACTERS_MOST = 1_000
_log = logging.getLogger("shardfleet.handler")


class Cut(Struct, frozen=True):
    """
    A part of a batch for one invocation.

    Attributes:
        records: leading records of what is left.
        size: bytes of its event; of a record alone it may be more than Lambda takes.
        event: None where it is too large.

    """

    records: Sequence[Record]
    size: int
    event: bytes | None


def cuts_of(
    records: Sequence[Record], source: EventSource, *, bytes_most: int = EVENT_BYTES_LIMIT
) -> Iterator[Cut]:
    """Cut records into events below a size; what is too large is one record alone."""
    begin, middle, end = _FRAME
    texts: list[bytes] = []
    first, size = 0, len(begin + end)
    for index, record in enumerate(records):
        text = json.dumps(event_record(record, source)).encode()
        if texts and size + len(middle + text) >= bytes_most:
            yield Cut(records[first:index], size, begin + middle.join(texts) + end)
            texts, first, size = [], index, len(begin + end)
        if len(begin + text + end) >= bytes_most:
            yield Cut((record,), len(begin + text + end), None)
            first = index + 1
            continue
        size += len(middle + text) if texts else len(text)
        texts.append(text)
    if texts:
        yield Cut(records[first:], size, begin + middle.join(texts) + end)


class FunctionHandlerRunner:
    """The ``HandlerRunner`` port over a Lambda function."""

    overlaps = True
    has_hooks = False

    def __init__(
        self,
        function: InvokedFunction,
        *,
        pool: ThreadPool,
        source: EventSource,
        timeout_ms: int,
        patience: Patience,
        tells_errors: bool = False,
    ) -> None:
        """
        Invoke nothing yet.

        Args:
            function: the user's.
            pool: threads in which events are made.
            source: what the records of an event say about where they come from.
            timeout_ms: of a batch (``handler_timeout_ms``).
            patience: how long to wait when Lambda refuses.
            tells_errors: whether a failure holds what the function's error said, which may be
                record data; else its kind.

        """
        self._function = function
        self._pool = pool
        self._source = source
        self._timeout_ms = timeout_ms
        self._patience = patience
        self._clock = patience.clock
        self._tells_errors = tells_errors

    async def load(self) -> None:
        """
        Ask whether the function may be invoked.

        Raises:
            HandlerNotLoaded: there is no such function, or it cannot be invoked.
            RightMissing: the worker's role may not.
            Throttled: refused for as long as a batch may take.

        """
        until_ms = self._clock.now_ms() + self._timeout_ms
        await self._persist(self._function.check, until_ms)

    async def run(self, batch: Batch) -> HandlerResult:
        """
        Invoke the function for a batch, more than once if the event would be too large.

        Raises:
            HandlerNotLoaded, RightMissing: no record is at fault, and none can be handled.
            Throttled: refused for as long as a batch may take; no attempt.

        """
        cuts, done = self._cuts(batch), 0
        state: str | None = None
        while cut := await self._pool.run(lambda: next(cuts, None)):
            left_ms = batch.deadline_ms - self._clock.now_ms()
            # Whatever is begun may take as long as the function may, which is not known here.
            if done and left_ms < self._timeout_ms // 2:
                error = (
                    f"handler_timeout_ms ({self._timeout_ms}) is too short for the invocations "
                    f"that a batch takes: {done} of {len(batch)} records are done; raise it, or "
                    "lower max_batch_bytes"
                )
                return HandlerResult(done_count=done, error=error, state=state)
            result = await self._invoke(cut, batch, state)
            done += result.done_count
            state = state if result.state is None else result.state
            if result.error is not None:
                _log.error("the handler failed on a batch of %s: %s", batch.shard_id, result.error)
                return replace(result, done_count=done, state=state)
        return HandlerResult(done_count=done, state=state)

    async def tell(self, hook: Hook, shard: Batch) -> HandlerResult:
        """Refuse: a function has no hooks, and its runner is not asked for them."""
        message = f"{hook} of {shard.shard_id}: a function has no hooks"
        raise NotImplementedError(message)

    async def close(self) -> bool:
        """Have nothing to stop: whatever runs is a call of the pool."""
        return True

    def _cuts(self, batch: Batch) -> Iterator[Cut]:
        if batch.window is None:
            return cuts_of(batch[:], self._source)
        if not len(batch):
            begin, _, end = _FRAME
            return iter([Cut((), len(begin + end), begin + end)])
        return cuts_of(batch[:], self._source, bytes_most=EVENT_BYTES_LIMIT - WINDOW_BYTES)

    def _event(self, event: bytes, batch: Batch, state: str | None) -> bytes:
        """Return the event with what it says of a window, behind its records."""
        if batch.window is None:
            return event
        given = batch.state if state is None else json.loads(state)
        told = window_fields(batch.window, given, shard_id=batch.shard_id, source=self._source)
        # Written as the state is measured, or it would be larger than its limit.
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        return event[:-1] + b", " + text.encode()[1:]

    async def _invoke(self, cut: Cut, batch: Batch, state: str | None) -> HandlerResult:
        deadline_ms = batch.deadline_ms
        if cut.event is None:
            error = (
                f"record {position_of(cut.records[0])}: its event has {cut.size} bytes, and Lambda "
                f"takes fewer than {EVENT_BYTES_LIMIT} (synchronous Invoke)"
            )
            return HandlerResult(done_count=0, error=error)
        event = self._event(cut.event, batch, state)
        try:
            answer = await self._persist(lambda: self._function.invoke(event), deadline_ms)
        except OutcomeUnknown as unknown:
            # It may be running, and its own time-out is shorter: nothing runs beside it.
            await self._clock.sleep_ms(max(0, deadline_ms - self._clock.now_ms()))
            told = f"no answer within handler_timeout_ms ({self._timeout_ms}): {unknown}"
            return HandlerResult(done_count=0, error=told)
        if answer.refusal:
            return HandlerResult(done_count=0, error=answer.refusal)
        if answer.failed:
            return HandlerResult(done_count=0, error=self._failure(answer))
        try:
            reply, in_window = _reply_of(answer), batch.window is not None
            return result_of_reply(reply, cut.records, in_window=in_window)
        except InvalidReply as error:
            return HandlerResult(done_count=0, error=f"{type(error).__name__}: {error}")

    async def _persist(self, call: Callable[[], Awaitable[T]], until_ms: int) -> T:
        """
        Call again while Lambda says later.

        Raises:
            Throttled: the time is over.
            ShardfleetError: it is, too; the verdict of what was refused as long as it is doubted.

        """
        failures, doubt = 0, Doubt()
        while True:
            try:
                return await call()
            except Throttled as error:
                failures += 1
                back_off_ms = self._patience.back_off_ms(failures)
                is_over = self._clock.now_ms() + back_off_ms >= until_ms
                if doubt.believes(error, self._clock.monotonic_ms()) or is_over:
                    raise settled(error) from error
            await self._clock.sleep_ms(back_off_ms)

    def _failure(self, answer: FunctionAnswer) -> str:
        """Return what Lambda says of an error: kind and place, words only where they may be."""
        try:
            told = json.loads(answer.payload)
        except (ValueError, RecursionError):
            told = None
        found = told if isinstance(told, Mapping) else {}
        error = told_by_lambda(found, self._function.name, tells_words=self._tells_errors)
        return error[:_ERROR_CHARACTERS_MOST]


def _reply_of(answer: FunctionAnswer) -> object:
    """
    Return what the function returned.

    Raises:
        InvalidReply: that is no JSON.

    """
    try:
        return json.loads(answer.payload or b"null")
    except (ValueError, RecursionError) as error:  # Also what is nested too deeply.
        raise InvalidReply("the function returned what is no JSON") from error
