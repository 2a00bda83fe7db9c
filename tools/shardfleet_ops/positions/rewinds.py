"""
Setting leases back: to where, what comes again, and what else that touches.

A lease is set back only while nobody has it (protocol.md L12). A child of a shard that is set
back keeps its own place: it waits for its parent at the next turn of its owner, so records of a
key come again after newer ones, unless the child is set back as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum

from msgspec import Struct

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import (
    AT_LATEST,
    AT_TIMESTAMP,
    AT_TRIM_HORIZON,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
)
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.records import StreamRecord

_UNBEGUN = (TRIM_HORIZON, AT_TIMESTAMP)


class RewindState(StrEnum):
    """
    What becomes of one lease.

    ``SET_BACK``: records come again. ``LEFT``: it stands there, or before that, already. ``HELD``:
    somebody has it. ``GONE``: its shard has left the stream, or the lease the table.
    """

    SET_BACK = "SET_BACK"
    LEFT = "LEFT"
    HELD = "HELD"
    GONE = "GONE"


class RewindRow(Struct, frozen=True, kw_only=True):
    """
    One lease that is to be set back, or was.

    Attributes:
        lease_key: the shard's id.
        state: see :class:`RewindState`.
        owner: who has it, None when nobody does.
        checkpoint: where it stands (before), ``sequence:sub`` or a sentinel.
        to: where it is to stand; what was done after that comes again.
        records: user records that come again.
        bytes: their payloads.
        complete: all of them were counted; otherwise there are more.
        beyond: how many of them lie beyond the checkpoint: lanes have done them, or an open window
            has them in its state.
        is_stopped: nothing of it is read, and nothing comes again, before it is resumed.
        first: sequence number of the first of them; "": none.
        first_arrived_ms: when the first of them arrived, None for none.
        last_arrived_ms: when the last one did.
        children_ahead: descendants that have been read and are not set back.
        why: what there is to say about it; may be empty.

    """

    lease_key: str
    state: RewindState
    owner: str | None = None
    checkpoint: str = ""
    to: str = ""
    records: int = 0
    bytes: int = 0
    complete: bool = True
    beyond: int = 0
    is_stopped: bool = False
    first: str = ""
    first_arrived_ms: int | None = None
    last_arrived_ms: int | None = None
    children_ahead: tuple[str, ...] = ()
    why: str = ""


class RewindTarget(Struct, frozen=True):
    """
    Where leases are set back to.

    Attributes:
        checkpoint: what is stored; everything after it comes again.
        whole_record: the Kinesis record of that number is done to its last user record, however
            many it has.

    """

    checkpoint: ExtendedSequenceNumber
    whole_record: bool = False

    def is_before(
        self,
        stands: ExtendedSequenceNumber,
        to: ExtendedSequenceNumber,
        first: StreamRecord | None,
    ) -> bool:
        """
        Return whether a lease is set back by this, and not forward.

        Args:
            stands: its checkpoint; of one that is pinned the instant.
            to: the position that this is in the shard.
            first: the first stream record that is read from there, None: there is none.

        """
        if AT_TRIM_HORIZON in (to, stands):
            return stands != AT_TRIM_HORIZON
        if stands.is_shard_end or stands == AT_LATEST:
            return True
        if to.sequence_number == AT_TIMESTAMP == stands.sequence_number:
            return to < stands
        if stands.sequence_number == AT_TIMESTAMP:
            # A time of arrival that is not told proves nothing.
            arrived_ms = (first.approximate_arrival_ms if first else None) or 0
            return 0 < arrived_ms < stands.sub_sequence_number
        if to.sequence_number == AT_TIMESTAMP:
            return first is not None and ExtendedSequenceNumber(first.sequence_number) <= stands
        return to < stands


def begun_descendants(leases: Sequence[Lease], lease_key: str) -> tuple[str, ...]:
    """Return the leases of a shard's descendants of which anything has been read, sorted."""
    found: set[str] = set()
    generation = {lease_key}
    while generation:
        children = {le.lease_key for le in leases if generation & set(le.parent_shard_ids)}
        generation = children - found
        found |= children
    begun = {le.lease_key for le in leases if le.checkpoint.sequence_number not in _UNBEGUN}
    return tuple(sorted(found & begun))


def unleased_shards(
    shards: Sequence[Shard], leases: Sequence[Lease], chosen: Collection[str]
) -> tuple[str, ...]:
    """
    Return closed shards without a lease that lie before the chosen ones, sorted.

    They were read to their ends and their leases deleted: nothing brings their records back.
    """
    graph = ShardGraph(shards)
    leased = {lease.lease_key for lease in leases}
    found: set[str] = set()
    waiting = list(chosen)
    while waiting:
        parents = set(graph.parents(waiting.pop())) - leased - found
        found |= parents
        waiting += parents
    return tuple(sorted(found))
