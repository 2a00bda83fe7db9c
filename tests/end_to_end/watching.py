"""A steady feed, a watch on the lease table, and what must be true of both afterwards."""

import base64
import json
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

SENTINELS = {"TRIM_HORIZON": -2, "LATEST": -1}


class Feed(threading.Thread):
    """
    Puts records until it is stopped: each key once per request, numbered from 0 within its key.

    What is refused is put again before anything later, so the stream has each key's numbers in
    order. `newest` has the sequence number of each shard's newest record.
    """

    def __init__(self, fleet, *, name="key", keys=20, pause_s=0.1):
        super().__init__(daemon=True)
        self._fleet = fleet
        self._keys = [f"{name}-{number}" for number in range(keys)]
        self._pause_s = pause_s
        self._over = threading.Event()
        self.rounds = 0
        self.newest = {}

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()

    def run(self):
        kinesis = self._fleet.client("kinesis")
        while not self._over.wait(self._pause_s):
            waiting = self.entries()
            while waiting:
                answer = kinesis.put_records(
                    StreamName=self._fleet.outputs["StreamName"], Records=waiting
                )
                results = list(zip(waiting, answer["Records"], strict=True))
                waiting = [entry for entry, result in results if "ErrorCode" in result]
                self.newest |= {
                    result["ShardId"]: result["SequenceNumber"]
                    for _, result in results
                    if "ErrorCode" not in result
                }
            self.rounds += 1

    def entries(self):
        """Return the next request: of each key the next number."""
        return [
            {"PartitionKey": key, "Data": json.dumps([key, self.rounds]).encode()}
            for key in self._keys
        ]

    @property
    def expected(self):
        return {(key, number) for key in self._keys for number in range(self.rounds)}


@dataclass(frozen=True)
class Call:
    """One handler call as the ledger has it: by whom, on which shard, of which records."""

    at: float
    pid: int
    request: str
    shard: str
    records: tuple


def read_calls(ledger):
    """Read the ledger, oldest first; each record as (key, number)."""
    if not ledger.exists():
        return []
    lines = ledger.read_bytes().split(b"\n")[:-1]
    return [
        Call(
            at=line["at"],
            pid=line["pid"],
            request=line["request"],
            shard=line["shard"],
            records=tuple(tuple(json.loads(base64.b64decode(data))) for data in line["records"]),
        )
        for line in map(json.loads, lines)
    ]


def handled(calls):
    return {record for call in calls for record in call.records}


def out_of_order(calls):
    """Return the first deliveries that came before an earlier record of their key."""
    wrong, seen, latest = [], set(), defaultdict(lambda: -1)
    for call in calls:
        for key, number in call.records:
            if (key, number) not in seen and number < latest[key]:
                wrong.append((key, number, call))
            seen.add((key, number))
            latest[key] = max(latest[key], number)
    return wrong


def returned(calls, moves):
    """
    Return where an invocation came back to a shard after another one had delivered there.

    It may, if the lease was assigned away and back meanwhile: `moves` are the times at which a
    shard's lease changed its owner.
    """
    found, last, gone = [], {}, defaultdict(dict)
    for call in calls:
        before = last.get(call.shard)
        if before and before.request != call.request:
            gone[call.shard][before.request] = before.at
        left_at = gone[call.shard].get(call.request)
        if left_at is not None and sum(left_at < at <= call.at for at in moves[call.shard]) < 2:
            found.append((call, left_at))
        last[call.shard] = call
    return found


class LeaseWatch(threading.Thread):
    """Reads the lease table again and again, and keeps every state it has seen."""

    def __init__(self, fleet, *, pause_s=0.05):
        super().__init__(daemon=True)
        self._fleet = fleet
        self._pause_s = pause_s
        self._over = threading.Event()
        self.seen = defaultdict(list)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()

    def run(self):
        while not self._over.wait(self._pause_s):
            for key, lease in self._fleet.leases().items():
                states = self.seen[key]
                if not states or states[-1][1] != lease:
                    states.append((time.time(), lease))

    def moves(self):
        """Return when each lease was seen with another owner than before."""
        return defaultdict(
            list,
            {
                key: [
                    at
                    for (_, before), (at, after) in pairwise(states)
                    if effective_owner(before) != effective_owner(after)
                ]
                for key, states in self.seen.items()
            },
        )

    def problems(self):
        """Return what no sequence of correct conditional writes can show."""
        return [
            f"{key}: {problem}: {before} -> {after}"
            for key, states in self.seen.items()
            for (_, before), (_, after) in pairwise(states)
            for problem in step_problems(before, after)
        ]


def place(lease):
    """Return a checkpoint as something that can be compared."""
    if lease["checkpoint"] == "SHARD_END":
        return (1, 0, 0)
    text = lease["checkpoint"]
    number = SENTINELS[text] if text in SENTINELS else int(text)
    return (0, number, int(lease["checkpointSubSequenceNumber"]))


def step_problems(before, after):
    """Judge two states of one lease that followed each other."""
    if after["leaseCounter"] < before["leaseCounter"]:
        yield "the counter went back"
    if after["leaseCounter"] == before["leaseCounter"]:
        if effective_owner(after) != effective_owner(before):
            yield "another owner with the same counter"
        if place(after) != place(before):
            yield "another checkpoint with the same counter"
    if place(after) < place(before):
        yield "the checkpoint went back"
    if "checkpointOwner" in after and after["checkpointOwner"] == after.get("leaseOwner"):
        yield "a handover to its own owner"


def effective_owner(lease):
    """Return who renews and checkpoints: in a handover the old owner."""
    return lease.get("checkpointOwner", lease.get("leaseOwner"))
