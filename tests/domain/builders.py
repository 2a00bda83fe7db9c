"""
Leases, shards and workers from one line of text, as in tests/scenarios/*.json.

A line is an id followed by pairs of words, in any order::

    shard   "6 0-40 closed from 0+1 start 30"     hash range in per cent of the hash space
    lease   "6 at 55:2 by a renewed-by b from 0+1 children 8+9 counter 4 switches 1"
    worker  "a most 4 ended 5+6"
"""

import json
from pathlib import Path

from shardfleet.domain.balance.by_count import WorkerView
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.slots.failure import FailureKind, LastFailure
from shardfleet.domain.slots.slot import Slot, SlotState
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard

HASH_KEYS = 2**128
SCENARIOS = Path(__file__).parent.parent / "scenarios"


def load_scenarios(name):
    """Read a scenario file; every case has a comment that says what it shows."""
    content = json.loads((SCENARIOS / name).read_text("utf-8"))
    return content.get("streams", {}), content["cases"]


def number(text):
    """Read a checkpoint: `TRIM_HORIZON`, `55` or `55:2`."""
    sequence, _, sub = text.partition(":")
    return ExtendedSequenceNumber(sequence, int(sub or 0))


def per_cent(text):
    """Read a hash range in per cent of the hash space: `0-50` is its lower half."""
    start, end = map(int, text.split("-"))
    return HashKeyRange(start * HASH_KEYS // 100, end * HASH_KEYS // 100 - 1)


def _words(text, known):
    first, *rest = text.split()
    pairs = dict(zip(rest[::2], rest[1::2], strict=True))
    assert pairs.keys() <= known, f"{text!r}: unknown words {pairs.keys() - known}"
    return first, pairs


def ids(text):
    """Read `5+6`; nothing for None."""
    return tuple(sorted(text.split("+"))) if text else ()


def a_shard(text):
    """Build a shard; without `start` it begins at 0, or at 10 if it has parents."""
    shard_id, hash_range, state, *rest = text.split()
    assert state in ("open", "closed"), text
    _, words = _words(" ".join([shard_id, *rest]), {"from", "start", "end"})
    parent, adjacent = (*ids(words.get("from")), None, None)[:2]
    return Shard(
        shard_id=shard_id,
        hash_key_range=per_cent(hash_range),
        starting_sequence_number=words.get("start", "10" if parent else "0"),
        ending_sequence_number=None if state == "open" else words.get("end", "99"),
        parent_shard_id=parent,
        adjacent_parent_shard_id=adjacent,
    )


def a_lease(text, **more):
    """Build a lease; without `at` it is at TRIM_HORIZON."""
    known = {"at", "by", "renewed-by", "from", "children", "counter", "switches", "range"}
    key, words = _words(text, known)
    return Lease(
        lease_key=key,
        checkpoint=number(words.get("at", "TRIM_HORIZON")),
        lease_owner=words.get("by"),
        checkpoint_owner=words.get("renewed-by"),
        lease_counter=int(words.get("counter", 0)),
        owner_switches_since_checkpoint=int(words.get("switches", 0)),
        parent_shard_ids=ids(words.get("from")),
        child_shard_ids=ids(words.get("children")),
        hash_key_range=per_cent(words["range"]) if "range" in words else None,
        **more,
    )


def a_failure(**changes):
    """Build what a worker fails of: the import of its handler, three times in 40 s."""
    given = {"kind": FailureKind.IMPORT, "message": "no settings", "where": "/o.py, line 3"}
    given |= {"times": 3, "first_ms": 960_000, "last_ms": 999_000, "epoch": 4}
    return LastFailure(**given | changes)


def a_failing_slot(**changes):
    """Build the record of a running slot whose worker fails of what is given, as `a_failure`."""
    return Slot(
        slot_id="s1",
        worker_id="a",
        state=SlotState.RUNNING,
        name="n",
        start_epoch=1,
        failure=a_failure(**changes),
    )


def a_worker(text):
    """Build a worker's view."""
    worker_id, words = _words(text, {"most", "ended"})
    return WorkerView(
        worker_id=worker_id,
        leases_most=int(words["most"]),
        recently_ended=frozenset(ids(words.get("ended"))),
    )
