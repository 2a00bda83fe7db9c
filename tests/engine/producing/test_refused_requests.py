"""
Requests that the service refuses as they are: exactly the calls whose records are at fault fail.

The judge has AWS's rules for PutRecords (model kinesis PutRecords, PutRecordsRequestEntry), at a
smaller scale, and somebody between who takes no request with certain bytes (boto/boto3#1147: 413).
A record is at fault if a request with it alone is refused; so a producer that asks for too much
of a stream (records, aggregates or requests above what it takes) still has everything accepted
that can be.
"""

import asyncio
import os
import random
import re

import pytest

from shardfleet.errors import InvalidRecord, ShardfleetError, StreamGone, Unsettled
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import MAX_RECORD_BYTES, STREAM_RECORD_BYTES
from shardfleet.producer.kinesis_writer import KinesisWriter
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import REQUEST_BYTES_MOST, ProducerSettings
from shardfleet_local.kinesis.account import AccountSettings
from shardfleet_local.kinesis.engine import KinesisEngine
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.embedded_stream import client_of
from tests.engine.producing.memory_stream import MemoryStream
from tests.engine.producing.test_producer import first_deliveries
from tests.engine.producing.test_puts import producer_of
from tests.engine.unkind_stream import ARN, NAME, CallsAtOnce
from tests.virtual import virtual

REQUESTS = 100 * int(os.environ.get("SHARDFLEET_TEST_DRAWN", "50"))
TROUBLED_REQUESTS = 150
BLOCKED = b"<blocked>"
WORDS = r"^(ValidationException: records\.1\.member\.data|413: )"


class JudgedStream(MemoryStream):
    """A stream that takes records and requests up to its limits, and nothing with certain bytes."""

    def __init__(self, shards, *, record_bytes, request_bytes, passing=False, **kind):
        super().__init__(shards, **kind)
        self.record_bytes, self.request_bytes = record_bytes, request_bytes
        self.passing = passing
        self.refused = 0

    def refusal(self, entries):
        """Return AWS's words, None if a request is taken."""
        sizes = [len(entry.data) + len(entry.partition_key.encode()) for entry in entries]
        for place, entry in enumerate(entries, 1):
            if not 1 <= len(entry.partition_key) <= 256:
                return f"ValidationException: records.{place}.member.partitionKey"
            if sizes[place - 1] > self.record_bytes:
                return f"ValidationException: records.{place}.member.data"
            if BLOCKED in entry.data:
                return "413: Request Entity Too Large"
        if not 1 <= len(entries) <= 500:
            return "ValidationException: records"
        if sum(sizes) > self.request_bytes:
            return f"InvalidArgumentException: Records size exceeds {self.request_bytes}"
        return None

    async def put_records(self, entries):
        words = self.refusal(entries)
        if words is None:
            return await super().put_records(entries)
        self.refused += 1
        self.requests.append(list(entries))
        await asyncio.sleep(self.latency_ms() / 1000)
        error = InvalidRecord(words)
        raise Unsettled(error) if self.passing else error

    def takes(self, record):
        """Return whether a record can be had at all."""
        return self.refusal([record]) is None


class Life:
    """One seed: a stream with limits of its own, and calls, some with records that it refuses."""

    def __init__(self, seed):
        chance = self.chance = random.Random(seed)
        record_bytes = chance.choice([120, 400, 3_000])
        self.stream = JudgedStream(
            chance.choice([1, 2, 4]),
            record_bytes=record_bytes,
            request_bytes=record_bytes * chance.choice([1, 3, 50]),
            before_put=self.trouble,
        )
        self.stream.latency_ms = lambda: chance.choice([0, 5, 20])
        self.stream.refuse = lambda _: self.troubled and chance.random() < 0.05
        self.is_troubled = chance.random() < 0.5
        asked = record_bytes * chance.choice([1, 1, 2, 10])
        self.settings = ProducerSettings(
            record_bytes=asked,
            aggregate_bytes=max(64, min(asked, chance.choice([100, 1_000, asked]))),
            aggregate_records=chance.choice([3, 50]),
            request_bytes=chance.choice([self.stream.request_bytes, 40 * asked]),
            max_requests=chance.choice([1, 4]),
            shard_records_per_s=100_000,
            shard_bytes_per_s=1 << 30,
            give_up_ms=36_000_000,
        )
        self.number = 0
        self.calls = []  # (is it a put, records, what became of it)

    @property
    def troubled(self):
        return self.is_troubled and len(self.stream.requests) < TROUBLED_REQUESTS

    def trouble(self, _):
        happens = self.chance.random() if self.troubled else 1
        if happens < 0.03:
            self.stream.split(self.chance.randrange(100))
        elif happens < 0.05:
            self.stream.merge(self.chance.randrange(100))
        elif happens < 0.1:
            return "throttle"
        elif happens < 0.15:
            return "lose the reply"
        return None

    def records(self, count, *, guilty_percent):
        made = []
        for _ in range(count):
            key, data = f"k{self.chance.randrange(9)}", b"%d." % self.number
            if self.chance.random() < 0.2:
                key += "é" * self.chance.choice([1, 20])
            if self.chance.randrange(100) < guilty_percent and self.chance.random() < 0.5:
                data += BLOCKED
            room = self.settings.record_bytes - len(key.encode()) - len(data)
            wide = self.chance.randrange(100) < guilty_percent
            most = room if wide else min(room, self.stream.record_bytes // 4)
            data += b"x" * self.chance.choice([0, self.chance.randint(0, most), most])
            made.append(OutgoingRecord(key, data))
            self.number += 1
        return made

    async def live(self):
        chance = self.chance
        producer = Producer(
            self.stream,
            clock=VirtualClock(),
            entropy=SeededEntropy(chance.randrange(2**32)),
            settings=self.settings,
        )
        guilty_percent, sends = chance.choice([0, 2, 10, 100]), []
        for _ in range(chance.randrange(1, 9)):
            records = self.records(chance.choice([1, 5, 40]), guilty_percent=guilty_percent)
            aggregate = chance.random() < 0.5
            if chance.random() < 0.5:
                self.calls.append(("put", records))
                await producer.put(*records, aggregate=aggregate)
            else:
                self.calls.append(("send", records))
                sending = producer.send(records, aggregate=aggregate)
                sends.append((records, asyncio.create_task(sending)))
                await asyncio.sleep(chance.choice([0, 0.01]))
        puts = [records for kind, records in self.calls if kind == "put"]
        failed_puts = sum(map(self.at_fault, puts))
        if failed_puts:
            with pytest.raises(InvalidRecord, match=WORDS) as caught:
                await producer.flush()
            (note,) = caught.value.__notes__
            assert note.startswith(f"{failed_puts} calls")
        else:
            await producer.flush()
        answers = await asyncio.gather(*(task for _, task in sends), return_exceptions=True)
        for (records, _), answer in zip(sends, answers, strict=True):
            if self.at_fault(records):
                assert isinstance(answer, InvalidRecord), answer
                assert re.search(WORDS, str(answer))
            else:
                assert len(answer) == len(records)

    def at_fault(self, records):
        return not all(map(self.stream.takes, records))

    def check(self):
        stored, order = {}, {}
        for _, _, _, record in self.stream.in_range_records():
            number = int(record.data.split(b".")[0])
            if number not in stored:
                stored[number] = record
                order.setdefault(record.partition_key, []).append(number)
        number = 0
        for kind, records in self.calls:
            failed = self.at_fault(records)
            for record in records:
                if not self.stream.takes(record):
                    assert number not in stored
                elif kind == "put" or not failed:
                    assert stored[number].data == record.data
                number += 1
        assert all(numbers == sorted(numbers) for numbers in order.values())
        settings, stream = self.settings, self.stream
        asks_too_much = (
            settings.record_bytes > stream.record_bytes
            or settings.request_bytes > stream.request_bytes
        )
        if not asks_too_much and not any(self.at_fault(records) for _, records in self.calls):
            assert stream.refused == 0


def test_of_any_request_refused_as_a_whole_exactly_the_calls_at_fault_fail():
    seed = sent = refused = 0
    while sent < REQUESTS:
        life = Life(seed)
        try:
            run_virtual(life.live())
            life.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        seed += 1
        sent += len(life.stream.requests)
        refused += life.stream.refused
    assert refused > sent / 10


def test_a_record_that_a_stream_refuses_costs_its_own_call_alone_and_few_requests():
    """awslabs/amazon-kinesis-producer#680: one record above what the stream takes, 499 below."""
    stream = JudgedStream(1, record_bytes=2_000, request_bytes=1 << 20)

    async def main():
        producer = producer_of(stream, record_bytes=4_000, aggregate_bytes=2_000)
        small = [OutgoingRecord(f"k{n}", str(n).encode()) for n in range(499)]
        sends = [producer.submit([record]) for record in small[:50]]
        guilty = producer.submit([OutgoingRecord("large", b"x" * 3_000)])
        await producer.put(*small[50:])
        await producer.flush()
        await asyncio.gather(*sends)
        with pytest.raises(InvalidRecord, match=r"^ValidationException: records\.1\.member\.data"):
            await guilty

    run_virtual(main())
    assert len(first_deliveries(stream)) == 499
    assert stream.refused <= 10  # As often as 500 can be halved, and once alone.
    assert len(stream.requests) <= 20


@pytest.mark.parametrize("aggregate", [False, True])
def test_what_nobody_waits_for_any_more_is_not_divided_further(aggregate):
    stream = JudgedStream(1, record_bytes=10, request_bytes=1 << 20)

    async def main():
        records = [OutgoingRecord(f"k{n}", b"x" * 100) for n in range(500)]
        with pytest.raises(InvalidRecord):
            await producer_of(stream).send(records, aggregate=aggregate)

    run_virtual(main())
    assert stream.stored == []
    assert len(stream.requests) <= 20


@pytest.mark.parametrize("aggregate", [False, True])
def test_what_is_refused_for_a_reason_that_may_pass_takes_no_other_record_along(aggregate):
    """A code that no table knows: the record is offered again for give_up_ms, and then named."""
    stream = JudgedStream(1, record_bytes=2_000, request_bytes=1 << 20, passing=True)

    async def main():
        producer = producer_of(stream, record_bytes=4_000, aggregate_bytes=2_000, give_up_ms=60_000)
        records = [OutgoingRecord(f"k{n}", str(n).encode()) for n in range(100)]
        guilty = producer.submit([OutgoingRecord("guilty", b"0" + BLOCKED)], aggregate=aggregate)
        others = producer.submit(records, aggregate=aggregate)
        await others
        assert asyncio.get_running_loop().time() < 30
        assert not guilty.done()
        with pytest.raises(InvalidRecord, match="413"):
            await guilty
        assert asyncio.get_running_loop().time() > 60

    run_virtual(main())
    assert sum(len(numbers) for numbers in first_deliveries(stream).values()) == 100


KEYS_AT_MOST = {"one byte": "k", "256 of four bytes": "\U0001f511"}


@pytest.mark.parametrize("largest", [STREAM_RECORD_BYTES, MAX_RECORD_BYTES])
@pytest.mark.parametrize("key", KEYS_AT_MOST.values(), ids=KEYS_AT_MOST)
@pytest.mark.parametrize("aggregate", [False, True])
def test_every_limit_holds_on_the_wire_at_its_allowed_maximum(aggregate, key, largest):
    """Data and key of a record and of a request count; the largest aggregate has a key, too."""
    most = REQUEST_BYTES_MOST
    stream = JudgedStream(1, record_bytes=largest, request_bytes=most)
    count = 12 * STREAM_RECORD_BYTES // largest + 3
    keys = [f"{n:02d}" + key * 254 for n in range(count + 28)]

    async def main():
        producer = producer_of(
            stream,
            record_bytes=largest,
            aggregate_bytes=largest,
            aggregate_records=100_000,
            request_bytes=most,
            shard_bytes_per_s=1 << 30,
            shard_records_per_s=1_000_000,
        )
        whole = [OutgoingRecord(k, b"x" * (largest - len(k.encode()))) for k in keys[:count]]
        parts = [OutgoingRecord(each, b"x" * (1 << 18)) for each in keys[count:] for _ in range(5)]
        await producer.send(whole + parts, aggregate=aggregate)

    run_virtual(main())
    assert stream.refused == 0
    sizes = [
        [len(each.data) + len(each.partition_key.encode()) for each in request]
        for request in stream.requests
    ]
    assert max(max(each) for each in sizes) > 0.99 * largest
    assert max(map(sum, sizes)) > 0.9 * most


@virtual
async def test_a_stream_that_is_gone_fails_what_is_divided_too():
    stream = JudgedStream(1, record_bytes=2_000, request_bytes=1 << 20)
    put = stream.put_records

    async def gone_later(entries):
        if len(stream.requests) > 2:
            raise StreamGone("orders")
        return await put(entries)

    stream.put_records = gone_later
    producer = producer_of(stream)
    first = producer.submit([OutgoingRecord(f"k{n}", b"%d" % n) for n in range(8)])
    other = producer.submit([OutgoingRecord("large", b"x" * 3_000)])
    for sending in (first, other):
        with pytest.raises(ShardfleetError, match="orders"):
            await sending


@pytest.mark.parametrize("aggregate", [False, True])
def test_a_record_above_what_the_embedded_kinesis_takes_is_named_and_the_others_are_read(aggregate):
    """``record_bytes`` of 2 MiB on a stream that takes 1 MiB."""
    engine = KinesisEngine(AccountSettings(), clock=lambda: VirtualClock().now_ms() / 1000)

    async def main():
        engine.call("CreateStream", {"StreamName": NAME, "ShardCount": 1})
        client = client_of(engine)
        writer = KinesisWriter(ARN, records=client, control=client, pool=CallsAtOnce())
        producer = producer_of(
            writer, record_bytes=2 << 20, aggregate_bytes=2 << 20, shard_bytes_per_s=1 << 30
        )
        small = [OutgoingRecord(f"k{n}", b"%d" % n) for n in range(100)]
        sends = [producer.submit([each], aggregate=aggregate) for each in small[:50]]
        large = OutgoingRecord("large", b"x" * (3 << 19))
        guilty = producer.submit([large], aggregate=aggregate)
        await producer.put(*small[50:], aggregate=aggregate)
        with pytest.raises(InvalidRecord, match=r"PutRecords of 1 entries .*1572869 bytes"):
            await guilty
        await producer.flush()
        return await asyncio.gather(*sends), producer.counts

    receipts, counts = run_virtual(main())
    assert all(len(each) == 1 for each in receipts)
    assert counts.accepted == 100
