"""Leases and lease changes for hypothesis: few distinct values, so that they often meet."""

from hypothesis import strategies as st

from shardfleet.domain.leases import changes as lease_changes
from shardfleet.domain.leases.lease import (
    ChangeKind,
    CheckpointNotPast,
    FieldAbsent,
    FieldEquals,
    FieldPresent,
    Lease,
    LeaseChange,
    LeaseField,
)
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber

KEY = "shardId-000000000000"
REAL = "49590338271490256608559692538361571095921575989136588898"

sequence_numbers = st.builds(
    ExtendedSequenceNumber,
    # Lengths around that of SHARD_END (9) and of each other: length decides before text.
    st.sampled_from(
        (
            *("AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "SHARD_END"),
            *("0", "7", "9", "10", "99", "100", "99999999", "123456789", "1234567890"),
            *(REAL, str(int(REAL) + 1), "5" * 57),
        )
    ),
    st.sampled_from([0, 0, 1, 2, 17]),
)
owners = st.sampled_from(["fleet-s0001", "fleet-s0002", "java-worker"])
shard_ids = st.sets(st.sampled_from(["shardId-000000000001", "shardId-000000000002"]), min_size=1)
id_sets = shard_ids.map(lambda ids: tuple(sorted(ids)))
counters = st.integers(0, 3)
ranges = st.sampled_from([HashKeyRange(0, 2**127 - 1), HashKeyRange(2**127, 2**128 - 1)])
throughputs = st.sampled_from([0.0, 0.5, 123.456789, 2048.0, 1e-06])
states = st.sampled_from([b"", b"\x00\xff", b"state"])

VALUES = {
    LeaseField.LEASE_KEY: st.just(KEY),
    LeaseField.LEASE_OWNER: owners,
    LeaseField.LEASE_COUNTER: counters,
    LeaseField.OWNER_SWITCHES: counters,
    LeaseField.CHECKPOINT: sequence_numbers,
    LeaseField.CHECKPOINT_OWNER: owners,
    LeaseField.PARENT_SHARD_IDS: id_sets,
    LeaseField.CHILD_SHARD_IDS: id_sets,
    LeaseField.HASH_KEY_RANGE: ranges,
    LeaseField.PENDING_CHECKPOINT: sequence_numbers,
    LeaseField.PENDING_CHECKPOINT_STATE: states,
    LeaseField.THROUGHPUT_KBPS: throughputs,
}
ALWAYS = (
    LeaseField.LEASE_KEY,
    LeaseField.LEASE_COUNTER,
    LeaseField.OWNER_SWITCHES,
    LeaseField.CHECKPOINT,
)
SETTABLE = [name for name in LeaseField if name is not LeaseField.LEASE_KEY]
COUNTED = (LeaseField.LEASE_COUNTER, LeaseField.OWNER_SWITCHES)
REMOVABLE = (
    LeaseField.LEASE_OWNER,
    LeaseField.CHECKPOINT_OWNER,
    LeaseField.HASH_KEY_RANGE,
    LeaseField.PENDING_CHECKPOINT,
    LeaseField.PENDING_CHECKPOINT_STATE,
    LeaseField.THROUGHPUT_KBPS,
)


def _lease(fields):
    return Lease(**{name.value: value for name, value in fields.items()})


leases = st.fixed_dictionaries(
    {name: VALUES[name] for name in ALWAYS},
    optional={name: VALUES[name] for name in LeaseField if name not in ALWAYS},
).map(_lease)

conditions = st.one_of(
    *(st.builds(FieldEquals, st.just(name), values) for name, values in VALUES.items()),
    st.builds(FieldAbsent, st.sampled_from(LeaseField).filter(lambda name: name not in ALWAYS)),
    st.builds(FieldPresent, st.sampled_from(LeaseField)),
    st.builds(CheckpointNotPast, sequence_numbers),
    st.builds(CheckpointNotPast, sequence_numbers),
)


@st.composite
def free_changes(draw):
    """Draw any update or delete: each combination of conditions and updates there may ever be."""
    kind = draw(st.sampled_from([ChangeKind.UPDATE, ChangeKind.UPDATE, ChangeKind.DELETE]))
    wanted = draw(st.lists(conditions, min_size=1, max_size=4))
    sets, adds, removes = {}, {}, ()
    if kind is ChangeKind.UPDATE:
        names = draw(st.lists(st.sampled_from(SETTABLE), unique=True, min_size=1, max_size=4))
        sets = {name: draw(VALUES[name]) for name in names}
        adds = {n: 1 for n in COUNTED if n not in sets and draw(st.booleans())}
        removes = tuple(n for n in REMOVABLE if n not in sets and draw(st.booleans()))
    return LeaseChange(
        operation="free",
        lease_key=KEY,
        kind=kind,
        conditions=tuple(wanted),
        sets=sets,
        adds=adds,
        removes=removes,
    )


# Each operation of the protocol: from what is drawn, the lease as some worker saw it, and a worker.
OPERATIONS = {
    "assign": lambda draw, seen, worker: lease_changes.assign(
        seen, worker, expired=draw(st.booleans())
    ),
    "checkpoint": lambda draw, seen, _: lease_changes.checkpoint(seen, draw(sequence_numbers)),
    "create": lambda _, seen, __: lease_changes.create(seen),
    "delete": lambda _, seen, __: lease_changes.delete(seen),
    "evict": lambda _, seen, __: lease_changes.evict(seen),
    "initiate_handover": lambda draw, seen, worker: lease_changes.initiate_handover(
        seen, worker, as_read=draw(st.booleans())
    ),
    "renew": lambda draw, seen, _: lease_changes.renew(
        seen, throughput_kbps=draw(throughputs), in_handover=draw(st.booleans())
    ),
    "rewind": lambda draw, seen, _: lease_changes.rewind(seen, draw(sequence_numbers)),
    "set_children": lambda draw, seen, _: lease_changes.set_children(seen, draw(id_sets)),
    "set_hash_range": lambda draw, seen, _: lease_changes.set_hash_range(seen, draw(ranges)),
    "take": lambda _, seen, worker: lease_changes.take(seen, worker),
}


@st.composite
def real_changes(draw):
    """Draw one of the protocol's operations, made from a lease as some worker saw it."""
    seen, worker = draw(leases), draw(owners)
    may_be_handed_over = seen.lease_owner not in (None, worker)
    names = [n for n in OPERATIONS if may_be_handed_over or n != "initiate_handover"]
    return seen, OPERATIONS[draw(st.sampled_from(names))](draw, seen, worker)
