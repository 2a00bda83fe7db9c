"""Which handovers are pending, since when, and which have taken too long."""

from shardfleet.domain.leases.handovers import Handover, overdue_handovers, pending_handovers
from tests.domain.builders import a_lease

HELD = a_lease("0 at 5 by a")
MOVING = a_lease("0 at 5 by b renewed-by a")
OVER = a_lease("0 at SHARD_END by b renewed-by a")
SEEN = {"0": Handover("a", "b", 1_000)}
MOST_MS = 200_000


def test_a_handover_is_pending_from_when_it_is_first_seen():
    assert pending_handovers({}, [HELD, MOVING], now_ms=1_000, age_most_ms=MOST_MS) == SEEN
    assert pending_handovers(SEEN, [MOVING], now_ms=9_000, age_most_ms=MOST_MS) == SEEN


def test_a_handover_that_ended_or_whose_shard_ended_is_pending_no_more():
    assert pending_handovers(SEEN, [HELD], now_ms=9_000, age_most_ms=MOST_MS) == {}
    assert pending_handovers(SEEN, [OVER], now_ms=9_000, age_most_ms=MOST_MS) == {}
    assert pending_handovers(SEEN, [], now_ms=9_000, age_most_ms=MOST_MS) == {}


def test_another_pair_of_owners_is_another_handover():
    """KCL 3 begins its time anew, too (protocol.md §3.2); else the new one would be forced."""
    for other in ("0 at 5 by c renewed-by a", "0 at 5 by b renewed-by c"):
        pending = pending_handovers(SEEN, [a_lease(other)], now_ms=9_000, age_most_ms=MOST_MS)
        assert pending["0"].since_ms == 9_000


def test_a_beginning_in_the_future_is_forgotten():
    """A clock went back: the handover would never be overdue."""
    assert pending_handovers(SEEN, [MOVING], now_ms=500, age_most_ms=MOST_MS)["0"].since_ms == 500


def test_a_beginning_longer_ago_than_any_can_be_is_forgotten():
    """It was first seen by a clock an hour behind: the old owner would be robbed at once."""
    for now_ms, since_ms in ((1_000 + MOST_MS, 1_000), (1_001 + MOST_MS, 1_001 + MOST_MS)):
        pending = pending_handovers(SEEN, [MOVING], now_ms=now_ms, age_most_ms=MOST_MS)
        assert pending["0"].since_ms == since_ms


def overdue(leases, *, now_ms, expired=frozenset(), ended=()):
    found = overdue_handovers(
        SEEN, leases, expired=expired, ended=ended, now_ms=now_ms, limit_ms=40_000
    )
    return [lease.lease_key for lease in found]


def test_a_handover_is_overdue_after_its_time_and_not_before():
    assert overdue([MOVING], now_ms=41_000) == []
    assert overdue([MOVING], now_ms=41_001) == ["0"]


def test_an_expired_lease_is_assigned_and_not_forced():
    assert overdue([MOVING], now_ms=99_000, expired=frozenset("0")) == []


def test_nothing_is_forced_upon_a_worker_that_has_ended():
    assert overdue([MOVING], now_ms=99_000, ended={"b"}) == []
    assert overdue([MOVING], now_ms=99_000, ended={"a"}) == ["0"]


def test_what_is_not_pending_is_not_overdue():
    assert overdue([a_lease("1 at 5 by b renewed-by a")], now_ms=99_000) == []
