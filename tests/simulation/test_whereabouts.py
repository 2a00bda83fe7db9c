"""Where a record is: the answer agrees with what the simulation knows, at random instants."""

import random
from collections import Counter

from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import Shard
from shardfleet_ops.explain.answer import Whereabouts, whereabouts
from shardfleet_testkit.checkers import Checker
from shardfleet_testkit.simulation import Options, run_seed

SEEDS = (1, 9, 20)
RING = HashKeyRange(0, 2**128 - 1)
# A foreign tool may checkpoint what nobody has handled (protocol.md §1.6); that is its lie.
NOBODYS_LIES = frozenset({"foreign_checkpoint"})
# What was handled longer ago is checkpointed; the end may come a moment after the last record.
CHECKPOINTED_MS = 10_000
FOR_EVER_MS = 10**12


class Asks(Checker):
    """Asks after a random record with each write to the lease table, and compares."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.chance = random.Random(20261121)
        self.table = {}
        self.answers = Counter()
        asked.append(self)

    def lease_written(self, write):
        if write.after is None:
            del self.table[write.change.lease_key]
        else:
            self.table[write.change.lease_key] = write.after
        self.ask(write.at_ms)

    def over(self, at_ms, *, keys):
        for _ in range(50):
            state = self.ask(at_ms, handled_by_ms=at_ms - CHECKPOINTED_MS)
            if state not in (Whereabouts.PROCESSED, Whereabouts.PAST, None):
                self.found(at_ms, "the end", f"{state} after everything was read")

    def ask(self, at_ms, *, handled_by_ms=FOR_EVER_MS):
        shards = [
            [entry for entry in truth.entries if entry.at_ms <= handled_by_ms]
            for truth in self.ledger.shards.values()
        ]
        if not any(shards):
            return None
        entry = self.chance.choice(self.chance.choice([each for each in shards if each]))
        sequence, sub = entry.position
        answer = whereabouts(
            ExtendedSequenceNumber(str(sequence), sub),
            entry.shard_id,
            leases=self.table.values(),
            shards=[self.listed(truth) for truth in self.ledger.shards.values()],
            stops={},
            failing={},
        )
        self.answers[answer.state] += 1
        says_done = answer.state in (Whereabouts.PROCESSED, Whereabouts.PAST)
        says_untouched = answer.state in (Whereabouts.WAITING, Whereabouts.UNREAD)
        if says_done and not entry.is_done:
            self.found(at_ms, str(entry), f"{answer}, but nobody has handled it")
        if says_untouched and entry.times:
            self.found(at_ms, str(entry), f"{answer}, but {entry.by} has handled it")
        if answer.state is Whereabouts.PENDING and self.is_behind(entry):
            self.found(at_ms, str(entry), f"{answer}, but the checkpoint has passed it")
        return answer.state

    def is_behind(self, entry):
        checkpoint = self.table[entry.shard_id].checkpoint
        if checkpoint.is_sentinel:
            return checkpoint.is_shard_end
        return entry.position <= (int(checkpoint.sequence_number), checkpoint.sub_sequence_number)

    def listed(self, truth):
        parent, adjacent = (*truth.parents, None, None)[:2]
        return Shard(
            shard_id=truth.shard_id,
            hash_key_range=RING,
            parent_shard_id=parent,
            adjacent_parent_shard_id=adjacent,
        )


asked = []


def test_the_answer_agrees_with_the_simulation_at_a_thousand_random_instants():
    asked.clear()
    for seed in SEEDS:
        options = Options(seed=seed, busy_s=120.0, checkers=(Asks,), muted=NOBODYS_LIES)
        result = run_seed(options)
        assert not result.violations, f"seed {seed}: {result.violations[0]}"

    answers = sum((each.answers for each in asked), Counter())
    assert answers.total() > 1_000
    for state in (Whereabouts.PROCESSED, Whereabouts.PENDING, Whereabouts.WAITING):
        assert answers[state] > 10, answers
