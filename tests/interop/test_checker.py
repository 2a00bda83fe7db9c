"""The checker of `make interop` finds each thing that can go wrong beside the Java KCL."""

import pytest

from tests.interop.checker import FLEET, JAVA, Delivery, Look, judge, moves, share

SHARD = "shardId-000000000000"
SENT = [("a", SHARD, (number, 0)) for number in range(1, 5)]


def look(at_ms, owner, checkpoint_owner=None):
    return Look(at_ms, at_ms, owner, checkpoint_owner)


# Handed over to Java at 20 s, the old owner done at 21 s.
HANDED = {SHARD: [look(0, "f-1"), look(20_000, "j", "f-1"), look(21_000, "j")]}
TAKEN = {SHARD: [look(0, "f-1"), look(20_000, "j")]}


def gave(at_ms, side, *numbers):
    return Delivery(at_ms, side, SHARD, tuple((number, 0) for number in numbers))


def judged(*deliveries, history=HANDED):
    return judge(SENT, deliveries, history, java={"j"})


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


@pytest.mark.parametrize("at_ms", [12_000, 40_000])
def test_a_delivery_by_a_side_that_has_not_the_lease_is_found(at_ms):
    side = JAVA if at_ms < 20_000 else FLEET
    wrong = gave(at_ms, side, 3, 4)
    found = judged(GOOD[0], wrong)

    assert (found.non_owner, found.is_good) == ([wrong], False)


def test_a_repeat_wants_a_lease_that_was_taken_in_between():
    twice = gave(1_000, FLEET, 1, 2), gave(19_500, FLEET, 3), gave(22_000, JAVA, 3, 4)

    assert judged(*twice).repeated == {"unexplained": 1}
    assert not judged(*twice).is_good
    assert judged(*twice, history=TAKEN).repeated == {"taken by force": 1}
    assert judged(*twice, history=TAKEN).is_good


def test_who_is_robbed_hears_of_it_at_the_next_renewal_and_then_is_silent():
    late = GOOD[0], gave(24_000, FLEET, 3), gave(24_500, JAVA, 3, 4)

    assert judged(*late, history=TAKEN).is_good
    assert judged(*late).non_owner == [late[1]]


def test_a_record_that_nobody_fed_is_no_delivery():
    assert not judged(*GOOD, gave(23_000, JAVA, 9)).is_good


def test_moves_and_share_are_of_the_time_they_are_asked_for():
    assert moves(HANDED, from_ms=0, to_ms=30_000) == 1
    assert moves(HANDED, from_ms=0, to_ms=20_000) == 0
    assert share(HANDED, at_ms=20_500, java={"j"}) == {FLEET: 1, JAVA: 0}
    assert share(HANDED, at_ms=21_500, java={"j"}) == {FLEET: 0, JAVA: 1}
