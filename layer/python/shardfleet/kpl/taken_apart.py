"""
The user records of an aggregate on their way between two processes: as columns, in MessagePack.

A process that decodes takes an aggregate apart (digest, parser, limits) and hands on what cost it
the time; the process with the handler makes the records, when it needs them. Only aggregates that
are valid and within the limits travel like this. Which hash keys they span travels with them, so
that the policy ``kpl`` can be decided by whoever knows the shard's range.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import msgspec

from shardfleet.errors import InvalidRecord
from shardfleet.kpl.deaggregate import (
    Deaggregated,
    ExpansionLimits,
    MisroutedPolicy,
    Origin,
    Verdict,
    deaggregate,
)
from shardfleet.kpl.hash_keys import effective_hash
from shardfleet.records import Record

_HASH_BYTES = 16


class _Columns(msgspec.Struct, array_like=True, gc=False):
    """
    Each user record is one place of each column.

    Attributes:
        data: of each.
        keys: every partition key once.
        places: where in ``keys`` each record's is; None: in the same order.
        hash_keys: explicit hash key of each; None: no record has one.
        span: least and greatest hash key, big-endian; None: not asked for, or none is known.

    """

    data: list[bytes]
    keys: list[str]
    places: list[int] | None
    hash_keys: list[str | None] | None
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
    found = deaggregate(data, partition_key="", limits=limits, hash_range=None, policy="deliver")
    if found.verdict is not Verdict.EXPANDED:
        return None
    keys, hash_keys, payloads, _ = zip(*found.records, strict=True)
    table = list(dict.fromkeys(keys))
    places = None
    if len(table) < len(keys):
        index = {key: place for place, key in enumerate(table)}
        places = [index[key] for key in keys]
    has_hash_keys = hash_keys.count(None) < len(hash_keys)
    columns = _Columns(
        list(payloads),
        table,
        places,
        list(hash_keys) if has_hash_keys else None,
        _span(set(zip(keys, hash_keys, strict=True))) if policy == "kpl" else None,
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
    number, shard_id, arrival_ms, encryption = origin
    keys: Sequence[str] = found.keys
    if found.places is not None:
        keys = [keys[place] for place in found.places]
    hash_keys = found.hash_keys or [None] * count
    # Arguments by position are twice as quick. The last one: it is of an aggregate.
    records = [
        Record(data, key, number, shard_id, arrival_ms, index, hash_key, encryption, True)  # noqa: FBT003
        for index, data, key, hash_key in zip(
            range(count), found.data, keys, hash_keys, strict=True
        )
    ]
    return Deaggregated(records, Verdict.EXPANDED, count - 1, 0)


def _span(keys: set[tuple[str, str | None]]) -> tuple[bytes, bytes] | None:
    """Return the least and the greatest hash key; those that are none belong everywhere."""
    found = []
    for partition_key, explicit_hash_key in keys:
        with suppress(InvalidRecord):
            found.append(effective_hash(partition_key, explicit_hash_key))
    if not found:
        return None
    return min(found).to_bytes(_HASH_BYTES), max(found).to_bytes(_HASH_BYTES)
