"""
One answer to one call of the manager's costs that call a moment, and no turn but its own (H22).

Which calls there are is seen by a run without a fault. What each answer may cost is data:
:data:`OUTCOMES`. Nothing of it is ever the invocation's end, or a lease that nobody has.
"""

import asyncio
from functools import cache

import pytest
from msgspec.structs import replace

from shardfleet.domain.refusals import RefusalKind
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import RightMissing
from tests.engine.manager_side.fleet_kit import Fleet
from tests.engine.single_answers import KINDS, LANDED, Fault
from tests.virtual import virtual

RUN_MS = 50_000
# What an answer costs.
ASKED_AGAIN = "it is asked again in the same turn, and nothing is told as failed"
AGAIN_LATER = "one slot waits for the next turn, and that is told"
NEXT_TURN = "the turn is done but for this, and told as failed; the next one does the rest"
# Of a write of which nobody can say whether it was done; every other answer is ASKED_AGAIN.
UNKNOWN = (RefusalKind.BROKEN, RefusalKind.STRANGE, LANDED)
OUTCOMES = {
    "launcher.start": AGAIN_LATER,
    "leases.apply assign": NEXT_TURN,
    "leases.apply create": NEXT_TURN,
    "state.write finished": NEXT_TURN,
    "state.write sightings": NEXT_TURN,
    "state.write stream": NEXT_TURN,
}


class AnsweredFleet(Fleet):
    """A fleet whose workers beat, and whose manager is given one answer."""

    def __init__(self, fault):
        self.fault = fault
        super().__init__()

    def ports(self):
        ports = super().ports()
        wrapped = {
            name: self.fault.port(getattr(ports, name), name, self.clock)
            for name in ("leases", "kcl3", "stream", "launcher")
        }
        state = FleetState(self.fault.port(self.store, "state", self.clock), self.clock)
        return replace(ports, state=state, **wrapped)

    async def work(self):
        """Renew what is held, and beat, as workers do."""
        while True:
            await self.clock.sleep_ms(2_000)
            await self.beat(*[found.slot.slot_id for found in await self.state.slots()])
            self.renew(*[k for k, lease in self.leases.leases.items() if lease.lease_owner])


@virtual
async def played(fault, *, run_ms=RUN_MS):
    """Run one invocation; return the fleet, and how many turns were done."""
    fleet = AnsweredFleet(fault)
    working = asyncio.create_task(fleet.work())
    try:
        turns = await run_manager(fleet.config, fleet.ports(), run_ms=run_ms)
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    return fleet, turns


@cache
def calls():
    """Return each call of a manager's that an invocation makes."""
    fault = Fault()
    fleet, turns = played(fault)
    assert turns >= 2
    assert None not in fleet.owners().values()
    return sorted(fault.seen)


# Without these nothing can be planned, or nobody can be given anything.
ESSENTIAL = {
    "launcher.start",
    "leases.apply assign",
    "leases.apply create",
    "leases.survey",
    "state.list slot",
    "state.read prompt",  # It is read with the lock.
    "state.read slot",
    "state.write slot",
    "stream.incarnation",
    "stream.list_shards",
}
INSPECTION = "state.page"  # the look for documents that cannot be read
CELLS = [(call, kind) for call in calls() for kind in KINDS]


def cost_of(fleet):
    """Say what an answer cost, by what was told."""
    told = fleet.named("ManagerTurnFailed") + fleet.named("ManagerLockedOut")
    if told:
        return NEXT_TURN
    return AGAIN_LATER if fleet.named("SlotUpkeepFailed") else ASKED_AGAIN


def test_the_cells_are_of_every_call_and_every_kind_of_answer():
    assert set(KINDS) == {*RefusalKind, LANDED}
    assert OUTCOMES.keys() <= set(calls())
    assert len(CELLS) >= 30 * len(KINDS)


@pytest.mark.parametrize(("call", "kind"), CELLS)
def test_one_answer_to_one_call_ends_no_invocation(call, kind):
    fault = Fault(call, kind)
    fleet, turns = played(fault)
    assert fault.given == 1
    assert cost_of(fleet) == (OUTCOMES.get(call, ASKED_AGAIN) if kind in UNKNOWN else ASKED_AGAIN)
    assert turns >= 2
    assert None not in fleet.owners().values()


@pytest.mark.parametrize("call", ["state.write lock", "state.read lock"])
def test_a_right_to_the_lock_that_stays_missing_is_named_at_the_invocation_s_end(call):
    fault = Fault(call, RefusalKind.DENIED, lasts=True)
    with pytest.raises(RightMissing, match=r"AccessDenied.*role"):
        played(fault)
    assert fault.given > RUN_MS // 10_000


@pytest.mark.parametrize("call", calls())
def test_an_answer_that_stays_ends_no_invocation_and_every_turn_tells_it(call):
    """What one call is refused for good keeps no other from being made."""
    if call.endswith(" lock"):
        return
    fault = Fault(call, RefusalKind.ODD, lasts=True)
    fleet, _ = played(fault)
    # What nothing is decided by is a step cut short, and no turn that failed.
    kinds = ("ManagerTurnFailed", "SlotUpkeepFailed", "ManagerLockedOut")
    kinds = ("ManagerStepCut",) if call == INSPECTION else kinds
    told = [event for kind in kinds for event in fleet.named(kind)]
    assert told
    if call not in ESSENTIAL:
        assert None not in fleet.owners().values()
