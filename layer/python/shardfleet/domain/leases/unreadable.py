"""
Lease items that cannot be read: what stands for them in the planners, and what waits for them.

An item that claims to be a lease and cannot be read is nobody's to create again, overwrite, assign
or delete, nor are the shards that descend from it to begin: whether it is finished is not known.
Everything else goes on. Java's deserializer throws, which ends the whole scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease, Survey
from shardfleet.domain.leases.sync import LeaseSyncPlan
from shardfleet.domain.reasons import ParentHeldUp, ParentUnreadable, Reason
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.domain.stream.shards import Shard, ShardGraph


class Unreadable(Struct, frozen=True, kw_only=True):
    """
    What cannot be read in one survey.

    Attributes:
        reasons: lease key to why.
        stand_ins: a lease for each that nobody has begun and nobody owns: for lease sync it
            exists, for the clean-up it is not finished.
        held_up: keys of leases and shards that descend from them and must not begin, each with
            what it waits for.

    """

    reasons: Mapping[str, str] = field(default_factory=dict)
    stand_ins: tuple[Lease, ...] = ()
    held_up: Mapping[str, Reason] = field(default_factory=dict)

    @classmethod
    def among(cls, survey: Survey, shards: Iterable[Shard]) -> Unreadable:
        """
        Find out what a survey could not read, beside the unfiltered listing.

        An item that is no lease counts as well if it has a shard's id for its key: there can be
        no lease of that shard before it is gone.
        """
        listed = ShardGraph.of(shards).shards
        taken = {
            key: f"lease {key}: an item with this key is no lease; rename or delete it"
            for key in survey.foreign
            if key in listed
        }
        taken |= {
            each.lease_key: f"lease {each}: its shard is this stream's; rename or delete the item"
            for each in survey.foreign_leases
            if each.lease_key in listed
        }
        reasons = dict(sorted({**taken, **survey.unreadable}.items()))
        return cls(
            reasons=reasons,
            stand_ins=stand_ins(reasons, shards),
            held_up=held_up(reasons, survey.leases, shards),
        )

    def spared(self, plan: LeaseSyncPlan) -> LeaseSyncPlan:
        """Return a plan without the leases that would begin behind something unreadable."""
        create = tuple(w for w in plan.create if w.lease.lease_key not in self.held_up)
        return plan if create == plan.create else replace(plan, create=create)


def held_up(
    unreadable: Iterable[str], leases: Sequence[Lease], shards: Iterable[Shard]
) -> dict[str, Reason]:
    """
    Return the unfinished descendants of leases that cannot be read, each with what it waits for.

    Behind a finished descendant nothing waits: it has seen its parents finished.
    """
    stopped = set(unreadable)
    if not stopped:
        return {}
    graph = ShardGraph.of(shards)
    by_key = {lease.lease_key: lease for lease in leases}
    children: dict[str, set[str]] = {}
    for lease in leases:
        for parent in lease.parent_shard_ids:
            children.setdefault(parent, set()).add(lease.lease_key)
    found: dict[str, Reason] = {}
    waiting = sorted(stopped)
    while waiting:
        parent = waiting.pop()
        for child in sorted(children.get(parent, set()).union(graph.children(parent))):
            is_finished = child in by_key and by_key[child].is_finished
            if child not in stopped and child not in found and not is_finished:
                is_cause = parent in stopped
                found[child] = ParentUnreadable(parent) if is_cause else ParentHeldUp(parent)
                waiting.append(child)
    return found


def stand_ins(unreadable: Iterable[str], shards: Iterable[Shard]) -> tuple[Lease, ...]:
    """Return what stands for leases that cannot be read, as :class:`Unreadable` says."""
    listed = ShardGraph.of(shards).shards
    found = []
    for key in unreadable:
        shard = listed.get(key)
        found.append(
            Lease(
                lease_key=key,
                checkpoint=AT_TRIM_HORIZON,
                parent_shard_ids=shard.parent_shard_ids if shard else (),
                hash_key_range=shard.hash_key_range if shard else None,
            )
        )
    return tuple(found)
