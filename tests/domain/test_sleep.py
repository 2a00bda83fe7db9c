"""Sleep: scenarios with reasons, and what holds whatever there is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.leases.foreign_owners import Foreign, foreign_owners, noted_foreign
from shardfleet.domain.reasons import OtherApplication, Reason
from shardfleet.domain.sleep.sleep import (
    ITERATOR_AGE_MOST_MS,
    Found,
    Glance,
    Nap,
    after_look,
    are_due_to_be_stored,
    next_glance,
    plan_naps,
)
from shardfleet.domain.stream.sequence import AT_TRIM_HORIZON
from shardfleet.engine.state.kinds import NAP
from tests.domain.builders import SCENARIOS, a_lease, number

PAGE = json.loads((SCENARIOS / "sleep.json").read_text("utf-8"))
NOW_MS, SETTLE_MS = 100_000, 10_000


def nap_of(text):
    lease_key, *rest = text.split()
    words = dict(zip(rest[::2], rest[1::2], strict=True))
    return Nap(
        lease_key=lease_key,
        worker_id=words["by"],
        since_ms=1_000 * int(words["since"]),
        done=number(words["at"]),
    )


def names(case):
    return case["why"][:70]


def planned(naps, leases, off=None):
    return plan_naps(naps, leases, off=off, now_ms=NOW_MS, settle_ms=SETTLE_MS)


@pytest.mark.parametrize("case", PAGE["cases"], ids=names)
def test_naps_last_or_are_taken_away(case):
    plan = planned(
        [nap_of(text) for text in case["naps"]],
        [a_lease(text) for text in case["leases"]],
        OtherApplication(case["off"]) if "off" in case else None,
    )

    assert list(plan.asleep) == case.get("asleep", [])
    assert {key: str(why) for key, why in plan.woken.items()} == case.get("woken", {})


@pytest.mark.parametrize("case", PAGE["looks"], ids=names)
def test_a_look_is_remembered_or_wakes(case):
    glance = Glance(
        since_ms=1, iterator="i1", made_ms=50, quiet_ms=50, failures=case.get("failures", 0)
    )

    after = after_look(glance, Found[case["found"]], iterator=case.get("iterator", ""), at_ms=100)

    if "woken" in case:
        assert str(after) == case["woken"]
    else:
        wanted = case["remembered"]
        assert after == Glance(
            since_ms=1,
            iterator=wanted["iterator"],
            made_ms=wanted["made"],
            quiet_ms=wanted["quiet"],
            failures=wanted["failures"],
        )


@pytest.mark.parametrize("case", PAGE["foreign"], ids=names)
def test_other_applications_are_remembered(case):
    def foreign(pair):
        return Foreign(pair[0], 1_000 * pair[1]) if pair else None

    after = noted_foreign(foreign(case.get("before")), case["owners"], now_ms=10_000_000)

    assert after == foreign(case["noted"])


def test_only_living_owners_of_unfinished_leases_that_are_not_ours_are_foreign():
    leases = [
        a_lease("0 by a"),
        a_lease("1 by java"),
        a_lease("2 by dead"),
        a_lease("3 at SHARD_END by ruby"),
        a_lease("4 by a renewed-by old"),
        a_lease("5"),
    ]

    assert foreign_owners(leases, ours={"a"}, expired={"2"}) == ["java", "old"]


def test_a_look_goes_on_where_the_last_one_at_this_nap_ended():
    nap = Nap(
        lease_key="0", worker_id="a", since_ms=5, done=number("7"), iterator="left", made_ms=4
    )
    last = Glance(since_ms=5, iterator="later", made_ms=60, quiet_ms=60, failures=1)

    assert next_glance(nap, last, now_ms=70) == last
    of_another_nap = Glance(since_ms=4, iterator="old", made_ms=60, quiet_ms=60)
    for unknown in (None, of_another_nap):
        begun = next_glance(nap, unknown, now_ms=70)
        assert begun == Glance(since_ms=5, iterator="left", made_ms=4, quiet_ms=5)


def test_an_iterator_that_is_nearly_five_minutes_old_is_not_used():
    nap = Nap(
        lease_key="0", worker_id="a", since_ms=0, done=number("7"), iterator="left", made_ms=0
    )
    assert next_glance(nap, None, now_ms=ITERATOR_AGE_MOST_MS - 1).iterator == "left"
    assert next_glance(nap, None, now_ms=ITERATOR_AGE_MOST_MS).iterator == ""


def test_what_is_stored_is_replaced_while_two_runs_of_the_manager_may_still_fail():
    nap = Nap(
        lease_key="0", worker_id="a", since_ms=0, done=number("7"), iterator="left", made_ms=0
    )
    stored = {"0": Glance(since_ms=0, iterator="i", made_ms=60_000, quiet_ms=60_000)}

    assert not are_due_to_be_stored([nap], stored, stored, now_ms=120_000)
    assert are_due_to_be_stored([nap], stored, stored, now_ms=180_000)
    assert not are_due_to_be_stored([nap], {}, {}, now_ms=60_000)
    assert are_due_to_be_stored([nap], {}, {}, now_ms=120_000)
    assert not are_due_to_be_stored([], stored, stored, now_ms=180_000)


def test_a_look_that_failed_is_stored_at_once_and_so_is_one_that_made_up_for_it():
    nap = Nap(lease_key="0", worker_id="a", since_ms=0, done=number("7"))
    quiet = Glance(since_ms=0, iterator="i", made_ms=60_000, quiet_ms=60_000)
    failed = replace(quiet, failures=1)

    assert are_due_to_be_stored([nap], {"0": quiet}, {"0": failed}, now_ms=60_000)
    assert are_due_to_be_stored([nap], {"0": failed}, {"0": quiet}, now_ms=60_000)
    assert not are_due_to_be_stored([nap], {"0": failed}, {"0": failed}, now_ms=60_000)


# --- properties

positions = st.sampled_from([AT_TRIM_HORIZON, *map(number, ("5", "5:1", "6", "7", "SHARD_END"))])
owners = st.sampled_from(["", " by a", " by b", " by b renewed-by a"])
leases = st.builds(
    lambda key, at, owner: a_lease(f"{key} at {at}{owner}"), st.integers(0, 5), positions, owners
)
naps = st.builds(
    lambda key, since, at: nap_of(f"{key} at {at} since {since} by a"),
    st.integers(0, 5),
    st.integers(0, 100),
    positions,
)


def by_key(found):
    return list({each.lease_key: each for each in found}.values())


@given(st.lists(naps).map(by_key), st.lists(leases).map(by_key), st.sampled_from(["", "no"]))
def test_only_a_lease_that_nobody_has_and_that_stands_where_its_worker_left_it_sleeps(
    some_naps, some_leases, off
):
    plan = planned(some_naps, some_leases, off)

    table = {lease.lease_key: lease for lease in some_leases}
    assert not plan.asleep.keys() & plan.woken.keys()
    for key, nap in plan.asleep.items():
        assert table[key].lease_owner is table[key].checkpoint_owner is None
        assert table[key].checkpoint == nap.done
        assert not off
    undecided = {nap.lease_key for nap in some_naps} - plan.asleep.keys() - plan.woken.keys()
    since = {nap.lease_key: nap.since_ms for nap in some_naps}
    assert all(table[key].lease_owner and since[key] > 90_000 for key in undecided)


@given(st.lists(naps).map(by_key), st.lists(leases).map(by_key), st.randoms())
def test_the_order_of_naps_and_leases_makes_no_difference(some_naps, some_leases, chance):
    plan = planned(some_naps, some_leases)
    chance.shuffle(some_naps)
    chance.shuffle(some_leases)

    assert planned(some_naps, some_leases) == plan


@given(st.lists(st.sampled_from(list(Found)), max_size=12))
def test_the_first_look_that_is_not_quiet_wakes_and_so_does_the_second_refusal(
    looks,
):
    nap = Nap(lease_key="0", worker_id="a", since_ms=0, done=number("7"))
    glance = next_glance(nap, None, now_ms=0)
    refused = 0
    for at_ms, found in enumerate(looks):
        refused = refused + 1 if found in (Found.REFUSED, Found.EXPIRED) else 0
        wakes = refused == 2 or (found is not Found.NOTHING and not refused)
        after = after_look(glance, found, iterator=f"i{at_ms}", at_ms=at_ms)
        assert isinstance(after, Reason) == wakes
        if isinstance(after, Reason):
            return
        glance = after


def test_a_nap_survives_its_document():
    nap = Nap(
        lease_key="0",
        worker_id="a",
        since_ms=12,
        done=number("55:2"),
        after="55",
        iterator="AAA=",
        made_ms=11,
    )
    assert NAP.read(json.loads(json.dumps(nap.body())), "0") == nap


def test_a_nap_says_who_found_nothing_since_when():
    nap = Nap(lease_key="0", worker_id="f-s0001", since_ms=1_795_000_000_000, done=number("7"))

    words = "asleep since 2026-11-18T11:06:40Z: f-s0001 found nothing more to read"
    assert str(nap.reason) == words
