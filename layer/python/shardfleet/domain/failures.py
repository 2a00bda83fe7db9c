"""
What a handler's failure means: how far the batch got, and what happens next.

The reply is that of Lambda's event source mapping with ``ReportBatchItemFailures``, so existing
handlers run unmodified (AWS Lambda developer guide, "Reporting batch item failures").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardfleet.domain.sequence import ExtendedSequenceNumber

_IDENTIFIER = re.compile(r"([0-9]{1,129})(?::([0-9]{1,18}))?")
_MOST_DOUBLINGS = 60  # beyond this any back-off has long reached its limit


class FailureAction(StrEnum):
    """What happens to the first record that is not done."""

    RETRY = "RETRY"
    STOP = "STOP"
    RECORD_AND_SKIP = "RECORD_AND_SKIP"


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """
    What to do after a failed attempt.

    Attributes:
        action: see :class:`FailureAction`.
        back_off_ms: how long to wait before a retry; 0 for the other actions.
        reason: for a person.

    """

    action: FailureAction
    back_off_ms: int
    reason: str


def lowest_failed(reply: object, positions: Sequence[ExtendedSequenceNumber]) -> int:
    """
    Return how many leading records a handler's reply declares done.

    Nothing, a reply that is no object, and one without ``batchItemFailures`` mean that all are.
    Otherwise everything from the lowest failed record on is not; numbers are compared as
    integers, a bare number means the first user record with it, ``"number:sub"`` exactly one
    (our extension for aggregated records). An identifier that is missing, empty, no text, or not
    of this batch fails the whole batch.

    Args:
        reply: what the handler returned.
        positions: of the batch's records, in order.

    """
    if not isinstance(reply, Mapping) or reply.get("batchItemFailures") is None:
        return len(positions)
    failures = reply["batchItemFailures"]
    if not isinstance(failures, Sequence) or isinstance(failures, str | bytes):
        return 0
    first: dict[tuple[int, int | None], int] = {}
    for index, position in enumerate(positions):
        number = int(position.sequence_number)
        first.setdefault((number, None), index)
        first.setdefault((number, position.sub_sequence_number), index)
    return min((_failed_index(item, first) for item in failures), default=len(positions))


def _failed_index(item: object, first: Mapping[tuple[int, int | None], int]) -> int:
    """Return the index of the record that one failure names; 0 (the whole batch) if none."""
    identifier = item.get("itemIdentifier") if isinstance(item, Mapping) else None
    found = _IDENTIFIER.fullmatch(identifier) if isinstance(identifier, str) else None
    if found is None:
        return 0
    number, sub = found.groups()
    return first.get((int(number), None if sub is None else int(sub)), 0)


def back_off_ms(attempt: int, *, first_ms: int, most_ms: int, jitter: float) -> int:
    """
    Return how long to wait after the ``attempt``-th failure in a row: exponential with jitter.

    Half of the wait is fixed and half is up to ``jitter`` (0 to 1), so that workers that failed
    together do not come back together, and none comes back at once.
    """
    doublings = min(max(attempt, 1) - 1, _MOST_DOUBLINGS)
    ceiling = min(most_ms, first_ms << doublings)
    return round(ceiling / 2 + ceiling / 2 * jitter)


def decide_failure(
    attempt: int, max_attempts: int, *, on_exhausted: str, back_off: int
) -> FailureDecision:
    """
    Decide what happens after a failed attempt at the first record that is not done.

    Args:
        attempt: 1 for the first attempt.
        max_attempts: attempts per record; 0 retries for ever.
        on_exhausted: ``stop`` stops the shard; ``sqs`` and ``s3`` record in full and skip.
        back_off: the wait before a retry, ms (see :func:`back_off_ms`).

    """
    if not max_attempts or attempt < max_attempts:
        most = max_attempts or "any number"
        return FailureDecision(FailureAction.RETRY, back_off, f"attempt {attempt} of {most} failed")
    exhausted = f"{attempt} attempts failed, {max_attempts} allowed"
    if on_exhausted == "stop":
        return FailureDecision(FailureAction.STOP, 0, f"{exhausted}: the shard is stopped")
    reason = f"{exhausted}: the record is kept in {on_exhausted} and skipped"
    return FailureDecision(FailureAction.RECORD_AND_SKIP, 0, reason)
