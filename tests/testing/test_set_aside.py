"""
A failure policy that no product file knows: a key that fails is set aside, and the others go on.

What is set aside lies in a store that outlives every worker: the record that failed, and behind it
all later ones of its key, in order, which no handler gets any more.
"""

from functools import partial

import pytest

from shardfleet.domain.delivery.policies import Destination, PolicyTerms
from shardfleet.engine.shard.failure_policy import FailurePolicy

KEYS, EACH = 9, 20
BAD = {"k1": 1, "k4": 7, "k7": EACH}  # By key, the record that the handler can do nothing with.
RECORDS = [(f"k{n % KEYS}", str(1 + n // KEYS)) for n in range(KEYS * EACH)]
SEEDS = (3, 5, 6, 8)


class SetAside(FailurePolicy):
    """Sets the key of a record that failed aside; the store is a part of the outside world."""

    def __init__(self, store):
        super().__init__(PolicyTerms("its key is set aside", Destination.BUCKET))
        self._store = store

    def admits(self, record):
        # What lies before the record that failed is done, and may come again.
        first, *_ = self._store.get(_place(record), [None])
        return first is None or _position(record) < first[0]

    async def give_up(self, failed):
        for record in failed.records:
            kept = (_position(record), int(record.data))
            self._store.update(_place(record), partial(_with, kept), ())
        return _place(failed.records[0])


def _place(record):
    return f"aside {record.partition_key}"


def _position(record):
    return int(record.sequence_number), record.sub_sequence_number


def _with(what, those):
    """Add something to what is there, once: calls are repeated."""
    return those if what in those else (*those, what)


def handler_of(sink):
    def handle(batch):
        for record in batch:
            key, number = record.partition_key, int(record.data)
            assert BAD.get(key) != number, "nothing can be done with it"
            sink.update(f"done {key}", partial(_with, number), ())

    return handle


def check(sink):
    """Each key is done up to the record that fails; from there on all is set aside, in order."""
    for key in (f"k{n}" for n in range(KEYS)):
        bad = BAD.get(key, EACH + 1)
        assert sink.values.get(f"done {key}", ()) == tuple(range(1, bad)), key
        aside = [number for _, number in sink.values.get(f"aside {key}", ())]
        assert aside == [*range(bad, EACH + 1)], key


@pytest.mark.parametrize("seed", SEEDS)
def test_a_key_that_fails_is_set_aside_and_the_others_go_on(fleet, sink, seed):
    policy = SetAside(sink)

    [run] = fleet.run(handler_of(sink), RECORDS, seed=seed, hours=0.1, check=check, policy=policy)

    assert run.reshards
    assert run.ended_hard
