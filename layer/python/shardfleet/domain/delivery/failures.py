"""
What a handler's failure means: how far the batch got, and what happens next.

The reply is that of Lambda's event source mapping with ``ReportBatchItemFailures``, whichever way
the handler is called (AWS Lambda developer guide, "Configuring partial batch response with Kinesis
Data Streams and Lambda"). What it does not say anything about is an error: a failure that was meant
must not pass for success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import InvalidReply

FAILURES = "batchItemFailures"
"""The key of a reply with the records that failed."""

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


def failures_of(reply: object) -> Sequence[object]:
    """
    Return what a handler's reply says has failed; nothing if all is done.

    AWS's guide: an empty or null reply, and an empty or null ``batchItemFailures``, are a complete
    success; LocalStack's tests, validated against AWS, have an empty list and an empty text among
    the empty replies. The mapping takes an object without ``batchItemFailures`` for success, too;
    here it is refused, because a misspelt key would lose the records that it meant.

    Args:
        reply: what the handler returned.

    Raises:
        InvalidReply: it is something else.

    """
    if reply is None or (isinstance(reply, Mapping | list | tuple | str) and not reply):
        return ()
    if not isinstance(reply, Mapping):
        raise _invalid(_a(reply))
    if FAILURES not in reply:
        raise _invalid(f"{_a(reply)} without {FAILURES}")
    failures = reply[FAILURES]
    if failures is None:
        return ()
    if not isinstance(failures, Sequence) or isinstance(failures, str | bytes | bytearray):
        raise _invalid(f"{_a(failures)} as {FAILURES}")
    return failures


def _invalid(found: str) -> InvalidReply:
    return InvalidReply(
        f"the handler returned {found}; it returns nothing when all is done, or "
        f'{{"{FAILURES}": [{{"itemIdentifier": sequence_number}}]}} with what failed'
    )


def _a(found: object) -> str:
    name = type(found).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def lowest_failed(
    failures: Sequence[object], positions: Sequence[ExtendedSequenceNumber]
) -> int | None:
    """
    Return how many leading records are done: those before the lowest that failed.

    Numbers are compared as integers. A bare number means the first user record with it,
    ``"number:sub"`` exactly one (our extension for aggregated records).

    Args:
        failures: see :func:`failures_of`.
        positions: of the batch's records, in order.

    Returns:
        None when an identifier is missing, empty, no text, or not of this batch: the whole batch
        has failed, says AWS's guide.

    """
    first: dict[tuple[int, int | None], int] = {}
    for index, position in enumerate(positions):
        number = int(position.sequence_number)
        first.setdefault((number, None), index)
        first.setdefault((number, position.sub_sequence_number), index)
    lowest = len(positions)
    for item in failures:
        failed = _failed_index(item, first)
        if failed is None:
            return None
        lowest = min(lowest, failed)
    return lowest


def _failed_index(item: object, first: Mapping[tuple[int, int | None], int]) -> int | None:
    """Return the index of the record that one failure names; None if it names none."""
    identifier = item.get("itemIdentifier") if isinstance(item, Mapping) else None
    found = _IDENTIFIER.fullmatch(identifier) if isinstance(identifier, str) else None
    if found is None:
        return None
    number, sub = found.groups()
    return first.get((int(number), None if sub is None else int(sub)))


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
