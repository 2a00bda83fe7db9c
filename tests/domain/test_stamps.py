"""
Whose hands a lease was in since something was noted beside its checkpoint.

What each step does to owner, counter and switches is docs/protocol.md L2 to L7, carried out by the
changes themselves.
"""

import pytest
from msgspec.structs import replace

from shardfleet.domain.leases import changes
from shardfleet.domain.leases.lease import Applied
from shardfleet.domain.leases.stamps import Stamp
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from tests.domain.builders import a_lease

GENERATION = 3


def at(number):
    return ExtendedSequenceNumber(str(number))


def renewed(lease):
    return changes.renew(lease)


def renewed_in_a_handover(lease):
    return changes.renew(lease, in_handover=True)


def stored(lease):
    return changes.checkpoint(lease, at(int(lease.checkpoint.sequence_number) + 1))


def handed_on(lease):
    return changes.assign(lease, lease.lease_owner)


def handing_to(worker_id):
    return lambda lease: changes.initiate_handover(lease, worker_id, as_read=True)


def assigned(worker_id, **how):
    return lambda lease: changes.assign(lease, worker_id, **how)


def taken(worker_id):
    return lambda lease: changes.take(lease, worker_id)


EXPIRED = assigned("next", expired=True)
OURS = {
    "nothing": [],
    "its owner goes on": [renewed, stored, renewed],
    "given up and given to another": [renewed, stored, changes.evict, assigned("next"), renewed],
    "given up, with nothing stored": [changes.evict, assigned("next"), renewed, renewed],
    "given up and given to the same": [stored, changes.evict, assigned("me"), renewed],
    "given to one that ended before it came": [
        changes.evict,
        assigned("gone"),
        changes.evict,
        assigned("next"),
    ],
    "handed over": [handing_to("next"), renewed_in_a_handover, handed_on, renewed],
    "handed over after a last checkpoint": [handing_to("next"), stored, handed_on, renewed],
    "handed over, and back": [handing_to("next"), handed_on, handing_to("me"), handed_on],
    "its slot was lost": [renewed, EXPIRED, renewed],
    "its slot was lost behind a checkpoint": [stored, EXPIRED, renewed, stored],
    "two slots were lost one after the other": [EXPIRED, stored, assigned("third", expired=True)],
    "moved from a slot that does not hand over": [taken("next"), renewed],
    "forced": [changes.evict, assigned("next")],
}
OTHERS = {
    "java had it, and stored nothing": [taken("java"), renewed, assigned("me")],
    "java had it, and checkpointed": [taken("java"), stored, assigned("me")],
    "java had it after it was given up": [changes.evict, taken("java"), stored, assigned("me")],
    "java had it, and another of ours has it": [taken("java"), renewed, EXPIRED],
}


def after(lease, steps):
    for step in steps:
        result = changes.apply_change(step(lease), lease)
        assert isinstance(result, Applied)
        lease = result.lease
    return lease


def held(switches=0):
    lease = a_lease("shard-1 at 10 by me")
    return replace(lease, lease_counter=7, owner_switches_since_checkpoint=switches)


@pytest.mark.parametrize("switches", [0, 1])
@pytest.mark.parametrize("way", OURS)
def test_a_lease_that_only_workers_of_ours_had_has_had_no_other_owner(way, switches):
    lease = held(switches)
    stamp = Stamp.of(lease, "me", GENERATION)
    assert stamp.counts(after(lease, OURS[way]), GENERATION)


@pytest.mark.parametrize("switches", [0, 1])
@pytest.mark.parametrize("way", OTHERS)
def test_a_lease_that_somebody_else_had_in_between_has(way, switches):
    lease = held(switches)
    stamp = Stamp.of(lease, "me", GENERATION)
    assert not stamp.counts(after(lease, OTHERS[way]), GENERATION)


@pytest.mark.parametrize("way", OTHERS)
def test_whoever_had_it_an_unmoved_checkpoint_is_known_and_one_of_another_life_is_not(way):
    """What a window or a crash note is of goes by the checkpoint, not by who had the lease."""
    lease = held()
    stamp = Stamp.of(lease, "me", GENERATION)
    now = after(lease, OTHERS[way])
    assert stamp.is_of(now, GENERATION)
    assert stamp.stands_as(now) == (stored not in OTHERS[way])
    assert not stamp.is_of(now, GENERATION + 1)
    assert not stamp.is_of(replace(now, lease_counter=0), GENERATION)


@pytest.mark.parametrize("way", OURS)
def test_nothing_counts_under_another_generation(way):
    lease = held()
    stamp = Stamp.of(lease, "me", GENERATION)
    for generation in (GENERATION - 1, GENERATION + 1):
        assert not stamp.counts(after(lease, OURS[way]), generation)


def test_nothing_counts_for_a_lease_that_was_made_anew():
    stamp = Stamp.of(held(), "me", GENERATION)
    anew = replace(held(), lease_counter=0, lease_owner=None)
    assert not stamp.counts(after(anew, [assigned("me"), renewed]), GENERATION)


def test_of_who_does_not_hold_the_lease_the_generation_alone_is_known():
    stamp = Stamp(generation=GENERATION)
    assert stamp.counts(after(held(), OTHERS["java had it, and checkpointed"]), GENERATION)
    assert not stamp.counts(held(), GENERATION + 1)
