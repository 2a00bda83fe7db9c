"""What is next for a shard's records: each is tried until it is done, or given up by policy."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.delivery.attempts import (
    RETRIES,
    Attempts,
    CrashCharge,
    back_off_ms,
)
from shardfleet.domain.delivery.progress import position_of
from shardfleet.records import Record

ALWAYS = 10**9


def records_of(count):
    return [
        Record(
            data=b"",
            partition_key="k",
            sequence_number=str(7 + n // 2),
            shard_id="s",
            approximate_arrival_ms=0,
            sub_sequence_number=n % 2,
        )
        for n in range(count)
    ]


def machine(most=3, *, max_crashes=3, retry="retry"):
    return Attempts(attempts_most=most, max_crashes=max_crashes, halves=RETRIES[retry])


@dataclass
class Played:
    """What came of delivering a page: by index of a record."""

    calls: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    done: list = field(default_factory=list)
    given_up: dict = field(default_factory=dict)
    tried: Counter = field(default_factory=Counter)


def play(attempts, count, *, fails, together=5, declares=False):
    """
    Deliver records to a handler as a worker does, until each is done or given up.

    ``fails`` says how often each record fails; ``declares``: what lies before it is done then.
    """
    records, left, played, first = records_of(count), dict(fails), Played(), 0
    while first < count:
        waiting = records[first : first + together]
        batch = waiting[: attempts.fitting(waiting)]
        call = range(first, first + len(batch))
        played.calls.append((call, attempts.attempt))
        assert len(played.calls) < 2_000, "it never ends"
        bad = next((n for n in call if left.get(n, 0)), None)
        if bad is None:
            attempts.handled()
            played.done += call
            first += len(call)
            continue
        left[bad] -= 1
        played.tried[bad] += 1
        played.failed.append(call)
        done = bad - first if declares else 0
        played.done += call[:done]
        failure = attempts.failed(batch, done_count=done, error=f"cannot handle {bad}")
        if failure.gives_up:
            assert call == range(bad, bad + 1)
            played.given_up[bad] = failure
            attempts.gave_up(batch[0])
            done = 1
        first += done
    return played


DRAWN = st.tuples(
    st.integers(1, 20),
    st.dictionaries(st.integers(0, 19), st.integers(1, 6) | st.just(ALWAYS), max_size=4),
    st.integers(1, 8),
    st.booleans(),
)


@given(DRAWN, st.integers(1, 6), st.sampled_from(sorted(RETRIES)))
def test_each_record_is_done_once_in_order_or_given_up_and_none_is_passed(drawn, most, retry):
    count, fails, together, declares = drawn
    played = play(
        machine(most, retry=retry), count, fails=fails, together=together, declares=declares
    )
    assert sorted([*played.done, *played.given_up]) == list(range(count))
    assert played.done == sorted(played.done)
    # Only what fails is given up, and whatever fails for good is.
    assert {n for n, times in fails.items() if times == ALWAYS and n < count} <= {*played.given_up}
    assert {*played.given_up} <= {*fails}
    begun = [call.start for call, _ in played.calls]
    assert begun == sorted(begun)


@given(DRAWN, st.integers(1, 6))
def test_no_record_has_more_attempts_than_are_allowed_and_none_is_given_up_before(drawn, most):
    count, fails, together, declares = drawn
    played = play(machine(most), count, fails=fails, together=together, declares=declares)
    # One more where a record has to be tried alone to be known.
    assert all(attempt <= max(most, 2) for _, attempt in played.calls)
    for n, failure in played.given_up.items():
        assert most <= failure.attempt <= max(most, 2)
        assert sum(n in call for call in played.failed) >= failure.attempt
        # Where the handler says how far it got, nothing but its own failures counts.
        assert not declares or played.tried[n] >= failure.attempt


@given(DRAWN, st.sampled_from(sorted(RETRIES)))
def test_without_a_limit_everything_is_done_in_the_end_and_nothing_is_given_up(drawn, retry):
    count, fails, together, declares = drawn
    fails = {n: min(times, 40) for n, times in fails.items()}
    played = play(machine(0, retry=retry), count, fails=fails, together=together, declares=declares)
    assert played.done == list(range(count))
    assert not played.given_up


@given(st.integers(1, 64), st.integers(0, 63), st.integers(1, 6), st.booleans())
def test_one_poison_among_many_is_known_once_its_attempts_are_used_up(size, bad, most, declares):
    """However many go together: halving them would take more failures for larger batches."""
    bad %= size
    played = play(machine(most), size, fails={bad: ALWAYS}, together=size, declares=declares)
    assert played.done == [n for n in range(size) if n != bad]
    failures = max(most, 2) if size > 1 else most
    assert played.given_up[bad].attempt <= failures
    # The call that says how far it got is one more: the record was in it, and not its first.
    assert len(played.failed) <= failures + declares
    assert declares or len(played.failed) == played.given_up[bad].attempt == failures


@given(DRAWN, st.integers(1, 6))
def test_a_batch_that_failed_goes_again_with_nobody_who_was_not_in_it(drawn, most):
    count, fails, together, declares = drawn
    played = play(machine(most), count, fails=fails, together=together, declares=declares)
    furthest = 0
    for call, attempt in played.calls:
        assert attempt == 1 or call.stop <= furthest
        if call in played.failed:
            furthest = max(furthest, call.stop)


# --- bisect: "splits do not consume a retry" (Lambda's API, BisectBatchOnFunctionError)


@given(DRAWN, st.integers(1, 6))
def test_who_is_given_up_in_halves_was_alone_in_each_of_its_attempts(drawn, most):
    count, fails, together, _ = drawn
    played = play(machine(most, retry="bisect"), count, fails=fails, together=together)
    for n, failure in played.given_up.items():
        assert failure.attempt == most
        assert played.failed.count(range(n, n + 1)) == most


@given(st.integers(1, 64), st.integers(0, 63), st.integers(1, 6))
def test_halves_know_one_poison_in_as_many_failures_as_the_batch_can_be_halved(size, bad, most):
    bad %= size
    together = play(machine(most, retry="bisect"), size, fails={bad: ALWAYS}, together=size)
    assert together.done == [n for n in range(size) if n != bad]
    halvings = (size - 1).bit_length()
    assert len(together.failed) <= halvings + most
    # The neighbours go in halves, too, and not one by one.
    assert len(together.calls) - len(together.failed) <= halvings


@given(DRAWN, st.integers(1, 6))
def test_what_was_split_goes_with_nobody_who_was_not_in_it(drawn, most):
    count, fails, together, declares = drawn
    played = play(
        machine(most, retry="bisect"), count, fails=fails, together=together, declares=declares
    )
    furthest = 0
    for call, _ in played.calls:
        assert call.start >= furthest or call.stop <= furthest
        if call in played.failed:
            furthest = max(furthest, call.stop)


def test_where_the_handler_says_how_far_it_got_the_batch_is_split_there():
    # Lambda developer guide: "the batch is bisected at the returned sequence number".
    attempts, records = machine(3, retry="bisect"), records_of(8)
    told = attempts.failed(records, done_count=3, error="no")
    assert (told.attempt, told.gives_up) == (1, False)
    assert attempts.fitting(records[3:]) == 5
    attempts.failed(records[3:], done_count=0, error="no")
    assert (attempts.fitting(records[3:]), attempts.attempt) == (2, 1)


@pytest.mark.parametrize(
    ("most", "reason"),
    [(5, "5 attempts failed, 5 allowed"), (1, "1 attempts failed, 1 allowed")],
)
def test_attempts_are_counted_and_then_the_policy_decides(most, reason):
    attempts, (record,) = machine(most), records_of(1)
    told = [attempts.failed([record], done_count=0, error="no") for _ in range(most)]
    assert [failure.attempt for failure in told] == list(range(1, most + 1))
    assert [failure.gives_up for failure in told] == [False] * (most - 1) + [True]
    assert told[-1].reason == reason
    assert told[0].reason == f"attempt 1 of {most} failed" or most == 1
    attempts.gave_up(record)
    assert attempts.attempt == 1


def test_a_batch_whose_only_attempt_failed_is_not_said_to_be_given_up():
    failure = machine(1).failed(records_of(3), done_count=0, error="no")
    assert (failure.gives_up, failure.reason) == (False, "attempt 1 of 1 failed")


def test_a_suspect_that_fails_in_a_way_of_its_own_has_its_own_attempts():
    played = play(machine(3), 4, fails={1: 2, 2: 2}, together=4)
    assert played.done == [0, 1, 2, 3]
    assert not played.given_up


def test_after_a_suspect_of_its_own_kind_the_others_are_suspects_still():
    attempts, batch = machine(3), records_of(4)
    for _ in range(2):
        attempts.failed(batch, done_count=0, error="the batch")
    assert not attempts.failed(batch[:1], done_count=0, error="its own").gives_up
    attempts.handled()
    assert (attempts.fitting(batch[1:]), attempts.attempt) == (1, 3)
    assert attempts.failed(batch[1:2], done_count=0, error="the batch").gives_up


def test_what_failed_before_does_not_count_once_it_begins_anew():
    attempts, batch = machine(3), records_of(4)
    for _ in range(2):
        attempts.failed(batch, done_count=0, error="no")
    assert (attempts.fitting(batch), attempts.attempt) == (1, 3)
    attempts.begin_anew()
    assert (attempts.fitting(batch), attempts.attempt) == (4, 1)


def test_records_that_are_no_longer_there_take_what_they_did_with_them():
    """F9: the record that failed was trimmed while the shard was stopped."""
    attempts, (*batch, later) = machine(3), records_of(5)
    for _ in range(2):
        attempts.failed(batch, done_count=0, error="no")
    assert (attempts.fitting([later]), attempts.attempt) == (1, 1)


# --- deaths: hazard H9


@dataclass
class Lives:
    """Processes that die over records, and what they leave behind."""

    max_crashes: int
    count: int
    together: int
    note: tuple | None = None
    stored: int = 0
    given_up: list = field(default_factory=list)
    deaths: list = field(default_factory=list)
    calls: int = 0

    def live(self, *, killers=(), dies_at=None):
        """Run one suspicious turn; return whether it lived to the end."""
        records, attempts = records_of(self.count), machine(0, max_crashes=self.max_crashes)
        if self.note is not None:
            call, crashes = self.note
            attempts.charge = CrashCharge(
                first=position_of(records[call.start]),
                last=position_of(records[call.stop - 1]),
                crashes=crashes + 1,
            )
        while self.stored < self.count:
            waiting = records[self.stored : self.stored + self.together]
            if attempts.deaths_over(waiting[0]):
                self.given_up.append(self.stored)
                done = 1
                attempts.gave_up(waiting[0])
            else:
                done = attempts.fitting(waiting)
                call = range(self.stored, self.stored + done)
                self.note = call, attempts.deaths_near(position_of(waiting[0]))
                self.calls += 1
                if self.calls == dies_at or {*killers} & {*call}:
                    self.deaths.append(call)
                    return False
                self.note = None
                attempts.handled()
                attempts.passed(waiting[done - 1])
            self.stored += done
        return True


SIZES = {"count": st.integers(1, 20), "together": st.integers(1, 8)}


@given(**SIZES, killers=st.sets(st.integers(0, 19), max_size=3), max_crashes=st.integers(1, 4))
def test_a_record_that_kills_is_given_up_exactly_and_its_neighbours_never(
    count, together, killers, max_crashes
):
    lives = Lives(max_crashes, count, together)
    killers = {n for n in killers if n < count}
    while not lives.live(killers=killers):
        assert len(lives.deaths) < 100
    assert lives.given_up == sorted(killers)
    for n in killers:
        deaths = [call for call in lives.deaths if n in call]
        alone = [call for call in deaths if len(call) == 1]
        # Over its batch, and over it alone until it is known and they are too many.
        assert 1 <= len(alone) <= max_crashes


@given(
    **SIZES,
    kills=st.lists(st.integers(1, 40), max_size=12),
    max_crashes=st.integers(1, 4),
)
def test_no_record_is_given_up_for_fewer_deaths_than_too_many_with_it_in_the_call(
    count, together, kills, max_crashes
):
    """A process that is killed at random moments was handling something, too."""
    lives = Lives(max_crashes, count, together)
    for kill in kills:
        lives.live(dies_at=lives.calls + kill)
    lives.live()
    assert lives.stored == count
    for n in lives.given_up:
        deaths = [call for call in lives.deaths if n in call]
        assert len(deaths) >= max_crashes
        assert deaths[-1] == range(n, n + 1)


def test_a_charged_range_goes_one_at_a_time_and_what_lies_before_it_together():
    attempts, records = machine(), records_of(8)
    attempts.charge = CrashCharge(
        first=position_of(records[3]), last=position_of(records[5]), crashes=1
    )
    assert attempts.fitting(records) == 3
    assert attempts.fitting(records[3:]) == 1
    near = [attempts.deaths_near(position_of(record)) for record in records]
    assert near == [0, 0, 0, 1, 1, 1, 0, 0]
    attempts.passed(records[4])
    assert attempts.fitting(records[5:]) == 1
    attempts.passed(records[5])
    assert attempts.charge is None


def test_a_range_that_the_dead_process_had_finished_charges_nobody():
    attempts, records = machine(), records_of(8)
    attempts.charge = CrashCharge(
        first=position_of(records[3]), last=position_of(records[5]), crashes=2
    )
    assert attempts.fitting(records[6:]) == 2
    assert attempts.charge is None
    assert attempts.deaths_near(position_of(records[6])) == 0


# --- waits


@pytest.mark.parametrize(
    ("attempt", "jitter", "expected"),
    [
        (1, 0, 100),
        (1, 1, 200),
        (2, 1, 400),
        (3, 0.5, 600),
        (5, 1, 3200),
        (6, 1, 5000),
        (6, 0, 2500),
    ],
)
def test_the_wait_doubles_up_to_its_limit(attempt, jitter, expected):
    assert back_off_ms(attempt, first_ms=200, most_ms=5000, jitter=jitter) == expected


@given(st.integers(-5, 10**9), st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 1))
def test_the_wait_never_passes_its_limit_and_is_never_less_than_half(attempt, first, most, jitter):
    wait = back_off_ms(attempt, first_ms=first, most_ms=most, jitter=jitter)

    assert min(first, most) // 2 <= wait <= most
