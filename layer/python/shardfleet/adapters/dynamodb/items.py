"""
A lease as an item of the KCL's lease table, and back: the only place that knows wire names.

Names and types are those of protocol.md §1.2 (Java's ``DynamoDBLeaseSerializer``): strings ``S``,
numbers ``N``, bytes ``B``, shard ids ``SS``. Absence is the null: a ``NULL`` is never written and
never read (protocol.md §0.3). ``entityType`` is written by a create only, as in KCL 3.5.

Reading is tolerant of what others may add: unknown attributes are ignored, items of another
``entityType`` are no leases (§0.7), nor are items without one that have neither a counter nor a
checkpoint (what an unconditional update leaves of a deleted lease, §0.2). An item that claims to
be a lease and cannot be read is an error that names the item: to guess would move a checkpoint.
Leases of another stream or mode are no leases of ours, and never read as such (hazard H23).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any

from msgspec import Struct

from shardfleet.domain.leases.foreign_leases import foreign_lease
from shardfleet.domain.leases.lease import FieldValue, ForeignLease, Lease, LeaseField
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.domain.stream.shards import shard_number
from shardfleet.errors import MalformedLease, ProtocolError

LEASE_KEY = "leaseKey"
LEASE_OWNER = "leaseOwner"
CHECKPOINT = "checkpoint"
CHECKPOINT_SUB = "checkpointSubSequenceNumber"
_COUNTER = "leaseCounter"
_SWITCHES = "ownerSwitchesSinceCheckpoint"
_CHECKPOINT_OWNER = "checkpointOwner"
_PARENTS, _CHILDREN = "parentShardId", "childShardIds"
_FIRST_KEY, _LAST_KEY = "startingHashKey", "endingHashKey"
_PENDING, _PENDING_SUB = "pendingCheckpoint", "pendingCheckpointSubSequenceNumber"
_PENDING_STATE = "pendingCheckpointState"
_THROUGHPUT = "throughputKBps"
OWNER_INDEX = "LeaseOwnerToLeaseKeyIndex"  # HASH leaseOwner, RANGE leaseKey, KEYS_ONLY (§1.3)
# Only a multi-stream application writes them: the stream's identifier, the shard's id (§1.2).
_STREAM, _SHARD = "streamName", "shardId"
ENTITY_TYPE = "entityType"
LEASE_ENTITY = "LEASE"

Item = Mapping[str, Mapping[str, Any]]

_DIGITS_MOST = 38  # DynamoDB: of a number
_INTEGER = re.compile(rf"-?[0-9]{{1,{_DIGITS_MOST}}}")
_HASH_KEY = re.compile(r"[0-9]{1,39}")
# What a missing attribute counts as, by type.
_ABSENT: Mapping[str, Any] = {"S": None, "N": "0"}
_KBPS_UNIT = Decimal("0.000001")  # Java: 6 decimals, HALF_UP


class Attribute(Struct, frozen=True):
    """
    One attribute on the wire.

    Attributes:
        name: its name.
        type: its type, e.g. ``"S"`` or ``"SS"``.
        missing_is_zero: Java reads a missing one as 0, so a condition must do the same.

    """

    name: str
    type: str
    missing_is_zero: bool = False


# Which attributes a field is written as. The first one decides whether the field is present.
ATTRIBUTES: Mapping[LeaseField, tuple[Attribute, ...]] = {
    LeaseField.LEASE_KEY: (Attribute(LEASE_KEY, "S"),),
    LeaseField.LEASE_OWNER: (Attribute(LEASE_OWNER, "S"),),
    LeaseField.LEASE_COUNTER: (Attribute(_COUNTER, "N"),),
    LeaseField.OWNER_SWITCHES: (Attribute(_SWITCHES, "N", missing_is_zero=True),),
    LeaseField.CHECKPOINT: (
        Attribute(CHECKPOINT, "S"),
        Attribute(CHECKPOINT_SUB, "N", missing_is_zero=True),
    ),
    LeaseField.CHECKPOINT_OWNER: (Attribute(_CHECKPOINT_OWNER, "S"),),
    LeaseField.PARENT_SHARD_IDS: (Attribute(_PARENTS, "SS"),),
    LeaseField.CHILD_SHARD_IDS: (Attribute(_CHILDREN, "SS"),),
    LeaseField.HASH_KEY_RANGE: (
        Attribute(_FIRST_KEY, "S"),
        Attribute(_LAST_KEY, "S"),
    ),
    LeaseField.PENDING_CHECKPOINT: (
        Attribute(_PENDING, "S"),
        Attribute(_PENDING_SUB, "N", missing_is_zero=True),
    ),
    LeaseField.PENDING_CHECKPOINT_STATE: (Attribute(_PENDING_STATE, "B"),),
    LeaseField.THROUGHPUT_KBPS: (Attribute(_THROUGHPUT, "N"),),
}
_TYPES = {each.name: each.type for some in ATTRIBUTES.values() for each in some}
# Fields that an item must have to be a lease; all others may be missing (§1.2, rows of KCL 1-3).
_CLAIMS = (LeaseField.LEASE_COUNTER, LeaseField.CHECKPOINT)


def key_of(lease_key: str) -> dict[str, dict[str, str]]:
    """Return the primary key of a lease."""
    return {LEASE_KEY: {"S": lease_key}}


def attributes_of(name: LeaseField, value: FieldValue) -> dict[str, dict[str, Any]]:
    """Return the attributes that say that a field has a value; none for an empty set."""
    attributes = ATTRIBUTES[name]
    return {
        attribute.name: {attribute.type: encoded}
        for attribute, encoded in zip(attributes, _encoded(value), strict=True)
        if encoded != []
    }


def item_from_fields(fields: Mapping[LeaseField, FieldValue]) -> dict[str, dict[str, Any]]:
    """Return the whole item of a new lease."""
    item: dict[str, dict[str, Any]] = {ENTITY_TYPE: {"S": LEASE_ENTITY}}
    for name, value in fields.items():
        item |= attributes_of(name, value)
    return item


def is_foreign(item: Item) -> bool:
    """Return whether an item of the lease table is something else than a lease (§1.2)."""
    entity = item.get(ENTITY_TYPE)
    if entity is not None:
        return entity != {"S": LEASE_ENTITY}
    return not any(ATTRIBUTES[name][0].name in item for name in _CLAIMS)


def foreign_lease_of(item: Item) -> ForeignLease | None:
    """Return a lease that is another stream's or another mode's, None if it may be ours."""
    key, stream = item[LEASE_KEY]["S"], None
    if _STREAM in item or _SHARD in item:
        stream = str(item.get(_STREAM, {}).get("S", ""))
    elif shard_number(key) is not None:
        return None  # As almost all are.
    return foreign_lease(key, stream=stream, owner=item.get(LEASE_OWNER, {}).get("S"))


def own_lease_from_item(item: Item | None) -> Lease | None:
    """
    Read a lease of ours; None if there is no item, or it is something else.

    Raises:
        MalformedLease: see :func:`lease_from_item`.

    """
    if item is None or is_foreign(item) or foreign_lease_of(item) is not None:
        return None
    return lease_from_item(item)


def lease_from_item(item: Item) -> Lease:
    """
    Read a lease.

    Raises:
        MalformedLease: names the lease, the attribute, what was found and what is allowed.

    """
    usual = _usual_lease(item)
    if usual is not None:
        return usual
    reading = _Reading(item)
    found = reading.values.get
    counter = reading.number(_COUNTER)
    checkpoint = reading.sequence_number(CHECKPOINT, CHECKPOINT_SUB)
    if counter is None or checkpoint is None:
        missing = _COUNTER if counter is None else CHECKPOINT
        raise reading.malformed(missing, found="nothing", allowed="every lease has it")
    return Lease(
        lease_key=reading.key,
        checkpoint=checkpoint,
        lease_counter=counter,
        lease_owner=found(LEASE_OWNER),
        owner_switches_since_checkpoint=reading.number(_SWITCHES) or 0,
        checkpoint_owner=found(_CHECKPOINT_OWNER),
        parent_shard_ids=tuple(sorted(found(_PARENTS, ()))),
        child_shard_ids=tuple(sorted(found(_CHILDREN, ()))),
        hash_key_range=reading.hash_key_range(),
        pending_checkpoint=reading.sequence_number(_PENDING, _PENDING_SUB),
        pending_checkpoint_state=found(_PENDING_STATE),
        throughput_kbps=reading.decimal(_THROUGHPUT),
    )


def _usual_lease(item: Item) -> Lease | None:
    """
    Read an item as almost all are; None for all others, which `_Reading` knows or names.

    A manager reads all leases each three seconds, and this takes half the time.
    """
    if _PENDING in item or _PENDING_SUB in item or _PENDING_STATE in item:
        return None
    found = item.get
    try:
        counter, switches = item[_COUNTER]["N"], found(_SWITCHES, _ABSENT)["N"]
        sub, kbps = found(CHECKPOINT_SUB, _ABSENT)["N"], found(_THROUGHPUT)
        numbers = counter + switches + sub
        parents, children = found(_PARENTS), found(_CHILDREN)
        start, end = found(_FIRST_KEY, _ABSENT)["S"], found(_LAST_KEY, _ABSENT)["S"]
        covered = None if start is None and end is None else _hash_key_range(start or "", end or "")
        is_usual = numbers.isascii() and numbers.isdigit() and len(numbers) <= _DIGITS_MOST
        if not is_usual or (covered is None and start is not end):
            return None
        return Lease(
            lease_key=item[LEASE_KEY]["S"],
            checkpoint=ExtendedSequenceNumber(item[CHECKPOINT]["S"], int(sub)),
            lease_counter=int(counter),
            lease_owner=found(LEASE_OWNER, _ABSENT)["S"],
            owner_switches_since_checkpoint=int(switches),
            checkpoint_owner=found(_CHECKPOINT_OWNER, _ABSENT)["S"],
            parent_shard_ids=tuple(sorted(parents["SS"])) if parents is not None else (),
            child_shard_ids=tuple(sorted(children["SS"])) if children is not None else (),
            hash_key_range=covered,
            throughput_kbps=None if kbps is None else float(kbps["N"]),
        )
    except (KeyError, ValueError, ProtocolError):
        return None


def _encoded(value: FieldValue) -> tuple[Any, ...]:
    match value:
        case ExtendedSequenceNumber():
            return (value.sequence_number, str(value.sub_sequence_number))
        case HashKeyRange():
            return (str(value.start), str(value.end))
        case tuple():
            return (sorted(value),)
        case float():
            rounded = Decimal(repr(value)).quantize(_KBPS_UNIT, ROUND_HALF_UP)
            return (f"{rounded.normalize():f}",)
        case int():
            return (str(value),)
        case str() | bytes():
            return (value,)


# A range never changes, and a look at the table each 3 s takes numbers of 39 digits for each lease.
@lru_cache(maxsize=16_384)
def _hash_key_range(start: str, end: str) -> HashKeyRange | None:
    if not (_HASH_KEY.fullmatch(start) and _HASH_KEY.fullmatch(end)):
        return None
    covered = HashKeyRange(int(start), int(end))
    return covered if covered.start <= covered.end else None


class _Reading:
    """
    Reads the attributes of one item and names them when they cannot be read.

    A manager reads all leases each three seconds: types are looked at once for the whole item.
    """

    def __init__(self, item: Item) -> None:
        try:
            self.values: dict[str, Any] = {
                name: typed[_TYPES[name]] for name, typed in item.items() if name in _TYPES
            }
        except KeyError:
            self.key = str(item.get(LEASE_KEY, {}).get("S"))
            raise self._of_another_type(item) from None
        self.key = self.values[LEASE_KEY]

    def malformed(self, attribute: str, *, found: str, allowed: str) -> MalformedLease:
        return MalformedLease(
            f"lease {self.key}: attribute {attribute}: {found[:120]} found, {allowed}; "
            "repair or delete the item"
        )

    def _of_another_type(self, item: Item) -> MalformedLease:
        name = next(n for n, typed in item.items() if n in _TYPES and _TYPES[n] not in typed)
        return self.malformed(
            name, found=f"type {', '.join(item[name])}", allowed=f"type {_TYPES[name]} expected"
        )

    def number(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not _INTEGER.fullmatch(value):
            raise self.malformed(name, found=value, allowed="a whole number expected")
        return int(value)

    def decimal(self, name: str) -> float | None:
        value = self.values.get(name)
        return None if value is None else float(value)

    def sequence_number(self, name: str, sub_name: str) -> ExtendedSequenceNumber | None:
        value = self.values.get(name)
        if value is None:
            return None
        # Java reads a missing sub-sequence number as 0.
        sub = self.number(sub_name) or 0
        try:
            return ExtendedSequenceNumber(value, sub)
        except ProtocolError as error:
            raise self.malformed(name, found=repr(value), allowed=str(error)) from error

    def hash_key_range(self) -> HashKeyRange | None:
        start, end = self.values.get(_FIRST_KEY), self.values.get(_LAST_KEY)
        if start is None and end is None:
            return None
        found = _hash_key_range(start or "", end or "")
        if found is None:
            raise self.malformed(
                "startingHashKey, endingHashKey",
                found=f"{start} to {end}",
                allowed="two unsigned decimal numbers in order expected",
            )
        return found
