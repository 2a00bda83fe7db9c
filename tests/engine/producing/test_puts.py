"""Buffered puts, their limits, and the pace of a shard."""

import asyncio

import pytest

from shardfleet.domain.reading.flow_control import FlowLimits
from shardfleet.errors import (
    ConfigurationError,
    InvalidRecord,
    KeyDenied,
    StreamGone,
    Throttled,
    Unsettled,
)
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer import requests
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import REQUEST_BYTES_MOST, ProducerSettings
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_producer import first_deliveries, numbered
from tests.virtual import virtual


def producer_of(stream, *, observe=lambda _: None, **settings):
    return Producer(
        stream,
        clock=VirtualClock(),
        entropy=SeededEntropy(1),
        settings=ProducerSettings(**settings),
        observe=observe,
    )


def test_puts_wait_for_company_and_no_longer():
    stream = MemoryStream(1)

    async def main():
        producer = producer_of(stream, linger_ms=100)
        for record in numbered(["a", "b", "c"]):
            await producer.put(record)
            await asyncio.sleep(0.03)
        assert stream.requests == []
        await asyncio.sleep(0.02)

    run_virtual(main())
    assert [len(request) for request in stream.requests] == [3]


def test_a_full_batch_does_not_linger():
    stream = MemoryStream(1)

    async def main():
        producer = producer_of(stream, linger_ms=60_000, flow=FlowLimits(max_entries=10))
        await producer.put(*numbered([f"k{n}" for n in range(10)]))
        await asyncio.sleep(0.01)

    run_virtual(main())
    assert [len(request) for request in stream.requests] == [10]


@virtual
async def test_a_flush_returns_when_the_stream_has_everything():
    stream = MemoryStream(2)
    producer = producer_of(stream, linger_ms=60_000)
    await producer.put(*numbered(["a", "b", "a"]))
    await asyncio.sleep(0.01)  # The producer has begun to wait for their time.
    assert stream.requests == []
    await producer.flush()
    assert first_deliveries(stream) == {"a": [0, 2], "b": [1]}
    assert asyncio.get_running_loop().time() < 1
    await producer.flush()


def test_leaving_the_context_flushes():
    stream = MemoryStream(1)

    async def main():
        async with producer_of(stream, linger_ms=60_000) as producer:
            await producer.put(*numbered(["a"]))

    run_virtual(main())
    assert len(stream.stored) == 1


@virtual
async def test_a_flush_names_what_was_given_up_and_then_forgets_it():
    stream = MemoryStream(1, before_put=lambda _: "throttle")
    producer = producer_of(stream, give_up_ms=5_000)
    await producer.put(*numbered(["a", "b"]))
    await producer.put(*numbered(["c"]))
    with pytest.raises(Throttled, match="2 records are still refused after 5000 ms") as caught:
        await producer.flush()
    assert "2 calls of put failed" in caught.value.__notes__[0]
    await producer.flush()


def test_what_is_given_up_takes_no_other_record_of_its_put_along():
    """BlockingProducer takes the puts of a while together: one must not fail for another."""
    stream = MemoryStream(2)
    refusing = {stream.shard_of(OutgoingRecord(key, b"")): key for key in "abcdefgh"}
    (bad_shard, bad), (_, good) = sorted(refusing.items())
    stream.refuse = lambda position: stream.shard_of(stream.requests[-1][position]) == bad_shard

    async def main():
        producer = producer_of(stream, give_up_ms=2_000, shard_records_per_s=2)
        records = [OutgoingRecord(good, str(n).encode()) for n in range(20)]
        await producer.put(OutgoingRecord(bad, b"99"), *records)
        with pytest.raises(Throttled) as caught:
            await producer.flush()
        assert "1 calls of put failed" in caught.value.__notes__[0]
        assert producer.counts.accepted == 20

    run_virtual(main())
    assert first_deliveries(stream) == {good: list(range(20))}


@virtual
async def test_a_stream_that_goes_fails_what_waits_once():
    stream = MemoryStream(1, before_put=lambda number: stream.split(0) if number == 1 else None)
    listings = [None]

    async def gone_at_the_second_listing():
        if not listings:
            raise StreamGone("no stream orders")
        listings.pop()
        return list(stream.shards)

    stream.list_shards = gone_at_the_second_listing
    producer = producer_of(stream)
    await producer.put(*numbered(["a", "b", "a", "b"]))
    with pytest.raises(StreamGone, match="orders"):
        await producer.flush()
    assert [flow.waiting for flow in producer.flows] == [0] * len(producer.flows)
    await producer.flush()


def test_a_full_buffer_makes_puts_wait_in_their_order():
    stream = MemoryStream(1, before_put=lambda number: "throttle" if number < 8 else None)

    async def main():
        producer = producer_of(stream, buffer_bytes=10, linger_ms=0)
        records = [OutgoingRecord("k", str(n).encode()) for n in range(10, 40)]
        puts = [asyncio.create_task(producer.put(record)) for record in records]
        await asyncio.sleep(0.01)
        assert sum(put.done() for put in puts) == 4  # 10 bytes are 4 records of 3, the last over.
        puts[10].cancel()
        await asyncio.gather(*puts, return_exceptions=True)
        await producer.flush()

    run_virtual(main())
    assert first_deliveries(stream) == {"k": [n for n in range(10, 40) if n != 20]}


def test_a_send_that_is_called_off_sends_nothing_more():
    stream = MemoryStream(1, before_put=lambda _: "throttle")

    async def main():
        producer = producer_of(stream)
        sending = asyncio.create_task(producer.send(numbered(["a", "b"])))
        await asyncio.sleep(0.01)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        stream.before_put = lambda _: None
        await producer.send([OutgoingRecord("a", b"7")])

    run_virtual(main())
    assert first_deliveries(stream) == {"a": [7]}


@pytest.mark.parametrize(
    ("record", "named"),
    [
        (OutgoingRecord("", b"x"), "1 to 256"),
        (OutgoingRecord("k" * 257, b"x"), "257 characters"),
        (OutgoingRecord("k", b"x" * 1_048_576), "1,048,577 bytes.*1,048,576 are allowed"),
        (OutgoingRecord("k", b"x", "0x7"), "hash key of 3 characters"),
        (OutgoingRecord("k", "text"), "of type str: expected bytes"),
        (OutgoingRecord("\ud800", b"x"), "lone surrogate"),
        (OutgoingRecord("é" * 256, b"x" * (1_048_577 - 512)), "1,048,577 bytes"),
    ],
)
def test_a_record_over_a_limit_stops_its_call_before_anything_is_sent(record, named):
    stream = MemoryStream(1)

    async def main():
        producer = producer_of(stream)
        fine = OutgoingRecord("fine", b"x")
        with pytest.raises(InvalidRecord, match=named):
            await producer.send([fine, record])
        with pytest.raises(InvalidRecord, match=named):
            await producer.put(fine, record)
        with pytest.raises(InvalidRecord, match=named):
            await producer.put(record)
        assert (producer.pending, producer.buffered_bytes) == (0, 0)
        await producer.flush()

    run_virtual(main())
    assert stream.requests == []


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("aggregate_bytes", 64, 10 * 2**20),
        ("aggregate_records", 1, None),
        ("record_bytes", 64, 10 * 2**20),
        ("request_bytes", 1, 10 * 2**20),
        ("max_requests", 1, None),
        ("shard_records_per_s", 1, None),
        ("shard_bytes_per_s", 1, None),
        ("linger_ms", 0, None),
        ("buffer_bytes", 1, None),
        ("give_up_ms", 0, None),
    ],
)
def test_each_setting_is_allowed_to_its_limits_and_not_beyond(name, least, most):
    """PutRecords takes 10 MiB with keys in a request since 2025, and so much in a record."""
    # An aggregate is a record: neither limit is to be in the other's way.
    others = {"record_bytes": 10 * 2**20, "aggregate_bytes": 64}
    for value in (least, most or 10**12):
        assert getattr(ProducerSettings(**others | {name: value}), name) == value
    for value in (least - 1, *([most + 1] if most else [])):
        with pytest.raises(ConfigurationError, match=name.removeprefix("record")):
            ProducerSettings(**others | {name: value})


@pytest.mark.parametrize(
    ("least", "most", "allowed"),
    [(1, 1, True), (1, 500, True), (0, 5, False), (6, 5, False), (1, 501, False)],
)
def test_a_flow_s_batches_are_what_a_request_may_hold(least, most, allowed):
    flow = FlowLimits(min_entries=least, max_entries=most)
    if allowed:
        assert ProducerSettings(flow=flow).flow is flow
    else:
        with pytest.raises(ConfigurationError, match=f"batches of {least} to {most} entries"):
            ProducerSettings(flow=flow)


def test_settings_out_of_range_are_all_named_at_once():
    with pytest.raises(ConfigurationError) as caught:
        ProducerSettings(
            max_requests=0, request_bytes=REQUEST_BYTES_MOST + 1, flow=FlowLimits(max_entries=501)
        )
    for name in ("max_requests = 0", "request_bytes = 10485761", "batches of 10 to 501"):
        assert name in str(caught.value)


def test_a_fault_while_a_request_is_made_fails_every_open_call_and_nothing_afterwards(monkeypatch):
    """Records already taken for the request are in no lane any more: their callers hear of it."""
    stream = MemoryStream(2)
    build = requests.AggregateBuilder.build
    built = []

    def at_second(builder):
        built.append(builder)
        if len(built) == 2:
            raise MemoryError("no room for an aggregate")
        return build(builder)

    monkeypatch.setattr(requests.AggregateBuilder, "build", at_second)

    async def main():
        producer = producer_of(stream)
        sending = asyncio.create_task(producer.send(numbered("abcdefgh"), aggregate=True))
        await producer.put(*numbered("abcdefgh"), aggregate=True)
        with pytest.raises(MemoryError, match="no room"):
            await producer.flush()
        with pytest.raises(MemoryError, match="no room"):
            await sending
        assert producer.buffered_bytes == 0
        await producer.put(*numbered("abcdefgh"), aggregate=True)
        await producer.flush()

    run_virtual(main())
    assert len(built) > 2
    assert first_deliveries(stream).keys() == set("abcdefgh")


@virtual
async def test_a_stream_that_is_gone_fails_every_call():
    stream = MemoryStream(1)

    async def gone():
        message = "no stream orders"
        raise StreamGone(message)

    stream.list_shards = gone
    producer = producer_of(stream)
    await producer.put(*numbered(["a"]))
    with pytest.raises(StreamGone, match="orders"):
        await producer.send(numbered(["b"]))
    with pytest.raises(StreamGone):
        await producer.flush()


@pytest.mark.parametrize("denials", [3, 9_999])
def test_a_key_that_is_denied_is_waited_for_and_then_named(denials):
    """I01: the right to use it may be too new to be seen."""
    stream, left = MemoryStream(1), [denials]

    def denied(_):
        if left[0]:
            left[0] -= 1
            raise Unsettled(KeyDenied("KMSAccessDeniedException: check the key's policy"))

    stream.before_put = denied

    async def main():
        await producer_of(stream).send(numbered(["a"]))

    if denials == 3:
        run_virtual(main())
        assert len(first_deliveries(stream)) == 1
    else:
        with pytest.raises(KeyDenied, match="check the key's policy"):
            run_virtual(main())
        assert left[0] < denials - 3


def test_a_shard_gets_no_more_than_its_quota_of_records():
    stream, accepted_ms = MemoryStream(1), []
    stream.refuse = lambda _: accepted_ms.append(asyncio.get_running_loop().time() * 1000)

    async def main():
        await producer_of(stream).send(numbered([f"k{n}" for n in range(3_500)]))

    run_virtual(main())
    assert accepted_ms[-1] == pytest.approx(3_000, abs=1)  # 500 at once, then 1,000 a second.
    for start in range(0, 2_500, 50):
        assert accepted_ms[start + 999] - accepted_ms[start] >= 490


def test_a_shard_gets_no_more_than_its_quota_of_bytes_also_in_aggregates():
    stream, sizes = MemoryStream(1), []
    stream.refuse = lambda position: sizes.append(len(stream.requests[-1][position].data))

    async def main():
        records = [OutgoingRecord(f"k{n}", b"x" * 1_000) for n in range(5_000)]
        await producer_of(stream).send(records, aggregate=True)
        return asyncio.get_running_loop().time()

    took_s = run_virtual(main())
    assert 4.2 < took_s < 4.6  # 5 MB, half a MiB of it at once.
    assert max(sizes) <= 51_200


def test_requests_to_different_shards_overlap_and_those_to_one_do_not():
    stream, running, most = MemoryStream(4), [], []
    stream.latency_ms = lambda: 50
    put = stream.put_records

    async def watched(entries):
        shards = {stream.shard_of(entry) for entry in entries}
        assert not any(shards & others for others in running)
        running.append(shards)
        most.append(len(running))
        try:
            return await put(entries)
        finally:
            running.remove(shards)

    stream.put_records = watched

    async def main():
        records = [OutgoingRecord(f"k{n}", b"x" * 5_000) for n in range(800)]
        await producer_of(stream, request_bytes=500_000).send(records)

    run_virtual(main())
    assert max(most) >= 3


def test_a_request_stays_within_its_bytes_unless_one_record_is_larger():
    stream = MemoryStream(4)

    async def main():
        sizes = [900, 10, 900, 2_000, 500, 500]
        records = [OutgoingRecord(f"k{n}", b"x" * size) for n, size in enumerate(sizes)]
        await producer_of(stream, request_bytes=1_000).send(records)

    run_virtual(main())
    for request in stream.requests:
        size = sum(len(entry.data) + len(entry.partition_key) for entry in request)
        assert size <= 1_000 or len(request) == 1


def test_records_too_large_for_an_aggregate_keep_a_request_within_its_bytes():
    stream = MemoryStream(16)

    async def main():
        records = [OutgoingRecord(f"k{n}", b"x" * 900) for n in range(64)]
        settings = {"request_bytes": 2_600, "aggregate_bytes": 500}
        await producer_of(stream, **settings).send(records, aggregate=True)

    run_virtual(main())
    assert len(stream.stored) == 64
    for request in stream.requests:
        assert sum(len(entry.data) + len(entry.partition_key) for entry in request) <= 2_600


@virtual
async def test_a_loop_of_puts_lets_requests_go_meanwhile():
    stream = MemoryStream(1)
    producer = producer_of(stream, shard_bytes_per_s=1 << 30, shard_records_per_s=1 << 30)
    for number in range(2_000):
        await producer.put(OutgoingRecord(f"k{number}", b"x" * 1_000), aggregate=True)
    assert stream.requests
    await producer.flush()


def test_what_waits_behind_records_of_few_keys_is_sent_with_them():
    """A key stands in one entry of a request; what has other keys need not wait for the next."""
    stream = MemoryStream(1)

    async def main():
        hot = [OutgoingRecord("hot", str(n).encode()) for n in range(40)]
        others = [OutgoingRecord(f"k{n}", str(n).encode()) for n in range(40)]
        settings = {"aggregate_records": 20, "linger_ms": 60_000}
        producer = producer_of(stream, **settings)
        await producer.put(*hot, *others, aggregate=True)
        await producer.flush()

    run_virtual(main())
    assert [len(request) for request in stream.requests] == [3, 1]


def test_after_an_answer_that_refuses_nothing_the_next_request_follows_at_once():
    stream, seen = MemoryStream(1), []

    async def main():
        await producer_of(stream, observe=seen.append).send(numbered("aaa"))

    run_virtual(main())
    assert [(each.at_ms, each.refused) for each in seen] == [(0, 0)] * 3


def test_a_request_that_is_called_off_is_so_and_its_records_go_again():
    """Whoever calls all tasks off, as at the end of a loop, has to see that it was done."""
    stream = MemoryStream(1)
    stream.latency_ms = lambda: 50

    async def main():
        sending = asyncio.create_task(producer_of(stream).send(numbered("a")))
        await asyncio.sleep(0.06)  # The shards are listed first.
        (request,) = [each for each in asyncio.all_tasks() if each.get_name() == "PutRecords"]
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        assert request.cancelled()
        await sending

    run_virtual(main())
    assert [entry.data for *_, entry in stream.stored] == [b"0"]


def test_an_observer_sees_batch_and_pause_after_each_answer():
    stream, seen = MemoryStream(1), []
    stream.refuse = lambda _: len(stream.requests) == 1

    async def main():
        producer = producer_of(stream, observe=seen.append)
        await producer.send(numbered(["a", "b"]))
        return producer

    producer = run_virtual(main())
    assert [(each.sent, each.refused, each.batch, each.pause_ms) for each in seen] == [
        (2, 2, 250, 100),
        (2, 0, 250, 0),
    ]
    assert (producer.counts.min_batch, producer.counts.max_pause_ms) == (250, 100)
    assert [(flow.shard_id, flow.batch, flow.waiting) for flow in producer.flows] == [
        ("shardId-000000000000", 250, 0)
    ]


def test_a_lost_listing_at_the_start_stops_nothing():
    stream = MemoryStream(2)
    stream.fail_listing = True

    async def main():
        await producer_of(stream).send(numbered(["a", "b", "a"]), aggregate=True)

    run_virtual(main())
    assert first_deliveries(stream) == {"a": [0, 2], "b": [1]}
