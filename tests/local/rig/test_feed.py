"""The feed: steady, a third aggregated, and a note of where each record went."""

from shardfleet.producer.sending import Producer
from shardfleet_local.rig.feed import InputRecord, feed
from shardfleet_local.rig.probe.ledger_probe import digest
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.memory_stream import MemoryStream
from tests.virtual import virtual

RECORDS = [InputRecord(n, f"key-{n % 50}", f"data {n}".encode()) for n in range(1, 3001)]


@virtual
async def fed(stream, duration_ms, on_sent=lambda _: None):
    clock = VirtualClock()
    producer = Producer(stream, clock=clock, entropy=SeededEntropy(1))
    began_ms = clock.monotonic_ms()
    sent = await feed(RECORDS, producer, duration_ms=duration_ms, clock=clock, on_sent=on_sent)
    return sent, clock.monotonic_ms() - began_ms


def test_the_records_are_spread_evenly_over_the_time():
    when = []
    sent, took_ms = fed(MemoryStream(4), 60_000, on_sent=lambda s: when.append(len(s)))

    assert len(sent) == 3_000
    assert 59_000 <= took_ms <= 60_500
    assert set(when) == {10}


def test_about_a_third_of_the_records_is_aggregated():
    sent, _ = fed(MemoryStream(2), 20_000)

    assert 900 < sum(record.receipt.aggregated for record in sent) < 1_100


def test_each_note_says_where_its_record_is_read_and_what_it_holds():
    stream = MemoryStream(3, before_put=lambda number: number == 40 and stream.split(1))
    sent, _ = fed(stream, 60_000)

    read = {
        (shard, sequence, sub): digest(record.partition_key, record.data)
        for shard, sequence, sub, record in stream.in_range_records()
    }
    assert {tuple(r.receipt)[:3]: r.digest for r in sent} == read
    assert [record.number for record in sent] == list(range(1, 3001))


def test_without_a_pace_only_the_shards_quota_is_waited_for():
    sent, took_ms = fed(MemoryStream(2), 0)

    assert len(sent) == 3_000
    assert took_ms < 1_000  # 1,000 plain records per shard, of which 500 go at once.
