"""
Reading all that a turn is planned by: the manager's eyes, and those of `shardfleet what-if`.

Leases are read first, then shards, then slots: a shard list or a slot is never older than the
leases beside it. Nothing is written. What only some turns need (when the fleet began, what was
found without a lease before) is read when the plan asks for it, and then planned with again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from shardfleet.config import INITIAL, FleetConfig
from shardfleet.domain.balance.loads import Loads
from shardfleet.domain.balance.strategy import STRATEGIES
from shardfleet.domain.leases.expiry import Reading
from shardfleet.domain.leases.foreign_leases import set_apart
from shardfleet.domain.leases.holes import Evidence
from shardfleet.domain.slots.sizing import Pace
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet.domain.turn import TurnPlan, TurnSnapshot, plan_turn
from shardfleet.engine.manager.losses import LossWatch
from shardfleet.engine.ports import Clock, LeaseStore, ListingFilter, StateStore, StreamDirectory
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.fleet_state import MANAGER, FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.kinds import NAP, PACE, PIN, SLOT, SUSPECTS
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.rows import read_rows
from shardfleet.engine.state.sleep_state import NapRecord

_INITIAL_LISTING = {
    "TRIM_HORIZON": ListingFilter.AT_TRIM_HORIZON,
    "LATEST": ListingFilter.AT_LATEST,
    "AT_TIMESTAMP": ListingFilter.AT_TIMESTAMP,
}


class Observer:
    """Reads both tables and the listing."""

    def __init__(
        self,
        config: FleetConfig,
        *,
        leases: LeaseStore,
        state: FleetState,
        stream: StreamDirectory,
        clock: Clock,
        losses: LossWatch,
    ) -> None:
        """Keep the ports, and who knows since when counters stand still."""
        self._config = config
        self._leases = leases
        self._state = state
        self._stream = stream
        self._clock = clock
        self._losses = losses
        self._listed: Sequence[Shard] = ()
        self._graph = ShardGraph(())

    async def observe(self) -> TurnSnapshot:
        """
        Read what every turn needs.

        Raises:
            Throttled: no answer; begin anew.

        """
        clock, state = self._clock, self._state
        began_ms, reading_ms = clock.now_ms(), clock.monotonic_ms()
        survey = await self._leases.survey()
        reading = Reading(began_ms=reading_ms, ended_ms=clock.monotonic_ms())
        graph = self._graph_of(await self._stream.list_shards())
        sightings, missed = await state.sightings(), await GoneRecord(state.store).missed()
        survey = set_apart(survey, graph, missed=missed, known=sightings.keys())
        listed = None if survey.leases else await self._listed_at_initial()
        slots, handovers = await state.store.all(SLOT), await state.handovers()
        pauses, stops = await PauseRecord(state.store).read(), await state.stops()
        sleep = NapRecord(state.store) if self._config.sleep else None
        naps, foreign = (await sleep.naps(), await sleep.foreign()) if sleep else ([], None)
        paced = await state.store.get(PACE, MANAGER)
        versions: dict[tuple[str, str], int] = {(SLOT, each.id): each.version for each in slots}
        versions |= {(NAP, nap.lease_key): version for nap, version in naps}
        versions |= {(PACE, MANAGER): paced.version} if paced else {}
        loads = await state.loads() if STRATEGIES[self._config.assignment].by_load else Loads()
        return TurnSnapshot(
            began_ms=began_ms,
            at_ms=clock.now_ms(),
            reading=reading,
            survey=survey,
            shards=graph,
            listed_at_initial=listed,
            finished=await state.finished(),
            slots=[found.body for found in slots if found.body],
            unreadable_slots=[found.id for found in slots if not found.body],
            sightings=self._losses.learn(sightings),
            handovers=handovers,
            pauses=pauses,
            naps=[nap for nap, _ in naps],
            foreign=foreign,
            stopped=frozenset(stop.lease_key for stop in stops),
            missed=missed,
            pace=(paced and paced.body) or Pace(),
            loads=loads,
            versions=versions,
        )

    def _graph_of(self, listed: Sequence[Shard]) -> ShardGraph:
        """Return the graph of a listing, which is seldom another one than in the turn before."""
        if listed != self._listed:
            self._listed, self._graph = listed, ShardGraph(listed)
        return self._graph

    async def _listed_at_initial(self) -> Sequence[Shard]:
        config = self._config
        is_instant = INITIAL[config.initial_position]
        return await self._stream.list_shards(
            _INITIAL_LISTING[config.initial_position],
            instant_ms=config.initial_timestamp_ms or None if is_instant else None,
        )

    async def plan(self, snapshot: TurnSnapshot, *, created_ms: int) -> TurnPlan:
        """
        Plan a turn; what the plan asks for is read.

        Args:
            snapshot: as observed.
            created_ms: when the stream was created; of an earlier one nothing tells anything.

        Raises:
            Throttled: no answer; begin anew.

        """
        plan = plan_turn(self._config, snapshot)
        if not plan.wants_evidence:
            return plan
        evidence = Evidence(
            suspicions=await read_rows(self._state.store, SUSPECTS),
            began_ms=await began_ms(self._state.store, created_ms),
        )
        return plan_turn(self._config, replace(snapshot, evidence=evidence))


async def began_ms(store: StateStore | Documents, created_ms: int) -> int | None:
    """
    Return the earliest instant to which a LATEST lease is pinned: when the fleet began.

    Args:
        store: of the pins.
        created_ms: creation time of the stream; pins of an earlier incarnation tell nothing.

    """
    pins = await Documents.of(store).bodies(PIN)
    found = (pin.instant_ms for pin in pins if pin.created_ms == created_ms)
    return min(found, default=None)
