"""Reading what there is to know of a fleet, for a person; nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.stops import MissingShard, StopNote
from shardfleet.domain.reasons import reason_of_json
from shardfleet.domain.sleep.sleep import plan_naps
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.domain.stream.shards import Shard
from shardfleet.domain.turn import TurnSnapshot
from shardfleet.engine.manager.history import History
from shardfleet.engine.manager.losses import LossWatch
from shardfleet.engine.manager.observe import Observer
from shardfleet.engine.ports import Clock, Entropy, LeaseStore, StreamDirectory
from shardfleet.engine.state.documents import UnreadableDocument
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.engine.state.gone_record import GoneRecord
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet.engine.state.sleep_state import NapRecord
from shardfleet.errors import RightMissing
from shardfleet_ops.explain.answer import Known
from shardfleet_ops.explain.fleet_view import FleetReading
from shardfleet_ops.operate.documents import DocumentWard


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
    found, slots, sightings, stops, plan, documents = await asyncio.gather(
        leases.survey(),
        state.slots(),
        state.sightings(),
        state.stops(),
        state.plan(),
        _unreadable(state),
    )
    pauses, naps, missed = await asyncio.gather(
        PauseRecord(state.store).read(),
        NapRecord(state.store).naps(),
        GoneRecord(state.store).missed(),
    )
    now_ms = clock.now_ms()
    missed = [note for note in missed if note.lasts(now_ms, failover_ms=failover_ms)]
    asleep = plan_naps(
        (nap for nap, _ in naps), found.leases, off=None, now_ms=now_ms, settle_ms=failover_ms
    ).asleep
    return FleetReading(
        at_ms=now_ms,
        leases=found.leases,
        unreadable=found.unreadable,
        foreign_leases=found.foreign_leases,
        unreadable_documents={each.name: each.reason for each in documents},
        slots=[each.slot for each in slots],
        sightings=sightings,
        stops=_missing(missed) | {stop.lease_key: stop for stop in stops},
        planned_ms=int(plan["at_ms"]) if plan else 0,
        failover_ms=failover_ms,
        pauses=pauses,
        naps=asleep,
    )


async def _unreadable(state: FleetState) -> Sequence[UnreadableDocument]:
    """Look at the first 1 MB of documents; who may not, sees the rest all the same."""
    try:
        return await DocumentWard(state.store).unreadable(pages_most=1)
    except RightMissing:
        return ()


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
        waits={key: reason_of_json(why) for key, why in plan.get("left", ())} if plan else {},
        shards=shards,
    )


async def read_snapshot(
    config: FleetConfig,
    *,
    leases: LeaseStore,
    state: FleetState,
    stream: StreamDirectory,
    clock: Clock,
    entropy: Entropy,
) -> TurnSnapshot:
    """
    Read what the manager would plan by if it had its turn now, as the first of an invocation.

    Args:
        config: of the fleet.
        leases: the lease table.
        state: the fleet-state table.
        stream: to be listed; nothing is read of it.
        clock: this machine's.
        entropy: for the greedy strategy, which draws.

    Raises:
        Throttled: a table or the stream refused; try again.

    """
    losses = LossWatch(config, leases=leases, state=state, clock=clock)
    observer = Observer(
        config, leases=leases, state=state, stream=stream, clock=clock, losses=losses
    )
    snapshot, incarnation = await observer.observe(), await state.known_incarnation()
    snapshot = replace(snapshot, draw=entropy.token())
    created_ms = 0 if incarnation is None else incarnation.created_ms
    return (await observer.plan(snapshot, created_ms=created_ms)).snapshot
