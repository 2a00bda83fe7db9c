"""
What came of a run beside the Java KCL: what was fed, what each side was given, who owned what when.

A side is "java" or "fleet". An owner is the lease's ``checkpointOwner``, which goes on reading
until a handover is over, else its ``leaseOwner`` (protocol.md §3.4).
"""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

JAVA, FLEET = SIDES = "java", "fleet"
# Between two looks at the table, and from a delivery to its line, on a busy machine.
SLACK_MS = 1_500
# The KCL hears of a forced take at its next renewal (§1.7), and so do our workers.
RENEWAL_MS = 3_308


class Delivery(NamedTuple):
    """One call of one side's consumer; positions are (sequence number, sub-sequence number)."""

    at_ms: int
    side: str
    shard: str
    positions: tuple[tuple[int, int], ...]


class Look(NamedTuple):
    """A lease as it was first seen by a look that began and ended then."""

    began_ms: int
    ended_ms: int
    owner: str | None
    checkpoint_owner: str | None

    @property
    def effective(self):
        return self.checkpoint_owner or self.owner


@dataclass
class Found:
    """The figures; `repeated` is by why, anything beyond `EXPLAINED` is a fault."""

    sent: int
    delivered: Counter
    lost: int
    out_of_order: int
    non_owner: list
    repeated: Counter
    examples: list = field(default_factory=list)

    EXPLAINED = frozenset({"taken by force"})

    @property
    def is_good(self):
        return not (
            self.lost
            or self.out_of_order
            or self.non_owner
            or self.repeated.keys() - self.EXPLAINED
            or sum(self.delivered.values()) - self.repeated.total() != self.sent - self.lost
        )


def judge(sent, deliveries, history, *, java):
    """
    Compare what was fed with what was delivered.

    Args:
        sent: (partition key, shard, position) of each record.
        deliveries: of both sides, each side's in the order in which it made them.
        history: shard to its looks, in order, one for each change of an owner.
        java: worker ids of the Java side; every other owner is the fleet's.

    """
    deliveries = sorted(deliveries, key=lambda each: each.at_ms)
    keys = {(shard, position): key for key, shard, position in sent}
    times = defaultdict(list)
    newest, out_of_order, examples = {}, 0, []
    delivered = Counter(dict.fromkeys(SIDES, 0))
    for each in deliveries:
        delivered[each.side] += len(each.positions)
        for position in each.positions:
            record = each.shard, position
            if record not in times:
                key = each.shard, keys.get(record)
                if newest.get(key, (0, 0)) > position:
                    out_of_order += 1
                newest[key] = max(position, newest.get(key, (0, 0)))
            times[record].append(each.at_ms)
    repeated = Counter()
    for (shard, position), at in times.items():
        for first_ms, again_ms in itertools.pairwise(at):
            why = _why_again(history.get(shard, ()), first_ms, again_ms)
            repeated[why] += 1
            if why not in Found.EXPLAINED and len(examples) < 5:
                examples.append(f"{shard} {position} at {first_ms} and {again_ms}: {why}")
    strangers = [each for each in deliveries if not _owned(each, history, java)]
    unknown = times.keys() - keys.keys()
    if unknown:
        repeated["never fed"] += len(unknown)
    return Found(
        sent=len(keys),
        delivered=delivered,
        lost=len(keys.keys() - times.keys()),
        out_of_order=out_of_order,
        non_owner=strangers,
        repeated=+repeated,
        examples=examples,
    )


def side_of(owner, java):
    """Return whose worker an owner is; None if there is none."""
    return None if owner is None else JAVA if owner in java else FLEET


def forced(looks):
    """Return when an owner changed that neither gave the lease away nor handed it over."""
    for before, after in itertools.pairwise(looks):
        if before.effective in (None, after.effective) or after.effective is None:
            continue
        if before.checkpoint_owner is None:
            yield before, after


def _why_again(looks, first_ms, again_ms):
    """Say why a record came again: its lease was taken in between from who had it."""
    for _, after in forced(looks):
        if first_ms - SLACK_MS - RENEWAL_MS <= after.ended_ms <= again_ms + SLACK_MS:
            return "taken by force"
    return "unexplained"


def _owned(delivery, history, java):
    """Tell whether the side had the lease, or had just lost it by force (§1.7)."""
    looks = history.get(delivery.shard, ())
    seized = {id(before) for before, _ in forced(looks)}
    for look, following in zip(looks, [*looks[1:], None], strict=True):
        if side_of(look.effective, java) != delivery.side:
            continue
        late_ms = SLACK_MS + (RENEWAL_MS if id(look) in seized else 0)
        ends_ms = following.ended_ms + late_ms if following else delivery.at_ms
        if look.began_ms - SLACK_MS <= delivery.at_ms <= ends_ms:
            return True
    return False


def moves(history, *, from_ms, to_ms):
    """Return how many times an owner changed to another one in this time."""
    return sum(
        after.owner != before.owner and from_ms <= after.ended_ms < to_ms
        for looks in history.values()
        for before, after in itertools.pairwise(looks)
    )


def share(history, *, at_ms, java):
    """Return how many leases each side had at a time, None for those that nobody had."""
    found = Counter(dict.fromkeys(SIDES, 0))
    for looks in history.values():
        last = [look for look in looks if look.began_ms <= at_ms][-1:]
        found.update(side_of(look.effective, java) for look in last)
    return found
