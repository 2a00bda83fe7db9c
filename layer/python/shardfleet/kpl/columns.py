"""
The user records of an aggregate on their way between two processes: as columns, in MessagePack.

A process that decodes takes an aggregate apart (digest, parser, limits) and hands on what cost it
the time; the process with the handler makes the records, when it needs them. Only aggregates that
are valid and within the limits travel like this. Which hash keys they span travels with them, so
that what to discard can be decided by whoever knows the shard's range.
"""

from __future__ import annotations

from functools import partial

import msgspec

from shardfleet.kpl.content import Content, at_once
from shardfleet.kpl.deaggregate import (
    Deaggregated,
    ExpansionLimits,
    MisroutedPolicy,
    Origin,
    Verdict,
    content_within,
    records_of,
    routed,
)
from shardfleet.records import Record

_HASH_BYTES = 16


# The columns; least and greatest hash key of the records, None: not asked for, or none is known.
_Columns = tuple[Content, tuple[bytes, bytes] | None]
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Columns)


def take_apart(data: bytes, *, limits: ExpansionLimits, policy: MisroutedPolicy) -> bytes | None:
    """
    Return the user records of one Kinesis record, None if it is no valid aggregate.

    Args:
        data: the Kinesis record's data.
        limits: how far it may expand.
        policy: ``deliver`` if nobody will ask for what the records span.

    """
    content = content_within(data, limits)
    if isinstance(content, Verdict):
        return None
    span = None if policy == "deliver" else _span(content)
    return _ENCODER.encode((Content._make(map(list, content)), span))


def put_together(
    columns: bytes,
    origin: Origin,
    *,
    hash_range: tuple[int, int] | None,
    policy: MisroutedPolicy,
) -> Deaggregated[Record]:
    """
    Return what :func:`take_apart` was given as ``records_in_steps`` would have.

    Args:
        columns: from there.
        origin: the rest of the Kinesis record.
        hash_range: of the shard; None if unknown.
        policy: what to do with what belongs elsewhere.

    """
    content, span = _DECODER.decode(columns)
    if hash_range is not None and span is not None:
        least, greatest = (int.from_bytes(each) for each in span)
        if not (hash_range[0] <= least and greatest <= hash_range[1]):
            made = partial(records_of, origin=origin)
            return at_once(routed(content, made, hash_range=hash_range, policy=policy))
    return Deaggregated(records_of(content, origin), Verdict.EXPANDED, len(content.data) - 1, 0)


def _span(content: Content) -> tuple[bytes, bytes] | None:
    """Return the least and the greatest hash key; those that are none belong everywhere."""
    found = [hash_key for _, hash_key in content.routes()]
    if not found:
        return None
    return min(found).to_bytes(_HASH_BYTES), max(found).to_bytes(_HASH_BYTES)
