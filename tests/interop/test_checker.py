"""The checker of `make interop` finds each thing that can go wrong beside the Java KCL."""

from collections import Counter

import pytest

from tests.interop.allowed import ALLOWED, unexpected
from tests.interop.checker import (
    EXPIRED,
    FLEET,
    JAVA,
    KILLED,
    STOLEN,
    Delivery,
    End,
    Look,
    Run,
    given,
    judge,
    moves,
    takeovers_ms,
)

SHARD, CHILD = "shardId-000000000000", "shardId-000000000001"
SENT = [("a", SHARD, (number, 0)) for number in range(1, 5)]


def look(at_ms, owner, checkpoint_owner=None, **more):
    return Look(at_ms, owner, checkpoint_owner, **more)


# Handed over to Java at 20 s, the old owner done at 21 s.
HANDED = {SHARD: [look(0, "f-1"), look(20_000, "j", "f-1"), look(21_000, "j")]}
TAKEN = {SHARD: [look(0, "f-1"), look(20_000, "j")]}
FLEET_KILLED = (End(19_800, FLEET, frozenset({"f-1"})),)


def gave(at_ms, side, *numbers, shard=SHARD):
    return Delivery(at_ms, side, shard, tuple((number, 0) for number in numbers))


def judged(*deliveries, history=HANDED, sent=SENT, **more):
    return judge(
        Run(
            sent=sent, deliveries=list(deliveries), history=history, java=frozenset({"j"}), **more
        )
    )  # fmt: skip


GOOD = gave(1_000, FLEET, 1, 2), gave(22_000, JAVA, 3, 4)


def test_each_record_once_and_in_order_by_its_owner_is_good():
    found = judged(*GOOD)

    assert found.is_good
    assert found.delivered == {FLEET: 2, JAVA: 2}


def test_what_nobody_was_given_is_lost():
    found = judged(GOOD[0])

    assert (found.lost, found.is_good) == (2, False)


def test_a_key_whose_later_record_comes_first_is_out_of_order():
    found = judged(gave(1_000, FLEET, 2), gave(2_000, FLEET, 1), GOOD[1])

    assert (found.out_of_order, found.is_good) == (1, False)


def test_a_child_that_is_read_before_its_parent_is_out_of_order():
    sent = [("a", SHARD, (1, 0)), ("a", CHILD, (9, 0))]
    history = {SHARD: [look(0, "f-1")], CHILD: [look(0, "f-1")]}
    parent, child = gave(2_000, FLEET, 1), gave(1_000, FLEET, 9, shard=CHILD)

    assert judged(parent, child, history=history, sent=sent).out_of_order == 1
    later = child._replace(at_ms=3_000)
    assert judged(parent, later, history=history, sent=sent).is_good


@pytest.mark.parametrize("at_ms", [12_000, 40_000])
def test_a_delivery_by_a_side_that_has_not_the_lease_is_found(at_ms):
    side = JAVA if at_ms < 20_000 else FLEET
    wrong = gave(at_ms, side, 3, 4)
    found = judged(GOOD[0], wrong)

    assert (found.non_owner, found.is_good) == ([wrong], False)


TWICE = gave(1_000, FLEET, 1, 2), gave(19_500, FLEET, 3), gave(22_000, JAVA, 3, 4)


def test_a_repeat_is_a_fault_where_leases_are_handed_over():
    assert judged(*TWICE).repeated == {"unexplained": 1}
    assert not judged(*TWICE).is_good


def test_a_lease_that_is_taken_by_force_from_who_lives_is_a_fault_and_so_is_what_it_repeats():
    found = judged(*TWICE, history=TAKEN)

    assert found.repeated == {"unexplained": 1}
    assert len(found.robbed) == 1
    assert not judged(*GOOD, history=TAKEN).is_good


STILL = {SHARD: [look(0, "f-1"), look(20_000, "j", still_ms=10_100)]}


def test_a_lease_that_stood_still_for_the_failover_time_may_be_taken_where_the_machine_did_too():
    found = judged(*TWICE, history=STILL, late_ms=9_000)

    assert (found.robbed, len(found.expired), found.repeated) == ([], 1, {EXPIRED: 1})
    assert found.is_good


@pytest.mark.parametrize(("still_ms", "late_ms"), [(9_900, 9_000), (10_100, 300)])
def test_one_that_did_not_stand_still_or_on_a_machine_that_kept_up_may_not(still_ms, late_ms):
    history = {SHARD: [look(0, "f-1"), look(20_000, "j", still_ms=still_ms)]}

    assert not judged(*GOOD, history=history, late_ms=late_ms).is_good


def test_beside_a_kcl_2_leases_are_taken_by_force_and_records_come_again():
    found = judged(*TWICE, history=TAKEN, steals=True)

    assert found.repeated == {STOLEN: 1}
    assert found.is_good


def test_what_was_delivered_just_before_its_owner_was_killed_may_come_again():
    found = judged(*TWICE, history=TAKEN, ends=FLEET_KILLED)

    assert found.repeated == {KILLED: 1}
    assert found.is_good


@pytest.mark.parametrize(
    "end",
    [
        FLEET_KILLED[0]._replace(at_ms=60_000),
        FLEET_KILLED[0]._replace(side=JAVA),
        FLEET_KILLED[0]._replace(is_kill=False),
        FLEET_KILLED[0]._replace(at_ms=31_000),
    ],
    ids=["later", "of the other side", "in order", "long after it was delivered"],
)
def test_another_end_does_not_explain_a_repeat(end):
    found = judged(*TWICE, ends=(end,))

    assert found.repeated == {"unexplained": 1}


def test_who_is_robbed_hears_of_it_at_the_next_renewal_and_then_is_silent():
    late = GOOD[0], gave(24_000, FLEET, 3), gave(24_500, JAVA, 3, 4)

    assert judged(*late, history=TAKEN, steals=True).is_good
    assert judged(*late).non_owner == [late[1]]


def test_a_record_that_nobody_fed_is_no_delivery():
    assert not judged(*GOOD, gave(23_000, JAVA, 9)).is_good


def test_moves_are_of_the_time_they_are_asked_for():
    assert moves(HANDED, from_ms=0, to_ms=30_000) == 1
    assert moves(HANDED, from_ms=0, to_ms=20_000) == 0


def test_a_finished_lease_that_changes_its_owner_is_no_move_and_no_robbery():
    history = {SHARD: [look(0, "f-1", is_finished=True), look(20_000, "j", is_finished=True)]}

    assert moves(history, from_ms=0, to_ms=30_000) == 0
    assert judged(gave(500, FLEET, 1, 2, 3, 4), history=history).is_good


def test_a_drained_side_that_is_to_have_a_lease_is_found_and_what_it_had_before_is_not():
    asked = {"java": {"j"}, "from_ms": 20_500, "to_ms": 60_000}
    back = {SHARD: [*HANDED[SHARD], look(40_000, "f-1", "j")]}

    assert given(HANDED, FLEET, **asked) == []
    assert given(back, FLEET, **asked) == [SHARD]


def test_a_takeover_is_measured_from_the_end_to_a_living_owner():
    free = {SHARD: [look(0, "f-1"), look(30_000, None), look(33_000, "j")]}

    assert takeovers_ms(free, FLEET_KILLED[0]) == {SHARD: 13_200}
    assert takeovers_ms({SHARD: free[SHARD][:2]}, FLEET_KILLED[0]) == {SHARD: None}
    assert takeovers_ms(free, End(31_000, FLEET, frozenset({"f-1"}))) == {}


def test_what_java_says_is_a_fault_unless_it_is_allowed():
    known = f"{ALLOWED[0].said} "

    assert unexpected(Counter({known: 3})) == []
    assert unexpected(Counter({known: 1, "ERROR LeaseRefresher: no counter": 2})) == [
        "Java, 2 times: ERROR LeaseRefresher: no counter"
    ]
