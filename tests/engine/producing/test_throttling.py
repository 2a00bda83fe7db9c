"""One shard of four refuses entries at random: nobody else notices, and no key is reordered."""

import random

import pytest

from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.sending import Producer
from shardfleet.producer.settings import ProducerSettings
from shardfleet_testkit.clock import VirtualClock
from shardfleet_testkit.memory import SeededEntropy
from tests.engine.producing.embedded_stream import LATENCY_MS, NAME, EmbeddedStream
from tests.virtual import virtual

SHARDS, KEYS_PER_SHARD, PER_SHARD = 4, 40, 2_400
REFUSED_SHARE = 0.3
REFUSING = "shardId-000000000002"


def refusing(seed):
    """Refuse entries of one shard at random, the same ones for the same seed."""
    chance = random.Random(seed)
    return lambda shard_id: shard_id == REFUSING and chance.random() < REFUSED_SHARE


def input_for(stream, seed):
    """Records of all shards mixed, numbered in their order."""
    keys = [key for keys in stream.keys(KEYS_PER_SHARD).values() for key in keys]
    order = keys * (PER_SHARD // KEYS_PER_SHARD)
    random.Random(seed).shuffle(order)
    return [OutgoingRecord(key, str(number).encode()) for number, key in enumerate(order)]


def numbers_per_key(read):
    found = {}
    for records in read.values():
        for key, data in records:
            found.setdefault(key, []).append(int(data))
    return found


def expected(records):
    found = {}
    for number, record in enumerate(records):
        found.setdefault(record.partition_key, []).append(number)
    return found


@virtual
async def ours(seed, *, refuses):
    """Return numbers per key, and when each shard had its last record, ms after the start."""
    clock = VirtualClock()
    stream = EmbeddedStream(SHARDS, now_ms=clock.now_ms, refuses=refuses)
    records = input_for(stream, seed)
    producer = Producer(
        stream, clock=clock, entropy=SeededEntropy(seed), settings=ProducerSettings()
    )
    began_ms = clock.now_ms()
    await producer.send(records)
    last_ms = {shard: max(times) - began_ms for shard, times in stream.accepted_ms.items()}
    assert numbers_per_key(stream.read()) == expected(records)  # All, once, in order.
    return last_ms, producer.counts


def naive(seed, *, refuses):
    """Return numbers per key as boto3 with the usual loop sends them: what failed, once more."""
    now_ms = [1_700_000_000_000]
    stream = EmbeddedStream(SHARDS, now_ms=lambda: now_ms[0], refuses=refuses)
    records = input_for(stream, seed)

    def pass_time():
        now_ms[0] += LATENCY_MS

    client = stream.boto3_client(on_call=pass_time)
    for start in range(0, len(records), 500):
        batch = [{"Data": r.data, "PartitionKey": r.partition_key} for r in records[start:][:500]]
        while batch:
            answer = client.put_records(StreamName=NAME, Records=batch)
            results = zip(batch, answer["Records"], strict=True)
            batch = [record for record, result in results if "ErrorCode" in result]
            if batch:
                now_ms[0] += 100
    return numbers_per_key(stream.read()), expected(records)


@pytest.fixture
def quiet_run(seed):
    return ours(seed, refuses=lambda _: False)


def test_random_refusals_on_one_shard_slow_no_other_down_and_reorder_nothing(seed, quiet_run):
    quiet_ms, quiet_counts = quiet_run
    ours_ms, counts = ours(seed, refuses=refusing(seed))
    theirs, in_order = naive(seed, refuses=refusing(seed))

    assert quiet_counts.refused == 0
    assert counts.refused > 0.2 * PER_SHARD
    for shard_id, quiet in quiet_ms.items():
        if shard_id != REFUSING:
            assert quiet / ours_ms[shard_id] >= 0.9  # The same records in so much of the time.
    assert {key: sorted(numbers) for key, numbers in theirs.items()} == in_order
    reordered = [key for key, numbers in theirs.items() if numbers != in_order[key]]
    assert len(reordered) > KEYS_PER_SHARD / 2  # The naive loop loses nothing, but see here.
