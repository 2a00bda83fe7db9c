"""Which process takes which slot, and when one is taken for dead."""

import pytest

from shardfleet.domain.slots.offers import Board, Offer, Seen, seen_again


def board(*, hosts, waiting=(), leaving=(), **offers):
    made = {name: Offer(name=name, text="{}", host=host) for name, host in offers.items()}
    alive = frozenset([*hosts, *leaving])
    return Board(offers=made, waiting=frozenset(waiting), alive=alive, hosts=frozenset(hosts))


def test_what_changes_is_seen_anew_and_what_is_gone_is_forgotten():
    before = {"a": Seen(1, 10), "b": Seen(1, 10), "c": Seen(1, 10)}
    assert seen_again(before, {"a": 1, "b": 2, "d": 1}, at_ms=50) == {
        "a": Seen(1, 10),
        "b": Seen(2, 50),
        "d": Seen(1, 50),
    }


@pytest.mark.parametrize(("at_ms", "still"), [(10_009, False), (10_010, True)])
def test_a_writer_is_dead_once_its_document_has_stood_still_for_the_failover_time(at_ms, still):
    assert Seen(1, 10).stands_still(at_ms=at_ms, failover_ms=10_000) is still


def test_the_first_free_offer_is_taken_by_who_has_fewest():
    found = board(hosts=["p", "q"], a="p", c="", b="")
    assert found.to_take("q") == "b"
    assert found.to_take("p") is None


def test_of_equals_each_may_take_one():
    found = board(hosts=["p", "q"], a="")
    assert found.to_take("p") == found.to_take("q") == "a"


def test_what_nobody_has_taken_for_long_anybody_takes():
    assert board(hosts=["p", "q"], waiting=["b"], a="p", b="").to_take("p") == "b"


def test_a_dead_process_is_waited_for_by_nobody():
    assert board(hosts=["p"], a="p", b="").to_take("p") == "b"


def test_a_process_that_leaves_is_waited_for_by_nobody():
    assert board(hosts=["p"], leaving=["q"], a="p", b="").to_take("p") == "b"


def test_what_a_dead_process_has_had_counts_for_nobody():
    assert board(hosts=["p", "q"], a="x", b="x").to_take("p") is None
    assert board(hosts=["p", "q"], a="x", b="x").to_pass_on("p") is None


def test_who_has_two_more_than_another_passes_one_on():
    found = board(hosts=["p", "q"], a="p", b="p")
    assert found.to_pass_on("p") == "b"
    assert found.to_pass_on("q") is None
    assert board(hosts=["p", "q"], a="p", b="q", c="q").to_pass_on("q") is None


def test_of_several_that_have_two_more_one_passes_one_on_at_a_time():
    found = board(hosts=["p", "q", "r"], a="p", b="p", c="q", d="q")
    assert [found.to_pass_on(host) for host in "pqr"] == [None, "d", None]
    found = board(hosts=["p", "q", "r"], a="p", b="p", c="q", d="")
    assert [found.to_pass_on(host) for host in "pqr"] == [None, None, None]
