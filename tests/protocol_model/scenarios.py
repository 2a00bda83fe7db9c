"""Where a search begins, and how much may go wrong in it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from tests.protocol_model.state import (
    NO_LAGS,
    NO_SIGNS,
    SHARDS,
    Budget,
    Held,
    ModelWorld,
    Phase,
    WorkerRun,
    at,
)


def running_slot(number: int) -> Slot:
    """Return the slot of worker ``number``, running its first invocation."""
    return Slot(
        slot_id=f"s{number}",
        worker_id=f"w{number}",
        state=SlotState.RUNNING,
        name=f"fleet-s{number}-1",
        start_epoch=1,
        epoch=1,
        lags_ms=NO_LAGS,
        signs=NO_SIGNS,
    )


def owned_parent(workers: int, *, done: int = 1, budget: Budget) -> ModelWorld:
    """Return a fleet whose worker 0 holds the parent and has handled some of it."""
    lease = Lease(
        lease_key="parent",
        checkpoint=at(0),
        lease_owner="w0",
        lease_counter=1,
        hash_key_range=SHARDS[0].hash_key_range,
    )
    holder = WorkerRun(0, 1).with_held(0, Held(lease, done, Phase.HELD))
    idle = [WorkerRun(number, 1) for number in range(1, workers)]
    return ModelWorld(
        leases=(lease, None),
        slots=tuple(running_slot(number) for number in range(workers)),
        running=(holder, *idle),
        done=(done, 0),
        budget=budget,
    )


def child_beside_parent(*, budget: Budget) -> ModelWorld:
    """Return two workers, the parent half done, and the child's lease free for the taking."""
    child = Lease(
        lease_key="child",
        checkpoint=AT_TRIM_HORIZON,
        parent_shard_ids=("parent",),
        hash_key_range=SHARDS[1].hash_key_range,
    )
    return owned_parent(2, budget=budget).with_lease(1, child)


def both_at_one(*, budget: Budget) -> ModelWorld:
    """Return two workers, of which one holds both leases: the manager evens that out."""
    world = child_beside_parent(budget=budget)
    child = world.leases[1]
    assert child is not None
    child = replace(child, lease_owner="w0", lease_counter=1)
    holder = world.running[0]
    also = holder.with_held(1, Held(child, 0, Phase.HELD))
    return world.with_lease(1, child).with_invocation(holder, also)


def free_parent(workers: int, *, budget: Budget) -> ModelWorld:
    """Return a fleet of idle workers and a table that is still empty."""
    return ModelWorld(
        leases=(None, None),
        slots=tuple(running_slot(number) for number in range(workers)),
        running=tuple(WorkerRun(number, 1) for number in range(workers)),
        budget=budget,
    )


SMALL: Mapping[str, ModelWorld] = {
    "the end of a shard, a lost reply": owned_parent(2, budget=Budget(turns=1, lost=1)),
    "expiry": owned_parent(2, budget=Budget(turns=2, renewals=1)),
    "a handover, a crash": owned_parent(
        2, done=2, budget=Budget(handovers=1, renewals=1, crashes=1)
    ),
    "a late handover": owned_parent(2, done=2, budget=Budget(handovers=1, turns=2)),
    "a steal, a drain": owned_parent(2, budget=Budget(handovers=1, ends=1)),
    "two invocations of one worker, a lost reply": owned_parent(
        1, done=2, budget=Budget(doubles=1, renewals=2, lost=1)
    ),
    "two invocations, a handover, a drain": owned_parent(
        2, done=2, budget=Budget(doubles=1, handovers=1, ends=1)
    ),
    "the manager hands over, a crash": both_at_one(budget=Budget(turns=2, crashes=1)),
    "the manager hands over, a lost reply": both_at_one(budget=Budget(turns=1, lost=1)),
    "the manager hands over, two invocations": both_at_one(
        budget=Budget(turns=1, doubles=1, renewals=1)
    ),
    "the manager hands over to a slot that ends": both_at_one(budget=Budget(turns=2, ends=1)),
    "two handovers": owned_parent(3, done=2, budget=Budget(handovers=2)),
    "a child that is there already": child_beside_parent(budget=Budget(handovers=1, turns=1)),
    "the first assignment, a slot that ends": free_parent(1, budget=Budget(turns=2, ends=2)),
}
"""Searched to their end within seconds."""

DEEP: Mapping[str, ModelWorld] = {
    "everything once": owned_parent(
        2,
        done=0,
        budget=Budget(turns=2, renewals=1, crashes=1, doubles=1, lost=1, handovers=1, ends=1),
    ),
    "two lost replies, two crashes": owned_parent(
        2, budget=Budget(turns=2, renewals=2, crashes=2, lost=2)
    ),
    "two handovers among three workers": owned_parent(
        3, done=1, budget=Budget(turns=1, handovers=2, renewals=2, crashes=1)
    ),
    "two invocations, two lost replies": owned_parent(
        2, budget=Budget(turns=1, doubles=2, renewals=2, lost=2)
    ),
    "from an empty table": free_parent(2, budget=Budget(turns=3, renewals=1, crashes=1, ends=2)),
}
"""Searched by `make model`, for as long as one likes."""
