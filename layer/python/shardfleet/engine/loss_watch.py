"""
Owners that are lost are noticed between turns: by what this very process has seen of their leases.

A turn's sightings are kept in the fleet state, so that they outlive an invocation (E2, E3); those
here are taken more often, cost no write, and need no allowance for the clocks of other managers,
because they are all of one monotonic clock. What expires by them is assigned under the same
condition (L4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardfleet.config import FleetConfig
from shardfleet.domain.expiry import Sighting, expired_leases, update_sightings
from shardfleet.domain.leases import Lease
from shardfleet.engine.ports import Clock, LeaseStore

LOOKS = 3  # in a failover time
_LEAST_MS = 500  # between two looks


class LossWatch:
    """Looks at the lease table between turns."""

    def __init__(self, config: FleetConfig, *, leases: LeaseStore, clock: Clock) -> None:
        """Begin with nothing seen."""
        self._failover_ms = config.failover_ms
        self._leases = leases
        self._clock = clock
        self._sightings: dict[str, Sighting] = {}
        self._graces: Mapping[str, int] = {}
        self._told: frozenset[tuple[str, int]] = frozenset()
        self._looked_ms = clock.monotonic_ms()

    def note(
        self,
        leases: Sequence[Lease],
        *,
        began_ms: int,
        ended_ms: int,
        graces: Mapping[str, int] | None = None,
    ) -> frozenset[str]:
        """
        Take a reading in, and return the keys of leases whose owner is lost.

        Args:
            leases: all of the table.
            began_ms: when the reading began, on the monotonic clock.
            ended_ms: when it ended.
            graces: lease key to extra grace, ms, for assignments not renewed yet; those of the
                last turn if not given.

        """
        self._looked_ms = ended_ms
        self._graces = self._graces if graces is None else dict(graces)
        self._sightings = update_sightings(
            self._sightings, leases, read_started_ms=began_ms, read_finished_ms=ended_ms, skew_ms=0
        )
        return expired_leases(
            self._sightings,
            leases,
            read_started_ms=began_ms,
            failover_ms=self._failover_ms,
            skew_ms=0,
            fresh=self._graces,
        )

    @property
    def next_ms(self) -> int:
        """Return when to look next: often, and as soon as a lease would have expired."""
        due_ms = self._looked_ms + self._failover_ms // LOOKS
        for key, seen in self._sightings.items():
            if (key, seen.counter) not in self._told:
                expiry_ms = seen.first_seen_ms + self._failover_ms + self._graces.get(key, 0) + 1
                due_ms = min(due_ms, expiry_ms)
        return max(due_ms, self._looked_ms + _LEAST_MS)

    async def look(self) -> bool:
        """
        Look, if it is time; return whether an owner is lost of which nobody was told yet.

        Raises:
            Throttled: no answer.

        """
        began_ms = self._clock.monotonic_ms()
        if began_ms < self.next_ms:
            return False
        self._looked_ms = began_ms
        leases = await self._leases.scan()
        lost = self.note(leases, began_ms=began_ms, ended_ms=self._clock.monotonic_ms())
        found = frozenset((key, self._sightings[key].counter) for key in lost)
        is_news = bool(found - self._told)
        self._told = found
        return is_news
