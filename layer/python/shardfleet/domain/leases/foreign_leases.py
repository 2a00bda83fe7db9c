"""
Leases in the table that are not provably of this stream and this mode: nobody's to touch (H23).

A lease is ours if its key is a shard id of Kinesis, nothing on it speaks of another mode, and the
shard is one that the stream lists or can have listed. All else is counted and named, and never
assigned, renewed, changed or deleted. What cannot be told apart is a lease of another application
in this same mode whose shard id this stream has or had: both have the same key, so two such
applications cannot share a table, whoever they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

from msgspec.structs import replace

from shardfleet.domain.leases.lease import ForeignLease, Lease, Survey, named_foreign
from shardfleet.domain.reasons import NeverListed
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.shards import ShardGraph, shard_number
from shardfleet.errors import ConfigurationError

_BETWEEN = ":"  # of the fields of a multi-stream key, account:stream:epoch:shard (protocol.md §1.4)


class ForeignKind(StrEnum):
    """What shows that a lease is not ours; the values say it to a person."""

    MULTI_STREAM = "of a multi-stream application"
    NO_SHARD_ID = "its key is no shard id of Kinesis"
    NEVER_LISTED = "of a shard that the stream never had"


def foreign_lease(
    lease_key: str, *, stream: str | None = None, owner: str | None = None
) -> ForeignLease | None:
    """
    Return a lease as a foreign one if its key or its stream says so, else None.

    Args:
        lease_key: of the item.
        stream: what the item says of its stream: a multi-stream application writes that, and only
            that; None: it has no such attribute.
        owner: its ``leaseOwner``.

    """
    if stream is not None or _BETWEEN in lease_key:
        told = stream or lease_key.rpartition(_BETWEEN)[0]
        return ForeignLease(lease_key, ForeignKind.MULTI_STREAM, stream=told, owner=owner)
    if shard_number(lease_key) is None:
        return ForeignLease(lease_key, ForeignKind.NO_SHARD_ID, owner=owner)
    return None


def set_apart(
    survey: Survey,
    graph: ShardGraph,
    *,
    missed: Iterable[GoneNote] = (),
    known: Collection[str] = (),
) -> Survey:
    """
    Return a survey in which leases of shards that the stream never had are foreign ones.

    Args:
        survey: of the lease table.
        graph: of the unfiltered listing, read after the leases.
        missed: shards that a worker misses, with what it found out about them.
        known: keys of leases that passed for ours before: a listing with holes proves nothing
            against them.

    """
    refused = {n.lease_key for n in missed if isinstance(n.reason, NeverListed)}
    beyond = {lease.lease_key: lease for lease in survey.leases if graph.is_beyond(lease.lease_key)}
    if not beyond:
        return survey
    kept = {lease.lease_key for lease in survey.leases} - beyond.keys() | graph.shards.keys()
    for key, lease in sorted(beyond.items()):
        # A child may be leased before it is listed (awslabs/amazon-kinesis-client issue 164); where
        # its parent's children are listed and nothing is missing, it would be among them.
        is_child = any(
            parent in kept and (graph.holes or not graph.children(parent))
            for parent in lease.parent_shard_ids
        )
        if key not in refused and (is_child or (graph.holes and key in known)):
            kept.add(key)
    strange = [lease for key, lease in sorted(beyond.items()) if key not in kept]
    return _without(survey, strange) if strange else survey


def _without(survey: Survey, strange: Sequence[Lease]) -> Survey:
    keys = {lease.lease_key for lease in strange}
    found = (
        ForeignLease(lease.lease_key, ForeignKind.NEVER_LISTED, owner=lease.effective_owner)
        for lease in strange
    )
    return replace(
        survey,
        leases=tuple(lease for lease in survey.leases if lease.lease_key not in keys),
        foreign_leases=(*survey.foreign_leases, *found),
    )


def refuse_to_begin(table: str, stream_arn: str, foreign: Sequence[ForeignLease]) -> None:
    """
    Refuse a table with foreign leases to a fleet that has not begun.

    Raises:
        ConfigurationError: names the table, the leases, whose they are and what to do.

    """
    if foreign:
        raise ConfigurationError(
            f"lease table {table}: {named_foreign(foreign)}; a fleet of the stream {stream_arn} "
            f"does not begin beside them: {REMEDY}"
        )


REMEDY = (
    "name another lease_table; if nobody works with these leases any more, delete them and keep "
    "the table"
)
