"""
Beside a KCL 3 its leader gives out the leases, to those that show a fresh row of worker metrics.

Protocol.md §2.3, §2.6 and §3.2; the real one: `make interop`.
"""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.engine.state.pauses import PauseRecord
from tests.engine.manager_side.fleet_kit import running_fleet
from tests.engine.manager_side.test_foreign_holders import JAVA, SharedTable
from tests.virtual import virtual

ONE = "f-s0001"


class BesideKcl3(SharedTable):
    """A shared table whose Java is of version 3: it writes its row as long as it lives."""

    shows = True

    async def beat(self, *slot_ids):
        if self.javas and self.shows:
            self.kcl3.rows[JAVA] = self.clock.now_ms() // 1000
        await super().beat(*slot_ids)


async def beside(**options):
    """Begin with Java's holding everything and showing itself."""
    fleet = BesideKcl3(java=16, **{"leases_per_worker": 16} | options)
    await fleet.begin()
    fleet.kcl3.rows[JAVA] = fleet.clock.now_ms() // 1000
    return fleet


@virtual
async def test_a_slot_is_started_shown_and_kept_until_the_leader_gives_it_leases():
    fleet = await beside()
    await fleet.manager.turn()
    assert fleet.kcl3.rows.keys() == {JAVA}
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert fleet.kcl3.rows[ONE] == fleet.clock.now_ms() // 1000
    # What says that it is wanted: a worker that hears it goes on (below).
    before = (await fleet.slot("s0001")).assign_seq
    await fleet.clock.sleep_ms(20_000)
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    assert (await fleet.slot("s0001")).assign_seq == before + 1
    assert fleet.kcl3.rows[ONE] == fleet.clock.now_ms() // 1000
    assert fleet.held() == {JAVA: 16}


@virtual
async def test_a_fleet_that_is_paused_as_a_whole_is_not_shown_until_it_is_resumed():
    """Seen with KCL 3.1: its leader gave a paused fleet three leases again and again."""
    fleet = await beside()
    await fleet.manager.turn()
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert fleet.kcl3.rows.keys() == {JAVA, ONE}
    pauses = PauseRecord(fleet.store)
    await pauses.change(lambda _: Pauses(fleet=Pause("ann", 5)))
    fleet.renew()
    await fleet.manager.turn()
    assert fleet.kcl3.rows.keys() == {JAVA}
    # What Java reads goes on, and is none of what is paused.
    assert fleet.named("ManagerTurnDone")[-1].paused_leases == 0
    await pauses.change(lambda _: Pauses())
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    assert fleet.kcl3.rows.keys() == {JAVA, ONE}


@virtual
async def test_a_row_that_is_fresh_is_not_written_again():
    """KCL 3.1's WorkerMetricStatsManager writes each 30 s; here a third of that is enough."""
    fleet = await beside()
    await fleet.manager.turn()
    await fleet.beat("s0001")
    await fleet.manager.turn()
    written_s = fleet.kcl3.rows[ONE]
    await fleet.clock.sleep_ms(5_000)
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    assert fleet.kcl3.rows[ONE] == written_s
    await fleet.clock.sleep_ms(6_000)
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    assert fleet.kcl3.rows[ONE] >= written_s + 10


@virtual
async def test_a_fleet_that_is_alone_writes_no_row():
    fleet = BesideKcl3(java=0)
    fleet.javas = False
    await running_fleet(fleet)
    await fleet.run(minutes=2)
    assert fleet.kcl3.rows == {}


@virtual
async def test_beside_a_leader_nothing_is_given_out_whatever_is_free_or_uneven():
    fleet = await beside()
    await fleet.manager.turn()
    await fleet.beat("s0001")
    free = sorted(fleet.leases.leases)[:3]
    for key in free:
        await fleet.leases.apply(lease_changes.evict(fleet.leases.leases[key]))
    fleet.renew()
    await fleet.manager.turn()
    assert fleet.held() == {JAVA: 13, None: 3}

    fleet.config = replace(fleet.config, kcl_leads=False)
    fleet.use(fleet.leases)
    await fleet.manager.turn()
    assert fleet.held() == {JAVA: 13, ONE: 3}
    assert ONE not in fleet.kcl3.rows


@virtual
async def test_the_row_of_a_slot_that_ends_drains_or_crashes_goes():
    fleet = await beside(leases_per_worker=5)
    await fleet.manager.turn()
    await fleet.beat("s0001", "s0002", "s0003")
    await fleet.manager.turn()
    assert fleet.kcl3.rows.keys() == {JAVA, ONE, "f-s0002", "f-s0003"}
    await fleet.end("s0001")
    await fleet.state.update_slot("s0002", lambda slot: replace(slot, drain=True))
    await fleet.state.update_slot("s0003", lambda slot: replace(slot, open_turns=3))
    fleet.renew()
    await fleet.manager.turn()
    assert fleet.kcl3.rows.keys() == {JAVA}


@pytest.mark.parametrize(
    ("version", "is_shown", "is_led"),
    [
        ("", True, True),
        ("CLIENT_VERSION_3X", True, True),
        ("CLIENT_VERSION_3X_WITH_ROLLBACK", True, True),
        # Every owner is to have a row there, and yet they take as the KCL 2 does (§2.3).
        ("CLIENT_VERSION_UPGRADE_FROM_2X", True, False),
        ("CLIENT_VERSION_2X", False, False),
    ],
)
@virtual
async def test_how_far_java_has_migrated_tells_who_gives_out_leases(version, is_shown, is_led):
    fleet = await beside()
    fleet.kcl3.version = version
    key = min(fleet.leases.leases)
    await fleet.leases.apply(lease_changes.evict(fleet.leases.leases[key]))
    await fleet.manager.turn()
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    assert (ONE in fleet.kcl3.rows) == is_shown
    assert fleet.held()[ONE] == (0 if is_led else 1)


@virtual
async def test_when_java_dies_its_leases_are_taken_at_once_though_its_row_is_fresh():
    fleet = await beside()
    await fleet.manager.turn()
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    fleet.javas = False
    await fleet.clock.sleep_ms(13_000)
    await fleet.beat("s0001")
    await fleet.manager.turn()
    assert fleet.clock.now_ms() - 1000 * fleet.kcl3.rows[JAVA] < 60_000
    assert fleet.held() == {ONE: 16}
    assert fleet.kcl3.rows.keys() == {JAVA}


@pytest.mark.parametrize(("seconds", "left"), [(20, 3), (26, 0)])
@virtual
async def test_who_is_given_a_lease_has_the_time_that_java_needs_to_begin_with_it(seconds, left):
    fleet = BesideKcl3(java=0, leases_per_worker=16)
    await running_fleet(fleet)
    fleet.kcl3.rows[JAVA] = fleet.clock.now_ms() // 1000
    given = sorted(fleet.leases.leases)[:3]
    # Java's leader gives its first worker what nobody had, and what is handed over.
    await fleet.leases.apply(lease_changes.evict(fleet.leases.leases[given[0]]))
    await fleet.manager.turn()
    for key in given:
        await fleet.leases.apply(lease_changes.assign(fleet.leases.leases[key], JAVA))
    for _ in range(seconds):
        await fleet.manager.turn()
        await fleet.clock.sleep_ms(1_000)
        fleet.renew(*sorted(fleet.leases.leases.keys() - given))
        await fleet.beat("s0001")
    assert fleet.held()[JAVA] == left


@pytest.mark.parametrize("is_shown", [True, False])
@virtual
async def test_what_is_stolen_is_handed_over_by_who_shows_that_it_can(is_shown):
    fleet = await beside(assignment="greedy", kcl_leads=False)
    if not is_shown:
        fleet.shows, fleet.kcl3.rows = False, {}
    await fleet.manager.turn()
    await fleet.beat("s0001")
    fleet.renew()
    await fleet.manager.turn()
    stolen = [le for le in fleet.leases.leases.values() if le.lease_owner == ONE]
    assert [le.checkpoint_owner for le in stolen] == [JAVA if is_shown else None]
