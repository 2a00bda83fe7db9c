"""Runs tests/scenarios/expiry.json: which leases have lost their owner, reading by reading."""

import pytest

from shardfleet.domain.leases.expiry import Reading, Sighting, in_step, sighted
from tests.domain.builders import a_lease, load_scenarios

_, CASES = load_scenarios("expiry.json")
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("case", CASES, ids=[case["comment"][:70] for case in CASES])
def test_leases_expire(case):
    sightings = {}
    for reading in case["readings"]:
        leases = [a_lease(text) for text in reading["leases"]]
        sightings, expired = sighted(
            sightings,
            leases[::-1],
            reading=Reading(
                began_ms=reading["started"], ended_ms=reading["finished"], skew_ms=2_000
            ),
            failover_ms=10_000,
            graces=case.get("fresh", {}),
        )

        assert {key: seen.first_seen_ms for key, seen in sightings.items()} == reading["first_seen"]
        assert sorted(expired) == reading["expired"]


def test_there_are_enough_cases_and_each_says_what_it_shows():
    assert len(CASES) >= 8
    assert len({case["comment"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    ("newest_ms", "is_kept"), [(NOW_MS, True), (NOW_MS - 5_000, True), (NOW_MS - 5_001, False)]
)
def test_what_was_kept_by_a_clock_that_is_behind_begins_anew(newest_ms, is_kept):
    """E7: by the newest of it; an old one among them is a lease that stands still."""
    kept = {
        "1": Sighting(7, "a", newest_ms - 600_000),
        "2": Sighting(7, "a", newest_ms),
    }
    assert in_step(kept, now_ms=NOW_MS, apart_most_ms=5_000) == (kept if is_kept else {})
    assert in_step({}, now_ms=NOW_MS, apart_most_ms=5_000) == {}
