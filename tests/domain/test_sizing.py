"""How many slots there should be: scenarios with reasons, and what holds for any fleet."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.slots.sizing import Pace, SizingLimits, SlotNeed, plan_size
from tests.domain.builders import SCENARIOS

CASES = json.loads((SCENARIOS / "sizing.json").read_text("utf-8"))["cases"]
NOW = 10_000_000
LIMITS = SizingLimits(
    leases_per_worker=8,
    min_workers=1,
    max_workers=16,
    target=0.7,
    lag_most_ms=60_000,
    scale_down_ms=180_000,
)


def need_of(text):
    """Read `s1 leases 3 used 80 lag 90`: used in per cent, lag in seconds."""
    slot_id, *rest = text.split()
    words = dict(zip(rest[::2], rest[1::2], strict=True))
    assert words.keys() <= {"leases", "used", "lag"}, text
    return SlotNeed(
        slot_id=slot_id,
        leases=int(words.get("leases", 1)),
        used=float(words["used"]) / 100 if "used" in words else None,
        lag_ms=1_000 * int(words["lag"]) if "lag" in words else -1,
    )


def pace_of(words):
    """Read how many seconds ago: `surplus` began, lag last `raised`."""
    return Pace(**{f"{name}_ms": NOW - 1_000 * ago for name, ago in words.items()})


def sized(case, turn=list):
    return plan_size(
        turn([need_of(text) for text in case["slots"]]),
        unfinished=case["leases"],
        pace=pace_of(case.get("pace", {})),
        limits=replace(LIMITS, **case.get("limits", {})),
        now_ms=NOW,
    )


@pytest.mark.parametrize("case", CASES, ids=[case["why"][:70] for case in CASES])
def test_the_fleet_is_sized(case):
    found = sized(case)

    assert {"wanted": found.wanted, "reason": str(found.reason)} == {
        "wanted": case["wanted"],
        "reason": case["reason"],
    }


@pytest.mark.parametrize("case", CASES, ids=[case["why"][:70] for case in CASES])
def test_the_order_of_the_slots_does_not_matter(case):
    assert sized(case, turn=lambda items: items[::-1]) == sized(case)


NEEDS = st.lists(
    st.builds(
        SlotNeed,
        slot_id=st.text("abcdef", min_size=1, max_size=3),
        leases=st.integers(0, 12),
        used=st.one_of(st.none(), st.floats(0, 1)),
        lag_ms=st.integers(-1, 10**7),
    ),
    unique_by=lambda need: need.slot_id,
    max_size=20,
)
PACES = st.builds(Pace, surplus_ms=st.integers(0, 2 * NOW), raised_ms=st.integers(0, 2 * NOW))


TOO_MANY = [SlotNeed(slot_id=f"{n:02}", leases=0, used=None, lag_ms=-1) for n in range(20)]


@example(TOO_MANY, 1, Pace(surplus_ms=NOW + 1, raised_ms=0))
@given(NEEDS, st.integers(0, 200), PACES)
def test_any_fleet_is_sized_within_its_limits_and_one_less_at_a_time(needs, leases, pace):
    found = plan_size(needs, unfinished=leases, pace=pace, limits=LIMITS, now_ms=NOW)

    assert found.reason
    if leases == 0:
        assert found.wanted == 0
        return
    assert LIMITS.min_workers <= found.wanted <= LIMITS.max_workers
    assert found.wanted >= min(LIMITS.max_workers, -(-leases // LIMITS.leases_per_worker))
    assert found.wanted >= min(len(needs) - 1, LIMITS.max_workers)
    assert 0 <= found.pace.surplus_ms <= NOW
    # At the same instant nothing more leaves, whatever is asked again.
    again = plan_size(needs, unfinished=leases, pace=found.pace, limits=LIMITS, now_ms=NOW)
    assert again.wanted >= min(found.wanted, len(needs))


def play(needs_of, *, leases, minutes, slots):
    """Size a fleet every 20 s; return the number of slots after each minute."""
    pace, history, count = Pace(), [], slots
    for turn in range(3 * minutes):
        found = plan_size(
            needs_of(count, turn * 20), unfinished=leases, pace=pace, limits=LIMITS,
            now_ms=NOW + 20_000 * turn,
        )  # fmt: skip
        pace, count = found.pace, found.wanted
        if turn % 3 == 2:
            history.append(count)
    return history


def evenly(work):
    """Divide so many slots' worth of work evenly among the slots."""
    return lambda count, second: [
        SlotNeed(slot_id=f"s{n}", leases=4, used=min(1.0, work(second) / count))
        for n in range(count)
    ]


def test_a_steady_load_comes_to_one_number_and_stays_there():
    for work in (0.3, 1.0, 2.1, 3.5, 4.9, 6.9):
        for slots in (1, 4, 12):
            history = play(evenly(lambda _, w=work: w), leases=40, minutes=60, slots=slots)
            assert len(set(history[40:])) == 1, (work, slots, history)
            used = work / history[-1]
            assert used <= LIMITS.target + 0.001 or history[-1] == LIMITS.max_workers


def test_a_peak_is_answered_at_once_and_left_slowly():
    def work(second):
        return 5.0 if 600 <= second < 1_200 else 1.0

    history = play(evenly(work), leases=60, minutes=60, slots=8)
    assert history[9] == 8
    assert max(history[10:20]) == 8
    assert history[20:23] == [8, 8, 8]

    history = play(evenly(work), leases=16, minutes=60, slots=2)
    assert history[8] == 2
    # A slot that is full says no more than that it is full, so it takes some turns.
    assert history[11] >= 5
    assert history[-1] == 2
    falls = [a - b for a, b in pairwise(history[20:])]
    assert max(falls) == 1


def test_a_load_that_sways_about_the_target_does_not_sway_the_fleet():
    history = play(
        evenly(lambda second: 2.1 + 0.25 * (-1) ** (second // 20)), leases=40, minutes=60, slots=5
    )

    assert set(history) == {5}


@pytest.mark.parametrize(("bought", "wanted"), [(0, 4), (1, 4), (2, 3), (4, 2)])
def test_what_lambda_runs_beside_processes_leaves_together(bought, wanted):
    idle = [SlotNeed(slot_id=f"s{number}", leases=1, used=0.1, lag_ms=0) for number in range(5)]
    found = plan_size(
        idle,
        unfinished=5,
        pace=pace_of({"surplus": 180}),
        limits=replace(LIMITS, min_workers=2),
        now_ms=NOW,
        bought=bought,
    )
    assert found.wanted == wanted
