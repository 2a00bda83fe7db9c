"""
Who gets which lease by load: free leases to the least loaded worker, then an evening out.

What counts as load is what is known: the utilisation that every worker reports, else the leases'
throughput, else their number (:func:`shardfleet.domain.balance.by_count.plan_by_number`). Rules:
docs/protocol.md B1-B8 (§3.2, §3.3; KCL ``VarianceBasedLeaseAssignmentDecider``), with two
differences: a lease goes only where it makes the fleet more even, so that one heavy shard is not
passed around; and the choice is by size instead of chance, so that few leases move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from shardfleet.domain.balance.by_count import (
    NOTHING_PAUSED,
    Assignment,
    AssignmentKind,
    AssignmentPlan,
    LeaseGroups,
    WorkerView,
    in_key_order,
    leaving_among,
    plan_by_number,
)
from shardfleet.domain.balance.worker_loads import (
    THROUGHPUT,
    WorkerLoads,
    at_work,
    known_metrics,
    measured,
    throughputs,
)
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.reasons import (
    ExchangedToEvenOut,
    LeastLoaded,
    MovedToEvenOut,
    NoWorkerHasRoom,
    Reason,
)

# A move must bring donor and receiver closer by this part of the average. It keeps rounding, and
# leases that are as large as the difference, from moving to and fro.
GAIN_LEAST = 0.02
# An exchange is tried with so many of the lightest workers, and not where one has more leases than
# this: each pair is looked at.
EXCHANGED_WITH_MOST = 3
EXCHANGED_LEASES_MOST = 32


class BalanceLimits(Struct, frozen=True, kw_only=True):
    """
    When and how far to even out; the defaults are the KCL's (protocol.md §3.1).

    Attributes:
        threshold: part of the average by which a worker may differ (``reBalanceThreshold``).
        dampening: part of a surplus that is moved at once (``dampeningPercentage``).
        operating_most: per cent of utilisation above which a worker gives something away.

    """

    threshold: float = 0.10
    dampening: float = 0.60
    operating_most: float = 100.0


def plan_by_load(
    leases: Sequence[Lease],
    *,
    expired: frozenset[str],
    workers: Sequence[WorkerView],
    limits: BalanceLimits,
    rebalance: bool,
    paused: Mapping[str, Reason] = NOTHING_PAUSED,
) -> AssignmentPlan:
    """
    Give free leases to the least loaded workers; in a balancing run, even out the others.

    Args:
        leases: all leases of the table, with their throughput as far as it is known.
        expired: keys of owned leases whose owner is lost.
        workers: who may be given leases; other owners' healthy leases are left alone.
        limits: when and how far to even out.
        rebalance: this is a balancing run.
        paused: key and reason of leases that nobody is to have.

    """
    groups = LeaseGroups(leases, expired, paused, leaving=leaving_among(workers))
    rates = throughputs(leases)
    staying = [worker for worker in workers if not worker.leaves]
    found = measured(groups, rates, staying)
    metrics = known_metrics(found)
    if not metrics:
        return plan_by_number(groups, workers, busy=at_work(found))
    loads = WorkerLoads(groups, rates, workers=staying, metrics=metrics)
    assignments, left = _place(groups, loads)
    if rebalance:
        assignments += _even_out(groups, loads, limits)
    return AssignmentPlan(tuple(assignments), in_key_order(groups.waiting | left))


def _place(groups: LeaseGroups, loads: WorkerLoads) -> tuple[list[Assignment], dict[str, Reason]]:
    """Give the free leases away, the largest first, each to the least loaded worker (B3)."""
    assignments: list[Assignment] = []
    left: dict[str, Reason] = {}
    for lease in sorted(groups.free, key=lambda le: (-loads.rates[le.lease_key], le.lease_key)):
        chosen = loads.least_loaded()
        if chosen is None:
            if groups.kind(lease) is not AssignmentKind.STEAL:
                left[lease.lease_key] = NoWorkerHasRoom()
            continue
        reason = LeastLoaded(_percent(loads.share(chosen)))
        assignments.append(groups.given(lease, chosen, reason))
        loads.give(chosen, lease)
    return assignments, left


class _Surplus(Struct, frozen=True):
    """What donors should give away, in KB/s, as far as one metric says (B5)."""

    metric: str
    is_beyond: bool  # a worker is beyond the upper limit, not merely the others below the lower
    amounts: tuple[tuple[float, str], ...]

    @property
    def total(self) -> float:
        return sum(amount for amount, _ in self.amounts)


def _surplus(name: str, loads: WorkerLoads, limits: BalanceLimits) -> _Surplus | None:
    """Return what should move by one metric, None if all are within the limits (B4, B5)."""
    values, average, level = loads.metrics[name], loads.averages[name], loads.levels[name]
    upper, lower = level * (1 + limits.threshold), level * (1 - limits.threshold)
    range_most = limits.operating_most if name != THROUGHPUT else float("inf")
    beyond = [w for w, value in values.items() if value > min(upper, range_most)]
    if not beyond and all(value >= lower for value in values.values()):
        return None
    donors = beyond or [max(sorted(values), key=lambda w: values[w])]
    amounts = []
    for worker_id in donors:
        value = values[worker_id]
        part = max(0.0, value - average) / value * limits.dampening if value > 0 else 0.0
        amounts.append((part * loads.rate_of[worker_id], worker_id))
    return _Surplus(name, bool(beyond), tuple(sorted(amounts, key=lambda a: (-a[0], a[1]))))


def _even_out(groups: LeaseGroups, loads: WorkerLoads, limits: BalanceLimits) -> list[Assignment]:
    """Move leases by the metric that asks for most (B5-B8)."""
    found = [s for name in loads.metrics if (s := _surplus(name, loads, limits)) is not None]
    if not found:
        return []
    surplus = max(found, key=lambda s: (s.total, s.metric))
    gain = (GAIN_LEAST if surplus.is_beyond else limits.threshold) * loads.levels[surplus.metric]
    moves: list[Assignment] = []
    for amount, donor in surplus.amounts:
        movable = sorted(
            (le for le in groups.movable(donor) if le.lease_key not in loads.moved),
            key=lambda le: (
                -loads.rates[le.lease_key],
                le.owner_switches_since_checkpoint,
                le.lease_key,
            ),
        )
        if loads.rate_of[donor] > 0:
            # What carries nothing now changes nothing by moving.
            movable = [lease for lease in movable if loads.rates[lease.lease_key] > 0]
        left, begun = amount, len(moves)
        for lease in movable:
            if 0 < loads.rates[lease.lease_key] <= left and (
                move := _move(lease, donor, surplus.metric, loads=loads, gain=gain)
            ):
                moves.append(move)
                left -= loads.rates[lease.lease_key]
        if len(moves) == begun and movable:
            # Nothing fits: the smallest may overshoot (``allowThroughputOvershoot``).
            move = _move(movable[-1], donor, surplus.metric, loads=loads, gain=gain)
            moves += [move] if move else []
        if len(moves) == begun and surplus.is_beyond:
            moves += _exchanges(groups, loads, surplus.metric, donor=donor, amount=amount)
    return moves


def _exchanges(
    groups: LeaseGroups, loads: WorkerLoads, metric: str, *, donor: str, amount: float
) -> list[Assignment]:
    """
    Exchange leases for lesser ones of light workers, where no single move helps (B9).

    So where the donor has nothing small enough left, or nobody has room. Each time the pair that
    leaves the greater of the two workers with least.
    """
    values, gain = loads.metrics[metric], GAIN_LEAST * loads.levels[metric]
    moves: list[Assignment] = []
    left = amount
    while left > 0:
        pairs = [
            (greater, mine.lease_key, theirs.lease_key, mine, theirs, receiver)
            for receiver in loads.lightest(EXCHANGED_WITH_MOST, besides=donor)
            for mine in _exchangeable(groups, loads, donor)
            for theirs in _exchangeable(groups, loads, receiver)
            if (greater := _greater(loads, metric, {donor: mine, receiver: theirs}))
            <= values[donor] - gain
        ]
        if not pairs:
            break
        *_, mine, theirs, receiver = min(pairs, key=lambda pair: pair[:3])
        before = _uneven(loads, metric, donor=donor, receiver=receiver)
        for lease, taker, other in ((mine, receiver, theirs), (theirs, donor, mine)):
            reason = ExchangedToEvenOut(*before, other.lease_key)
            moves.append(Assignment(lease, taker, AssignmentKind.STEAL, reason))
        loads.move(mine, donor, receiver)
        loads.move(theirs, receiver, donor)
        left -= loads.rates[mine.lease_key] - loads.rates[theirs.lease_key]
    return moves


def _exchangeable(groups: LeaseGroups, loads: WorkerLoads, owner: str) -> list[Lease]:
    """Return what may be exchanged; nothing where there is so much that single moves suffice."""
    found = [lease for lease in groups.movable(owner) if lease.lease_key not in loads.moved]
    return found if len(found) <= EXCHANGED_LEASES_MOST else []


def _greater(loads: WorkerLoads, metric: str, exchanged: Mapping[str, Lease]) -> float:
    """Return the load of the more loaded of two workers once they have exchanged these leases."""
    (one, other), values = exchanged, loads.metrics[metric]
    shift = loads.cost(metric, one, exchanged[one]) - loads.cost(metric, other, exchanged[other])
    return max(values[one] - shift, values[other] + shift)


def _move(
    lease: Lease, donor: str, metric: str, *, loads: WorkerLoads, gain: float
) -> Assignment | None:
    """Move one lease to the least loaded worker with room, if that evens the two out (B7)."""
    receiver = loads.least_loaded(besides=donor)
    if receiver is None:
        return None
    values, cost = loads.metrics[metric], loads.cost(metric, donor, lease)
    if values[receiver] + cost > values[donor] - gain:
        return None
    share = _percent(cost / loads.averages[metric])
    reason = MovedToEvenOut(*_uneven(loads, metric, donor=donor, receiver=receiver), share)
    loads.move(lease, donor, receiver)
    return Assignment(lease, receiver, AssignmentKind.STEAL, reason)


def _uneven(
    loads: WorkerLoads, metric: str, *, donor: str, receiver: str
) -> tuple[str, str, int, str, int]:
    """Return the facts of a :class:`~shardfleet.domain.reasons.LoadedMore`."""
    values, average = loads.metrics[metric], loads.averages[metric]
    percent, less = (_percent(values[worker] / average) for worker in (donor, receiver))
    return metric, donor, percent, receiver, less


def _percent(part: float) -> int:
    return round(100 * part)
