"""
What every worker has to do: the utilisation it reports, else its leases' throughput.

Rules: docs/protocol.md B1-B3 (§3.2, §3.3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import isfinite

from shardfleet.domain.balance.by_count import LeaseGroups, WorkerView
from shardfleet.domain.leases.lease import Lease

THROUGHPUT = "throughput"
# What is below these is noise: a fleet in which nobody has more to do is evened out by count.
UTILISATION_LEAST = 10.0  # per cent
THROUGHPUT_LEAST = 1.0  # KB/s per worker
_LIGHTEST_KEPT = 64


def throughputs(leases: Sequence[Lease]) -> dict[str, float]:
    """Return KB/s of each unfinished lease; unknown is the average of what is known (§3.2)."""
    unfinished = [lease for lease in leases if not lease.is_finished]
    known = {
        lease.lease_key: rate
        for lease in unfinished
        if (rate := lease.throughput_kbps) is not None and isfinite(rate) and rate >= 0
    }
    usual = average(known) if known else 0.0
    return {lease.lease_key: known.get(lease.lease_key, usual) for lease in unfinished}


def measured(
    groups: LeaseGroups, rates: Mapping[str, float], workers: Sequence[WorkerView]
) -> dict[str, dict[str, float]]:
    """Return worker to value by metric: each utilisation that all workers tell, throughput."""
    if not workers:
        return {}
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for worker in workers:
        for name, value in worker.utilisation.items():
            if isfinite(value):
                found[name][worker.worker_id] = max(0.0, value)
    told = {name: found[name] for name in sorted(found) if len(found[name]) == len(workers)}
    held = {w.worker_id: groups.held(w.worker_id) for w in workers}
    return told | {THROUGHPUT: {w: sum(rates[le.lease_key] for le in held[w]) for w in held}}


def known_metrics(found: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return of what is measured what to compare: utilisation, else throughput, else none (B2)."""
    known = {name: found[name] for name in found if max(found[name].values()) >= _least(name)}
    return {name: known[name] for name in known if name != THROUGHPUT} or known


def at_work(found: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return who is next to having something to do: beyond half of what is noise (B10)."""
    return {w for name in found for w, v in found[name].items() if v > _least(name) / 2}


def _least(name: str) -> float:
    return THROUGHPUT_LEAST if name == THROUGHPUT else UTILISATION_LEAST


def average(values: Mapping[str, float]) -> float:
    """Return the mean of a metric's values."""
    return sum(values.values()) / len(values)


class WorkerLoads:
    """
    What every worker has to do, as it will be once the plan so far is carried out.

    Attributes:
        rates: KB/s by lease key.
        metrics: metric to worker to value; all workers have all metrics.
        averages: of each metric over the workers.
        levels: what differences are compared with: the average, or what is noise if that is more.
        counts: worker to how many leases it has.
        rate_of: worker to the KB/s of its leases.
        moved: keys of leases that the plan moves.

    """

    def __init__(
        self,
        groups: LeaseGroups,
        rates: Mapping[str, float],
        *,
        workers: Sequence[WorkerView],
        metrics: dict[str, dict[str, float]],
    ) -> None:
        """Begin with what the workers hold; see :func:`known_metrics`."""
        self.rates = rates
        self.metrics = metrics
        self.most = {w.worker_id: w.leases_most for w in workers}
        self.counts = {w: groups.load[w] for w in sorted(self.most)}
        self.rate_of = {w: sum(rates[le.lease_key] for le in groups.held(w)) for w in self.counts}
        self.averages = {name: average(values) for name, values in metrics.items()}
        self.levels = {name: max(_least(name), found) for name, found in self.averages.items()}
        every = sum(self.rate_of.values()) + sum(rates[le.lease_key] for le in groups.free)
        leases = sum(self.counts.values()) + len(groups.free)
        self._target_rate = every / len(self.counts)
        self._target_count = max(1, leases // len(self.counts))
        self.moved: set[str] = set()
        self._lightest: list[str] = []
        self._queue = [self._rank(w) for w in self.counts]
        heapify(self._queue)

    def share(self, worker_id: str) -> float:
        """Return the load as a part of the fleet's average, of the metric where it is greatest."""
        return max(values[worker_id] / self.averages[name] for name, values in self.metrics.items())

    def least_loaded(self, besides: str | None = None) -> str | None:
        """Return who has room and least to do, ties by count and id; None if nobody has."""
        queue, again = self._queue, None
        while queue:
            rank = queue[0]
            worker_id = rank[-1]
            if rank != self._rank(worker_id) or self.counts[worker_id] >= self.most[worker_id]:
                heappop(queue)  # It has changed since, and stands elsewhere in the queue.
            elif worker_id == besides:
                again = heappop(queue)
            else:
                break
        chosen = queue[0][-1] if queue else None
        if again is not None:
            heappush(queue, again)
        return chosen

    def lightest(self, most: int, *, besides: str) -> list[str]:
        """Return some workers with little to do, the least loaded first, whether they have room."""
        if not self._lightest:
            self._lightest = sorted(self.counts, key=self._rank)[:_LIGHTEST_KEPT]
        return sorted((w for w in self._lightest if w != besides), key=self._rank)[:most]

    def _rank(self, worker_id: str) -> tuple[float, int, str]:
        return self.share(worker_id), self.counts[worker_id], worker_id

    def give(self, worker_id: str, lease: Lease) -> None:
        """Count a free lease, whose cost nobody has measured: by its part of the average (§3.3)."""
        rate = self.rates[lease.lease_key]
        part = rate / self._target_rate if self._target_rate > 0 else 1 / self._target_count
        for name, values in self.metrics.items():
            values[worker_id] += part * self.averages[name]
        self.rate_of[worker_id] += rate
        self.counts[worker_id] += 1
        heappush(self._queue, self._rank(worker_id))

    def cost(self, name: str, donor: str, lease: Lease) -> float:
        """Return what a lease costs its owner, by its part of the owner's throughput."""
        value, rate = self.metrics[name][donor], self.rate_of[donor]
        if rate > 0:
            return value * self.rates[lease.lease_key] / rate
        return value / max(1, self.counts[donor])

    def move(self, lease: Lease, donor: str, receiver: str) -> None:
        """Count a lease for another worker."""
        costs = {name: self.cost(name, donor, lease) for name in self.metrics}
        for name, cost in costs.items():
            self.metrics[name][donor] -= cost
            self.metrics[name][receiver] += cost
        self.moved.add(lease.lease_key)
        rate = self.rates[lease.lease_key]
        self.rate_of[donor] -= rate
        self.rate_of[receiver] += rate
        self.counts[donor] -= 1
        self.counts[receiver] += 1
        heappush(self._queue, self._rank(donor))
        heappush(self._queue, self._rank(receiver))
