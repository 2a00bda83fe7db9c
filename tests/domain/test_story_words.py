"""Planners' reasons and entries in plain words."""

import pytest

from shardfleet.domain.balance.by_count import WorkerView, plan_balanced, plan_greedy
from shardfleet.domain.balance.by_load import BalanceLimits, plan_by_load
from shardfleet.domain.explain.story_words import about, plain_reason, sentence
from shardfleet.domain.explain.turn_log import FLEET, Entry, Happening
from shardfleet.domain.leases.sync import CreateReason
from tests.domain.builders import a_lease, a_worker

TERSE = ("unowned", "expired under", " holds ", "slot", "this lease", " most)")


def reasons(plan):
    return [each.reason for each in plan.assignments] + [why for _, why in plan.left]


def every_reason():
    """Let the planners themselves give every reason they have."""
    two = [a_worker("a most 8"), a_worker("b most 8")]
    free = [a_lease("1"), a_lease("2 by x at 5"), a_lease("3 from 2")]
    yield from reasons(plan_balanced(free, expired=frozenset("2"), workers=two))
    yield from reasons(plan_balanced(free, expired=frozenset("2"), workers=()))
    yield from reasons(plan_balanced(free, expired=frozenset(), workers=[a_worker("a most 0")]))
    uneven = [a_lease(f"{n} by a at 5", throughput_kbps=100.0) for n in range(4)]
    yield from reasons(plan_balanced(uneven, expired=frozenset(), workers=two))
    busy = [WorkerView(worker_id=w, leases_most=8, utilisation={"cpu": 50.0}) for w in "ab"]
    limits = BalanceLimits()
    loaded = [*uneven, a_lease("9", throughput_kbps=50.0)]
    for workers in (two, busy):
        yield from reasons(
            plan_by_load(
                loaded, expired=frozenset(), workers=workers, limits=limits, rebalance=True
            )
        )
    worker = a_worker("a most 8 ended 0")
    child = [a_lease("0 at SHARD_END by a"), a_lease("1 from 0")]
    for leases, most in ((child, 4), (free, 1), (uneven, 4)):
        for taker in (worker, a_worker("a most 1"), a_worker("b most 8")):
            yield from reasons(
                plan_greedy(
                    leases, expired=frozenset(), worker=taker, leases_to_acquire=most, order=list
                )
            )


def test_every_reason_of_the_planners_has_plain_words():
    found = set(every_reason())
    assert len(found) > 8
    for reason in found:
        words = plain_reason(reason)
        assert not any(terse in words for terse in TERSE), (reason, words)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("unowned", ""),
        ("unowned; f-s1 holds fewest (2)", "f-s1 had the fewest shards (2)"),
        (
            "expired under f-s1; f-s2 is least loaded (40% of the average)",
            "f-s2 had the least to do",
        ),
        ("f-s1 holds 5, f-s2 3", "f-s1 had 5 shards, f-s2 only 3"),
        ("waits for parent 1, 2", "its parent 1, 2 must be read to the end first"),
        ("something new", "something new"),
        *((str(reason), str(reason)) for reason in (CreateReason.OLDEST_OF_ITS_LINE,)),
    ],
)
def test_a_reason_in_plain_words(reason, words):
    assert plain_reason(reason) == words


@pytest.mark.parametrize("what", list(Happening))
def test_everything_that_can_happen_is_a_sentence_with_and_without_a_reason(what):
    bare = sentence(Entry(what=what, subject="shard-1"))
    full = sentence(
        Entry(what=what, subject="shard-1", worker_id="W", before="V", reason="because")
    )
    for text in (bare, full):
        assert text[0].isupper()
        assert text.endswith(".")
        assert "{" not in text
        assert ".." not in text
    assert full.endswith("because.")


def test_a_worker_is_named_once_in_a_sentence():
    reason = "unowned; f-s1 holds fewest (2)"
    entry = Entry(what=Happening.ASSIGNED, subject="2", worker_id="f-s1", reason=reason)
    assert sentence(entry) == (
        "Nobody had it, so f-s1 was given it: that worker had the fewest shards (2)."
    )


def test_a_lease_that_came_with_an_owner_names_it():
    entry = Entry(what=Happening.APPEARED, subject="2", worker_id="a", reason="because")
    assert sentence(entry) == "a has it, with a new lease: because."
    assert sentence(Entry(what=Happening.APPEARED, subject="2")) == "A lease for it was found."


def test_in_a_story_of_several_each_sentence_names_its_shard():
    moved = Entry(what=Happening.MOVED, subject="shard-1", worker_id="b", before="a")
    assert about(moved) == "shard-1: It was taken from a and given to b."
    started = Entry(
        what=Happening.SLOT_STARTED, subject="s1", worker_id="f-s1", reason="2 slots wanted"
    )
    assert about(started) == "f-s1 was started: the fleet needs 2 workers."
    sized = Entry(what=Happening.SIZED, subject=FLEET, reason="3 worker slots wanted")
    assert about(sized) == "The fleet was sized: the fleet needs 3 workers."
