"""
What each lease costs its worker: throughput, handler time and CPU, by its part of the worker's.

So that a plan on a plan sees workers loaded as they would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardfleet.domain.balance.worker_loads import throughputs
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import UNKNOWN


@dataclass(frozen=True, slots=True)
class _Cost:
    rate: float  # KB/s
    busy: float  # thousandths of a worker
    cpu: float


class LeaseCosts:
    """Costs by lease key, as of one reading."""

    def __init__(self, leases: Sequence[Lease], slots: Sequence[Slot]) -> None:
        """Divide what every running worker uses among its leases."""
        running = {s.worker_id: s for s in slots if s.state is SlotState.RUNNING}
        rates = throughputs(leases)
        by_owner: dict[str, list[str]] = {}
        for lease in leases:
            if not lease.is_finished and lease.lease_owner in running:
                by_owner.setdefault(lease.lease_owner or "", []).append(lease.lease_key)
        self._knows_busy = bool(running) and all(s.busy != UNKNOWN for s in running.values())
        self._knows_cpu = bool(running) and all(s.cpu != UNKNOWN for s in running.values())
        self._costs: dict[str, _Cost] = {}
        for worker_id, keys in by_owner.items():
            total = sum(rates[key] for key in keys)
            slot = running[worker_id]
            for key in keys:
                part = rates[key] / total if total > 0 else 1 / len(keys)
                self._costs[key] = _Cost(
                    rates[key], part * max(0, slot.busy), part * max(0, slot.cpu)
                )
        known, count = self._costs.values(), max(1, len(self._costs))
        # Of a lease that nobody has.
        self._usual = _Cost(
            rate=sum(cost.rate for cost in known) / count,
            busy=sum(cost.busy for cost in known) / count,
            cpu=sum(cost.cpu for cost in known) / count,
        )

    def rate(self, lease_key: str) -> float:
        """Return KB/s."""
        return self._costs.get(lease_key, self._usual).rate

    def split(self, parent: Lease, children: Sequence[str]) -> None:
        """Give each child an equal part of what its parent costs."""
        cost = self._costs.get(parent.lease_key, self._usual)
        count = len(children)
        for child in children:
            self._costs[child] = _Cost(cost.rate / count, cost.busy / count, cost.cpu / count)

    def loaded(self, slot: Slot, leases: Sequence[Lease]) -> Slot:
        """Return the slot with the utilisation that these leases would bring about."""
        held = [
            self._costs.get(lease.lease_key, self._usual)
            for lease in leases
            if lease.lease_owner == slot.worker_id and not lease.is_finished
        ]
        return replace(
            slot,
            busy=round(sum(cost.busy for cost in held)) if self._knows_busy else UNKNOWN,
            cpu=round(sum(cost.cpu for cost in held)) if self._knows_cpu else UNKNOWN,
        )
