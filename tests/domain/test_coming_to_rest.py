"""A fleet whose world stands still comes to rest: nothing is moved to and fro for ever."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.domain.leases.expiry import Reading
from shardfleet.domain.leases.lease import Survey
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.slots.usage import UNKNOWN
from shardfleet.domain.turn import TurnSnapshot
from shardfleet.domain.turn_log import Happening
from shardfleet_ops.explain.forecast import Question, what_if
from tests.domain.builders import a_lease, a_shard

NOW = 10_000_000
MOVES = {Happening.ASSIGNED, Happening.HANDOVER, Happening.TAKEN_OVER}
# How far behind a shard is, in seconds; None: not told. A minute is allowed.
LAGS = st.sampled_from([None, 0, 59, 61, 90, 180, 900])
# Thousandths of a worker that a shard takes.
COSTS = st.sampled_from([0, 10, 100, 250, 500, 1_000])


@st.composite
def steady_fleets(draw):
    """
    Draw what each shard costs and how far behind it is, and who has it; none of it changes.

    Where the costs are told, only a shard that takes a whole worker stays behind: who has time
    left would catch up.
    """
    slots = draw(st.integers(1, 4))
    count = draw(st.integers(1, 6))
    costs = draw(st.none() | st.lists(COSTS, min_size=count, max_size=count))
    lags = draw(st.lists(LAGS, min_size=count, max_size=count))
    if costs is not None:
        lags = [lag if cost == 1_000 else 0 for lag, cost in zip(lags, costs, strict=True)]
    return {
        "owners": draw(st.lists(st.integers(1, slots), min_size=count, max_size=count)),
        "lags": lags,
        "costs": costs,
        "slots": slots,
        "paused": draw(st.integers(0, 2)),
        "per_worker": draw(st.sampled_from([2, 4, 8])),
        "assignment": draw(st.sampled_from(["balanced", "count", "greedy"])),
    }


def used_by(fleet, number):
    """Return thousandths of a worker: what its shards take, if that is told."""
    if fleet["costs"] is None:
        return UNKNOWN
    pairs = zip(fleet["owners"], fleet["costs"], strict=True)
    return sum(cost for owner, cost in pairs if owner == number)


def snapshot_of(fleet):
    count = len(fleet["owners"])
    keys = [f"shardId-{n:012d}" for n in range(count + fleet["paused"])]
    leases = [
        replace(
            a_lease(f"{key} at 5 by f-s{owner:04d}"),
            throughput_kbps=None if fleet["costs"] is None else float(fleet["costs"][at]),
        )
        for at, (key, owner) in enumerate(zip(keys, fleet["owners"], strict=False))
    ]
    leases += [a_lease(f"{key} at 5") for key in keys[count:]]
    width = 100 // len(keys)
    edges = [*range(0, width * len(keys), width), 100]
    shards = [
        a_shard(f"{key} {low}-{high} open")
        for key, (low, high) in zip(keys, pairwise(edges), strict=True)
    ]
    slots = [
        Slot(
            slot_id=f"s{number:04d}",
            worker_id=f"f-s{number:04d}",
            state=SlotState.RUNNING,
            name=f"f-s{number:04d}-1",
            start_epoch=1,
            heartbeat_ms=NOW - 1_000,
            lags_ms={
                key: UNKNOWN if lag is None else 1_000 * lag
                for key, owner, lag in zip(keys, fleet["owners"], fleet["lags"], strict=False)
                if owner == number
            },
            busy=used_by(fleet, number),
        )
        for number in range(1, fleet["slots"] + 1)
    ]
    reading = Reading(began_ms=NOW, ended_ms=NOW)
    return TurnSnapshot(
        at_ms=NOW,
        reading=reading,
        began_ms=NOW,
        survey=Survey(leases=tuple(leases)),
        slots=slots,
        shards=shards,
        pauses=Pauses(leases={key: Pause("ann", NOW) for key in keys[count:]}),
    )


def holders_of(snapshot, forecast):
    """Return shard to those who had it, one after the other."""
    holders = {le.lease_key: [le.lease_owner] for le in snapshot.survey.leases}
    for _, entry in forecast.steps:
        if entry.what in MOVES:
            holders[entry.subject].append(entry.worker_id)
    return holders


TWO_BEHIND = {
    "owners": [1, 2],
    "lags": [90, 180],
    "costs": None,
    "slots": 2,
    "paused": 1,
    "per_worker": 8,
    "assignment": "balanced",
}


# One shard takes a worker of its own, and who shares by count gives it another one.
ONE_HOT = TWO_BEHIND | {
    "owners": [1, 2, 3],
    "lags": [900, 0, 0],
    "costs": [1_000, 0, 0],
    "slots": 3,
    "assignment": "count",
}
# Beside it more shards are left than another worker may have.
ONE_HOT_MANY = ONE_HOT | {
    "owners": [1, 2, 2, 3],
    "lags": [900, 0, 0, 0],
    "costs": [1_000, 0, 0, 0],
    "paused": 0,
    "per_worker": 2,
    "assignment": "balanced",
}


@given(steady_fleets())
@example(ONE_HOT)
@example(ONE_HOT_MANY)
@example(TWO_BEHIND)
def test_a_fleet_in_which_nothing_changes_comes_to_rest(fleet):
    config = FleetConfig(
        fleet="f",
        stream_arn="arn:aws:kinesis:eu-central-1:123456789012:stream/s",
        lease_table="l",
        state_table="t",
        leases_per_worker=fleet["per_worker"],
        assignment=fleet["assignment"],
    )
    snapshot = snapshot_of(fleet)
    forecast = what_if(config, snapshot, Question())

    assert forecast.settled, forecast.steps[-4:]
    for key, holders in holders_of(snapshot, forecast).items():
        # It may come back once: load is evened out at once, and slots go only after a while.
        moves = list(pairwise(holders))
        assert len(set(moves)) == len(moves), (key, holders)
