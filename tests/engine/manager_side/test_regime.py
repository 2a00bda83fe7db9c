"""The manager's regime: chosen from ledger and lag, kept, told, and acted upon."""

from msgspec.structs import replace

from shardfleet.domain.cost.estimate import DAY_MS, Consumption
from shardfleet.domain.cost.spending import Regime
from shardfleet.domain.reasons import Pause
from shardfleet.domain.slots.slot import SlotState
from shardfleet.engine.manager.history import History
from shardfleet.engine.manager.loop import run_manager
from shardfleet.engine.manager.spending import BY_BUDGET, RegimeRecord
from shardfleet.engine.state.ledger import Ledger
from shardfleet.engine.state.pauses import PauseRecord
from shardfleet_testkit.clock import run_virtual
from tests.engine.manager_side.fleet_kit import Fleet, running_fleet
from tests.virtual import virtual

# So much is a dollar and a third; the fleet of the kit begins in the first minutes of a day.
DOLLARS = Consumption(mb_ms=1_024_000 * 100_000)


async def spend(fleet, *, times=1):
    """Put that much into today's page, over a quarter of an hour."""
    now_ms = fleet.clock.now_ms()
    book = Ledger(fleet.store)
    for _ in range(times):
        await book.add("manager", DOLLARS, metrics=[], at_ms=now_ms)
    await fleet.clock.sleep_ms(900_000)
    await book.add("manager", Consumption(), metrics=[], at_ms=fleet.clock.now_ms())


async def a_turn(fleet):
    fleet.renew()
    await fleet.beat(*[d.id for d in await fleet.store.list("slot")])
    return await run_manager(fleet.config, fleet.ports(), run_ms=60_000)


@virtual
async def test_a_fleet_without_a_budget_asks_no_table_about_money():
    fleet = Fleet(lag_objective_ms=60_000)
    asked = []
    listing = fleet.store.list

    async def listed(kind):
        asked.append(kind)
        return await listing(kind)

    fleet.store.list = listed
    await running_fleet(fleet)
    assert not [kind for kind in asked if kind.startswith("ledger")]
    assert await RegimeRecord(fleet.store).read() is None


@virtual
async def test_a_dear_fleet_rests_between_its_managers_turns_and_says_why():
    # One worker at most: nobody beats while a manager of the kit runs, so it gets a stand-in.
    limits = {"leases_per_worker": 4, "max_workers": 1, "budget_cents_per_day": 200}
    fleet = Fleet(manager_run_ms=50_000, **limits)
    await running_fleet(fleet)
    assert await a_turn(fleet) > 1
    await spend(fleet)
    await a_turn(fleet)
    found = await RegimeRecord(fleet.store).read()
    assert found.name is Regime.THRIFTY
    assert "the budget is $2.00" in str(found.reason)
    assert [e.regime for e in fleet.named("RegimeChosen")] == ["EAGER", "THRIFTY"]
    assert await a_turn(fleet) == 1
    turns = await History(fleet.store).turns(since_ms=0)
    told = [str(e.reason) for turn in turns for e in turn.entries if e.what == "REGIME"]
    assert told[-1].startswith("thrifty, the day comes to")


@virtual
async def test_a_choice_is_kept_with_the_turn_that_makes_it():
    """The invocation may end with it, and the next one knows nothing of it."""
    fleet = Fleet(budget_cents_per_day=200)
    report = await fleet.manager.turn()
    (turn,) = await History(fleet.store).turns(since_ms=0)
    assert turn.at_ms == report.at_ms
    assert "REGIME" in [entry.what for entry in turn.entries]


@virtual
async def test_a_thrifty_manager_stays_while_there_is_something_to_do():
    fleet = Fleet(leases_per_worker=4, budget_cents_per_day=200, manager_run_ms=50_000)
    await running_fleet(fleet)
    await spend(fleet)
    await a_turn(fleet)
    key = next(iter(fleet.leases.leases))
    lease = fleet.leases.leases[key]
    fleet.leases.leases[key] = replace(lease, lease_owner=None)
    assert await a_turn(fleet) > 1
    assert fleet.leases.leases[key].lease_owner


@virtual
async def test_thrift_keeps_no_more_workers_than_the_shards_need():
    options = {"leases_per_worker": 4, "min_workers": 3, "scale_down_ms": 1_000}
    fleet = Fleet(budget_cents_per_day=200, **options)
    await running_fleet(fleet)
    assert fleet.named("ManagerTurnDone")[-1].slots_wanted == 3
    await spend(fleet)
    for _ in range(5):
        await a_turn(fleet)
    assert fleet.named("ManagerTurnDone")[-1].slots_wanted == 1


def test_a_spent_budget_goes_on_unless_asked_to_pause():
    async def main(over_budget):
        fleet = Fleet(leases_per_worker=4, budget_cents_per_day=100, over_budget=over_budget)
        await running_fleet(fleet)
        await spend(fleet)
        await a_turn(fleet)
        return (await PauseRecord(fleet.store).read()).fleet

    assert run_virtual(main("tell")) is None
    pause = run_virtual(main("pause"))
    assert pause.by == BY_BUDGET
    assert "$1.33 of $1.00 are spent today" in pause.reason


@virtual
async def test_a_fleet_paused_for_money_keeps_no_worker_and_its_manager_rests():
    fleet = Fleet(
        leases_per_worker=4,
        budget_cents_per_day=100,
        over_budget="pause",
        manager_run_ms=50_000,
    )
    await running_fleet(fleet)
    await spend(fleet)
    for _ in range(3):
        await a_turn(fleet)
        for key, lease in fleet.leases.leases.items():
            fleet.leases.leases[key] = replace(lease, lease_owner=None)
    for found in await fleet.state.slots():
        ended = replace(found.slot, state=SlotState.ENDED, assigned=())
        await fleet.state.write_slot(ended, found.version)
    assert await run_manager(fleet.config, fleet.ports(), run_ms=60_000) == 1
    done = fleet.named("ManagerTurnDone")[-1]
    assert (done.slots_wanted, done.paused_leases) == (0, 4)
    assert set(fleet.owners().values()) == {None}


def test_a_person_who_pauses_at_the_same_moment_is_not_written_over(monkeypatch):
    """The budget's pause would be lifted with the day, and the person's with it."""

    async def main():
        fleet = Fleet(leases_per_worker=4, budget_cents_per_day=100, over_budget="pause")
        await running_fleet(fleet)
        await spend(fleet)
        change, hers = PauseRecord.change, Pause("ann", 1, "release")
        calls = []

        async def change_after_a_person(self, wanted):
            calls.append(wanted)
            if len(calls) == 1:
                await change(self, lambda each: replace(each, fleet=hers))
            return await change(self, wanted)

        monkeypatch.setattr(PauseRecord, "change", change_after_a_person)
        await a_turn(fleet)
        assert calls
        return (await PauseRecord(fleet.store).read()).fleet

    assert run_virtual(main()).by == "ann"


def test_a_pause_for_money_ends_with_the_day_and_a_persons_does_not():
    async def main(*, by_person):
        fleet = Fleet(leases_per_worker=4, budget_cents_per_day=100, over_budget="pause")
        await running_fleet(fleet)
        if by_person:
            pause = Pause("ann", 1, "release")
            await PauseRecord(fleet.store).change(lambda each: replace(each, fleet=pause))
        await spend(fleet)
        await a_turn(fleet)
        assert (await PauseRecord(fleet.store).read()).fleet is not None
        await fleet.clock.sleep_ms(DAY_MS)
        await a_turn(fleet)
        found = await RegimeRecord(fleet.store).read()
        assert found.name is not Regime.PAUSED
        return (await PauseRecord(fleet.store).read()).fleet

    assert run_virtual(main(by_person=False)) is None
    assert run_virtual(main(by_person=True)).by == "ann"
