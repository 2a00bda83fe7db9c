"""Starting a query where Spark may not wait for its source."""

from contextlib import suppress

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from shardfleet_spark.pipelines.patience import ATTEMPTS, start_patiently

GIVEN_UP = "Python worker failed to connect back.\n=== Streaming Query ===\nidentifier"


class Query:
    """A query that says what it is at, each time that somebody waits for it; then it may fail."""

    def __init__(self, *messages, failure=None):
        self._messages = ["Initializing sources", *messages]
        self._failure = failure

    @property
    def status(self):
        return {"message": self._messages[0]}

    def awaitTermination(self, _timeout):  # noqa: N802 - Spark's name
        if len(self._messages) > 1:
            del self._messages[0]
            return False
        self._messages = ["Terminated with exception"]
        raise StreamingQueryException(self._failure)

    def exception(self):
        over = self._messages[0].startswith("Terminated")
        return StreamingQueryException(self._failure) if over else None


def start(*queries):
    left = list(queries)
    return start_patiently(lambda: left.pop(0)), left


def test_a_query_whose_source_was_not_waited_for_is_started_again():
    given_up, good = Query(failure=GIVEN_UP), Query("Waiting for data to arrive")

    assert start(given_up, good) == (good, [])


def test_a_query_that_begins_is_returned_when_it_has():
    good = Query("Initializing StreamExecution", "Writing offsets to log")

    found, _ = start(good)

    assert found.status["message"] == "Writing offsets to log"


class StartFailed:
    """As over Spark Connect: the start itself waits for the process of a `foreachBatch`."""

    def __init__(self, failure):
        self.failure = failure


def start_over_connect(*found):
    left = list(found)

    def begin():
        first = left.pop(0)
        if isinstance(first, StartFailed):
            raise PySparkException(first.failure)
        return first

    return start_patiently(begin), left


def test_a_start_that_spark_connect_gave_up_is_made_again():
    good = Query("Waiting for data to arrive")

    assert start_over_connect(StartFailed(GIVEN_UP), Query(failure=GIVEN_UP), good) == (good, [])
    with pytest.raises(PySparkException, match="the option is wrong"):
        start_over_connect(StartFailed("the option is wrong"), good)
    with pytest.raises(PySparkException, match="failed to connect back"):
        start_over_connect(*[StartFailed(GIVEN_UP)] * ATTEMPTS, good)


@pytest.mark.parametrize("failure", ["no stream clicks", "the option is wrong"])
def test_what_else_ends_a_query_stays_as_it_is(failure):
    bad = Query(failure=failure)

    found, left = start(bad, Query("Waiting for data to arrive"))

    assert (found, len(left)) == (bad, 1)
    assert failure in str(found.exception())


def test_a_query_that_ended_before_anybody_looked_is_started_again():
    given_up, good = Query(failure=GIVEN_UP), Query("Waiting for data to arrive")
    with suppress(StreamingQueryException):
        given_up.awaitTermination(1)

    assert start(given_up, good) == (good, [])


def test_a_machine_that_is_never_quick_enough_is_told_by_the_last_query():
    queries = [Query(failure=GIVEN_UP) for _ in range(ATTEMPTS)]

    assert start(*queries) == (queries[-1], [])
