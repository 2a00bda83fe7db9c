"""
What a handler's reply means: how far the batch got.

The reply is that of Lambda's event source mapping with ``ReportBatchItemFailures``, whichever way
the handler is called (AWS Lambda developer guide, "Configuring partial batch response with Kinesis
Data Streams and Lambda"). What it does not say anything about is an error: a failure that was meant
must not pass for success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import InvalidReply
from shardfleet.records import Record

FAILURES = "batchItemFailures"
"""The key of a reply with the records that failed."""

_IDENTIFIER = re.compile(r"([0-9]{1,129})(?::([0-9]{1,18}))?")


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
    failures: Sequence[object], records: Sequence[Record | ExtendedSequenceNumber]
) -> int | None:
    """
    Return how many leading records are done: those before the lowest that failed.

    Numbers are compared as integers. A bare number means the first user record with it,
    ``"number:sub"`` exactly one (our extension for aggregated records).

    Args:
        failures: see :func:`failures_of`.
        records: of the batch, in order, or their positions.

    Returns:
        None when an identifier is missing, empty, no text, or not of this batch: the whole batch
        has failed, says AWS's guide.

    """
    first: dict[tuple[int, int | None], int] = {}
    for index, record in enumerate(records):
        number = int(record.sequence_number)
        first.setdefault((number, None), index)
        first.setdefault((number, record.sub_sequence_number), index)
    lowest = len(records)
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
