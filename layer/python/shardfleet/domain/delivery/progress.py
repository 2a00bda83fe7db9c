"""
Where the records of a batch stand: in order, so that "done up to here" means something.

A checkpoint says that *everything* up to it is done (protocol.md §8 row 1).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import islice
from operator import lt

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ProtocolError
from shardfleet.records import Record

# Of an instant it is epoch milliseconds.
_SUB = re.compile(r"[0-9]{1,18}")


def position_of(record: Record) -> ExtendedSequenceNumber:
    """Return where a record stands in its shard."""
    return ExtendedSequenceNumber(record.sequence_number, record.sub_sequence_number)


def stands_for(
    checkpoint: ExtendedSequenceNumber, *, since: str, through: str, between: Collection[str] | None
) -> bool:
    """
    Return whether what was noted beside a checkpoint counts for it.

    Any other checkpoint was set by somebody, back or forth.

    Args:
        checkpoint: in the lease table.
        since: what was there when it was noted, ``number:sub``.
        through: what was to be written next.
        between: what may have been on its way to the table then; None: an earlier release has not
            kept it, so it may have been anything between the two.

    """
    if between is not None:
        return position_text(checkpoint) in (since, through, *between)
    first, last = read_position(since), read_position(through)
    return checkpoint == first or (not checkpoint.is_sentinel and first <= checkpoint <= last)


def position_text(position: ExtendedSequenceNumber) -> str:
    """Return a position as text, that of an instant, too."""
    return f"{position.sequence_number}:{position.sub_sequence_number}"


def read_position(text: str) -> ExtendedSequenceNumber:
    """
    Read what :func:`position_text` returned.

    Raises:
        ProtocolError: it is something else.

    """
    number, _, sub = text.partition(":")
    if not _SUB.fullmatch(sub or "0"):
        raise ProtocolError(f"position {text[:200]!r}: number:sub expected")
    return ExtendedSequenceNumber(number, int(sub or "0"))


def check_order(records: Sequence[Record]) -> None:
    """
    Make sure that records strictly ascend.

    On the texts, for a batch may have a hundred thousand: of two numbers without leading zeros the
    longer one is greater.

    Raises:
        ProtocolError: they do not, or one has no sequence number.

    """
    if _ascend_at_a_glance(records):
        return
    before, sub_before = "no number", -1
    for record in records:
        number, sub = record.sequence_number, record.sub_sequence_number
        if number is not before and number != before:
            if not (number.isascii() and number.isdecimal()):
                raise ProtocolError(f"batch position {number}: expected a sequence number")
            if sub_before >= 0 and (len(number), number) < (len(before), before):
                raise _not_ascending((before, sub_before), (number, sub))
            before = number
        elif sub <= sub_before:
            raise _not_ascending((before, sub_before), (number, sub))
        sub_before = sub


def _ascend_at_a_glance(records: Sequence[Record]) -> bool:
    """Return whether there are plain records alone, with equally long numbers, in order."""
    if len(records) > 1 and records[0].sequence_number == records[1].sequence_number:
        return False  # The usual thing for aggregates.
    numbers = [record.sequence_number for record in records]
    if not all(map(lt, numbers, islice(numbers, 1, None))) or len(set(map(len, numbers))) != 1:
        return False
    digits = "".join(numbers)
    return digits.isascii() and digits.encode().isdigit()  # Of bytes: a third of the time.


def _not_ascending(before: tuple[str, int], after: tuple[str, int]) -> ProtocolError:
    first, second = (f"{number}:{sub}" for number, sub in (before, after))
    return ProtocolError(f"batch positions: {second} after {first}, expected ascending")
