"""Token buckets: never more than the quota over any span, and no wait that is not needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.reading.pacing import (
    PolledShard,
    PollPace,
    Rate,
    full_bucket,
    idle_pause_ms,
    spend,
    wait_ms,
)
from shardfleet.domain.reading.pages import RecordsPage, divided
from shardfleet.records import StreamRecord

CALLS = Rate(per_s=5, burst=1)  # GetRecords per shard
BYTES = Rate(per_s=2 * 1024 * 1024, burst=2 * 1024 * 1024)  # read volume per shard


def test_five_calls_a_second_are_200_ms_apart():
    bucket, now, times = full_bucket(CALLS, now_ms=0), 0, []
    for _ in range(4):
        now += wait_ms(bucket, CALLS, now_ms=now, needed=1)
        times.append(now)
        bucket, _ = spend(bucket, CALLS, amount=1, now_ms=now)

    assert times == [0, 200, 400, 600]


def test_a_burst_is_spent_at_once_and_not_twice():
    rate = Rate(per_s=5, burst=5)
    bucket, waits = full_bucket(rate, now_ms=0), []
    for _ in range(7):
        bucket, wait = spend(bucket, rate, amount=1, now_ms=0)
        waits.append(wait)

    assert waits == [0, 0, 0, 0, 0, 200, 400]


def test_an_answer_of_ten_mebibytes_is_waited_for_before_the_next_call():
    bucket, wait = spend(full_bucket(BYTES, now_ms=0), BYTES, amount=10 * 1024**2, now_ms=0)

    assert wait == 4_000
    assert wait_ms(bucket, BYTES, now_ms=1_500) == 2_500
    assert wait_ms(bucket, BYTES, now_ms=4_000) == 0


def test_idleness_saves_up_one_burst_and_no_more():
    bucket, _ = spend(full_bucket(CALLS, now_ms=0), CALLS, amount=1, now_ms=0)
    bucket, wait = spend(bucket, CALLS, amount=1, now_ms=3_600_000)

    assert wait == 0
    assert wait_ms(bucket, CALLS, now_ms=3_600_000, needed=1) == 200


def test_more_than_the_burst_is_never_there_so_the_wait_is_for_the_burst():
    bucket, _ = spend(full_bucket(CALLS, now_ms=0), CALLS, amount=1, now_ms=0)

    assert wait_ms(bucket, CALLS, now_ms=0, needed=50) == 200


def test_a_clock_that_goes_back_refills_nothing_and_loses_nothing():
    bucket, _ = spend(full_bucket(CALLS, now_ms=1_000), CALLS, amount=1, now_ms=1_000)
    back, _ = spend(bucket, CALLS, amount=0, now_ms=0)

    assert back == bucket


@pytest.mark.parametrize("per_s", [1, 3, 7, 999, 1001])
def test_a_wait_is_exactly_long_enough(per_s):
    rate = Rate(per_s=per_s, burst=1)
    bucket, wait = spend(full_bucket(rate, now_ms=0), rate, amount=2, now_ms=0)

    assert wait_ms(bucket, rate, now_ms=wait) == 0
    assert wait_ms(bucket, rate, now_ms=wait - 1) == 1


@given(
    st.integers(1, 50),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2_000)), max_size=20),
)
def test_who_waits_as_told_stays_inside_the_quota(per_s, burst, spendings):
    """The debt is waited off first, so all but the last spending fits into rate and burst."""
    rate = Rate(per_s=per_s, burst=burst)
    bucket, now, spent = full_bucket(rate, now_ms=0), 0, 0
    for amount, idle in spendings:
        now += idle
        now += wait_ms(bucket, rate, now_ms=now)
        assert spent <= burst + now * per_s / 1000
        bucket, _ = spend(bucket, rate, amount=amount, now_ms=now)
        spent += amount


def test_the_pause_of_an_idle_shard_doubles_up_to_its_bound():
    pauses = [idle_pause_ms(n, first_ms=200, most_ms=1_000) for n in range(1, 6)]
    assert pauses == [200, 400, 800, 1_000, 1_000]


@given(st.integers(1, 10**9), st.integers(1, 10_000), st.integers(1, 10**7))
def test_the_pause_of_an_idle_shard_is_never_longer_than_its_bound(empty_reads, first_ms, most_ms):
    pause = idle_pause_ms(empty_reads, first_ms=first_ms, most_ms=most_ms)
    assert 0 < pause <= most_ms
    assert empty_reads < 30 or pause == most_ms


def polled(**pace):
    return PolledShard(
        PollPace(**{"call_ms": 200, "bytes_per_s": 1_000, "idle_most_ms": 1_000, **pace}), now_ms=0
    )


def page(*numbers, resume="next", lag_ms=0):
    records = [StreamRecord(b"x" * 10, "key", str(number), 0) for number in numbers]
    return RecordsPage(records=records, resume_token=resume, millis_behind_latest=lag_ms)


def wait_after(shard, answer, at_ms):
    """Ask, answer, and return how long it is until the next call."""
    shard.asked(at_ms)
    shard.answered(answer, at_ms)
    return shard.next_call_ms - at_ms


def test_an_idle_shard_is_asked_ever_less_often_and_one_with_lag_at_once():
    shard, at_ms, waits = polled(call_ms=100), 0, []
    for _ in range(5):
        waits.append(wait_after(shard, page(), at_ms))
        at_ms += waits[-1]
    assert waits == [200, 400, 800, 1_000, 1_000]
    assert wait_after(shard, page(lag_ms=5), at_ms) == 100
    assert wait_after(shard, page(), at_ms + 1_000) == 200


def test_an_answer_is_paid_for_before_the_next_one():
    shard = polled(bytes_per_s=10)
    assert wait_after(shard, page(1, 2), 0) == 1_600  # Twice 13 bytes, and 10 were saved up.


def test_records_gather_at_the_tip_alone():
    shard = polled(window_ms=5_000)
    assert wait_after(shard, page(1, lag_ms=1), 0) == 200
    assert wait_after(shard, page(2), 200) == 5_000


def test_an_end_is_followed_by_nothing_that_would_have_to_be_paid_for():
    shard = polled(bytes_per_s=10, window_ms=5_000)
    assert wait_after(shard, page(1, 2, resume=None), 0) == 200


@pytest.mark.parametrize(("arrived_ms", "lag_ms"), [(9_000, 1_000), (99_000, 1), (0, None)])
def test_a_part_of_a_page_is_as_far_behind_as_the_next_record_where_anybody_says(
    arrived_ms, lag_ms
):
    records = [StreamRecord(b"x", "k", str(number), arrived_ms) for number in range(3)]
    page = RecordsPage(records=records, resume_token="t", millis_behind_latest=0)
    first, rest = divided(page, 2, now_ms=10_000)
    assert (first.millis_behind_latest, rest.millis_behind_latest) == (lag_ms, 0)
