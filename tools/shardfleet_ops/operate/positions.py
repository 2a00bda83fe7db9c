"""Carrying an import of positions out: each write conditional, the notes beside it made stale."""

from __future__ import annotations

from shardfleet.domain.delivery.progress import position_text
from shardfleet.domain.leases.lease import Applied, Lease, LeaseChange, LeaseField
from shardfleet.domain.stream.sequence import AT_LATEST, AT_TIMESTAMP, ExtendedSequenceNumber
from shardfleet.engine.ports import Clock, LeaseStore, StateStore
from shardfleet.engine.state.beside import raise_generation
from shardfleet.engine.state.documents import malformed
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.kinds import PIN
from shardfleet.errors import OutcomeUnknown
from shardfleet_ops.positions.position_import import ImportPlan, ImportStep


async def pinned(state: FleetState, lease: Lease) -> ExtendedSequenceNumber:
    """
    Return where a lease stands; one at LATEST that a worker has pinned stands at that instant.

    Raises:
        MalformedDocument: the pin cannot be read.

    """
    if lease.checkpoint != AT_LATEST:
        return lease.checkpoint
    pin = await state.store.get(PIN, lease.lease_key)
    if pin is None:
        return lease.checkpoint
    if pin.body is None:
        raise malformed(PIN, pin)
    return ExtendedSequenceNumber(AT_TIMESTAMP, pin.body.instant_ms)


class PositionImporter:
    """Writes positions into a lease table."""

    def __init__(self, leases: LeaseStore, *, clock: Clock, state: StateStore | None) -> None:
        """
        Touch nothing yet.

        Args:
            leases: the table.
            clock: this machine's.
            state: the fleet-state table; None: the leases are no fleet's, and nothing stands
                beside them.

        """
        self._leases = leases
        self._clock = clock
        self._state = state

    async def carry_out(self, plan: ImportPlan) -> list[str]:
        """
        Write in the plan's order, up to the first write that somebody else's got before.

        Returns:
            Of each step ``WRITTEN``, ``SAME`` or ``LOST``; "" where it was not tried any more.

        Raises:
            Throttled: a table refused; import again.

        """
        results: list[str] = []
        for step in plan.steps:
            results.append("" if "LOST" in results else await self._written(step))
        return results

    async def _written(self, step: ImportStep) -> str:
        """Make one write; an answer that never came is looked up."""
        if step.change is None:
            return "SAME"
        if self._state is not None:
            await raise_generation(
                self._state, step.lease_key, now_ms=self._clock.now_ms(), to=_to(step.change)
            )
        try:
            written = isinstance(await self._leases.apply(step.change), Applied)
        except OutcomeUnknown:
            current = await self._leases.get(step.lease_key)
            written = current is not None and current.checkpoint in step.change.sets.values()
        return "WRITTEN" if written else "LOST"


def _to(change: LeaseChange) -> str:
    checkpoint = change.sets[LeaseField.CHECKPOINT]
    assert isinstance(checkpoint, ExtendedSequenceNumber)
    return position_text(checkpoint)
