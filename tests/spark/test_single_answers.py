"""
One answer to one call of a query's, the driver's or a task's, costs it a pause and nothing else.

The calls are those of a query that begins, finds records, stores and reads seals and cleans up.
"""

import pytest

from shardfleet.domain.refusals import DOUBTED_MS, RefusalKind
from shardfleet.errors import RightMissing, Unsettled
from tests.engine.single_answers import KINDS, LANDED, answer
from tests.spark.test_source_driver import in_query
from tests.virtual import within

DRIVER = ("incarnation", "list_shards", "shard_iterator", "get_records")
TASK = ("get_records", "get", "put", "answer")
CALLS = [*(("driver", call) for call in DRIVER), *(("task", call) for call in TASK)]
CELLS = [(role, call, kind) for role, call in CALLS for kind in KINDS]
WRITES = {"put", "answer"}


class Fault:
    """Gives a call of a stream's or a store's one answer, or the same for good."""

    def __init__(self, call, kind, *, lasts=False):
        self.call, self.kind, self.lasts, self.given = call, kind, lasts, 0

    def __call__(self, asked):
        operation = getattr(asked, "operation", asked)
        if operation == self.call and (self.lasts or not self.given):
            self.given += 1
            raise answer(self.kind, operation, writes=operation in WRITES)


def is_possible(call, kind):
    """Say whether an answer can come: what a store has stored, it has not refused."""
    return call != "answer" or kind == LANDED


@pytest.mark.parametrize(("role", "call", "kind"), CELLS)
def test_one_answer_to_one_call_of_a_query_costs_no_record_and_no_batch(role, call, kind):
    if not is_possible(call, kind):
        return
    fault = Fault(call, kind)

    async def scenario(query):
        def begin_to_fail():
            query.stream.fault = query.store.fault = fault

        if role == "driver":
            begin_to_fail()
        start = await query.driver.initial()
        for number in range(6):
            query.stream.put(b"%d" % number)
        end = start
        while end == start:
            end = await query.driver.latest(start)
            await query.clock.sleep_ms(200)
        if role == "task":
            begin_to_fail()
        return await query.read(start, end), fault.given

    data, given = in_query(scenario, shards=2, retry_attempts=5)
    assert given == 1
    assert sorted(data) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("call", ["get_records", "list_shards"])
@within(in_query, shards=2)
async def test_a_right_that_stays_missing_ends_a_waiting_query_with_its_name(query, /, call):
    """A probe or a listing that is refused is made again, and no batch would ever tell."""
    fault = Fault(call, RefusalKind.DENIED, lasts=True)

    async def wait(query, start):
        for _ in range(10 * DOUBTED_MS // 200):
            await query.driver.latest(start)
            await query.clock.sleep_ms(200)

    start = await query.driver.initial()
    query.stream.fault = fault
    began_ms = query.clock.monotonic_ms()
    with pytest.raises(RightMissing, match="AccessDenied"):
        await wait(query, start)
    assert query.clock.monotonic_ms() >= began_ms + DOUBTED_MS


@pytest.mark.parametrize("call", ["get", "put"])
@within(in_query, retry_attempts=5)
async def test_a_task_whose_right_stays_missing_names_it(query, /, call):
    fault = Fault(call, RefusalKind.DENIED, lasts=True)
    start = await query.driver.initial()
    query.stream.put(b"1")
    end = start
    while end == start:
        end = await query.driver.latest(start)
        await query.clock.sleep_ms(200)
    query.store.fault = fault
    with pytest.raises(RightMissing) as caught:
        await query.read(start, end)
    assert not isinstance(caught.value, Unsettled)
    assert fault.given > 1
