"""Records that are put one by one, which are taken together: as if one call had given them."""

import asyncio
import contextlib

import pytest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_testkit.clock import VirtualTimeLoop, run_virtual
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_producer import first_deliveries, numbered
from tests.engine.producing.test_puts import producer_of
from tests.virtual import virtual

SINGLES = [OutgoingRecord(f"k{n % 7}", b"%d" % n) for n in range(40)]
ODD = [
    OutgoingRecord("é", b"x"),
    OutgoingRecord("k", b"x", "0"),
    OutgoingRecord("k" * 256, b""),
    OutgoingRecord("é" * 256, b"x"),
]


def sent_by(put, *, shards=2, **settings):
    stream = MemoryStream(shards)

    async def main():
        async with producer_of(stream, **settings) as producer:
            await put(producer)

    run_virtual(main())
    return stream.requests


@pytest.mark.parametrize("aggregate", [True, False])
@pytest.mark.parametrize("records", [SINGLES, ODD, [*SINGLES, *ODD]], ids=["plain", "odd", "both"])
def test_records_that_are_put_one_by_one_are_sent_as_those_of_one_call(records, aggregate):
    async def one_by_one(producer):
        for record in records:
            await producer.put(record, aggregate=aggregate)

    async def at_once(producer):
        await producer.put(*records, aggregate=aggregate)

    assert sent_by(one_by_one) == sent_by(at_once)


def test_single_puts_keep_their_place_among_everything_else():
    """One key, so that the order of what is stored is the order of the calls."""
    stream = MemoryStream(1)
    records = numbered(["k"] * 12)

    async def main():
        async with producer_of(stream) as producer:
            await producer.put(records[0])
            await producer.put(records[1], aggregate=True)
            await producer.put(*records[2:4])
            await producer.put(records[4], aggregate=True)
            receipts = producer.submit(records[5:7], aggregate=True)
            await producer.put(records[7], aggregate=True)
            await producer.put(records[8])
            await producer.send(records[9:10])
            await producer.put(records[10])
            await producer.put(records[11])
            assert len(await receipts) == 2

    run_virtual(main())
    assert first_deliveries(stream) == {"k": list(range(12))}


@virtual
async def test_a_single_put_is_counted_at_once():
    stream = MemoryStream(1)
    producer = producer_of(stream, linger_ms=60_000)
    await producer.put(OutgoingRecord("key", b"12345"))
    counted = producer.pending, producer.received, producer.buffered_bytes
    assert counted == (1, 1, 8)
    assert [flow.waiting for flow in producer.flows] == [1]
    assert (producer.pending, producer.received, producer.buffered_bytes) == counted
    await producer.flush()
    assert (producer.pending, producer.received, producer.buffered_bytes) == (0, 1, 0)


def test_a_single_put_of_a_loop_that_ended_is_sent_with_the_next_ones():
    stream = MemoryStream(1)
    producer = producer_of(stream, linger_ms=0)
    records = numbered(["a", "a"])

    async def ends_at_once():
        await producer.put(records[0])
        assert producer._singles, "the loop has had no turn"

    async def goes_on():
        await producer.put(records[1])
        await asyncio.sleep(1)

    # An event loop that is stopped in mid-turn, as by a signal, runs nothing more.
    loop = VirtualTimeLoop()
    loop.call_soon(loop.stop)
    with contextlib.closing(loop):
        task = loop.create_task(ends_at_once())
        loop.run_forever()
    assert task.done()
    run_virtual(goes_on())
    assert first_deliveries(stream) == {"a": [0, 1]}
