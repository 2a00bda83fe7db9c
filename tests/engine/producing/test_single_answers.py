"""One answer to one call of a producer's costs a pause: what passes is repeated for give_up_ms."""

import pytest

from shardfleet.domain.refusals import RefusalKind
from shardfleet.errors import KeyDenied, RightMissing, ShardfleetError, StreamGone, Throttled
from shardfleet_testkit.clock import run_virtual
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_producer import first_deliveries, numbered
from tests.engine.producing.test_puts import producer_of
from tests.engine.single_answers import KINDS, LANDED, answer

# What is raised once give_up_ms are over.
VERDICTS = {
    **dict.fromkeys((RefusalKind.BUSY, RefusalKind.BROKEN, RefusalKind.STRANGE), Throttled),
    **dict.fromkeys((RefusalKind.UNTRUSTED, RefusalKind.DENIED), RightMissing),
    RefusalKind.KEY_DENIED: KeyDenied,
    RefusalKind.ODD: ShardfleetError,
}


class Stream(MemoryStream):
    """A stream that gives one call an answer, so many times."""

    def __init__(self, call, raised, times):
        super().__init__(2)
        self.call, self.raised, self.left = call, raised, times

    async def put_records(self, entries):
        return await self._answered("put_records", super().put_records, entries)

    async def list_shards(self):
        return await self._answered("list_shards", super().list_shards)

    async def _answered(self, call, make, *arguments):
        if call == self.call and self.left:
            self.left -= 1
            raise self.raised
        return await make(*arguments)


def send(stream, **settings):
    async def main():
        await producer_of(stream, **settings).send(numbered(["a", "b", "c"]))

    run_virtual(main())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != LANDED])
@pytest.mark.parametrize("call", ["put_records", "list_shards"])
def test_one_answer_to_one_call_costs_no_record(call, kind):
    stream = Stream(call, answer(kind, call, writes=call == "put_records"), 1)
    send(stream)
    assert stream.left == 0
    assert len(first_deliveries(stream)) == 3


@pytest.mark.parametrize("kind", VERDICTS)
def test_what_stays_refused_is_repeated_for_give_up_ms_and_then_named(kind):
    stream = Stream("put_records", answer(kind, "PutRecords", writes=True), 1_000_000)
    with pytest.raises(ShardfleetError) as caught:
        send(stream, give_up_ms=300_000)
    assert type(caught.value) is VERDICTS[kind]
    assert 1_000_000 - stream.left > 10


def test_a_stream_that_is_denied_once_is_asked_again_and_one_that_stays_so_is_gone():
    stream = Stream("put_records", StreamGone("PutRecords: ResourceNotFoundException"), 1)
    send(stream)
    assert len(first_deliveries(stream)) == 3
    with pytest.raises(StreamGone):
        send(Stream("put_records", StreamGone("PutRecords: ResourceNotFoundException"), 1_000))
