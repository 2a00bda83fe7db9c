"""A stream that splits, merges and ages, and the leases of an application that reads it."""

from itertools import pairwise

from msgspec.structs import replace

from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import plan_lease_sync
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX, HashKeyRange
from shardfleet.domain.stream.sequence import AT_SHARD_END, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard


class Stream:
    """Shards by id; time is a sequence number that every reshard moves on."""

    def __init__(self, count):
        self.now = 10
        edges = [(HASH_KEY_MAX + 1) * i // count for i in range(count + 1)]
        self.shards = {}
        for start, end in pairwise(edges):
            self._open(HashKeyRange(start, end - 1), ())
        self.aged_out = set()

    def _open(self, hash_range, parents):
        shard_id = str(len(self.shards))
        parent, adjacent = (*parents, None, None)[:2]
        self.shards[shard_id] = Shard(
            shard_id=shard_id,
            hash_key_range=hash_range,
            starting_sequence_number=str(self.now),
            parent_shard_id=parent,
            adjacent_parent_shard_id=adjacent,
        )

    def _close(self, shard_id):
        ended = str(self.now - 1)
        self.shards[shard_id] = replace(self.shards[shard_id], ending_sequence_number=ended)

    def open_shards(self):
        shards = [shard for shard in self.shards.values() if shard.is_open]
        return sorted(shards, key=lambda shard: shard.hash_key_range)

    def split(self, index):
        shard = self.open_shards()[index % len(self.open_shards())]
        low, high = shard.hash_key_range.start, shard.hash_key_range.end
        self.now += 10
        self._close(shard.shard_id)
        self._open(HashKeyRange(low, (low + high) // 2), (shard.shard_id,))
        self._open(HashKeyRange((low + high) // 2 + 1, high), (shard.shard_id,))

    def merge(self, index):
        shards = self.open_shards()
        if len(shards) < 2:
            return
        first, second = shards[index % (len(shards) - 1) :][:2]
        self.now += 10
        self._close(first.shard_id)
        self._close(second.shard_id)
        whole = HashKeyRange(first.hash_key_range.start, second.hash_key_range.end)
        self._open(whole, (first.shard_id, second.shard_id))

    def listing(self):
        return [shard for shard in self.shards.values() if shard.shard_id not in self.aged_out]

    def open_at(self, instant):
        """List what was open at an instant, as a ShardFilter does."""
        return [
            shard
            for shard in self.listing()
            if int(shard.starting_sequence_number) <= instant
            and (shard.is_open or int(shard.ending_sequence_number) >= instant)
        ]

    def with_descendants(self, shard_ids):
        found = set(shard_ids)
        for shard_id, shard in self.shards.items():  # Children have greater numbers.
            if found & set(shard.parent_shard_ids):
                found.add(shard_id)
        return found


class Application:
    """The leases, what was read to its end, and every creation there ever was."""

    def __init__(self, stream, kind, instant):
        self.stream, self.initial, self.instant = stream, ExtendedSequenceNumber(kind), instant
        self.leases, self.finished, self.created = {}, set(), []
        self.scope_at_start = [shard.shard_id for shard in stream.open_at(instant)]

    def sync(self, most=None):
        """Create what lease sync wants, or only the first few of it: a crash midway."""
        plan = plan_lease_sync(
            self.stream.listing(),
            list(self.leases.values()),
            initial=self.initial,
            listed_at_initial=None if self.leases else self.stream.open_at(self.instant),
        )
        assert not plan.problems
        for wanted in plan.create[:most]:
            self._create(wanted.lease)
        return plan

    def _create(self, lease):
        assert lease.lease_key not in self.leases
        self.leases[lease.lease_key] = lease
        self.created.append(lease.lease_key)

    def readable(self):
        """Return the closed shards that a worker may read to their end now."""
        return sorted(
            key
            for key, lease in self.leases.items()
            if not lease.is_finished
            and not self.stream.shards[key].is_open
            and all(
                parent not in self.leases or self.leases[parent].is_finished
                for parent in lease.parent_shard_ids
            )
        )

    def start(self, shard_id):
        """Store a first checkpoint."""
        lease = self.leases[shard_id]
        if not lease.is_finished:
            done = ExtendedSequenceNumber(self.stream.shards[shard_id].starting_sequence_number)
            self.leases[shard_id] = replace(lease, checkpoint=done)

    def finish(self, shard_id, *, creates_children):
        """Read a shard to its end, and create its children first, unless it is a foreign worker."""
        children = [s for s in self.stream.shards.values() if shard_id in s.parent_shard_ids]
        if creates_children:
            parents = {parent for child in children for parent in child.parent_shard_ids}
            if any(p not in self.leases and p not in self.finished for p in parents):
                return  # The child of a merge whose other parent has no lease yet: it waits.
            for child in children:
                if child.shard_id not in self.leases:
                    self._create(
                        Lease(
                            lease_key=child.shard_id,
                            checkpoint=AT_TRIM_HORIZON,
                            parent_shard_ids=child.parent_shard_ids,
                            hash_key_range=child.hash_key_range,
                        )
                    )
        ids = tuple(sorted(child.shard_id for child in children)) if creates_children else ()
        self.leases[shard_id] = replace(
            self.leases[shard_id], checkpoint=AT_SHARD_END, child_shard_ids=ids
        )
        self.finished.add(shard_id)

    def clean_up(self):
        plan = plan_lease_cleanup(self.stream.listing(), list(self.leases.values()))
        for gone in plan.delete:
            del self.leases[gone.lease.lease_key]
        for lease, ids in plan.learn_children:
            self.leases[lease.lease_key] = replace(lease, child_shard_ids=ids)
        return plan

    def age(self):
        """Let the oldest shards that were read age out of the listing."""
        for shard_id, shard in self.stream.shards.items():
            if shard_id in self.finished and set(shard.parent_shard_ids) <= self.stream.aged_out:
                self.stream.aged_out.add(shard_id)
