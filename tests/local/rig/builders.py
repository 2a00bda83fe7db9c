"""A stream's records, ledgers and outcomes, made up for tests of what reads them."""

import random
from pathlib import Path

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard
from shardfleet.producer.settings import ProducerCounts, Receipt
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.incidents import FleetDisturbance
from shardfleet_local.rig.ledger import HandledRecord, LedgerLine
from shardfleet_local.rig.outcome import Outcome, RunOptions
from shardfleet_local.rig.source import Source
from shardfleet_local.rig.verdict import Deliveries, recoveries, unsettled_leases, verdict

BEGAN_MS = 1_790_000_000_000


def shard_id(number):
    return f"shardId-{number:012d}"


def a_sent(number, *, key="a", shard=0, sub=0, sequence=None, at_ms=BEGAN_MS, content=None):
    receipt = Receipt(shard_id(shard), str(sequence or 1000 + number), sub, sub > 0)
    return SentRecord(number, key, content or f"digest-{number}", receipt, at_ms)


def a_line(*records, pid=1, at_ms=BEGAN_MS):
    """A ledger line that handles these sent records, all of one shard."""
    handled = tuple(
        HandledRecord(r.receipt.sequence_number, r.receipt.sub_sequence_number, r.digest)
        for r in records
    )
    return LedgerLine(at_ms, pid, records[0].receipt.shard_id, handled)


def a_shard(number, *, parents=(), is_open=True):
    ids = [shard_id(parent) for parent in parents] + [None, None]
    return Shard(
        shard_id=shard_id(number),
        hash_key_range=HashKeyRange(number, number),
        ending_sequence_number=None if is_open else "9",
        parent_shard_id=ids[0],
        adjacent_parent_shard_id=ids[1],
    )


def a_lease(number, checkpoint="123"):
    return Lease(
        lease_key=shard_id(number),
        checkpoint=ExtendedSequenceNumber(checkpoint),
        lease_owner="fleet-s0001",
        lease_counter=7,
    )


SPLIT_S, MERGE_S, KILLS_S, THROTTLE_S = 22, 60, (12, 30, 70, 102), (40, 100)
PARENTS = {shard_id(4): [0], shard_id(5): [0], shard_id(6): [4, 5]}


def a_feed(source, seconds):
    """Records for 4 shards, one of which splits and whose children merge."""
    sent = []
    for second in range(seconds):
        live = [0, 1, 2, 3] if second < SPLIT_S else [4, 5, 1, 2, 3]
        for shard in live if second < MERGE_S else [6, 1, 2, 3]:
            for _ in range(source.randrange(30, 70)):
                number = len(sent) + 1
                at_ms = BEGAN_MS + second * 1000 + source.randrange(1000)
                key = f"k{number % 40}-{shard}"
                sent.append(a_sent(number, key=key, shard=shard, at_ms=at_ms))
    return sorted(sent, key=lambda record: record.sent_ms)


def handled_ms(source, record):
    """When a record is handled, were it alone: kills and the throttled minute delay it."""
    at_ms = record.sent_ms + source.randrange(100, 700)
    elapsed_s = (at_ms - BEGAN_MS) / 1000
    delays = [(kill, kill + 2.1) for kill in KILLS_S]
    if record.receipt.shard_id == shard_id(2):
        delays.append((THROTTLE_S[0], THROTTLE_S[1] + 0.4))
    until_s = max((until for since, until in delays if since <= elapsed_s < until), default=0)
    return max(at_ms, BEGAN_MS + int(until_s * 1000))


def a_ledger(source, sent):
    """Batches of 20 records, parents before children."""
    by_shard = {}
    for record in sent:
        by_shard.setdefault(record.receipt.shard_id, []).append(record)
    lines, done_ms = [], {}
    for name, records in sorted(by_shard.items()):
        done_ms[name] = max((done_ms[shard_id(p)] for p in PARENTS.get(name, ())), default=0)
        for begin in range(0, len(records), 20):
            chunk = records[begin : begin + 20]
            done_ms[name] = max(done_ms[name], handled_ms(source, chunk[-1]))
            crashes = sum(done_ms[name] >= BEGAN_MS + kill * 1000 for kill in KILLS_S)
            lines.append(a_line(*chunk, pid=100 + crashes, at_ms=done_ms[name]))
    return sorted(lines, key=lambda line: line.at_ms)


def happenings():
    told = [
        *((at, "kill worker", f"kill -9 of {100 + n}") for n, at in enumerate(KILLS_S)),
        (SPLIT_S, "split", "split of shard 0"),
        (MERGE_S, "merge", "merge of shard 4 and shard 5"),
        (48, "kill manager", "kill -9 of manager process 77"),
        (THROTTLE_S[0], "throttle", "shard 2 refuses every read for 60 s"),
    ]
    about = {
        "kill worker": {"shard_ids": (shard_id(1), shard_id(3))},
        "throttle": {"shard_ids": (shard_id(2),), "until_ms": BEGAN_MS + THROTTLE_S[1] * 1000},
    }
    return [
        FleetDisturbance(
            at_ms=BEGAN_MS + at * 1000, kind=kind, text=text, pid=100, **about.get(kind, {})
        )
        for at, kind, text in sorted(told)
    ]


def an_outcome(seed=1, *, lose=(), seconds=120, rejects=None):
    """A plausible run: 4 shards, a split, a merge, kills, and a throttled minute of shard 2."""
    source = random.Random(seed)
    sent = a_feed(source, seconds)
    lines = a_ledger(source, [record for record in sent if record.number not in lose])
    done = happenings()
    shards = [
        a_shard(n, parents=PARENTS.get(shard_id(n), ()), is_open=n in {1, 2, 3, 6})
        for n in range(7)
    ]
    leases = [a_lease(n, str(10**55 + n) if shards[n].is_open else "SHARD_END") for n in range(7)]
    return Outcome(
        options=RunOptions(
            source=Source(name="made-up.jsonl", records=(), rejects=rejects or {}),
            folder=Path(),
            seed=seed,
        ),
        verdict=verdict(sent, lines, shards=shards),
        unsettled=unsettled_leases(shards, leases),
        recoveries=recoveries(done, lines, sent=sent),
        happenings=done,
        sent=sent,
        first_handled_ms=Deliveries.of(sent, lines).first_ms,
        counts=ProducerCounts(misrouted=2),
        shards=shards,
        leases=leases,
        worker_pids=frozenset(range(100, 108)),
        template_sha256="ab" * 32,
        began_ms=BEGAN_MS,
        fed_ms=BEGAN_MS + seconds * 1000,
        ended_ms=max(BEGAN_MS + seconds * 1000, *(line.at_ms for line in lines)),
        settled_ms=BEGAN_MS + seconds * 1000 + 4_200,
        wall_ms=151_000,
    )
