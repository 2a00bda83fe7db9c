"""
Which finished leases are deleted: ``LeaseCleanupManager.cleanupLease`` of the KCL.

Rules: protocol.md §4.8. All is decided on one table, the KCL's two intervals over.
"""

from dataclasses import dataclass

from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.stream.shards import ShardGraph
from tests.conformance.judge import Area, Deliberate
from tests.conformance.tables import INITIAL, draw_leases, draw_stream, leases_of, shards_of, told


def draw(chance):
    """Draw a stream, a listing of it, what the service says of each shard, and leases."""
    stream = draw_stream(chance)
    listing = stream.listing()
    leases = draw_leases(chance, stream, chance.choice(INITIAL))
    if listing and not chance.randrange(4):
        listing.pop(chance.randrange(len(listing)))
    graph = ShardGraph(stream.shards.values())
    children = {s.shard_id: list(graph.children(s.shard_id)) for s in stream.listing()}
    kept = {lease[0] for lease in leases}
    done = [key for key, shard in stream.shards.items() if not shard.is_open and key not in kept]
    return {
        "shards": told(listing),
        "leases": leases,
        "children": children,
        "done": [key for key in done if not chance.randrange(4)],
    }


def ours(case):
    """Return what the driver returns of the KCL's."""
    plan = plan_lease_cleanup(shards_of(case), leases_of(case), finished=case["done"])
    decisions = {key: [False, []] for key, at, *_ in case["leases"] if at == "SHARD_END"}
    for gone in plan.delete:
        decisions[gone.lease.lease_key] = [True, []]
    for lease, children in plan.learn_children:
        decisions[lease.lease_key][1] = list(children)
    return decisions


@dataclass(frozen=True)
class Difference:
    """One finished lease that one side deletes, or whose children one side learns."""

    case: dict
    key: str
    ours: list
    theirs: list

    @property
    def is_gone(self):
        """Tell whether the service does not know the shard any more."""
        return self.key not in self.case["children"]

    @property
    def stored(self):
        """Return the children that the lease names."""
        return next(lease[3] for lease in self.case["leases"] if lease[0] == self.key)


def differences(case, our, their):
    """Yield each lease; what is learned of a deleted one is nobody's concern."""
    for key in our.keys() | their.keys():
        one, other = our.get(key), their.get(key)
        if one is None or other is None or one[0] != other[0] or (not one[0] and one != other):
            yield Difference(case, key, one, other)


def _is_garbage(found):
    return found.is_gone and found.theirs[0] and not found.ours[0]


def _is_not_covered(found):
    known = set(found.case["children"].get(found.key, ()))
    shown = {each[0] for name in ("shards", "leases") for each in found.case[name]}
    return (
        not found.stored
        and not found.ours[0]
        and not found.ours[1]
        and found.theirs[1] == sorted(known)
        and not known <= shown
    )


def _is_child_done_with(found):
    children = found.stored or found.case["children"].get(found.key, ())
    return found.ours[0] and not found.theirs[0] and bool({*children} & {*found.case["done"]})


AREA = Area(
    "cleanup",
    draw,
    ours,
    differences,
    (
        Deliberate(
            "a shard that the service does not know: kept for its parents and children",
            "protocol.md C2-C5; LeaseCleanupManager.cleanupLeaseForGarbageShard deletes it",
            _is_garbage,
        ),
        Deliberate(
            "neither listing nor leases show all children: nothing is learned of them",
            "protocol.md C3; the KCL asks the service for the children",
            _is_not_covered,
        ),
        Deliberate(
            "a child without a lease that is done with does not hold its parent's",
            "protocol.md C4, S11; the KCL keeps it for good",
            _is_child_done_with,
        ),
    ),
)
