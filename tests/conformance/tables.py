"""Drawn streams and lease tables, as the driver reads them, and as ours does."""

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard
from tests.domain.histories import Stream

INITIAL = ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")


def draw_stream(chance):
    """Draw a stream that was split and merged, and whose oldest shards may have aged out."""
    stream = Stream(chance.randint(1, 3))
    for _ in range(chance.randint(0, 5)):
        chance.choice((stream.split, stream.merge))(chance.randrange(9))
    for key, shard in stream.shards.items():
        if shard.is_open or not set(shard.parent_shard_ids) <= stream.aged_out:
            continue
        if not chance.randrange(3):
            stream.aged_out.add(key)
    return stream


def draw_leases(chance, stream, initial):
    """Draw the leases of a reader that came so far, some of them lost, some finished ones gone."""
    leases, read = [], {}
    unwanted = chance.choice((0, 0, 0.5))
    for key, shard in stream.shards.items():  # Parents come before their children.
        parents = [read[parent] for parent in shard.parent_shard_ids]
        if any(state not in ("SHARD_END", "gone") for state in parents):
            state = "waits" if all(s in ("SHARD_END", "gone", "reads") for s in parents) else ""
        elif shard.is_open:
            state = chance.choice(("reads", "begins"))
        else:
            state = chance.choice(("SHARD_END", "gone", "gone", "reads", "begins"))
        read[key] = state
        if state in ("", "gone") or chance.random() < unwanted * 0.5:
            continue
        if state == "waits" and chance.randrange(3):
            continue
        leases.append(lease_of(chance, shard, stream, state, initial))
    return leases


def lease_of(chance, shard, stream, state, initial):
    """Return a lease as the driver reads it."""
    begins = "TRIM_HORIZON" if shard.parent_shard_ids and chance.randrange(3) else initial
    checkpoint = {"SHARD_END": "SHARD_END", "reads": shard.starting_sequence_number}
    known = [k for k, s in stream.shards.items() if shard.shard_id in s.parent_shard_ids]
    children = known if state == "SHARD_END" and chance.randrange(3) else []
    return [
        shard.shard_id,
        checkpoint.get(state, begins),
        list(shard.parent_shard_ids),
        children,
        [str(shard.hash_key_range.start), str(shard.hash_key_range.end)],
    ]


def told(shards):
    """Return shards as the driver reads them."""
    return [
        [
            shard.shard_id,
            shard.parent_shard_id,
            shard.adjacent_parent_shard_id,
            shard.starting_sequence_number,
            shard.ending_sequence_number,
            str(shard.hash_key_range.start),
            str(shard.hash_key_range.end),
        ]
        for shard in shards
    ]


def shards_of(case):
    """Return the shards of a case, as ours."""
    return [
        Shard(
            shard_id=key,
            parent_shard_id=parent,
            adjacent_parent_shard_id=adjacent,
            starting_sequence_number=start,
            ending_sequence_number=end,
            hash_key_range=HashKeyRange(int(low), int(high)),
        )
        for key, parent, adjacent, start, end, low, high in case["shards"]
    ]


def leases_of(case):
    """Return the leases of a case, as ours."""
    return [
        Lease(
            lease_key=key,
            checkpoint=ExtendedSequenceNumber(checkpoint),
            parent_shard_ids=tuple(sorted(parents)),
            child_shard_ids=tuple(sorted(children)),
            hash_key_range=HashKeyRange(int(low), int(high)),
        )
        for key, checkpoint, parents, children, (low, high) in case["leases"]
    ]
