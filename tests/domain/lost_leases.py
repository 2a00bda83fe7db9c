"""
Drawn histories of a stream and its reader, in which somebody deletes leases.

The stream's records have keys and times; what was to be delivered, and what may come twice, is
computed from them and from the deletions alone, never from what a planner says. One history a
seed: ``python -m tests.domain.lost_leases 10000`` plays so many.
"""

import random
import sys
from collections import Counter

from msgspec.structs import replace

from shardfleet.domain.leases.cleanup import plan_lease_cleanup
from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.leases.sync import plan_lease_sync, start_of_child
from shardfleet.domain.stream.hash_ranges import HASH_KEY_MAX
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from tests.domain.histories import Stream

KEYS = [(HASH_KEY_MAX + 1) * n // 61 for n in range(61)]
ROUNDS_MOST = 200


class Play:
    """One history: a stream that is written and resharded, an application that reads it."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.stream = Stream(self.draw.randint(1, 4))
        self.records = {key: [] for key in self.stream.shards}
        for _ in range(self.draw.randint(0, 20)):
            self.write()
        self.kind = self.draw.choice(["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"])
        self.begin = {
            "TRIM_HORIZON": 10,
            "LATEST": self.stream.now + 1,
            "AT_TIMESTAMP": self.draw.randint(10, self.stream.now),
        }[self.kind]
        self.stream.now += 1
        self.in_scope = [s.shard_id for s in self.stream.open_at(self.begin)]
        self.leases, self.kept, self.ended = {}, None, set()
        self.delivered, self.deletions = [], Counter()

    def play(self):
        """Play to the end; return what went wrong."""
        self.turn(most=self.draw.choice([None, None, 1]))
        moves = [self.write] * 5 + [self.read] * 5 + [self.turn] * 2 + [self.age, self.lose]
        for _ in range(self.draw.randint(5, 40)):
            self.draw.choice(moves)()
        self.lose()
        for _ in range(ROUNDS_MOST):
            before = len(self.delivered), sorted(self.leases.items())
            self.turn()
            for key in self.startable():
                self.read_one(key, most=None)
            if (len(self.delivered), sorted(self.leases.items())) == before:
                return list(self.faults())
        return ["it never comes to rest"]

    # --- the stream

    def write(self):
        """Put a record, or split or merge."""
        match self.draw.randint(0, 5):
            case 0:
                self.stream.split(self.draw.randint(0, 9))
            case 1:
                self.stream.merge(self.draw.randint(0, 9))
            case _:
                self.stream.now += 1
                key = self.draw.choice(KEYS)
                (shard,) = (
                    s
                    for s in self.stream.open_shards()
                    if s.hash_key_range.start <= key <= s.hash_key_range.end
                )
                self.records[shard.shard_id].append((self.stream.now, key))
        for key in self.stream.shards:
            self.records.setdefault(key, [])

    def age(self):
        """Let the oldest shards that were read, or never wanted, leave the listing."""
        wanted = self.stream.with_descendants(self.in_scope)
        for key, shard in self.stream.shards.items():
            is_over = key in self.ended or (key not in wanted and not shard.is_open)
            if is_over and set(shard.parent_shard_ids) <= self.stream.aged_out:
                self.stream.aged_out.add(key)

    # --- the manager

    def turn(self, most=None):
        """Let a manager create, keep and clean up; a crash leaves the first few."""
        plan = self.plan()
        if plan.suspects:
            plan = self.plan(frozenset(plan.suspects))
        assert not plan.problems, plan.problems
        self.kept = plan.finished  # Without a problem there always is one.
        for wanted in plan.create[:most]:
            self.leases[wanted.lease.lease_key] = wanted.lease
        if most is None:
            listing, leases = self.stream.listing(), list(self.leases.values())
            cleanup = plan_lease_cleanup(listing, leases, finished=plan.finished)
            for gone in cleanup.delete:
                del self.leases[gone.lease.lease_key]
            for lease, ids in cleanup.learn_children:
                self.leases[lease.lease_key] = replace(lease, child_shard_ids=ids)

    def plan(self, lost=frozenset()):
        """Plan by the listing and the table as they are."""
        return plan_lease_sync(
            self.stream.listing(),
            list(self.leases.values()),
            initial=ExtendedSequenceNumber(self.kind),
            listed_at_initial=None if self.leases else self.stream.open_at(self.begin),
            finished=self.kept,
            lost=lost,
        )

    # --- the workers

    def startable(self):
        """Return the shards that may be read: no parent's lease is unfinished."""
        return sorted(
            key
            for key, lease in self.leases.items()
            if not lease.is_finished
            and not any(
                p in self.leases and not self.leases[p].is_finished for p in lease.parent_shard_ids
            )
        )

    def read(self):
        """Read some of one shard."""
        if keys := self.startable():
            self.read_one(self.draw.choice(keys), most=self.draw.choice([1, 2, None]))

    def read_one(self, key, *, most):
        """Read on from the checkpoint, and end a closed shard that is read to its end."""
        lease = self.leases[key]
        at = lease.checkpoint.sequence_number
        first = int(at) + 1 if at.isdigit() else 0 if at == "TRIM_HORIZON" else self.begin
        page = [record for record in self.records[key] if record[0] >= first]
        for record in page[:most]:
            self.delivered.append((key, *record))
            done = ExtendedSequenceNumber(str(record[0]))
            self.leases[key] = replace(self.leases[key], checkpoint=done)
        if len(page[:most]) == len(page) and not self.stream.shards[key].is_open:
            self.end(self.leases[key])

    def end(self, lease):
        """Create the children, then end the shard; some readers leave the children to others."""
        shards = self.stream.shards.values()
        children = [s for s in shards if lease.lease_key in s.parent_shard_ids]
        if self.draw.random() < 0.2:
            children = []
        for child in children:
            others = set(child.parent_shard_ids) - self.stream.aged_out
            if child.shard_id not in self.leases and not others <= self.leases.keys():
                return  # It waits until the other parent has a lease.
            begins = Lease(
                lease_key=child.shard_id,
                checkpoint=start_of_child(lease.checkpoint),
                parent_shard_ids=child.parent_shard_ids,
                hash_key_range=child.hash_key_range,
            )
            self.leases.setdefault(child.shard_id, begins)
        ids = tuple(child.shard_id for child in children)
        finished = replace(lease, checkpoint=AT_SHARD_END, child_shard_ids=ids)
        self.leases[lease.lease_key] = finished
        self.ended.add(lease.lease_key)

    # --- the foreign hand

    def lose(self):
        """Delete some leases but not all, and let managers repair that before workers go on."""
        most = len(self.leases) - 1
        for key in self.draw.sample(sorted(self.leases), self.draw.randint(0, max(0, most))):
            del self.leases[key]
            self.deletions[key] += 1
        for _ in range(len(self.stream.shards) + 1):
            self.turn()

    # --- the judge

    def faults(self):
        """Return what was lost, repeated beyond the deleted shards, out of order or too early."""
        counts = Counter(self.delivered)
        newest, wanted = {}, self.stream.with_descendants(self.in_scope)
        for shard_id, records in self.records.items():
            for record in records:
                count = counts[(shard_id, *record)]
                if record[0] >= self.begin and not count:
                    yield f"lost: {record} of {shard_id}"
                if count > 1 + self.deletions[shard_id]:
                    yield f"again: {record} of {shard_id}, {count} times"
                # At LATEST a repair begins where its shard does: too much rather than too little.
                is_early = record[0] < self.begin and (
                    self.kind != "LATEST" or shard_id not in wanted
                )
                if count and is_early:
                    yield f"too early: {record} of {shard_id}"
        for shard_id, time, key in self.delivered:
            if time < newest.get(key, 0):
                yield f"back: {time} of {shard_id} after {newest[key]}"
            if not self.deletions[shard_id]:
                newest[key] = max(time, newest.get(key, 0))


def main(count):
    """Play so many seeds; return how many had a fault."""
    faulty = {seed: faults[:3] for seed in range(count) if (faults := Play(seed).play())}
    sys.stdout.write(f"{count} histories, {len(faulty)} with a fault {faulty or ''}\n")
    return len(faulty)


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]))))
