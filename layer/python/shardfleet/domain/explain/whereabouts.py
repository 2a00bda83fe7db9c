"""
Where is my record: what the lease table says about one record of one shard.

Pure: from the record's place and a reading of leases and shards to a word and a sentence. A
lease's checkpoint covers only what the handler has finished (architecture.md §5.7), so
``PROCESSED`` is certain; ``PENDING`` may include records that are handled but not checkpointed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import LATEST, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard, ShardGraph


class Whereabouts(StrEnum):
    """
    What became of a record.

    ``PROCESSED``: its shard's checkpoint has passed it. ``PENDING``: its shard is leased and the
    checkpoint lies before it. ``STOPPED``: as pending, and the shard is stopped. ``WAITING``: its
    shard begins when its parents are finished. ``PAST``: its shard has no lease any more, but a
    descendant has: the shard was finished, or the fleet began after it. ``UNREAD``: no lease
    leads to its shard.
    """

    PROCESSED = "PROCESSED"
    PENDING = "PENDING"
    STOPPED = "STOPPED"
    WAITING = "WAITING"
    PAST = "PAST"
    UNREAD = "UNREAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    The answer to "where is my record?".

    Attributes:
        state: in a word.
        owner: who renews the lease, None when nobody does or there is none.
        checkpoint: of the shard's lease, None when there is none.
        why: in a sentence.

    """

    state: Whereabouts
    owner: str | None
    checkpoint: str | None
    why: str


def whereabouts(
    position: ExtendedSequenceNumber,
    shard_id: str,
    *,
    leases: Iterable[Lease],
    shards: Sequence[Shard],
    stops: Mapping[str, StopNote],
) -> Answer:
    """
    Say what became of a record.

    Args:
        position: of the record, a number.
        shard_id: where it lies.
        leases: all of the table.
        shards: the unfiltered listing.
        stops: by lease key.

    """
    table = {lease.lease_key: lease for lease in leases}
    lease = table.get(shard_id)
    if lease is None:
        state, why = without_lease(shard_id, table, shards)
        return Answer(state=state, owner=None, checkpoint=None, why=why)
    state, why = _of_lease(lease, position, table=table, stop=stops.get(shard_id))
    owner = None if lease.is_finished else lease.effective_owner
    return Answer(state=state, owner=owner, checkpoint=str(lease.checkpoint), why=why)


def _of_lease(
    lease: Lease,
    position: ExtendedSequenceNumber,
    *,
    table: Mapping[str, Lease],
    stop: StopNote | None,
) -> tuple[Whereabouts, str]:
    if lease.is_finished:
        return Whereabouts.PROCESSED, "its shard is finished"
    if not lease.checkpoint.is_sentinel and lease.checkpoint >= position:
        return Whereabouts.PROCESSED, "the shard's checkpoint has passed it"
    if stop is not None:
        return Whereabouts.STOPPED, f"its shard is stopped at {stop.position}: {stop.error}"
    parents = [p for p in lease.parent_shard_ids if p in table and not table[p].is_finished]
    if parents:
        return Whereabouts.WAITING, f"its shard begins after {' and '.join(parents)}"
    if lease.checkpoint.sequence_number == LATEST:
        return Whereabouts.PENDING, "unless it is older than the fleet, which began at LATEST"
    reader = f"{lease.effective_owner} reads it" if lease.effective_owner else "nobody owns it"
    return Whereabouts.PENDING, f"the shard's checkpoint lies before it; {reader}"


def without_lease(
    shard_id: str, table: Mapping[str, Lease], shards: Sequence[Shard]
) -> tuple[Whereabouts, str]:
    """Return what becomes of a shard that has no lease, and why, without a full stop."""
    graph = ShardGraph(shards)
    later = sorted(key for key in table if shard_id in _line(graph, table[key]))
    if later:
        return Whereabouts.PAST, (
            f"the shard is done with and has no lease any more: its descendant {later[0]} has one"
        )
    ancestors = graph.ancestors(shard_id)
    first = sorted(key for key in ancestors if key in table and not table[key].is_finished)
    if first:
        why = f"the shard begins after {' and '.join(first)}, and gets its lease then"
        return Whereabouts.WAITING, why
    return Whereabouts.UNREAD, "no lease leads to the shard; the manager makes one"


def _line(graph: ShardGraph, lease: Lease) -> set[str]:
    return {*graph.ancestors(lease.lease_key), *lease.parent_shard_ids}
