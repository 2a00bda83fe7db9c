"""Deleting old seals is a courtesy: a store that refuses it is asked again, and ends no query."""

import logging

import pytest

from shardfleet.errors import ConfigurationError, OutcomeUnknown, Throttled
from tests.spark.test_source_driver import in_query
from tests.virtual import within


async def batches(query, count):
    """Run and commit batches; `plans_retained` is 20 and every tenth commit cleans up."""
    query.end = getattr(query, "end", None) or await query.driver.initial()
    for _ in range(count):
        query.stream.put(b"x")
        query.end, _ = await query.batch(query.end)
        await query.driver.commit(query.end)
        await query.clock.sleep_ms(1_000)


def failing(query, error, *, times):
    """Let so many deletions fail; return a list that grows by one for each."""
    asked = []

    def fault(operation):
        if operation == "delete":
            asked.append(query.clock.monotonic_ms())
            if len(asked) <= times:
                raise error

    query.store.fault = fault
    return asked


def oldest(query):
    return min(key.plan[:10] for key in query.store.stored)


@pytest.mark.parametrize("error", [Throttled("slow down"), OutcomeUnknown("no answer")])
@within(in_query)
async def test_a_refused_clean_up_is_asked_for_again_after_a_pause(query, /, error):
    asked = failing(query, error, times=2)
    await batches(query, 30)
    assert len(asked) == 3
    assert asked[2] > asked[1] > asked[0]
    assert oldest(query) == "0000000010"
    assert "clean_up_trouble" not in query.driver.report()


@pytest.mark.parametrize(
    "error", [Throttled("slow down"), ConfigurationError("AccessDenied"), OSError("disk")]
)
@within(in_query)
async def test_a_clean_up_that_stays_refused_is_told_and_made_up_for_later(query, /, error, caplog):
    failing(query, error, times=1_000)
    with caplog.at_level(logging.WARNING):
        await batches(query, 35)
    assert oldest(query) == "0000000001"
    assert str(error) in query.driver.report()["clean_up_trouble"]
    assert str(error) in caplog.text
    failing(query, error, times=0)
    await batches(query, 5)
    assert oldest(query) == "0000000020"
    assert "clean_up_trouble" not in query.driver.report()


@within(in_query)
async def test_a_store_that_never_answers_holds_a_commit_for_seconds_only(query, /):
    asked = failing(query, Throttled("slow down"), times=1_000)
    await batches(query, 30)
    assert len(asked) == 5
    assert asked[-1] - asked[0] < 3_000
