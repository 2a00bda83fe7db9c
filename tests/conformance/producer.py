"""
The KPL's own daemon as the producer: ``python -m tests.conformance.producer``.

Records of many shapes go through it into the embedded Kinesis, over TLS. Each aggregate that it
makes is taken apart by ours, and put together again by ours byte for byte as it was; and what comes
out is what went in, each record once, in its shard.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import boto3

from shardfleet.kpl.deaggregate import ExpansionLimits, Verdict, deaggregate
from shardfleet.kpl.envelope import is_framed
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import MAX_RECORD_BYTES, AggregateBuilder, aggregate
from tests.adapters.kinesis_server import kinesis_server
from tests.adapters.tls import certificate, tls_front
from tests.conformance.daemon import KplDaemon, fetch, why_not

STREAM, SHARDS, REGION = "clicks", 4, "us-east-1"
DONE_MOST_S, SHOWN = 300, 5
PAIRS_MOST, PAIR_S = 100, 0.1
HASH_KEYS = 2**128
# Configuration's fields: aggregation_max_count, aggregation_max_size, record_max_buffered_time.
SETTINGS = {
    "by default": {},
    "few records each": {2: 7},
    "small aggregates": {3: 900},
    "large ones, for long": {3: 400_000, 21: 2_000},
}
LETTERS = "aZ09-_ ü€𝄞\x00\x7f"


@dataclass
class Found:
    """What a run found; `faults` are what must not be."""

    sent: int = 0
    plain: int = 0
    aggregates: int = 0
    in_aggregates: int = 0
    largest: int = 0
    faults: list = field(default_factory=list)

    def lines(self):
        yield (
            f"kpl daemon: {self.sent:,} records, {self.in_aggregates:,} of them in "
            f"{self.aggregates:,} aggregates of at most {self.largest:,} bytes, {self.plain:,} "
            f"alone; {len(self.faults):,} faults"
        )
        yield from (f"  {fault:.500}" for fault in self.faults[:SHOWN])

    def figures(self):
        return {
            name: getattr(self, name)
            for name in ("sent", "in_aggregates", "aggregates", "largest", "plain")
        } | {"faults": len(self.faults)}


def drawn(chance, number):
    """Return (partition key, data, explicit hash key or None); the data is no other record's."""
    shape = chance.random()
    if shape < 0.5:
        key = f"visitor-{chance.randrange(40)}"
    elif shape < 0.95:
        # One that begins with a NUL and stands alone the daemon cannot send: it cuts it to nothing.
        key = "".join(chance.choices(LETTERS, k=chance.choice((1, 2, 9, 40)))).lstrip("\0") or "0"
    else:
        key = "k" * chance.choice((127, 128, 255, 256))
    hash_key = None
    if chance.random() < 0.2:
        hash_key = str(chance.choice((0, 1, HASH_KEYS - 1, chance.randrange(HASH_KEYS))))
    size = chance.choice((0, 0, 1, 30, 100, 119, 128, 300))
    if chance.random() < 0.0005:
        size = chance.choice((16_000, 52_000))
    return key, f"{number} ".encode() + chance.randbytes(size), hash_key


def run(records, seed):
    """Send so many records, a part of them under each of the settings; return what was found."""
    with tempfile.TemporaryDirectory(prefix="shardfleet-kpl-") as folder, kinesis_server() as plain:
        # The default session may know the keys of a server before this one.
        client = boto3.Session(region_name=REGION).client("kinesis", endpoint_url=plain)
        client.create_stream(StreamName=STREAM, ShardCount=SHARDS)
        authority = certificate(Path(folder))
        with tls_front(plain, authority) as secure:
            sent, refused = _sent(records, seed, urlsplit(secure), authority)
        found = judge(sent, _stored(client))
    found.faults += refused
    if found.plain > found.sent / 2:
        found.faults.append(f"{found.plain} of {found.sent} records were not aggregated")
    return found


def judge(sent, stored):
    """
    Compare what was sent with what is in the stream.

    Args:
        sent: data to (partition key, explicit hash key or None).
        stored: (shard, record) as the API has them.

    """
    found, came = Found(sent=len(sent)), Counter()
    for shard, record in stored:
        is_alone = not is_framed(record["Data"])
        for each in _taken_apart(found, shard, record):
            came[each.data] += 1
            if _differs(each, sent.get(each.data), is_alone=is_alone):
                found.faults.append(f"sent as {sent.get(each.data)}: came as {each!r:.300}")
    found.faults += [f"lost: {data!r:.80}" for data in sent if not came[data]]
    twice = (data for data, times in came.items() if times > 1)
    found.faults += [f"came twice: {data!r:.80}" for data in twice]
    return found


def _differs(came, sent, *, is_alone):
    """
    Tell whether a record came otherwise than it was sent.

    One that stands alone has its explicit hash key in the request only, and the daemon, which is
    C++, cuts its partition key there at a NUL.
    """
    if sent is None:
        return True
    key, hash_key = (sent[0].partition("\0")[0], None) if is_alone else sent
    return (came.partition_key, came.explicit_hash_key) != (key, hash_key)


def _sent(records, seed, endpoint, authority):
    """Return data to keys of what was sent, and what the daemon told of what it could not."""
    sent, refused = {}, []
    signs = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    for number, (name, settings) in enumerate(SETTINGS.items()):
        chance = random.Random(f"{seed} {name}")
        count = records // len(SETTINGS) + (number < records % len(SETTINGS))
        where, done = (endpoint.hostname, endpoint.port), len(sent)
        with KplDaemon(where, authority, signs, settings) as daemon:
            count += _until_it_aggregates(daemon, sent)
            while len(sent) < done + count:
                key, data, hash_key = drawn(chance, len(sent))
                sent[data] = key, hash_key
                daemon.put(STREAM, key, data, hash_key)
            daemon.flush(STREAM)
            if not daemon.wait(count, DONE_MOST_S) or daemon.failed:
                refused.append(
                    f"{name}: of {count} records {len(daemon.stored)} were stored, "
                    f"{len(daemon.failed)} refused: {daemon.failed[:1]} {daemon.said()}"
                )
    return sent, refused


def _until_it_aggregates(daemon, sent):
    """Send pairs until one becomes one record: until it knows the shards each goes alone."""
    for pair in range(1, PAIRS_MOST + 1):
        for _ in range(2):
            data = f"pair {len(sent)}".encode()
            sent[data] = "pair", None
            daemon.put(STREAM, "pair", data)
        daemon.flush(STREAM)
        if not daemon.wait(2 * pair, DONE_MOST_S) or len({*daemon.stored[-2:]}) == 1:
            break
        time.sleep(PAIR_S)
    return 2 * pair


def _stored(client):
    """Yield (shard, record) of all there is in the stream."""
    for shard in client.list_shards(StreamName=STREAM)["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName=STREAM, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while records := (page := client.get_records(ShardIterator=iterator))["Records"]:
            yield from ((shard, record) for record in records)
            iterator = page["NextShardIterator"]


def _taken_apart(found, shard, record):
    """Return the user records of a Kinesis record, having put an aggregate together again."""
    ends, data = shard["HashKeyRange"], record["Data"]
    first, last = int(ends["StartingHashKey"]), int(ends["EndingHashKey"])
    taken = deaggregate(
        data,
        partition_key=record["PartitionKey"],
        limits=ExpansionLimits(),
        # As in Java nothing of an aggregate is delivered of which a record is another shard's.
        hash_range=(first, last),
        policy="kpl",
    )
    if not is_framed(data):
        found.plain += 1
        return taken.records
    found.aggregates += 1
    found.in_aggregates += len(taken.records)
    found.largest = max(found.largest, len(data))
    if taken.verdict is not Verdict.EXPANDED:
        found.faults.append(f"{taken.verdict} in {shard['ShardId']}: {data!r:.120}")
        return ()
    outgoing = [
        OutgoingRecord(each.partition_key, each.data, each.explicit_hash_key)
        for each in taken.records
    ]
    for again in (aggregate(outgoing), filled(outgoing)):
        if again != data:
            found.faults.append(f"put together otherwise: {data!r:.120} as {again!r:.120}")
    return taken.records


def filled(records):
    """Return the aggregate as our producer makes it: in columns, as far as they go."""
    builder = AggregateBuilder(max_bytes=MAX_RECORD_BYTES)
    builder.fill(records)
    return builder.build().data


def main(arguments):
    """Run it; return 1 if it found a fault, and 0 where there is no daemon, having said so."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.producer")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    given = parser.parse_args(arguments)
    if reason := fetch() or why_not():
        figures, is_good = {"skipped": reason}, True
        sys.stdout.write(f"kpl daemon: skipped: {reason}\n")
    else:
        began = time.monotonic()
        found = run(given.records, given.seed)
        figures, is_good = found.figures(), not found.faults
        figures["seconds"] = round(time.monotonic() - began, 1)
        sys.stdout.write("\n".join([*found.lines(), ""]))
    if given.output is not None:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(
            json.dumps({"seed": given.seed, **figures}, indent=2) + "\n", "utf-8"
        )
    return not is_good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
