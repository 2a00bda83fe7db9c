"""How long a killed worker's shards stood still."""

from shardfleet_local.rig.incidents import KILL_WORKER, THROTTLE, FleetDisturbance
from shardfleet_local.rig.verdict import recoveries
from tests.local.rig.builders import BEGAN_MS, a_line, a_sent, shard_id


def a_happening(kind, *, at_ms=BEGAN_MS, until_ms=0):
    return FleetDisturbance(
        at_ms=at_ms, kind=kind, text="", pid=1, shard_ids=(shard_id(0),), until_ms=until_ms
    )


KILL = a_happening(KILL_WORKER, at_ms=BEGAN_MS + 1_000)
BEFORE, AFTER = a_sent(1), a_sent(2, at_ms=BEGAN_MS + 1_500)


def test_it_is_the_time_from_the_kill_to_the_next_handled_record_of_the_shard():
    lines = [
        a_line(BEFORE, pid=1, at_ms=BEGAN_MS + 500),
        a_line(a_sent(9, shard=1), pid=2, at_ms=BEGAN_MS + 1_200),
        a_line(AFTER, pid=3, at_ms=BEGAN_MS + 3_700),
        a_line(AFTER, pid=3, at_ms=BEGAN_MS + 9_000),
    ]

    (found,) = recoveries([KILL], lines, sent=[BEFORE, AFTER])

    assert (found.shard_id, found.took_ms) == (shard_id(0), 2_700)


def test_a_line_of_the_killed_process_itself_is_no_recovery():
    lines = [a_line(AFTER, pid=1, at_ms=KILL.at_ms), a_line(AFTER, pid=2, at_ms=KILL.at_ms + 800)]

    assert [each.took_ms for each in recoveries([KILL], lines, sent=[AFTER])] == [800]


def test_a_shard_that_never_goes_on_although_records_came_is_told_as_such():
    assert [each.took_ms for each in recoveries([KILL], [], sent=[BEFORE, AFTER])] == [None]


def test_a_shard_for_which_nothing_more_came_does_not_count():
    assert recoveries([KILL], [], sent=[BEFORE]) == []


def test_a_shard_that_is_refused_at_the_time_of_the_kill_does_not_count():
    throttled = a_happening(THROTTLE, until_ms=BEGAN_MS + 60_000)
    over = a_happening(THROTTLE, until_ms=KILL.at_ms)
    lines = [a_line(AFTER, pid=2, at_ms=KILL.at_ms + 800)]

    assert recoveries([KILL, throttled], lines, sent=[AFTER]) == []
    assert len(recoveries([KILL, over], lines, sent=[AFTER])) == 1
