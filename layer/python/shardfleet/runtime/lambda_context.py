"""
Lambda's context object: as the entry points receive it, and as an event handler receives it.

An existing ``handler(event, context)`` asks its context for the time left and means its own
batch, not the worker's turn (serverless.md §2.2 item 7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


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
