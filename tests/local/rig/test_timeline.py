"""Lag and throughput of each shard over time, and the counts of a line."""

import re

from shardfleet_local.rig.charts import (
    LEFT,
    RIGHT,
    WIDTH,
    ShardSeries,
    TimeAxis,
    shard_series,
    throughput,
)
from shardfleet_local.rig.incidents import clock_text
from shardfleet_local.rig.run import how_far
from shardfleet_local.rig.verdict import Deliveries
from tests.local.rig.builders import BEGAN_MS, a_line, a_sent, a_shard, shard_id


def series(sent, handled, *, seconds=6):
    axis = TimeAxis(began_ms=BEGAN_MS, ended_ms=BEGAN_MS + seconds * 1000, step_ms=1000)
    return shard_series(sent, {n: BEGAN_MS + at_ms for n, at_ms in handled.items()}, axis)


def test_lag_grows_while_the_oldest_record_waits_and_is_zero_when_none_does():
    (found,) = series([a_sent(1, at_ms=BEGAN_MS + 500)], {1: 3_200})

    assert found.lag_ms == [500, 1_500, 2_500, 2_700, 0, 0]
    assert found.handled == [0, 0, 0, 1, 0, 0]
    assert (found.first_ms, found.last_ms) == (BEGAN_MS + 500, BEGAN_MS + 3_200)


def test_a_record_that_is_never_handled_lags_to_the_end():
    (found,) = series([a_sent(1)], {})

    assert found.lag_ms[-1] == 6_000


def test_every_record_is_counted_in_one_step_of_its_own_shard():
    sent = [a_sent(n, shard=n % 2, at_ms=BEGAN_MS + n * 100) for n in range(40)]

    found = series(sent, {n: n * 100 + 150 for n in range(40)})

    assert [each.shard_id for each in found] == [shard_id(0), shard_id(1)]
    assert [sum(each.handled) for each in found] == [20, 20]


def test_a_record_counts_once_whichever_side_of_it_comes_first():
    deliveries, (first, second) = Deliveries(), (a_sent(1), a_sent(2))

    deliveries.note_handled([a_line(first), a_line(first)])
    assert deliveries.foreign == 2
    deliveries.note_sent([first, second])

    assert (deliveries.sent, list(deliveries.first_ms), deliveries.foreign) == (2, [1], 0)
    assert (deliveries.lost, deliveries.duplicates) == ([2], 1)
    assert deliveries.lag_ms(shard_id(0), now_ms=BEGAN_MS + 700) == 700
    deliveries.note_handled([a_line(second)])
    assert deliveries.lag_ms(shard_id(0), now_ms=BEGAN_MS + 900) == 0


def test_a_line_says_what_is_handled_and_how_long_the_oldest_record_of_any_shard_waits():
    sent = [a_sent(1), a_sent(2, shard=1, at_ms=BEGAN_MS + 4_000), a_sent(3, shard=2)]
    deliveries = Deliveries.of(sent, [a_line(sent[2])])
    shards = [a_shard(0), a_shard(1), a_shard(2, is_open=False)]

    assert how_far(deliveries, shards, total=1_500, workers=3, now_ms=BEGAN_MS + 9_000) == (
        "1 of 1,500 handled, 3 sent, 2 open shards, 3 workers, greatest lag 9 s"
    )


def test_a_moment_of_a_run_is_minutes_and_seconds():
    assert [clock_text(ms) for ms in (-5, 0, 9_999, 65_000, 600_000)] == [
        *("0:00", "0:00", "0:09", "1:05", "10:00")
    ]


def test_what_the_axis_does_not_reach_is_a_number_once_a_peak_within_the_picture():
    axis = TimeAxis(began_ms=BEGAN_MS, ended_ms=BEGAN_MS + 60_000, step_ms=1000)
    handled = [10] * 20 + [90] * 5 + [10] * 30 + [80] * 5
    found = ShardSeries(
        shard_id=shard_id(0), handled=handled, lag_ms=[0] * 60, first_ms=0, last_ms=0
    )

    _, parts = throughput([found], axis, sent_per_step=[10] * 60, happenings=())

    written = [
        re.fullmatch(r'<text x="(.+)" y=.+ text-anchor="(.+)" .+>↑ (.+)</text>', part)
        for part in parts
        if "↑" in part
    ]
    assert [each[3] for each in written] == ["90", "80"]
    assert LEFT < float(written[0][1]) < WIDTH / 2
    assert (float(written[1][1]) < WIDTH - RIGHT, written[1][2]) == (True, "end")
