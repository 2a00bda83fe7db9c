"""
Who gets the leases without an owner: ``VarianceBasedLeaseAssignmentDecider`` of the KCL.

Rules: protocol.md §1.8, B1-B3. What is evened out afterwards the KCL chooses by chance, and is not
compared. Both are given the leases heaviest first; after a first difference the loads are not the
same any more, so of a case the first one counts.
"""

from dataclasses import dataclass

from shardfleet.domain.balance.by_count import WorkerView
from shardfleet.domain.balance.by_load import BalanceLimits, plan_by_load
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from tests.conformance.judge import Area, Deliberate

NOISE = 10.0  # per cent
CLOSE = 1e-9


def draw(chance):
    """Draw workers with what they report, and leases with their throughput."""
    names = [f"w{n}" for n in range(chance.randint(1, 5))]
    top = chance.choice((100, 100, 100, 12))
    metrics = chance.choice((["C"], ["C"], ["C", "M"]))
    workers = [[name, {each: _value(chance, top) for each in metrics}] for name in names]
    if len(metrics) > 1 and not chance.randrange(4):
        del chance.choice(workers)[1]["M"]
    count = chance.randint(1, 12)
    owners = [*names, None, None]
    heavy = chance.choice((0, 1000, 1000))
    leases = [
        [f"{n:02}", chance.choice(owners), float(chance.randint(0, heavy))] for n in range(count)
    ]
    leases.sort(key=lambda lease: (-lease[2], lease[0]))
    return {"workers": workers, "leases": leases, "most": chance.choice((3, 4, 100))}


def _value(chance, top):
    return (
        chance.choice((0.0, 20.0, 30.0))
        if not chance.randrange(6)
        else chance.randint(1, 100 * top) / 100
    )


def ours(case):
    """Return what the driver returns of the KCL's."""
    plan = plan_by_load(
        [
            Lease(
                lease_key=key, checkpoint=AT_TRIM_HORIZON, lease_owner=owner, throughput_kbps=rate
            )
            for key, owner, rate in case["leases"]
        ],
        expired=frozenset(),
        workers=[
            WorkerView(worker_id=name, leases_most=case["most"], utilisation=values)
            for name, values in case["workers"]
        ],
        limits=BalanceLimits(),
        rebalance=False,
    )
    given = [each for each in plan.assignments if each.lease.lease_owner is None]
    return {each.lease.lease_key: each.worker_id for each in given}


@dataclass(frozen=True)
class Difference:
    """The first lease that goes elsewhere, and what each worker reports with those before it."""

    case: dict
    ours: str | None
    theirs: str | None
    loads: dict

    @property
    def metrics(self):
        """Return the names of what is reported, by anybody."""
        return {name for values in self.loads.values() for name in values}

    @property
    def shares(self):
        """Return the load of either worker as a part of the average, where it is greatest."""
        averages = _averages(dict(self.case["workers"]))
        return [
            max(value / averages[name] for name, value in self.loads[worker].items())
            for worker in (self.ours, self.theirs)
        ]


def _averages(workers):
    found = {}
    for values in workers.values():
        for name, value in values.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) or 1.0 for name, values in found.items()}


def differences(case, our, their):
    """Yield the first difference."""
    loads = {name: dict(values) for name, values in case["workers"]}
    averages = _averages(loads)
    rates = {key: rate for key, _, rate in case["leases"]}
    target = sum(rates.values()) / len(loads)
    usual = max(1, len(rates) // len(loads))
    for key, owner, rate in case["leases"]:
        one, other = our.get(key), their.get(key)
        if owner is None and one != other:
            yield Difference(case, one, other, loads)
            return
        if owner is None and one is not None:
            for name in loads[one]:
                loads[one][name] += averages[name] * (rate / target if target else 1 / usual)


def _is_tie(found):
    if None in (found.ours, found.theirs):
        return False
    one, other = found.shares
    return abs(one - other) < CLOSE


def _is_idle(found):
    if None in (found.ours, found.theirs):
        return False
    chosen = {**found.loads[found.ours], **found.loads[found.theirs]}
    zero = [0.0 in found.loads[each].values() for each in (found.ours, found.theirs)]
    return bool(chosen) and any(zero) and not _is_partial(found) and not _is_noise(found)


def _is_noise(found):
    reported = [values for _, values in found.case["workers"]]
    return any(max(values.get(name, 0.0) for values in reported) < NOISE for name in found.metrics)


def _is_partial(found):
    return any(found.metrics - values.keys() for _, values in found.case["workers"])


AREA = Area(
    "assignment",
    draw,
    ours,
    differences,
    (
        Deliberate(
            "a metric that is below 10 % everywhere is noise",
            "protocol.md B2",
            _is_noise,
        ),
        Deliberate(
            "a metric counts if every worker has it; to the KCL, among those that have it",
            "protocol.md B2",
            _is_partial,
        ),
        Deliberate(
            "who does nothing is least loaded; to the KCL it has one part in hand, as at half",
            "protocol.md B3; WorkerMetricStats.computePercentageToReachAverage",
            _is_idle,
        ),
        Deliberate(
            "of equal loads the fewest leases, then the lower id; the KCL: any",
            "protocol.md A5; VarianceBasedLeaseAssignmentDecider, PriorityQueue",
            _is_tie,
        ),
    ),
)
