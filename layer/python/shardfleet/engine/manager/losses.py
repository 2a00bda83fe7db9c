"""
Owners that are lost are noticed between turns: by what this very process has seen of their leases.

Who is lost is judged by one monotonic clock, in turns and between them: wall clocks are set, and
two sightings on either side of that tell no age. The wall clock is for what outlives an invocation
(E2): there it is written, and read once, by the next one's first turn, with an allowance for the
clocks of two managers (E3). It is written at the end of an invocation, too: else the next one,
which knows only those of the last turn, would see the last renewal of a lost owner for the first
time, and give it the whole failover time again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardfleet.config import KEPT_MOST_MS, FleetConfig
from shardfleet.domain.leases.expiry import Reading, Sighting, by_another_clock, in_step, sighted
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.turn import TurnPlan
from shardfleet.engine.ports import Clock, LeaseStore
from shardfleet.engine.state.fleet_state import FleetState

LOOKS = 3  # in a failover time
_LEAST_MS = 500  # between two looks


class LossWatch:
    """Looks at the lease table, in turns and between them."""

    def __init__(
        self, config: FleetConfig, *, leases: LeaseStore, state: FleetState, clock: Clock
    ) -> None:
        """Begin with nothing seen."""
        self._failover_ms = config.failover_ms
        self._skew_ms = config.clock_skew_ms
        self._leases = leases
        self._state = state
        self._clock = clock
        self._sightings: dict[str, Sighting] = {}
        self._learned: Mapping[str, Sighting] | None = None
        self._graces: Mapping[str, int] = {}
        self._foreign: frozenset[str] = frozenset()
        self._told: frozenset[tuple[str, int]] = frozenset()
        self._looked_ms = clock.monotonic_ms()

    def learn(self, kept: Mapping[str, Sighting]) -> Mapping[str, Sighting]:
        """
        Return what was seen here; at first what was kept by others, with the skew on top.

        Args:
            kept: by the wall clocks of the invocations before.

        """
        if self._learned is None:
            now_ms, ahead_ms = self._clock.now_ms(), self._skew_ms - self._behind_ms()
            kept = in_step(kept, now_ms=now_ms, apart_most_ms=KEPT_MOST_MS)
            self._learned = by_another_clock(kept, ahead_ms=ahead_ms)
            self._sightings = {**self._learned, **self._sightings}
        return self._sightings

    async def keep(self, plan: TurnPlan) -> None:
        """Keep a turn's sightings, here and for the next invocation."""
        self._sightings, self._graces = dict(plan.losses.sightings), plan.losses.graces
        self._foreign = frozenset(e.lease_key for e in plan.snapshot.survey.foreign_leases)
        self._looked_ms = plan.snapshot.reading.ended_ms
        await self._state.write_sightings(self._by_wall_clock())

    def _note(self, leases: Sequence[Lease], *, began_ms: int, ended_ms: int) -> frozenset[str]:
        """Take a reading in, by the monotonic clock; return the keys whose owner is lost."""
        self._looked_ms = ended_ms
        self._sightings, expired = sighted(
            self._sightings,
            leases,
            reading=Reading(began_ms=began_ms, ended_ms=ended_ms),
            failover_ms=self._failover_ms,
            graces=self._graces,
        )
        return expired

    async def remember(self) -> None:
        """
        Keep what was seen since the last turn, by the wall clock.

        Raises:
            Throttled, OutcomeUnknown: a loss may be seen later.

        """
        if self._sightings:
            await self._state.write_sightings(self._by_wall_clock())

    def _by_wall_clock(self) -> Mapping[str, Sighting]:
        """Return what is known here for others; the skew on what was learned is not passed on."""
        learned, own = self._learned or {}, self._sightings
        still = {key: seen for key, seen in own.items() if learned.get(key) == seen}
        behind_ms = self._behind_ms()
        return by_another_clock(own, ahead_ms=behind_ms) | by_another_clock(
            still, ahead_ms=behind_ms - self._skew_ms
        )

    def _behind_ms(self) -> int:
        """Return what is to be added to the monotonic clock for the wall clock."""
        return self._clock.now_ms() - self._clock.monotonic_ms()

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
        survey = await self._leases.survey()
        leases = [lease for lease in survey.leases if lease.lease_key not in self._foreign]
        lost = self._note(leases, began_ms=began_ms, ended_ms=self._clock.monotonic_ms())
        found = frozenset((key, self._sightings[key].counter) for key in lost)
        is_news = bool(found - self._told)
        self._told = found
        return is_news
