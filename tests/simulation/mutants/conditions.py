"""One mutant for every AND-term of every condition in docs/protocol.md §1.6 (L1-L13)."""

from __future__ import annotations

from tests.simulation.mutants.mutant import mutant

CHANGES = "domain/leases/changes.py"

_SEEN = "        _as_seen(LeaseField.LEASE_OWNER, lease.lease_owner),\n"
_SEEN_TOO = "        _as_seen(LeaseField.CHECKPOINT_OWNER, lease.checkpoint_owner),\n"
_EXISTS = "        _EXISTS,\n"
_TERMS = _EXISTS + _SEEN + _SEEN_TOO
_IF_EXPIRED = "    if expired:\n"
_COUNTER = "        conditions += (FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),)\n"


def _assign(terms: str = _TERMS, if_expired: str = _IF_EXPIRED) -> str:
    """Return assign's conditions and its call, by which they are told from evict's."""
    return _conditions(terms, if_expired) + '    return _update(\n        "assign",\n'


def _evict(terms: str = _TERMS, if_expired: str = _IF_EXPIRED) -> str:
    return _conditions(terms, if_expired) + '    return _update(\n        "evict",\n'


def _conditions(terms: str, if_expired: str) -> str:
    begin = "    conditions: tuple[Condition, ...] = (\n"
    return begin + terms + "    )\n" + if_expired + _COUNTER


_BEGIN = (
    "        _EXISTS,\n"
    "        FieldEquals(LeaseField.LEASE_OWNER, owner),\n"
    "        FieldAbsent(LeaseField.CHECKPOINT_OWNER),\n"
)
_REWIND = (
    "            FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),\n"
    "            FieldAbsent(LeaseField.LEASE_OWNER),\n"
    "            FieldAbsent(LeaseField.CHECKPOINT_OWNER),\n"
)
_REWIND_LINES = _REWIND.splitlines(keepends=True)
_BEGIN_LINES = _BEGIN.splitlines(keepends=True)

CONDITIONS = (
    mutant(
        "create over a lease that exists",
        "L1 leaseKey absent",
        (CHANGES, "conditions=(FieldAbsent(LeaseField.LEASE_KEY),)", "conditions=()"),
    ),
    mutant(
        "renew without the counter",
        "L2 counter, §8 row 13",
        (
            CHANGES,
            (
                "    conditions: tuple[Condition, ...] = (\n"
                "        FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),\n"
                "    )\n"
                "    if not in_handover:\n"
            ),
            "    conditions: tuple[Condition, ...] = ()\n    if not in_handover:\n",
        ),
    ),
    mutant(
        "renew whatever the checkpointOwner",
        "L2 checkpointOwner absent",
        (CHANGES, "    if not in_handover:\n", "    if in_handover and not in_handover:\n"),
        why_not=(
            "the same outcome by another way: a renewal answers with the lease as it is now, and "
            "a checkpointOwner in an accepted answer is noticed as one in a refusal is "
            "(LeaseWriter._accept); see 'a handover is not noticed'"
        ),
    ),
    mutant(
        "a handover is not noticed",
        "L2 checkpointOwner absent",
        (CHANGES, "    if not in_handover:\n", "    if in_handover and not in_handover:\n"),
        (
            "engine/ownership/checkpointer.py",
            "if h.in_handover and not h.halt.is_set]",
            "if h.in_handover and not h.in_handover]",
        ),
    ),
    mutant(
        "take without the counter",
        "L5 counter",
        (
            CHANGES,
            (
                '        "take",\n'
                "        lease,\n"
                "        conditions=(FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),),\n"
            ),
            '        "take",\n        lease,\n        conditions=(_EXISTS,),\n',
        ),
    ),
    mutant(
        "assign a lease that does not exist",
        "L3 leaseKey present",
        (CHANGES, _assign(), _assign(_SEEN + _SEEN_TOO)),
        arena="frozen assigns",
    ),
    mutant(
        "assign whatever the owner",
        "L3 leaseOwner as seen",
        (CHANGES, _assign(), _assign(_EXISTS + _SEEN_TOO)),
    ),
    mutant(
        "assign whatever the checkpointOwner",
        "L3 checkpointOwner as seen",
        (CHANGES, _assign(), _assign(_EXISTS + _SEEN)),
        arena="frozen gifts",
    ),
    mutant(
        "assign an expired lease whatever the counter",
        "L4 counter, H15",
        (CHANGES, _assign(), _assign(if_expired="    if expired and not expired:\n")),
    ),
    mutant(
        "begin a handover of a lease that does not exist",
        "L6 leaseKey present",
        (CHANGES, _BEGIN, _BEGIN_LINES[1] + _BEGIN_LINES[2]),
        why_not="implied: an owner as seen is there only if the item is",
    ),
    mutant(
        "begin a handover whatever the owner",
        "L6 leaseOwner as seen",
        (CHANGES, _BEGIN, _BEGIN_LINES[0] + _BEGIN_LINES[2]),
        arena="frozen leaders",
    ),
    mutant(
        "begin a handover in the middle of another",
        "L6 checkpointOwner absent",
        (CHANGES, _BEGIN, _BEGIN_LINES[0] + _BEGIN_LINES[1]),
        test="tests/domain/test_lease_changes.py::"
        "test_an_operation_has_exactly_the_conditions_and_updates_of_the_table",
    ),
    mutant(
        "begin a handover whatever the counter",
        "L6 counter",
        (CHANGES, "    if as_read:\n", "    if as_read and not as_read:\n"),
        arena="frozen balancers",
    ),
    mutant(
        "evict a lease that does not exist",
        "L8 leaseKey present",
        (CHANGES, _evict(), _evict(_SEEN + _SEEN_TOO)),
        why_not=(
            "implied: whoever evicts has seen an owner, and an owner as seen is there only if the "
            "item is"
        ),
    ),
    mutant(
        "evict whatever the owner",
        "L8 leaseOwner as seen",
        (CHANGES, _evict(), _evict(_EXISTS + _SEEN_TOO)),
        arena="frozen releases",
    ),
    mutant(
        "evict whatever the checkpointOwner",
        "L8 checkpointOwner as seen",
        (CHANGES, _evict(), _evict(_EXISTS + _SEEN)),
        why_not=(
            "implied by the owner: whoever evicts has seen no handover, and only the beginning of "
            "one sets checkpointOwner, which changes the owner too"
        ),
    ),
    mutant(
        "evict a lost worker's lease whatever the counter",
        "L8 counter, H15",
        (CHANGES, _evict(), _evict(if_expired="    if expired and not expired:\n")),
        test="tests/domain/test_lease_changes.py::"
        "test_an_eviction_of_a_lost_worker_leaves_it_what_it_has_renewed_meanwhile",
    ),
    mutant(
        "checkpoint without the counter",
        "L9 counter, §8 row 13",
        (
            CHANGES,
            (
                "            FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),\n"
                "            CheckpointNotPast(to),\n"
            ),
            "            CheckpointNotPast(to),\n",
        ),
    ),
    mutant(
        "checkpoint backwards",
        "L13, H8, museum: kinesumer #1",
        (
            CHANGES,
            "            CheckpointNotPast(to),\n        ),\n",
            "        ),\n",
        ),
        arena="other hands",
    ),
    mutant(
        "checkpoint over SHARD_END",
        "L13 not SHARD_END",
        (CHANGES, "    if stored.is_shard_end:\n        return False\n", ""),
        arena="rewinds over ends",
    ),
    mutant(
        "no checkpoint over a sentinel",
        "L13 or a sentinel",
        (
            CHANGES,
            "    return stored.is_sentinel or stored <= new\n",
            "    return stored <= new\n",
        ),
        why_not=(
            "no difference for the reference: sentinels are less than every number (§1.5). "
            "DynamoDB compares text, so its expression needs the term"
        ),
    ),
    mutant(
        "a checkpoint that is equal is backwards",
        "L13 or equal",
        (CHANGES, "stored.is_sentinel or stored <= new", "stored.is_sentinel or stored < new"),
        why_not=(
            "an equal checkpoint is written only after a tool of others has stored the same: "
            "refused or not, the same is stored"
        ),
    ),
    mutant(
        "children are written on a lease that does not exist",
        "L10 leaseKey present",
        (
            CHANGES,
            '        "set_children", lease, conditions=(_EXISTS,),',
            '        "set_children", lease, conditions=(),',
        ),
        arena="frozen ends",
    ),
    mutant(
        "a hash range is written on a lease that does not exist",
        "L10 leaseKey present",
        (
            CHANGES,
            '        "set_hash_range",\n        lease,\n        conditions=(_EXISTS,),\n',
            '        "set_hash_range",\n        lease,\n        conditions=(),\n',
        ),
        arena="frozen ranges",
    ),
    mutant(
        "delete whatever the counter",
        "L11 counter",
        (
            CHANGES,
            (
                "        conditions=(FieldEquals(LeaseField.LEASE_COUNTER, lease.lease_counter),),\n"
                "    )\n\n\ndef rewind"
            ),
            "        conditions=(_EXISTS,),\n    )\n\n\ndef rewind",
        ),
        arena="frozen deletions",
    ),
    mutant(
        "rewind whatever the counter",
        "L12 counter",
        (CHANGES, _REWIND, _REWIND_LINES[1] + _REWIND_LINES[2]),
        arena="other hands",
    ),
    mutant(
        "rewind whatever the owner",
        "L12 leaseOwner absent",
        (CHANGES, _REWIND, _REWIND_LINES[0] + _REWIND_LINES[2]),
        why_not="implied by the counter: nobody becomes the owner without moving it",
    ),
    mutant(
        "rewind in the middle of a handover",
        "L12 checkpointOwner absent",
        (CHANGES, _REWIND, _REWIND_LINES[0] + _REWIND_LINES[1]),
        why_not="implied: an unowned lease is in no handover",
    ),
)
