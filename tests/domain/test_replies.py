"""What a handler's reply means."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardfleet.domain.delivery.replies import failures_of, lowest_failed
from shardfleet.errors import InvalidReply
from tests.domain.builders import number

BATCH = [number(text) for text in ("9", "10:0", "10:1", "10:2", "100")]


def failed(*identifiers):
    return {"batchItemFailures": [{"itemIdentifier": name} for name in identifiers]}


def done_of(reply):
    return lowest_failed(failures_of(reply), BATCH)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        {},
        {"batchItemFailures": None},
        {"batchItemFailures": []},
        {"batchItemFailures": [], "statusCode": 200},
        [],
        "",
    ],
)
def test_what_the_mapping_takes_for_complete_success_means_that_all_is_done(reply):
    """
    AWS Lambda's guide, "Success and failure conditions"; the last two by LocalStack's tests.

    tests/aws/services/lambda_/event_source_mapping/test_lambda_integration_kinesis.py,
    test_kinesis_report_batch_item_success_scenarios, validated against AWS.
    """
    assert done_of(reply) == 5


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("done", "a str"),
        ("100", "a str"),
        (["100"], "a list"),
        (({"itemIdentifier": "100"},), "a tuple"),
        (True, "a bool"),
        (False, "a bool"),
        (0, "an int"),
        ({"statusCode": 200}, "a dict without batchItemFailures"),
        ({"batchItemFailure": [{"itemIdentifier": "100"}]}, "a dict without batchItemFailures"),
        ({"BatchItemFailures": [{"itemIdentifier": "100"}]}, "a dict without batchItemFailures"),
        ({"batchItemFailures": {"itemIdentifier": "100"}}, "a dict as batchItemFailures"),
        ({"batchItemFailures": "100"}, "a str as batchItemFailures"),
        ({"batchItemFailures": b"100"}, "a bytes as batchItemFailures"),
        ({"batchItemFailures": 7}, "an int as batchItemFailures"),
        ({"batchItemFailures": False}, "a bool as batchItemFailures"),
        ((n for n in "1"), "a generator"),
        (object(), "an object"),
    ],
)
def test_a_reply_that_means_nothing_is_an_error_that_says_what_is_allowed(reply, found):
    with pytest.raises(InvalidReply) as raised:
        failures_of(reply)
    text = str(raised.value)
    assert text.startswith(f"the handler returned {found}; ")
    assert '{"batchItemFailures": [{"itemIdentifier": sequence_number}]}' in text


@pytest.mark.parametrize(
    ("reply", "done"),
    [
        (failed("9"), 0),
        (failed("10"), 1),
        (failed("100"), 4),
        (failed("100", "10"), 1),
        (failed("100", "9"), 0),
        (failed("10:0"), 1),
        (failed("10:2"), 3),
        (failed("100", "10:1"), 2),
    ],
)
def test_everything_before_the_lowest_failed_record_is_done(reply, done):
    assert done_of(reply) == done


def test_the_lowest_is_found_by_number_and_not_by_text():
    positions = [number("9"), number("100")]
    assert lowest_failed(failures_of(failed("9", "100")), positions) == 0
    assert lowest_failed(failures_of(failed("100")), positions) == 1


@pytest.mark.parametrize(
    "item",
    [
        {"itemIdentifier": ""},
        {"itemIdentifier": None},
        {"itemIdentifier": 100},
        {"itemIdentifier": "101"},
        {"itemIdentifier": "10:7"},
        {"itemIdentifier": "10:"},
        {"itemIdentifier": "-10"},
        {"itemIdentifier": "\u0661\u0660"},
        {"itemIdentifier": "9" * 5000},
        {"itemIdentifier": "SHARD_END"},
        {"itemIdentifier": "shardId-000000000000:10"},
        {"ItemIdentifier": "100"},
        {},
        None,
        "100",
    ],
)
def test_a_failure_that_names_no_record_of_the_batch_fails_the_whole_batch(item):
    """AWS Lambda's guide: an empty or null itemIdentifier, or one with a bad key name."""
    assert done_of({"batchItemFailures": [{"itemIdentifier": "100"}, item]}) is None


def test_any_sequence_of_failures_is_a_list():
    assert done_of({"batchItemFailures": ({"itemIdentifier": "100"},)}) == 4


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=3)
    | st.sampled_from(["9", "10:1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["batchItemFailures", "itemIdentifier", "x"]), inner, max_size=2
        )
    ),
)


@given(JSON, st.integers(0, 5))
def test_any_reply_has_an_answer_inside_the_batch_or_is_refused(reply, size):
    with suppress(InvalidReply):
        done = lowest_failed(failures_of(reply), BATCH[:size])
        assert done is None or 0 <= done <= size
