"""How what was measured is judged."""

import asyncio
from types import SimpleNamespace

import pytest

from shardfleet_local.acceptance.plan import SHORT
from shardfleet_local.acceptance.report import Shown, in_time, percentile
from shardfleet_local.acceptance.scene import Scene, StepFailed
from shardfleet_local.acceptance.steps import judged, rewound_to
from shardfleet_local.rig.verdict import verdict
from tests.local.rig.builders import BEGAN_MS, a_line, a_sent, a_shard
from tests.local.rig.test_incidents import StepClock

SENT = [a_sent(number, at_ms=BEGAN_MS + 100 * number) for number in range(1, 5)]


def judge(*lines):
    return judged(verdict(SENT, lines, shards=[a_shard(0)]), [20])


def test_everything_once_and_in_order_passes():
    assert judge(a_line(*SENT[:2]), a_line(*SENT[2:])).shown is Shown.PASSED


def test_what_comes_again_passes_and_is_counted():
    measured = judge(a_line(*SENT), a_line(*SENT[2:]))

    assert measured.shown is Shown.PASSED
    assert measured.figures["duplicates"] == 2


def test_one_lost_record_fails():
    measured = judge(a_line(*SENT[:2]), a_line(*SENT[3:]))

    assert measured.shown is Shown.FAILED
    assert measured.figures["lost"] == 1


def test_one_record_before_its_time_fails():
    assert judge(a_line(SENT[1]), a_line(SENT[0], *SENT[2:])).shown is Shown.FAILED


def test_the_slowest_record_since_an_instant_is_found_once_all_are_handled():
    lines = [a_line(r, at_ms=r.sent_ms + 10 * r.number) for r in SENT]
    noted = []
    scene = Scene(
        deployment=None,
        size=SHORT,
        stack=None,
        folder=None,
        feeder=SimpleNamespace(sent=SENT),
        notes=SimpleNamespace(lines=noted, read=lambda: noted.append(lines.pop(0)) if lines else 0),
        clock=StepClock(),
    )

    def slowest_ms(since_number):
        since_ms = BEGAN_MS + 100 * since_number
        return asyncio.run(scene.slowest_ms(since_ms=since_ms, what="all"))

    assert (slowest_ms(1), slowest_ms(5), lines) == (40, 0, [])
    noted.pop()
    with pytest.raises(StepFailed, match=r"1 records were not handled within 180 s, the .* 4 of"):
        slowest_ms(1)


@pytest.mark.parametrize(
    ("took_ms", "embedded", "shown"),
    [
        (50, True, Shown.PASSED),
        (50, False, Shown.PASSED),
        (51, False, Shown.FAILED),
        (51, True, Shown.NOT_SHOWN),
    ],
)
def test_a_slow_laptop_shows_nothing_about_aws(took_ms, embedded, shown):
    assert in_time(took_ms, most_ms=50, embedded=embedded) is shown


def test_a_percentile_is_the_value_below_which_a_part_lies():
    values = list(range(1, 101))

    assert percentile(values, 0.5) == 51
    assert percentile(values, 0.99) == 100
    assert percentile([], 0.5) == 0


def test_a_rewind_goes_back_by_the_last_fifth_in_the_order_of_the_shard():
    sent = [a_sent(number, sequence=1_000 - number // 2, sub=number % 2) for number in range(10)]

    # Numbers 996 to 1000, each with the sub-sequence numbers 0 and 1.
    assert rewound_to(sent) == ("999:1", 2)
    with pytest.raises(StepFailed, match="4 records"):
        rewound_to(sent[:4])
