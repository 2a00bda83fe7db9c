"""Every operation on a lease: its exact conditions, its exact updates, and who loses when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardfleet.domain.leases import changes as change
from shardfleet.domain.leases.lease import (
    Applied,
    ChangeKind,
    CheckpointNotPast,
    FieldAbsent,
    FieldEquals,
    FieldPresent,
    Gone,
    Lease,
    LeaseField,
    Lost,
)
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import AT_SHARD_END, ExtendedSequenceNumber
from shardfleet.errors import ProtocolError
from tests.domain.builders import a_lease, number
from tests.domain.generators import any_leases, any_numbers, real_numbers

F = LeaseField
EXISTS = FieldPresent(F.LEASE_KEY)
COUNTER_7 = FieldEquals(F.LEASE_COUNTER, 7)
OWNER_A = FieldEquals(F.LEASE_OWNER, "a")
NO_HANDOVER = FieldAbsent(F.CHECKPOINT_OWNER)
FREE = a_lease("0 at 5 counter 7")
HELD = a_lease("0 at 5 by a counter 7")
MOVING = a_lease("0 at 5 by b renewed-by a counter 7")
PENDING = (F.PENDING_CHECKPOINT, F.PENDING_CHECKPOINT_STATE)
CHECKPOINT_6 = {F.LEASE_COUNTER: 8, F.CHECKPOINT: number("6"), F.OWNER_SWITCHES: 0}

# Operation -> (change, conditions, sets, adds, removes), as protocol.md §1.6 has them.
TABLE = {
    "create": (
        change.create(a_lease("1 from 0 range 0-50")),
        {FieldAbsent(F.LEASE_KEY)},
        {
            F.LEASE_KEY: "1",
            F.CHECKPOINT: number("TRIM_HORIZON"),
            F.LEASE_COUNTER: 0,
            F.OWNER_SWITCHES: 0,
            F.PARENT_SHARD_IDS: ("0",),
            F.HASH_KEY_RANGE: HashKeyRange(0, 2**127 - 1),
        },
        {},
        set(),
    ),
    "renew": (change.renew(HELD), {COUNTER_7, NO_HANDOVER}, {F.LEASE_COUNTER: 8}, {}, set()),
    "renew with throughput": (
        change.renew(HELD, throughput_kbps=1.5),
        {COUNTER_7, NO_HANDOVER},
        {F.LEASE_COUNTER: 8, F.THROUGHPUT_KBPS: 1.5},
        {},
        set(),
    ),
    "renew in a known handover": (
        change.renew(MOVING, in_handover=True),
        {COUNTER_7},
        {F.LEASE_COUNTER: 8},
        {},
        set(),
    ),
    "take a free lease": (
        change.take(FREE, "b"),
        {COUNTER_7},
        {F.LEASE_COUNTER: 8, F.LEASE_OWNER: "b"},
        {},
        {F.CHECKPOINT_OWNER},
    ),
    "steal": (
        change.take(HELD, "b"),
        {COUNTER_7},
        {F.LEASE_COUNTER: 8, F.LEASE_OWNER: "b"},
        {F.OWNER_SWITCHES: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "assign a free lease": (
        change.assign(FREE, "b"),
        {EXISTS, FieldAbsent(F.LEASE_OWNER), NO_HANDOVER},
        {F.LEASE_OWNER: "b"},
        {F.LEASE_COUNTER: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "assign an expired lease": (
        change.assign(HELD, "b", expired=True),
        {EXISTS, OWNER_A, NO_HANDOVER, COUNTER_7},
        {F.LEASE_OWNER: "b"},
        {F.LEASE_COUNTER: 1, F.OWNER_SWITCHES: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "assign to the owner it has": (
        change.assign(HELD, "a"),
        {EXISTS, OWNER_A, NO_HANDOVER},
        {F.LEASE_OWNER: "a"},
        {F.LEASE_COUNTER: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "finish a handover": (
        change.assign(MOVING, "b"),
        {EXISTS, FieldEquals(F.LEASE_OWNER, "b"), FieldEquals(F.CHECKPOINT_OWNER, "a")},
        {F.LEASE_OWNER: "b"},
        {F.LEASE_COUNTER: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "give a handover back": (
        change.assign(MOVING, "a"),
        {EXISTS, FieldEquals(F.LEASE_OWNER, "b"), FieldEquals(F.CHECKPOINT_OWNER, "a")},
        {F.LEASE_OWNER: "a"},
        {F.LEASE_COUNTER: 1, F.OWNER_SWITCHES: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "initiate a handover": (
        change.initiate_handover(HELD, "b"),
        {EXISTS, OWNER_A, NO_HANDOVER},
        {F.LEASE_OWNER: "b", F.CHECKPOINT_OWNER: "a"},
        {},
        set(),
    ),
    "initiate a handover of what was read": (
        change.initiate_handover(HELD, "b", as_read=True),
        {EXISTS, OWNER_A, NO_HANDOVER, COUNTER_7},
        {F.LEASE_OWNER: "b", F.CHECKPOINT_OWNER: "a"},
        {},
        set(),
    ),
    "evict": (
        change.evict(HELD),
        {EXISTS, OWNER_A, NO_HANDOVER},
        {},
        {F.LEASE_COUNTER: 1},
        {F.LEASE_OWNER, F.CHECKPOINT_OWNER},
    ),
    "evict in a handover": (
        change.evict(MOVING),
        {EXISTS, FieldEquals(F.LEASE_OWNER, "b"), FieldEquals(F.CHECKPOINT_OWNER, "a")},
        {},
        {F.LEASE_COUNTER: 1},
        {F.CHECKPOINT_OWNER},
    ),
    "checkpoint": (
        change.checkpoint(HELD, number("6")),
        {COUNTER_7, CheckpointNotPast(number("6"))},
        CHECKPOINT_6,
        {},
        {*PENDING},
    ),
    "checkpoint repeats what is known": (
        change.checkpoint(a_lease("0 at 5 counter 7 children 1+2 range 0-50"), number("6")),
        {COUNTER_7, CheckpointNotPast(number("6"))},
        {
            **CHECKPOINT_6,
            F.CHILD_SHARD_IDS: ("1", "2"),
            F.HASH_KEY_RANGE: HashKeyRange(0, 2**127 - 1),
        },
        {},
        {*PENDING},
    ),
    "set children": (
        change.set_children(HELD, ["2", "1", "2"]),
        {EXISTS},
        {F.CHILD_SHARD_IDS: ("1", "2")},
        {},
        set(),
    ),
    "set the hash range": (
        change.set_hash_range(HELD, HashKeyRange(1, 2)),
        {EXISTS},
        {F.HASH_KEY_RANGE: HashKeyRange(1, 2)},
        {},
        set(),
    ),
    "delete": (change.delete(HELD), {COUNTER_7}, {}, {}, set()),
    "rewind": (
        change.rewind(FREE, number("1")),
        {COUNTER_7, FieldAbsent(F.LEASE_OWNER), NO_HANDOVER},
        {F.LEASE_COUNTER: 8, F.CHECKPOINT: number("1"), F.OWNER_SWITCHES: 0},
        {},
        {*PENDING},
    ),
}
KINDS = {"create": ChangeKind.PUT, "delete": ChangeKind.DELETE}


@pytest.mark.parametrize("operation", TABLE)
def test_an_operation_has_exactly_the_conditions_and_updates_of_the_table(operation):
    made, conditions, sets, adds, removes = TABLE[operation]

    assert set(made.conditions) == conditions
    assert dict(made.sets) == sets
    assert dict(made.adds) == adds
    assert set(made.removes) == removes
    assert made.kind is KINDS.get(operation, ChangeKind.UPDATE)


@pytest.mark.parametrize("operation", TABLE)
def test_only_create_makes_a_lease_and_nothing_brings_a_deleted_one_back(operation):
    made = TABLE[operation][0]
    result = change.apply_change(made, None)

    assert isinstance(result, Applied if operation == "create" else Gone)


def test_even_an_update_without_conditions_brings_nothing_back():
    unconditional = replace(change.renew(HELD), conditions=())

    assert change.apply_change(unconditional, None) == Gone()


def test_a_lease_that_did_not_change_is_deleted_and_one_that_did_is_not():
    renewed = change.apply_change(change.renew(HELD), HELD).lease

    assert change.apply_change(change.delete(HELD), HELD) == Applied(HELD)
    assert change.apply_change(change.delete(HELD), renewed) == Lost(renewed, (COUNTER_7,))


def test_a_created_lease_is_what_was_asked_for():
    wanted = a_lease("1 at LATEST from 0 range 0-50")

    assert change.apply_change(change.create(wanted), None) == Applied(wanted)
    assert change.apply_change(change.create(wanted), HELD) == Lost(
        HELD, (FieldAbsent(F.LEASE_KEY),)
    )


# The owner's own operations, by name, on a lease as it remembers it.
OWN_WRITES = {
    "renew": change.renew,
    "checkpoint": lambda lease: change.checkpoint(lease, number("6")),
    "evict": change.evict,
    "delete": change.delete,
}


@pytest.mark.parametrize("own", OWN_WRITES)
@pytest.mark.parametrize("other", ["take", "assign", "evict"])
def test_an_owner_that_lost_the_lease_can_write_nothing_more(own, other):
    taken = {
        "take": change.take(HELD, "b"),
        "assign": change.assign(HELD, "b", expired=True),
        "evict": change.evict(HELD),
    }[other]
    result = change.apply_change(taken, HELD)
    assert isinstance(result, Applied)

    late = change.apply_change(OWN_WRITES[own](HELD), result.lease)

    assert isinstance(late, Lost)
    assert late.current == result.lease


def test_an_owner_that_renewed_is_not_robbed_as_expired():
    renewed = change.apply_change(change.renew(HELD), HELD).lease

    assert change.apply_change(change.assign(HELD, "b", expired=True), renewed) == Lost(
        renewed, (COUNTER_7,)
    )


def test_a_renewal_notices_a_handover_that_a_checkpoint_may_pass():
    moving = change.apply_change(change.initiate_handover(HELD, "b"), HELD).lease

    assert (moving.lease_counter, moving.effective_owner) == (7, "a")
    assert change.apply_change(change.renew(HELD), moving) == Lost(moving, (NO_HANDOVER,))
    assert isinstance(change.apply_change(change.checkpoint(HELD, number("6")), moving), Applied)


def test_a_finished_handover_leaves_the_new_owner_alone():
    done = change.apply_change(change.assign(MOVING, "b"), MOVING).lease

    assert (done.lease_owner, done.checkpoint_owner, done.lease_counter) == ("b", None, 8)


def test_an_eviction_in_a_handover_gives_the_lease_to_the_next_owner():
    done = change.apply_change(change.evict(MOVING), MOVING).lease

    assert (done.lease_owner, done.checkpoint_owner, done.lease_counter) == ("b", None, 8)


def test_an_eviction_of_a_lost_worker_leaves_it_what_it_has_renewed_meanwhile():
    """A manager that froze before its write took a paused lease from one that was back (H15)."""
    renewed = change.apply_change(change.renew(HELD), HELD).lease

    lost = change.apply_change(change.evict(HELD, expired=True), renewed)

    assert lost == Lost(renewed, (COUNTER_7,))
    assert change.apply_change(change.evict(HELD, expired=True), HELD).lease.lease_owner is None


@pytest.mark.parametrize(("lease", "worker"), [(FREE, "b"), (HELD, "a")])
def test_a_handover_needs_two_owners(lease, worker):
    with pytest.raises(ProtocolError, match="handover of 0"):
        change.initiate_handover(lease, worker)


def test_children_are_not_set_to_nothing():
    with pytest.raises(ProtocolError, match="children of 0"):
        change.set_children(HELD, [])


def test_a_checkpoint_ends_what_was_pending_and_the_counting_of_switches():
    lease = a_lease("0 at 5 by a counter 7 switches 3", pending_checkpoint=number("6"))

    after = change.apply_change(change.checkpoint(lease, number("6:2")), lease).lease

    assert after.pending_checkpoint is None
    assert after.owner_switches_since_checkpoint == 0
    assert after.checkpoint == number("6:2")


def test_only_an_unowned_lease_is_rewound_and_from_its_end_too():
    finished = a_lease("0 at SHARD_END counter 7")
    owned = a_lease("0 at SHARD_END by a counter 7")

    assert change.apply_change(change.rewind(finished, number("1")), finished) == Applied(
        a_lease("0 at 1 counter 8")
    )
    assert isinstance(change.apply_change(change.rewind(owned, number("1")), owned), Lost)


# --- the monotonic guard (hazard H8) ---


def guarded(stored, new):
    """Tell whether a checkpoint to `new` passes when `stored` is in the table."""
    lease = Lease(lease_key="0", checkpoint=stored, lease_counter=7, lease_owner="a")
    return isinstance(change.apply_change(change.checkpoint(lease, new), lease), Applied)


@given(real_numbers(), any_numbers())
def test_the_guard_on_a_real_checkpoint_is_the_order(stored, new):
    assert guarded(stored, new) == (stored <= new)


@given(real_numbers(), real_numbers())
def test_the_guard_is_the_textual_rule_that_dynamodb_can_evaluate(stored, new):
    old, text = stored.sequence_number, new.sequence_number
    shorter_or_less = len(old) < len(text) or (len(old) == len(text) and old < text)
    same = old == text and stored.sub_sequence_number <= new.sub_sequence_number

    assert guarded(stored, new) == (shorter_or_less or same)


@given(any_numbers())
def test_nothing_is_written_over_shard_end(new):
    assert not guarded(AT_SHARD_END, new)


@given(st.sampled_from(["TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"]), any_numbers())
def test_any_first_checkpoint_passes(sentinel, new):
    assert guarded(ExtendedSequenceNumber(sentinel), new)


def test_a_backward_checkpoint_is_told_from_a_lost_lease():
    back = change.checkpoint(HELD, number("4"))

    assert change.failing(back, HELD) == (CheckpointNotPast(number("4")),)
    assert COUNTER_7 in change.failing(back, a_lease("0 at 5 by b counter 8"))


# --- any lease, any order ---

COUNTED = {
    "renew": change.renew,
    "renew in handover": lambda lease: change.renew(lease, in_handover=True),
    "take": lambda lease: change.take(lease, "c"),
    "assign": lambda lease: change.assign(lease, "c"),
    "assign expired": lambda lease: change.assign(lease, "c", expired=True),
    "evict": change.evict,
    "checkpoint": lambda lease: change.checkpoint(lease, AT_SHARD_END),
    "rewind": lambda lease: change.rewind(lease, number("1")),
}
UNCOUNTED = {
    "children": lambda lease: change.set_children(lease, ["x"]),
    "hash range": lambda lease: change.set_hash_range(lease, HashKeyRange(0, 1)),
}


@given(any_leases(), st.sampled_from(sorted({**COUNTED, **UNCOUNTED})))
def test_the_counter_moves_by_one_or_for_descriptions_not_at_all(lease, operation):
    made = {**COUNTED, **UNCOUNTED}[operation](lease)
    result = change.apply_change(made, lease)

    if isinstance(result, Applied):
        assert result.lease.lease_counter - lease.lease_counter == (operation in COUNTED)
        assert result.lease.lease_key == lease.lease_key


@given(any_leases(), any_leases(), st.sampled_from(sorted(COUNTED)))
def test_an_answer_names_exactly_the_conditions_that_do_not_hold(seen, stored, operation):
    made = COUNTED[operation](seen)
    result = change.apply_change(made, stored)
    failed = [c for c in made.conditions if not change.holds(c, stored)]

    assert result == Lost(stored, tuple(failed)) if failed else isinstance(result, Applied)


@given(any_leases(), st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(sorted(COUNTED)))))
def test_of_two_writers_with_the_same_memory_one_loses(lease, steps):
    """Each writer acts on its own memory; only one write per counter value succeeds."""
    stored, memory, winners = lease, {"a": lease, "b": lease}, []
    for writer, operation in steps:
        made = COUNTED[operation](memory[writer])
        if made.operation == "assign" and COUNTED[operation] is COUNTED["assign"]:
            continue  # By owners only, as Java's leader: its memory is not a counter.
        if made.operation == "evict":
            continue  # Likewise.
        result = change.apply_change(made, stored)
        if isinstance(result, Applied):
            winners.append(memory[writer].lease_counter)
            stored = memory[writer] = result.lease
        elif isinstance(result, Lost):
            assert result.current == stored
    assert len(set(winners)) == len(winners)


@given(any_leases(), real_numbers(), st.sampled_from([None, 0.0, 2.5]))
def test_a_checkpoint_repeats_what_is_known_and_writes_nothing_that_is_not(lease, to, kbps):
    """Java's serializer leaves an attribute out that has no value (protocol.md §1.2)."""
    sets = change.checkpoint(lease, to, throughput_kbps=kbps).sets
    known = {
        LeaseField.CHILD_SHARD_IDS: lease.child_shard_ids or None,
        LeaseField.HASH_KEY_RANGE: lease.hash_key_range,
        LeaseField.THROUGHPUT_KBPS: kbps,
    }
    assert {field: sets.get(field) for field in known} == known
    assert None not in sets.values()
