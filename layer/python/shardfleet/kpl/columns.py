"""
The user records of an aggregate on their way between two processes: as columns, in MessagePack.

A process that decodes takes an aggregate apart (digest, parser, limits) and hands on what cost it
the time; the process with the handler makes the records, when it needs them. Only aggregates that
are valid and within the limits travel like this. Which hash keys they span travels with them, so
that the policy ``kpl`` can be decided by whoever knows the shard's range.
"""

from __future__ import annotations

import msgspec

from shardfleet.kpl.content import Content
from shardfleet.kpl.deaggregate import (
    Deaggregated,
    ExpansionLimits,
    MisroutedPolicy,
    Origin,
    Verdict,
    content_within,
    records_of,
)
from shardfleet.records import Record

_HASH_BYTES = 16


class _Columns(msgspec.Struct, array_like=True, gc=False):
    """
    A :class:`Content`, and the hash keys that its records span.

    Attributes:
        data: as there.
        keys: as there.
        places: as there.
        hash_keys: as there.
        hash_places: as there.
        span: least and greatest hash key, big-endian; None: not asked for, or none is known.

    """

    data: list[bytes]
    keys: list[str]
    places: list[int]
    hash_keys: list[str | None]
    hash_places: list[int]
    span: tuple[bytes, bytes] | None


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Columns)


def take_apart(data: bytes, *, limits: ExpansionLimits, policy: MisroutedPolicy) -> bytes | None:
    """
    Return the user records of one Kinesis record, None if it is no valid aggregate.

    Args:
        data: the Kinesis record's data.
        limits: how far it may expand.
        policy: ``kpl`` if somebody will ask for what the records span.

    """
    content = content_within(data, limits)
    if isinstance(content, Verdict):
        return None
    columns = _Columns(
        list(content.data),
        list(content.keys),
        list(content.places),
        list(content.hash_keys),
        list(content.hash_places),
        _span(content) if policy == "kpl" else None,
    )
    return _ENCODER.encode(columns)


def put_together(
    columns: bytes, origin: Origin, *, hash_range: tuple[int, int] | None
) -> Deaggregated[Record]:
    """
    Return what :func:`take_apart` was given as ``deaggregate_records`` would have.

    Args:
        columns: from there.
        origin: the rest of the Kinesis record.
        hash_range: of the shard, if what belongs elsewhere is to be discarded; else None.

    """
    found = _DECODER.decode(columns)
    count = len(found.data)
    if hash_range is not None and found.span is not None:
        least, greatest = (int.from_bytes(each) for each in found.span)
        if not (hash_range[0] <= least and greatest <= hash_range[1]):
            return Deaggregated((), Verdict.MISROUTED, count - 1, count)
    content = Content(found.data, found.keys, found.places, found.hash_keys, found.hash_places)
    return Deaggregated(records_of(content, origin), Verdict.EXPANDED, count - 1, 0)


def _span(content: Content) -> tuple[bytes, bytes] | None:
    """Return the least and the greatest hash key; those that are none belong everywhere."""
    found = list(content.hashes())
    if not found:
        return None
    return min(found).to_bytes(_HASH_BYTES), max(found).to_bytes(_HASH_BYTES)
