"""The producer for code without an event loop: calls from threads, its buffer and its end."""

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from shardfleet.errors import InvalidRecord
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.blocking import BlockingProducer
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_producer import first_deliveries, numbered


def blocking(stream, **settings):
    def make():
        return Producer(
            stream,
            clock=VirtualClock(),  # The time of the running loop, here a real one.
            entropy=SeededEntropy(1),
            settings=ProducerSettings(**settings),
        )

    return BlockingProducer(make)


def test_the_blocking_producer_sends_puts_and_flushes_without_an_event_loop():
    stream = MemoryStream(2)

    with blocking(stream, linger_ms=60_000) as producer:
        receipts = producer.send(numbered(["a", "b"]))
        producer.put(OutgoingRecord("a", b"2"))
        producer.flush()
        producer.put(OutgoingRecord("b", b"3"))

    assert first_deliveries(stream) == {"a": [0, 2], "b": [1, 3]}
    assert len(receipts) == 2
    assert producer.counts.accepted == 4
    assert not [each for each in threading.enumerate() if each.name == "shardfleet-producer"]


def test_a_single_put_that_breaks_a_limit_says_so_and_leaves_nothing():
    stream = MemoryStream(1)

    with blocking(stream) as producer:
        with pytest.raises(InvalidRecord, match="257 characters"):
            producer.put(OutgoingRecord("k" * 257, b"x"))
        with pytest.raises(InvalidRecord, match=r"1,048,577 bytes"):
            producer.put(OutgoingRecord("k", b"x" * 1_048_576))

    assert stream.requests == []


def test_single_puts_from_several_threads_keep_the_order_of_each_thread():
    stream = MemoryStream(3)
    hash_keys = [None, "7"]  # Some calls have explicit ones, some have none.

    with blocking(stream, linger_ms=1, buffer_bytes=2_000) as producer:

        def many(thread):
            for number in range(300):
                key, data = f"thread-{thread}", str(number).encode()
                record = OutgoingRecord(key, data, hash_keys[thread % 2])
                if number % 100 == 50:
                    producer.send([record], aggregate=number == 150)
                else:
                    producer.put(record, aggregate=number % 7 < 4)

        threads = [threading.Thread(target=many, args=(thread,)) for thread in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    read = [(record.partition_key, int(record.data)) for *_, record in stream.in_range_records()]
    for thread in range(4):
        numbers = [number for key, number in read if key == f"thread-{thread}"]
        assert numbers == list(range(300))


def test_a_blocking_put_waits_while_the_buffer_is_full():
    gate = threading.Event()
    stream = MemoryStream(1)
    put = stream.put_records

    async def held(entries):
        await asyncio.to_thread(gate.wait)
        return await put(entries)

    stream.put_records = held
    done = []

    def many(producer):
        for number in range(100):
            producer.put(OutgoingRecord("k", b"x" * 99))
            done.append(number)

    with blocking(stream, linger_ms=0, buffer_bytes=2_000) as producer:
        thread = threading.Thread(target=many, args=(producer,))
        thread.start()
        thread.join(timeout=0.5)
        assert thread.is_alive()
        assert len(done) == 20
        gate.set()
        thread.join()
    assert len(stream.stored) == 100


def test_what_is_submitted_keeps_its_place_among_puts_and_tells_where_it_is():
    stream = MemoryStream(3)

    with blocking(stream, linger_ms=1) as producer:
        futures = []
        for number in range(200):
            record = OutgoingRecord(f"key-{number % 3}", str(number).encode())
            if number % 4 == 1:
                futures.append(producer.submit([record], aggregate=number % 8 == 1))
            else:
                producer.put(record)
        found = [receipt for future in futures for receipt in future.result(timeout=60)]

    read = [(record.partition_key, int(record.data)) for *_, record in stream.in_range_records()]
    for key in range(3):
        numbers = [number for name, number in read if name == f"key-{key}"]
        assert numbers == list(range(key, 200, 3))
    assert len(found) == 50
    assert all(receipt.shard_id and receipt.sequence_number for receipt in found)


def test_a_submitted_record_that_breaks_a_limit_is_its_future_s_error():
    with blocking(MemoryStream(1)) as producer:
        wrong = producer.submit([OutgoingRecord("", b"x")])
        right = producer.submit(numbered(["a"]))

        with pytest.raises(InvalidRecord, match="partition key"):
            wrong.result(timeout=60)
        assert len(right.result(timeout=60)) == 1
        assert producer.submit([]).result(timeout=60) == []


def test_the_end_waits_for_what_is_submitted_even_if_nobody_asks_for_its_receipts():
    stream = MemoryStream(1)
    stream.latency_ms = lambda: 100

    with blocking(stream) as producer:
        asked = producer.submit(numbered(["a", "b"]))

    assert len(asked.result(timeout=60)) == 2
    assert first_deliveries(stream) == {"a": [0], "b": [1]}


def test_a_flush_does_not_wait_for_a_task_that_was_called_off_before_it_began():
    stream = MemoryStream(1)

    async def main():
        async with Producer(stream, clock=VirtualClock(), entropy=SeededEntropy(1)) as producer:
            producer.submit(numbered(["a"])).cancel()

    run_virtual(main())
    assert first_deliveries(stream) == {"a": [0]}


def test_what_is_submitted_and_not_accepted_at_the_end_is_told():
    stream = MemoryStream(1, before_put=lambda _: "throttle")

    def fail():
        with blocking(stream) as producer:
            futures.append(producer.submit(numbered(["a"])))
            raise LookupError

    futures = []
    with pytest.raises(LookupError):
        fail()
    with pytest.raises(CancelledError, match="the producer was closed"):
        futures[0].result(timeout=60)


@pytest.mark.parametrize("call", ["send", "submit", "put", "flush"])
def test_a_closed_blocking_producer_says_so(call):
    producer = blocking(MemoryStream(1))
    producer.close()
    producer.close()
    calls = {
        "send": lambda: producer.send(numbered(["a"])),
        "submit": lambda: producer.submit(numbered(["a"])),
        "put": lambda: producer.put(*numbered(["a"])),
        "flush": producer.flush,
    }

    with pytest.raises(RuntimeError, match="this producer is closed: make another one"):
        calls[call]()


def test_a_blocking_producer_that_is_left_by_an_error_gives_up_at_once():
    stream = MemoryStream(1, before_put=lambda _: "throttle")

    def fail():
        with blocking(stream) as producer:
            producer.put(*numbered(["a"]))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert not [each for each in threading.enumerate() if each.name == "shardfleet-producer"]


def test_an_error_behind_the_end_of_a_blocking_producer_stays_the_same_error():
    def fail():
        with blocking(MemoryStream(1)) as producer:
            producer.close()
            raise LookupError

    with pytest.raises(LookupError):
        fail()


def test_a_producer_that_cannot_be_made_leaves_no_thread():
    def make():
        raise LookupError

    with pytest.raises(LookupError):
        BlockingProducer(make)
    assert not [each for each in threading.enumerate() if each.name == "shardfleet-producer"]
