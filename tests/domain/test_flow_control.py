"""Quick up, slow down: batch size and pause after each answer."""

from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.reading.flow_control import Flow, FlowLimits, after_answer, unhindered

LIMITS = FlowLimits()


def answered(flow, *answers):
    for sent, refused in answers:
        flow = after_answer(flow, LIMITS, sent=sent, refused=refused)
    return flow


def passed(flow, times):
    return answered(flow, *[(flow.batch, 0)] * times)


def test_an_unhindered_flow_has_full_batches_and_no_pause():
    assert answered(unhindered(LIMITS), (500, 0)) == Flow(500, 0)


def test_a_refusal_of_everything_halves_the_batch_and_doubles_the_pause():
    flow = Flow(500)
    seen = [flow := answered(flow, (flow.batch, flow.batch)) for _ in range(9)]

    assert [each.batch for each in seen] == [250, 125, 62, 31, 15, 10, 10, 10, 10]
    assert [each.pause_ms for each in seen] == [100, 200, 400, 800, 1600, 3200, 6400, 10000, 10000]


def test_a_refusal_weighs_more_than_a_batch_that_passes():
    refused = answered(Flow(200, 400), (200, 200))

    assert passed(refused, 1).pause_ms > 400
    assert passed(refused, 5).batch < 200


def test_a_batch_follows_what_the_shard_took_when_it_took_less_than_half():
    assert answered(Flow(400), (400, 300)) == Flow(100, 100)


def test_a_small_portion_says_how_much_of_a_full_batch_would_pass():
    assert answered(Flow(400), (4, 3)) == Flow(100, 100)


def test_a_shard_that_takes_most_keeps_its_batch_and_is_given_a_pause():
    assert answered(Flow(400), (400, 200), (400, 100)) == Flow(400, 100)


def test_the_smallest_batch_mostly_refused_lengthens_the_pause():
    assert answered(Flow(10, 100), (10, 9), (10, 9)) == Flow(10, 225)


def test_a_batch_grows_only_when_it_was_used_up():
    assert answered(Flow(100), (99, 0)).batch == 100
    assert answered(Flow(100), (100, 0)).batch == 110


def test_the_pause_goes_away_by_two_fifths_each_and_ends_below_its_first_length():
    pauses = [answered(Flow(10, 500), *[(1, 0)] * times).pause_ms for times in range(5)]

    assert pauses == [500, 300, 180, 108, 0]


ANSWERS = st.integers(1, 500).flatmap(lambda sent: st.tuples(st.just(sent), st.integers(0, sent)))


@given(st.lists(ANSWERS, max_size=60))
def test_whatever_is_answered_batch_and_pause_stay_in_their_ranges(answers):
    flow = unhindered(LIMITS)
    for sent, refused in answers:
        flow = answered(flow, (sent, refused))
        assert 10 <= flow.batch <= 500
        assert flow.pause_ms == 0 or 100 <= flow.pause_ms <= 10_000
        assert flow.pause_ms or not refused


@given(st.lists(ANSWERS, max_size=60))
def test_any_state_recovers_fully_within_seventy_batches_that_pass(answers):
    flow = answered(unhindered(LIMITS), *answers)

    for _ in range(70):
        flow = passed(flow, 1)
    assert flow == Flow(500, 0)


def converged(capacity):
    """Return the accepted share of what was sent, and of what the shard could take."""
    flow, sent, taken = unhindered(LIMITS), 0, 0
    for _ in range(400):
        refused = max(0, flow.batch - capacity)
        sent, taken = sent + flow.batch, taken + flow.batch - refused
        flow = answered(flow, (flow.batch, refused))
    return taken / sent, taken / (400 * capacity)


@given(st.integers(10, 500))
def test_a_shard_that_takes_the_same_each_time_gets_nearly_that(capacity):
    accepted, used = converged(capacity)

    assert accepted >= 0.5
    assert used >= 0.85
