"""
What the balancing compares, smoothed over turns: throughput of leases, utilisation of workers.

What is measured looks back some seconds, and so varies from one look to the next; whoever
compared that would move leases to and fro. Rule: docs/protocol.md B2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite

from msgspec import Struct, field
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import Slot
from shardfleet.domain.slots.usage import UNKNOWN, Usage

# A lease's own average looks back some 10 s (alpha 0.5 over renewal intervals). Leases move for
# minutes at least, so what is compared looks back some 80 s (alpha 0.25 over 20 s turns).
_SMOOTHING = 0.25
# What a slot tells looks back as little, and is the sum of all that its handler does: some 160 s.
_USE_SMOOTHING = 0.125
# Beyond this change of a worker's throughput, what it used before says nothing of what it uses now.
_COMPARABLE_MOST = 2.0
_FINE, _FULL = 1_000, 1_000_000


class WorkerUse(Struct, frozen=True, array_like=True):
    """
    What a worker uses, smoothed, and what it reads for that; a row of the manager's documents.

    Attributes:
        rate: bytes per second of its leases.
        busy: millionths of its time, so that rounding stops no average short; -1 unknown.
        cpu: of its CPU, likewise.

    """

    rate: int
    busy: int = UNKNOWN
    cpu: int = UNKNOWN

    @property
    def usage(self) -> Usage:
        """Return it in thousandths, as a slot tells it."""
        return Usage(*(v if v == UNKNOWN else round(v / _FINE) for v in (self.busy, self.cpu)))


class Loads(Struct, frozen=True):
    """
    What is compared, smoothed over turns.

    Attributes:
        leases: bytes per second by lease key, where known.
        workers: by worker id, of those that run.

    """

    leases: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, WorkerUse] = field(default_factory=dict)

    def of_leases(self, leases: Sequence[Lease]) -> list[Lease]:
        """Return the leases with their throughput as smoothed."""
        return [
            replace(lease, throughput_kbps=self.leases[lease.lease_key] / 1024)
            if lease.lease_key in self.leases
            else lease
            for lease in leases
        ]

    def of_slot(self, slot: Slot) -> Slot:
        """Return the slot with its utilisation as smoothed."""
        found = self.workers.get(slot.worker_id)
        if found is None:
            return slot
        return replace(slot, busy=found.usage.busy, cpu=found.usage.cpu)


def smoothed(previous: Loads, leases: Sequence[Lease], told: Mapping[str, Usage]) -> Loads:
    """
    Smooth what is measured.

    A worker is expected to use more for a lease that it was given, and less without one that was
    taken from it, by the lease's part of the throughput: what has moved counts at once.

    Args:
        previous: of the turn before.
        leases: all leases, with their throughput as measured.
        told: what each running worker tells that it uses.

    """
    rates = _smoothed_rates(previous.leases, leases)
    held: Counter[str] = Counter()
    held_before: Counter[str] = Counter()  # The same leases, at the rates of the turn before.
    for lease in leases:
        key, owner = lease.lease_key, lease.lease_owner or ""
        if key in rates:
            held[owner] += rates[key]
            held_before[owner] += previous.leases.get(key, rates[key])
    workers = {}
    for worker_id, usage in told.items():
        before, rate = previous.workers.get(worker_id), held[worker_id]
        if before is not None and _is_comparable(before.rate, rate):
            before = _as_expected(before, held_before[worker_id])
        else:
            before = WorkerUse(rate)
        busy, cpu = before.busy, before.cpu
        # In the first seconds of its turn a worker tells nothing: no reason to compare all of them
        # by something else.
        if usage != Usage():
            busy, cpu = _between(busy, usage.busy), _between(cpu, usage.cpu)
        workers[worker_id] = WorkerUse(rate, busy, cpu)
    return Loads(rates, workers)


def _smoothed_rates(previous: Mapping[str, int], leases: Sequence[Lease]) -> dict[str, int]:
    """Return bytes per second of each unfinished lease whose throughput is known, smoothed."""
    found: dict[str, int] = {}
    for lease in leases:
        rate = lease.throughput_kbps
        if lease.is_finished or rate is None or not isfinite(rate) or rate < 0:
            continue
        now = rate * 1024
        before = previous.get(lease.lease_key, now)
        found[lease.lease_key] = round(before + _SMOOTHING * (now - before))
    return found


def _is_comparable(before: int, now: int) -> bool:
    if before == 0 or now == 0:
        return before == now
    return 1 / _COMPARABLE_MOST <= now / before <= _COMPARABLE_MOST


def _as_expected(before: WorkerUse, rate: int) -> WorkerUse:
    """Return what a worker uses for the leases that it has now, by their rate the turn before."""
    factor = rate / before.rate if before.rate else 1.0
    busy, cpu = (
        UNKNOWN if used == UNKNOWN else min(_FULL, round(used * factor))
        for used in (before.busy, before.cpu)
    )
    return WorkerUse(rate, busy, cpu)


def _between(expected: int, told: int) -> int:
    """Return millionths, of what was told in thousandths."""
    if told == UNKNOWN:
        return UNKNOWN
    found = told * _FINE
    if expected == UNKNOWN:
        return found
    return round(expected + _USE_SMOOTHING * (found - expected))
