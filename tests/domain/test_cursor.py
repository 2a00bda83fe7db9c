"""The cursor alone: events in, actions out, and no clock but what it is told."""

import pytest

from shardfleet.domain.reading.cursor import Ask, End, Moment, ReadFrom, ReadLimits, ShardCursor
from shardfleet.domain.reading.pages import (
    FROM_TRIM_HORIZON,
    RecordsPage,
    StartingPosition,
    StartKind,
)
from shardfleet.domain.stream.gone_shards import GoneNote, GoneVerdict
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.shards import ChildShard
from shardfleet.errors import (
    ConfigurationError,
    FalseEnd,
    IteratorExpired,
    PositionTrimmed,
    ShardGone,
    Throttled,
)
from shardfleet.records import StreamRecord

HOUR_MS = 3_600_000
SHARD = "shardId-000000000000"
AT_7 = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, "7")
AFTER_9 = StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, "9")
AT_9 = StartingPosition(StartKind.AT_SEQUENCE_NUMBER, "9")
CHILD = ChildShard(shard_id="c", parent_shard_ids=(SHARD, "b"), hash_key_range=HashKeyRange(0, 1))


def now(seconds):
    return Moment(1_700_000_000_000 + round(seconds * 1_000), round(seconds * 1_000))


def page(*numbers, resume="next", lag_ms=0, **more):
    records = [StreamRecord(b"x" * 10, "key", str(number), 0) for number in numbers]
    return RecordsPage(records=records, resume_token=resume, millis_behind_latest=lag_ms, **more)


def cursor(start=FROM_TRIM_HORIZON, *, attempts_most=0, **known):
    limits = ReadLimits(
        records_most=50,
        back_off_ms=lambda failures: 100 * 2**failures,
        attempts_most=attempts_most,
    )
    return ShardCursor(SHARD, ReadFrom(start=start, **known), limits=limits, now=now(0))


def wait_ms(machine, at):
    """Return how long it is until the next call."""
    return machine.next().due_ms - now(at).steady_ms


def told(machine, answer, at):
    """Ask, answer, and return what is to be done now."""
    machine.asked(now(at))
    machine.answered(answer, now(at))
    return machine.next()


def test_a_page_is_asked_for_delivered_once_and_followed_by_its_token():
    machine = cursor()
    assert machine.next() == Ask(FROM_TRIM_HORIZON, None, 50, 0)
    first = page(8, 9)
    assert told(machine, first, 0) is first
    assert machine.next() == Ask(AFTER_9, "next", 50, 0)


def test_an_expired_token_goes_on_behind_what_was_accepted_and_else_at_the_start():
    machine = cursor(AT_7)
    told(machine, page(), 0)
    for _ in range(2):
        assert machine.failed(IteratorExpired("old"), now(1))
        ask = machine.next()
        assert (ask.start, ask.resume_token) == (AT_7 if not machine.accepted else AFTER_9, None)
        told(machine, page(8, 9), 9)


def test_pauses_grow_with_failures_and_begin_anew_after_an_answer():
    machine = cursor()
    for failures in (1, 2, 3):
        machine.asked(now(failures))
        assert machine.failed(Throttled("no"), now(failures))
        assert wait_ms(machine, failures) == 100 * 2**failures
    told(machine, page(1), 9)
    machine.failed(Throttled("no"), now(9))
    assert wait_ms(machine, 9) == 200


def test_what_contradicts_itself_is_asked_for_again_by_its_own_token():
    machine = cursor()
    machine.asked(now(0))
    with pytest.raises(FalseEnd):
        machine.answered(page(resume=None, page_token="same"), now(0))
    assert machine.failed(FalseEnd("no children"), now(0))
    assert machine.next() == Ask(FROM_TRIM_HORIZON, "same", 50, 200)


@pytest.mark.parametrize("before", [(), (8, 9)])
@pytest.mark.parametrize("token", [None, "same"])
def test_the_records_of_an_answer_that_contradicts_itself_count_as_not_read(before, token):
    machine = cursor(AT_7, witness="7", complete_before_ms=now(0).wall_ms)
    if before:
        told(machine, page(*before), 0)
    stands = AFTER_9 if before else AT_7
    machine.asked(now(1))
    with pytest.raises(FalseEnd):
        machine.answered(page(10, 11, resume=None, page_token=token), now(1))
    machine.failed(FalseEnd("no children"), now(1))
    assert machine.next()[:2] == (stands, token)
    # The iterator may have grown old meanwhile: then the position alone says where to go on.
    machine.failed(IteratorExpired("old"), now(2))
    assert machine.next()[:2] == (stands, None)


def test_failures_without_end_are_for_the_patient_and_others_are_nobodys():
    machine = cursor(attempts_most=2)
    assert machine.failed(Throttled("no"), now(0))
    assert not machine.failed(Throttled("no"), now(1))
    assert not machine.failed(ConfigurationError("no right"), now(2))


def test_a_missing_shard_ends_by_a_verdict_and_not_before():
    machine, error = cursor(), ShardGone("no such shard")
    assert machine.failed(error, now(0))
    assert machine.next() is error
    waits = GoneVerdict(is_over=False, reason="", note=GoneNote(lease_key=SHARD))
    machine.judged(waits, wait_ms=5_000, now=now(0))
    assert machine.next() == Ask(FROM_TRIM_HORIZON, None, 50, 5_000)
    machine.failed(error, now(6))
    machine.next()
    over = GoneVerdict(is_over=True, reason="", note=GoneNote(lease_key=SHARD), children=(CHILD,))
    machine.judged(over, wait_ms=0, now=now(6))
    assert machine.next() == End((CHILD,))


# --- gaps: protocol.md §5.1


def test_a_start_whose_record_is_there_is_no_gap_and_one_that_is_trimmed_is():
    for numbers, oldest, is_gap in (
        ((7, 8), None, False),
        ((8, 9), (8,), True),
        ((), (), True),
        # Trimming goes in order, so 7 is a number that no record ever had (K13, K35).
        ((8, 9), (6,), False),
        ((), (6,), False),
    ):
        machine = cursor(AT_7, witness="7", complete_before_ms=0)
        answer = page(*numbers)
        found = told(machine, answer, 0)
        if oldest is not None:
            assert found == Ask(FROM_TRIM_HORIZON, None, 1, 0)
            found = told(machine, page(*oldest), 1)
        assert isinstance(found, PositionTrimmed) == is_gap
        if is_gap:
            assert found.nothing_left == (oldest == ())
            machine.accept_gap()
            assert machine.next() is answer
        else:
            assert found is answer


def test_an_empty_answer_with_lag_decides_nothing_about_a_gap():
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    nothing = page(lag_ms=5)
    assert told(machine, nothing, 0) is nothing
    told(machine, page(8), 1)
    assert isinstance(told(machine, page(8), 2), PositionTrimmed)


BEGAN = 100


def silent(machine, seconds, *, lag_ms=24 * HOUR_MS):
    """Answer with nothing, each second, until something else is asked for; return when."""
    for at in range(BEGAN, BEGAN + seconds):
        nothing = page(lag_ms=lag_ms)
        found = told(machine, nothing, at)
        if found is not nothing:
            return found, at
    return None, BEGAN + seconds


def test_a_number_that_brings_nothing_but_a_whole_retention_s_lag_begins_anew_within_a_minute():
    """K15: for 15 minutes and more, where an iterator at TRIM_HORIZON found data in 5 s."""
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    found, at = silent(machine, 60)
    assert found.start == FROM_TRIM_HORIZON
    assert told(machine, page(resume="on", lag_ms=5), at + 1) == Ask(FROM_TRIM_HORIZON, "on", 1, 0)
    lost = told(machine, page(9), at + 5)
    assert isinstance(lost, PositionTrimmed)
    machine.accept_gap()
    assert machine.next()[:2] == (FROM_TRIM_HORIZON, None)
    # What an old number may still bring is waited for, half a minute.
    assert at == BEGAN + 30


@pytest.mark.parametrize("oldest", [3, 7])
def test_a_sparse_shard_whose_position_is_retained_is_followed_on(oldest):
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    found, at = silent(machine, 60)
    assert found.start == FROM_TRIM_HORIZON
    assert told(machine, page(oldest), at + 1).says_nothing
    assert machine.next().resume_token == "next"


def test_where_the_oldest_record_cannot_be_found_either_it_is_looked_for_again():
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    _, at = silent(machine, 60)
    for later in range(1, 60):
        found = told(machine, page(lag_ms=24 * HOUR_MS), at + later)
        if not isinstance(found, Ask):
            break
    assert found.says_nothing
    assert later <= 16


# A lag is approximate: ten minutes short of the shortest retention may be all of it.
RETAINED_MS = 24 * HOUR_MS - 600_000


@pytest.mark.parametrize(("lag_ms", "is_silent"), [(RETAINED_MS - 1, False), (RETAINED_MS, True)])
def test_a_lag_within_the_retention_is_no_silence(lag_ms, is_silent):
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    found, _ = silent(machine, 300, lag_ms=lag_ms)
    assert (found is not None) == is_silent


@pytest.mark.parametrize(("first", "is_gap"), [(9, False), (11, True)])
def test_after_a_day_of_lag_the_last_record_is_looked_for_and_the_page_is_kept(first, is_gap):
    machine = cursor(complete_before_ms=0)
    told(machine, page(9, lag_ms=25 * HOUR_MS), 0)
    late = page(12, resume="behind 12", lag_ms=24 * HOUR_MS)
    assert told(machine, late, 1) == Ask(AT_9, None, 1, 0)
    assert told(machine, page(resume="on the way", lag_ms=5), 2) == Ask(AT_9, "on the way", 1, 0)
    found = told(machine, page(first), 3)
    assert isinstance(found, PositionTrimmed) == is_gap
    if is_gap:
        assert "record 9 is older than what the stream retains (the oldest now is 11)" in str(found)
        machine.accept_gap()
        found = machine.next()
    assert found is late
    assert machine.next().resume_token == "behind 12"


def test_what_was_at_the_tip_a_moment_ago_needs_no_proof():
    machine = cursor(complete_before_ms=0)
    told(machine, page(9), 0)
    late = page(12)
    assert told(machine, late, 23 * 3_600) is late


@pytest.mark.parametrize(
    ("answers", "nothing_left"),
    [
        pytest.param([page(9)], False, id="a record"),
        pytest.param([page()], True, id="none"),
        pytest.param([page(resume=None, child_shards=[CHILD])], True, id="the end of the shard"),
        pytest.param([page(lag_ms=9), page(lag_ms=9), page()], True, id="none, after a while"),
        pytest.param([page(lag_ms=9)] * 16, False, id="silence"),
    ],
)
def test_a_position_that_the_service_refuses_is_a_gap_that_tells_whether_anything_is_left(
    answers, nothing_left
):
    """K14; K16: whose last position is gone from an empty shard has lost nothing known."""
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    assert machine.failed(PositionTrimmed("out of range"), now(0))
    for second, answer in enumerate(answers):
        action = machine.next()
        assert isinstance(action, Ask)
        assert (action.start, action.limit) == (FROM_TRIM_HORIZON, 1)
        machine.asked(now(second))
        machine.answered(answer, now(second))
    gap = machine.next()
    assert isinstance(gap, PositionTrimmed)
    assert (str(gap), gap.nothing_left) == ("out of range", nothing_left)
    machine.accept_gap()
    assert machine.next().start == FROM_TRIM_HORIZON
    first = page(1)
    assert told(machine, first, 21) is first


def test_a_token_that_expires_while_it_is_looked_what_is_left_is_let_go_of():
    machine = cursor(AT_7, witness="7", complete_before_ms=0)
    machine.failed(PositionTrimmed("out of range"), now(0))
    machine.answered(page(lag_ms=9), now(1))
    assert machine.next().resume_token is not None
    machine.failed(IteratorExpired("old"), now(2))
    assert machine.next().start == FROM_TRIM_HORIZON
    assert machine.next().resume_token is None
    assert machine.failed(PositionTrimmed("that, too"), now(3))
    assert str(machine.next()) == "that, too"


def test_where_gaps_are_nobodys_concern_nothing_is_looked_for():
    machine = cursor()
    told(machine, page(9, lag_ms=25 * HOUR_MS), 0)
    late = page(12, lag_ms=24 * HOUR_MS)
    assert told(machine, late, 1) is late
