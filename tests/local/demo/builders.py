"""A stream's records, ledgers and outcomes, made up for tests of what reads them."""

import random

from shardfleet.domain.leases import HashKeyRange, Lease
from shardfleet.domain.sequence import ExtendedSequenceNumber
from shardfleet.domain.shards import Shard
from shardfleet.engine.producer import ProducerCounts, Receipt
from shardfleet.local.demo.feed import SentRecord
from shardfleet.local.demo.incidents import IncidentLog
from shardfleet.local.demo.ledger import Handled, LedgerLine
from shardfleet.local.demo.outcome import Outcome
from shardfleet.local.demo.recovery import Blackout, Kill, recoveries
from shardfleet.local.demo.source import Source
from shardfleet.local.demo.timeline import Happening
from shardfleet.local.demo.verdict import FirstDeliveries, unsettled_leases, verdict

BEGAN_MS = 1_790_000_000_000


def shard_id(number):
    return f"shardId-{number:012d}"


def a_sent(number, *, key="a", shard=0, sub=0, sequence=None, at_ms=BEGAN_MS, content=None):
    receipt = Receipt(shard_id(shard), str(sequence or 1000 + number), sub, sub > 0)
    return SentRecord(number, key, content or f"digest-{number}", receipt, at_ms)


def a_line(*records, pid=1, at_ms=BEGAN_MS):
    """A ledger line that handles these sent records, all of one shard."""
    handled = tuple(
        Handled(r.receipt.sequence_number, r.receipt.sub_sequence_number, r.digest) for r in records
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


def an_outcome(seed=1, *, lose=(), seconds=120):
    """A plausible run: 4 shards, a split, a merge, kills, and a throttled minute of shard 2."""
    source = random.Random(seed)
    sent, lines = [], []
    kill_s, split_s, merge_s, throttle = (12, 30, 70, 102), 22, 60, (40, 100)
    number = 0
    for second in range(seconds):
        live = [0, 1, 2, 3]
        if second >= split_s:
            live = [4, 5, 1, 2, 3]
        if second >= merge_s:
            live = [6, 1, 2, 3]
        for shard in live:
            for _ in range(source.randrange(30, 70)):
                number += 1
                at_ms = BEGAN_MS + second * 1000 + source.randrange(1000)
                sent.append(a_sent(number, key=f"k{number % 40}-{shard}", shard=shard, at_ms=at_ms))
    sent.sort(key=lambda record: record.sent_ms)
    by_shard = {}
    for record in sent:
        if record.number not in lose:
            by_shard.setdefault(record.receipt.shard_id, []).append(record)
    done_ms = {}
    parents = {shard_id(4): [0], shard_id(5): [0], shard_id(6): [4, 5]}
    for name, records in sorted(by_shard.items()):
        before_ms = max((done_ms[shard_id(p)] for p in parents.get(name, ())), default=0)
        for begin in range(0, len(records), 20):
            chunk = records[begin : begin + 20]
            at_ms = chunk[-1].sent_ms + source.randrange(100, 700)
            elapsed_s = (at_ms - BEGAN_MS) / 1000
            for kill in kill_s:
                if kill <= elapsed_s < kill + 2:
                    at_ms = BEGAN_MS + kill * 1000 + 2_100
            if name == shard_id(2) and throttle[0] <= elapsed_s < throttle[1]:
                at_ms = BEGAN_MS + throttle[1] * 1000 + 400
            at_ms = done_ms[name] = max(at_ms, before_ms, done_ms.get(name, 0))
            pid = sum(elapsed_s >= kill for kill in kill_s) + 100
            lines.append(a_line(*chunk, pid=pid, at_ms=at_ms))
    lines.sort(key=lambda line: line.at_ms)
    kills = [
        Kill(at_ms=BEGAN_MS + at * 1000, pid=100 + place, shard_ids=(shard_id(1), shard_id(3)))
        for place, at in enumerate(kill_s)
    ]
    happenings = [
        *(
            Happening(
                at_ms=k.at_ms,
                kind="kill",
                text=f"kill -9 of worker process {k.pid}, which was reading shard 1, shard 3",
            )
            for k in kills
        ),
        Happening(at_ms=BEGAN_MS + split_s * 1000, kind="split", text="split of shard 0"),
        Happening(
            at_ms=BEGAN_MS + merge_s * 1000, kind="merge", text="merge of shard 4 and shard 5"
        ),
        Happening(at_ms=BEGAN_MS + 48_000, kind="kill", text="kill -9 of manager process 77"),
        Happening(
            at_ms=BEGAN_MS + 40_000,
            kind="throttle",
            text="shard 2 refuses every read for 60 s",
            until_ms=BEGAN_MS + 100_000,
        ),
    ]
    happenings.sort(key=lambda each: each.at_ms)
    blackouts = [
        Blackout(shard_id=shard_id(2), from_ms=BEGAN_MS + 40_000, until_ms=BEGAN_MS + 100_000)
    ]
    shards = [
        a_shard(0, is_open=False),
        a_shard(1),
        a_shard(2),
        a_shard(3),
        a_shard(4, parents=(0,), is_open=False),
        a_shard(5, parents=(0,), is_open=False),
        a_shard(6, parents=(4, 5)),
    ]
    leases = [a_lease(n, "SHARD_END" if n in (0, 4, 5) else str(10**55 + n)) for n in range(7)]
    deliveries = FirstDeliveries()
    deliveries.sent(sent)
    for line in lines:
        deliveries.handled(line)
    return Outcome(
        source=Source(name="made-up.jsonl", records=()),
        seed=seed,
        enforce_iam=False,
        verdict=verdict(sent, lines, shards),
        unsettled=unsettled_leases(shards, leases),
        recoveries=recoveries(kills, lines, sent, blackouts=blackouts),
        log=IncidentLog(
            happenings=happenings, kills=kills, manager_kills=1, blackouts=blackouts, reshards=2
        ),
        sent=sent,
        first_handled_ms=deliveries.first_ms,
        counts=ProducerCounts(misrouted=2),
        shards=shards,
        leases=leases,
        worker_pids=frozenset(range(100, 108)),
        template_sha256="ab" * 32,
        began_ms=BEGAN_MS,
        fed_ms=BEGAN_MS + seconds * 1000,
        ended_ms=max(line.at_ms for line in lines),
        wall_ms=151_000,
    )
