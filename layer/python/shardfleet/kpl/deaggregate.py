"""
From the data of one Kinesis record to its user records, losing none.

Rules: protocol.md §5.3; hazard H4 for resuming inside an aggregate. Java: ``AggregatorUtil``,
from which five things differ on purpose. A malformed aggregate is delivered *whole*, as the
plain record it is (Java keeps what it had decoded before the fault, and nothing else). An
aggregate without user records is delivered plain, too. What nobody needs spoils nothing: tags, and
indexes into an empty table of hash keys, are not looked at. Explicit hash keys that are no hash
keys never discard anything. This module does not log: the verdict is for the caller's metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from itertools import compress, count, repeat
from typing import Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.errors import ConfigurationError
from shardfleet.kpl.content import Content, Fault, Steps, at_once, content_in_steps
from shardfleet.kpl.envelope import DEFAULT_MAX_SUB_RECORDS, body_of, is_framed
from shardfleet.records import Record

MisroutedPolicy = Literal["deliver", "in-range", "kpl"]
"""
What to do with an aggregate that has user records of another shard's hash range.

``deliver``: nothing is dropped. ``in-range``: those of the shard's range are delivered, the others
discarded and counted; right only if whoever sent them has sent those again. ``kpl``: Java's rule,
the *whole* aggregate is discarded and counted; right only if the producer sends all of them again,
as the KPL does.
"""

_ROUTES_AT_A_STEP = 10_000  # digests of keys: 15 ms


class Verdict(StrEnum):
    """What a Kinesis record turned out to be; every name after ``MISROUTED`` was delivered raw."""

    PLAIN = "plain"
    EXPANDED = "expanded"
    MISROUTED = "misrouted"
    BAD_DIGEST = "bad_digest"
    BAD_ENCODING = "bad_encoding"
    BAD_INDEX = "bad_index"
    EMPTY = "empty"
    TOO_MANY_RECORDS = "too_many_records"
    TOO_MANY_BYTES = "too_many_bytes"


class ExpansionLimits(Struct, frozen=True):
    """
    How far one Kinesis record may expand; beyond it, the record is delivered raw.

    Attributes:
        max_sub_records: user records; each costs about 200 bytes of memory beside its data.
        max_expanded_bytes: data and UTF-8 keys of all user records together. A table lets many
            records share one long key, so this can be far more than the record's own size.

    Raises:
        ConfigurationError: a limit below 1.

    """

    max_sub_records: int = DEFAULT_MAX_SUB_RECORDS
    max_expanded_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        """Refuse limits under which nothing could ever be expanded."""
        for name in ("max_sub_records", "max_expanded_bytes"):
            value: int = getattr(self, name)
            if value < 1:
                raise ConfigurationError(f"{name} = {value}: expected 1 or more")


class UserRecord(NamedTuple):
    """
    One record as its producer meant it (a tuple: the quickest immutable type there is).

    Attributes:
        partition_key: the producer's key, not that of the aggregate around it.
        explicit_hash_key: decimal text, or None if the producer gave none.
        data: the payload.
        sub_sequence_number: index 0...n-1 inside the Kinesis record, 0 for a plain one.

    """

    partition_key: str
    explicit_hash_key: str | None
    data: bytes
    sub_sequence_number: int


class Origin(NamedTuple):
    """
    What all user records of one Kinesis record share.

    Attributes:
        sequence_number: of the Kinesis record.
        shard_id: where it was read.
        approximate_arrival_ms: epoch milliseconds.
        encryption_type: ``NONE`` or ``KMS``, None when the service did not say.

    """

    sequence_number: str
    shard_id: str
    approximate_arrival_ms: int
    encryption_type: str | None


_R = TypeVar("_R", UserRecord, Record)


class Deaggregated(NamedTuple, Generic[_R]):
    """
    The user records of one Kinesis record.

    Attributes:
        records: in order; empty only for ``MISROUTED``, and with gaps only for it.
        verdict: what the record was, for metrics.
        last_sub_sequence: sub-sequence number of the last user record, delivered or discarded: a
            checkpoint at (sequence number, this) is the end of the Kinesis record.
        dropped: user records discarded by the policy.

    """

    records: Sequence[_R]
    verdict: Verdict
    last_sub_sequence: int
    dropped: int

    @property
    def aggregated(self) -> bool:
        """Return whether the record was a valid aggregate."""
        return self.verdict in (Verdict.EXPANDED, Verdict.MISROUTED)


def deaggregate(
    data: bytes,
    *,
    partition_key: str,
    limits: ExpansionLimits,
    hash_range: tuple[int, int] | None,
    policy: MisroutedPolicy,
) -> Deaggregated[UserRecord]:
    """
    Return the user records inside the data of one Kinesis record.

    Never raises for any ``data``: what is no valid aggregate is one plain record.

    Args:
        data: the Kinesis record's data.
        partition_key: the Kinesis record's partition key, for the case that it is a plain record.
        limits: how far the record may expand.
        hash_range: the shard's first and last hash key, both included; None if unknown, and then
            nothing is discarded.
        policy: what to do with an aggregate that the shard's range does not cover entirely.

    """
    found = at_once(
        _expanded(data, _user_records, limits=limits, hash_range=hash_range, policy=policy)
    )
    if isinstance(found, Verdict):
        return Deaggregated((UserRecord(partition_key, None, data, 0),), found, 0, 0)
    return found


def records_in_steps(
    data: bytes,
    *,
    partition_key: str,
    origin: Origin,
    limits: ExpansionLimits,
    hash_range: tuple[int, int] | None,
    policy: MisroutedPolicy,
) -> Steps[Deaggregated[Record]]:
    """
    Find the same as :func:`deaggregate`, as what a handler gets; step by step.

    Args:
        data: the Kinesis record's data.
        partition_key: the Kinesis record's partition key, for the case that it is a plain record.
        origin: the rest of the Kinesis record.
        limits: how far the record may expand.
        hash_range: the shard's first and last hash key; None if unknown.
        policy: what to do with an aggregate that the shard's range does not cover entirely.

    """
    made = partial(records_of, origin=origin)
    found = yield from _expanded(data, made, limits=limits, hash_range=hash_range, policy=policy)
    if isinstance(found, Verdict):
        number, shard_id, arrival_ms, encryption = origin
        plain = Record(data, partition_key, number, shard_id, arrival_ms, 0, None, encryption)
        return Deaggregated((plain,), found, 0, 0)
    return found


def records_after(
    found: Deaggregated[_R], *, sequence_number: str, done: ExtendedSequenceNumber
) -> Sequence[_R]:
    """
    Return the user records of one Kinesis record that come after a checkpoint (hazard H4).

    Read *at* the checkpoint's sequence number and pass each Kinesis record through here: of the
    first one only what lies behind the sub-sequence number remains, later ones remain whole.

    A checkpoint inside an aggregate that can no longer be read as one (its limits were lowered)
    does not prove that all of it was handled. The raw record is then delivered, numbered one
    behind the checkpoint so that positions still move forward.

    Args:
        found: the Kinesis record, deaggregated.
        sequence_number: its sequence number, decimal digits.
        done: the last user record that is finished, or a sentinel.

    """
    if done.sequence_number != sequence_number:
        return () if done > ExtendedSequenceNumber(sequence_number) else found.records
    if found.dropped:
        last = done.sub_sequence_number
        return [record for record in found.records if record.sub_sequence_number > last]
    if found.aggregated:
        return found.records[done.sub_sequence_number + 1 :]
    if not done.sub_sequence_number:
        return ()
    raw, number = found.records[0], done.sub_sequence_number + 1
    if isinstance(raw, Record):
        return [msgspec.structs.replace(raw, sub_sequence_number=number)]
    return [raw._replace(sub_sequence_number=number)]


def _content_within(data: bytes, limits: ExpansionLimits) -> Steps[Content | Verdict]:
    if not is_framed(data):
        return Verdict.PLAIN
    body = body_of(data)
    if body is None:
        return Verdict.BAD_DIGEST
    yield
    content = yield from content_in_steps(body, max_records=limits.max_sub_records)
    if isinstance(content, Fault):
        return Verdict(content.value)
    # A bound that costs nothing first (no key is longer than the body); the exact sum only when it
    # cannot decide.
    bound = len(body) * (1 + 2 * len(content.data))
    if bound > limits.max_expanded_bytes < content.expanded_bytes():
        return Verdict.TOO_MANY_BYTES
    return content


def _expanded(
    data: bytes,
    made: Callable[[Content], list[_R]],
    *,
    limits: ExpansionLimits,
    hash_range: tuple[int, int] | None,
    policy: MisroutedPolicy,
) -> Steps[Deaggregated[_R] | Verdict]:
    """Return the records of an aggregate, or as what the Kinesis record is to be delivered raw."""
    content = yield from _content_within(data, limits)
    if isinstance(content, Verdict):
        return content
    yield
    if policy == "deliver" or hash_range is None:
        return Deaggregated(made(content), Verdict.EXPANDED, len(content.data) - 1, 0)
    return (yield from routed(content, made, hash_range=hash_range, policy=policy))


def routed(
    content: Content,
    made: Callable[[Content], list[_R]],
    *,
    hash_range: tuple[int, int],
    policy: MisroutedPolicy,
) -> Steps[Deaggregated[_R]]:
    """
    Return the records of an aggregate, without those that the policy discards.

    Args:
        content: of the aggregate.
        made: makes its records.
        hash_range: of the shard, first and last hash key.
        policy: which records of others are discarded; not ``deliver``.

    """
    (first, last), elsewhere, size = hash_range, set(), len(content.data)
    for number, (route, hash_key) in enumerate(content.routes()):
        if not first <= hash_key <= last:
            elsewhere.add(route)
        if not number % _ROUTES_AT_A_STEP:
            yield
    if not elsewhere:
        return Deaggregated(made(content), Verdict.EXPANDED, size - 1, 0)
    if policy == "kpl":
        return Deaggregated((), Verdict.MISROUTED, size - 1, size)
    yield
    routes = content.routes_of_records()
    kept = list(compress(made(content), (route not in elsewhere for route in routes)))
    return Deaggregated(kept, Verdict.MISROUTED, size - 1, size - len(kept))


def _user_records(content: Content) -> list[UserRecord]:
    new = tuple.__new__  # About 15 % of the whole against calling the NamedTuple.
    hash_keys = content.explicit_hash_keys() or repeat(None)
    rows = zip(content.partition_keys(), hash_keys, content.data, count(), strict=False)
    return [new(UserRecord, row) for row in rows]


def records_of(content: Content, origin: Origin) -> list[Record]:
    """Return the user records of an aggregate as a handler gets them."""
    number, shard_id, arrival_ms, encryption = origin
    hash_keys = content.explicit_hash_keys()
    rows = zip(count(), content.data, content.partition_keys(), strict=False)
    # Arguments by position are twice as quick. The last one: it is of an aggregate.
    if hash_keys is None:
        return [
            Record(each, key, number, shard_id, arrival_ms, index, None, encryption, True)  # noqa: FBT003
            for index, each, key in rows
        ]
    return [
        Record(each, key, number, shard_id, arrival_ms, index, hash_key, encryption, True)  # noqa: FBT003
        for (index, each, key), hash_key in zip(rows, hash_keys, strict=True)
    ]
