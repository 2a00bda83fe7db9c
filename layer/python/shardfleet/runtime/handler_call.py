"""
One call of the user's handler: by its contract; what it returns means the same in both.

The worker's handler thread and the simulation call a handler in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from shardfleet.engine.ports import HandlerResult
from shardfleet.records import Batch
from shardfleet.runtime.event_contract import EventSource, kinesis_event, result_of_reply
from shardfleet.runtime.handler_loading import HandlerContract, LoadedHandler
from shardfleet.runtime.lambda_context import BatchContext, LambdaContext


class HandlerCaller:
    """Calls one handler."""

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
            handler: the user's callable.
            context: of the worker's invocation, for the event contract.
            source: what the records of an event say about where they come from.
            now_ms: the wall clock, called in the handler's thread.

        """
        self._handler = handler
        self._context = context
        self._source = source
        self._now_ms = now_ms

    def call(self, batch: Batch) -> HandlerResult:
        """
        Run a synchronous handler in this thread; whatever it raises is raised, or InvalidReply.

        The thread needs an event loop that does not run, for a coroutine function that a decorator
        has hidden behind an ordinary one.
        """
        reply = self._invoke(batch)
        if inspect.isawaitable(reply):
            reply = asyncio.get_event_loop().run_until_complete(reply)
        return result_of_reply(reply, batch)

    async def call_async(self, batch: Batch) -> HandlerResult:
        """Run a coroutine function on this loop; whatever it raises is raised, or InvalidReply."""
        return result_of_reply(await self._invoke(batch), batch)

    def _invoke(self, batch: Batch) -> Any:
        if self._handler.contract is HandlerContract.NATIVE:
            return self._handler.function(batch)
        context = BatchContext(self._context, deadline_ms=batch.deadline_ms, now_ms=self._now_ms)
        return self._handler.function(kinesis_event(batch, self._source), context)
