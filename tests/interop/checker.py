"""
What came of a run beside the Java KCL: what was fed, what each side was given, who owned what when.

A side is "java" or "fleet". An owner is the lease's ``checkpointOwner``, which goes on reading
until a handover is over, else its ``leaseOwner`` (protocol.md §3.4).
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

JAVA, FLEET = SIDES = "java", "fleet"
# From a delivery to its line, on a busy machine.
SLACK_MS = 1_500
# An owner whose counter stands still for so long has lost its lease (``failoverTimeMillis``).
FAILOVER_MS = 10_000
# On a machine that keeps up nobody is late by so much, and no owner that lives lets one expire.
LATE_MS = 1_000
# The KCL hears of a forced take at its next renewal (§1.7), and so do our workers.
RENEWAL_MS = 3_308
# Both sides checkpoint each call; what was delivered longer before a kill is not due to it.
UNCHECKPOINTED_MS = 10_000
# A KCL 2 knows no handover: the other side takes a lease from it while it reads (§1.8).
STOLEN, KILLED = "stolen, as a KCL 2 expects", "its owner was killed"
EXPIRED = "its owner stood still, with the machine"


class Delivery(NamedTuple):
    """One call of one side's consumer; positions are (sequence number, sub-sequence number)."""

    at_ms: int
    side: str
    shard: str
    positions: tuple[tuple[int, int], ...]


class Look(NamedTuple):
    """
    A lease as a write left it that changed who has it.

    Attributes:
        at_ms: when it was written.
        owner: ``leaseOwner``.
        checkpoint_owner: who reads it until a handover is over.
        is_finished: its shard has been read to the end.
        still_ms: how long its counter had stood still before.

    """

    at_ms: int
    owner: str | None
    checkpoint_owner: str | None
    is_finished: bool = False
    still_ms: int = 0

    @property
    def owners(self):
        return self.owner, self.checkpoint_owner, self.is_finished

    @property
    def effective(self):
        return self.checkpoint_owner or self.owner


class End(NamedTuple):
    """When we ended workers, which, and whether by kill -9; a worker is known by its id."""

    at_ms: int
    side: str
    workers: frozenset[str]
    is_kill: bool = True


@dataclass
class Found:
    """The figures; `faults` says what of them must not be."""

    sent: int
    delivered: Counter
    lost: int
    out_of_order: int
    non_owner: list
    robbed: list
    expired: list
    repeated: Counter
    faults: list = field(default_factory=list)

    @property
    def is_good(self):
        return not self.faults


@dataclass(frozen=True, kw_only=True)
class Run:
    """
    What was seen.

    Args:
        sent: (partition key, shard, position) of each record, in the order of the stream.
        deliveries: of both sides, each side's in the order in which it made them.
        history: shard to its looks, in order, one for each change of an owner.
        java: worker ids of the Java side; every other owner is the fleet's.
        ends: of workers that we ended.
        steals: the Java side is a KCL 2, with which leases change hands by force.
        late_ms: how late the watcher was at most, which shows whether the machine kept up.

    """

    sent: list
    deliveries: list
    history: dict
    java: frozenset
    ends: tuple[End, ...] = ()
    steals: bool = False
    late_ms: int = 0


def judge(run):
    """Compare what was fed with what was delivered, by whom."""
    keys = {
        (shard, position): (key, number) for number, (key, shard, position) in enumerate(run.sent)
    }
    deliveries = sorted(run.deliveries, key=lambda each: each.at_ms)
    times, newest, out_of_order = defaultdict(list), {}, []
    delivered = Counter(dict.fromkeys(SIDES, 0))
    for each in deliveries:
        delivered[each.side] += len(each.positions)
        for position in each.positions:
            record = each.shard, position
            key, number = keys.get(record, (None, -1))
            if record not in times and key is not None:
                if newest.get(key, -1) > number:
                    out_of_order.append(record)
                newest[key] = max(number, newest.get(key, -1))
            times[record].append((each.at_ms, each.side))
    found = Found(
        sent=len(keys),
        delivered=delivered,
        lost=len(keys.keys() - times.keys()),
        out_of_order=len(out_of_order),
        non_owner=[each for each in deliveries if not _owned(each, run)],
        robbed=list(_robbed(run, of_still=False)),
        expired=list(_robbed(run, of_still=True)),
        repeated=Counter(),
    )
    found.faults += _faults(found)
    if run.late_ms < LATE_MS:
        found.faults += [f"expired though the machine kept up: {each}" for each in found.expired]
    for (shard, position), at in times.items():
        if (shard, position) not in keys:
            found.faults.append(f"never fed: {shard} {position}")
        for first, again in itertools.pairwise(at):
            why = _why_again(run, shard, first, again)
            found.repeated[why or "unexplained"] += 1
            if not why:
                found.faults.append(f"unexplained repeat: {shard} {position}: {first}, {again}")
    return found


def _faults(found) -> Iterator[str]:
    if found.lost:
        yield f"lost: {found.lost} records"
    if found.out_of_order:
        yield f"out of order: {found.out_of_order} records"
    yield from (f"not its owner's: {each!r:.150}" for each in found.non_owner)
    yield from (f"taken from a worker that lives: {each}" for each in found.robbed)


def side_of(owner, java):
    """Return whose worker an owner is; None if there is none."""
    return None if owner is None else JAVA if owner in java else FLEET


def forced(looks):
    """Return when an owner changed that neither gave the lease away nor handed it over."""
    for before, after in itertools.pairwise(looks):
        if before.is_finished or None in (before.effective, after.effective):
            continue
        if before.effective == after.effective:
            continue
        if before.checkpoint_owner is None:
            yield before, after


def _robbed(run, *, of_still):
    """
    Return what was taken by force from workers that we had not ended, where none steals.

    Of those that had stood still for the failover time it may be taken (§1.7, E3); of others not.
    """
    if run.steals:
        return
    for shard, looks in run.history.items():
        for before, after in forced(looks):
            by = after.at_ms + SLACK_MS
            is_ended = any(
                before.effective in each.workers and each.at_ms <= by for each in run.ends
            )
            if not is_ended and (after.still_ms > FAILOVER_MS) == of_still:
                yield (
                    f"{shard} from {before.effective} by {after.effective} at {after.at_ms}, "
                    f"renewed {after.still_ms} ms before"
                )


def _why_again(run, shard, first, again):
    """Say why a record came again: its owner was killed, stood still, or robbed as is custom."""
    (first_ms, side), (again_ms, _) = first, again
    for end in run.ends:
        since_ms = end.at_ms - first_ms
        is_of_it = -SLACK_MS <= since_ms <= UNCHECKPOINTED_MS and end.at_ms <= again_ms
        if end.is_kill and end.side == side and is_of_it:
            return KILLED
    for _, after in forced(run.history.get(shard, ())):
        if first_ms - SLACK_MS - RENEWAL_MS <= after.at_ms <= again_ms + SLACK_MS:
            if run.steals:
                return STOLEN
            if after.still_ms > FAILOVER_MS:
                return EXPIRED
    return ""


def _owned(delivery, run):
    """Tell whether the side had the lease, or had just lost it by force (§1.7)."""
    looks = run.history.get(delivery.shard, ())
    seized = {id(before) for before, _ in forced(looks)}
    for look, following in zip(looks, [*looks[1:], None], strict=True):
        if side_of(look.effective, run.java) != delivery.side:
            continue
        late_ms = SLACK_MS + (RENEWAL_MS if id(look) in seized else 0)
        ends_ms = following.at_ms + late_ms if following else delivery.at_ms
        if look.at_ms - SLACK_MS <= delivery.at_ms <= ends_ms:
            return True
    return False


def begins_ms(run, side):
    """Return how long after each lease that a side got of the other it was first given records."""
    found = []
    for shard, looks in run.history.items():
        mine = [each.at_ms for each in run.deliveries if (each.side, each.shard) == (side, shard)]
        for before, after, following in zip(looks, looks[1:], [*looks[2:], None], strict=False):
            sides = [side_of(each.effective, run.java) for each in (before, after)]
            if sides[1] != side or sides[0] in (None, side) or after.is_finished:
                continue
            until_ms = following.at_ms if following else math.inf
            its = (at_ms for at_ms in mine if after.at_ms <= at_ms < until_ms)
            found.append(min(its, default=until_ms) - after.at_ms)
    return found


def moves(history, *, from_ms, to_ms):
    """Return how many times an unfinished lease came from one owner to another in this time."""
    return sum(
        after.owner != before.owner
        and None not in (before.owner, after.owner)
        and not after.is_finished
        and from_ms <= after.at_ms < to_ms
        for looks in history.values()
        for before, after in itertools.pairwise(looks)
    )


def given(history, side, *, java, from_ms, to_ms):
    """Return the shards that a side came to own, or was to own, in this time."""
    return sorted(
        shard
        for shard, looks in history.items()
        if any(
            side_of(look.owner, java) == side and not look.is_finished
            for look in looks
            if from_ms <= look.at_ms < to_ms
        )
    )


def takeovers_ms(history, end):
    """Return shard to how long after their owners' end a lease had a living one; None: never."""
    found = {}
    for shard, looks in history.items():
        before = [look for look in looks if look.at_ms <= end.at_ms][-1:]
        if not before or before[0].is_finished or before[0].effective not in end.workers:
            continue
        after = (look for look in looks if look.at_ms > end.at_ms)
        found[shard] = next(
            (
                look.at_ms - end.at_ms
                for look in after
                if look.is_finished or (look.effective and look.effective not in end.workers)
            ),
            None,
        )
    return found
