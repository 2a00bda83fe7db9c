"""Reading what there is to know of a fleet, for a person; nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.stops import MissingShard, StopNote
from shardfleet.domain.explain.answer import Known
from shardfleet.domain.explain.fleet_view import FleetReading
from shardfleet.domain.explain.forecast import Snapshot
from shardfleet.domain.leases.expiry import expired_leases
from shardfleet.domain.leases.unreadable import held_up
from shardfleet.domain.reasons import reason_of_json
from shardfleet.domain.sleep.sleep import plan_naps
from shardfleet.domain.slots.slot import SlotState
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.manager.history import History
from shardfleet.engine.ports import Clock, LeaseStore
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.sleep_state import NapRecord


async def read_fleet(
    leases: LeaseStore, state: FleetState, *, clock: Clock, failover_ms: int
) -> FleetReading:
    """
    Read both tables once.

    Args:
        leases: the lease table.
        state: the fleet-state table.
        clock: this machine's.
        failover_ms: of the fleet's configuration.

    Raises:
        Throttled: a table refused; try again.

    """
    found, slots, sightings, stops, plan = await asyncio.gather(
        leases.survey(),
        state.slots(),
        state.sightings(),
        state.stops(),
        state.plan(),
    )
    pauses, naps, missed = await asyncio.gather(
        PauseRecord(state.store).read(),
        NapRecord(state.store).naps(),
        GoneRecord(state.store).missed(),
    )
    now_ms = clock.now_ms()
    missed = [note for note in missed if note.lasts(now_ms, failover_ms=failover_ms)]
    return FleetReading(
        at_ms=now_ms,
        leases=found.leases,
        unreadable=found.unreadable,
        slots=[each.slot for each in slots],
        sightings=sightings,
        stops=_missing(missed) | {stop.lease_key: stop for stop in stops},
        planned_ms=int(plan["at_ms"]) if plan else 0,
        failover_ms=failover_ms,
        pauses=pauses,
        naps=plan_naps(
            (each.nap for each in naps),
            found.leases,
            off=None,
            now_ms=now_ms,
            settle_ms=failover_ms,
        ).asleep,
    )


def _missing(missed: Sequence[GoneNote]) -> dict[str, StopNote]:
    """Return the shards that the service does not know as stopped ones."""
    return {
        note.lease_key: MissingShard(
            lease_key=note.lease_key,
            position=note.checkpoint,
            error=str(note.reason),
            attempts=0,
            worker_id="",
            at_ms=note.first_ms,
        )
        for note in missed
    }


async def read_known(
    reading: FleetReading, state: FleetState, *, shards: Sequence[Shard], since_ms: int = 0
) -> Known:
    """
    Read what the manager has kept, to explain a reading by it.

    Args:
        reading: of both tables.
        state: the fleet-state table.
        shards: the unfiltered listing.
        since_ms: tell nothing that happened before, epoch milliseconds.

    Raises:
        Throttled: the table refused; try again.

    """
    history = History(state.store)
    places, turns, plan = await asyncio.gather(
        history.places(), history.turns(since_ms=since_ms), state.plan()
    )
    return Known(
        reading=reading,
        places=places,
        turns=[(turn.at_ms, turn.entries) for turn in turns],
        waits={key: reason_of_json(why) for key, why in plan["left"]} if plan else {},
        shards=shards,
    )


async def read_snapshot(
    reading: FleetReading, state: FleetState, *, shards: Sequence[Shard], config: FleetConfig
) -> Snapshot:
    """
    Read what the manager's planners would be given if it had its turn now.

    Args:
        reading: of both tables.
        state: the fleet-state table.
        shards: the unfiltered listing.
        config: of the fleet.

    Raises:
        Throttled: the table refused; try again.

    """
    loads, pauses = await asyncio.gather(state.loads(), PauseRecord(state.store).read())
    ended = {slot.worker_id for slot in reading.slots if slot.state is SlotState.ENDED}
    expired = expired_leases(
        reading.sightings,
        reading.leases,
        read_started_ms=reading.at_ms,
        failover_ms=config.failover_ms,
        skew_ms=config.clock_skew_ms,
        fresh={},
    )
    orphans = {
        lease.lease_key
        for lease in reading.leases
        if not lease.is_finished and lease.effective_owner in ended
    }
    paused = pauses.among(lease.lease_key for lease in reading.leases)
    return Snapshot(
        at_ms=reading.at_ms,
        leases=loads.of_leases(reading.leases),
        slots=[loads.of_slot(slot) for slot in reading.slots],
        shards=shards,
        expired=expired | orphans,
        paused=held_up(reading.unreadable, reading.leases, shards)
        | {key: nap.reason for key, nap in reading.naps.items() if config.sleep}
        | paused,
    )
