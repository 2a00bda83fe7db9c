"""
Seals: what a partition of a batch really read, written once, before its first row leaves.

Whoever finds a seal emits exactly what it says. The first writer wins; a task that lost the race
(a speculative twin, a retry, a task of a run that is dead) conforms to the winner's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.foreign import read_json

T = TypeVar("T")

SEAL_VERSION = 2
# DynamoDB: an item has at most 400 KB, the names and values of its keys and attributes together;
# all but the seal itself are less than 300 bytes.
_BYTES_MOST = 400 * 1024 - 1_024
# The shards of a partition are sealed in groups: with iterators, 200 shards are some 140 KB. Each
# group is a contest of its own, for what one shard gave does not depend on another one.
SHARDS_PER_SEAL = 200
# What each key of a sealed shard is called in JSON, the short ones being per shard and batch.
_FIELDS = {
    "shard_id": "shard", "first": "first", "last": "last", "last_sub": "sub", "count": "count",
    "size_bytes": "bytes", "digest": "digest", "ended": "ended", "is_cut": "cut",
    "lag_ms": "lag_ms", "arrived_ms": "arrived_ms", "tip_ms": "tip_ms", "iterator": "iterator",
    "iterator_ms": "iterator_ms", "free_ms": "free_ms", "lost": "lost",
}  # fmt: skip


class SealOfAnotherLayout(ValueError):
    """A seal names other shards than its partition has (hazard H11)."""


class UnreadableSeal(ShardfleetError):
    """A stored seal is damaged or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSeal:
    """
    What one shard contributes to a batch: the stream records from ``first`` to ``last``.

    Attributes:
        shard_id: the shard.
        first: sequence number of the first stream record, None when there is none.
        last: of the last one; None when nothing was read: the position stays.
        last_sub: index of the last user record inside ``last``.
        count: stream records.
        size_bytes: their data and keys.
        digest: of their sequence numbers, see :func:`digest_of`.
        ended: whether the shard is done to its end.
        children: its children and their parents, when ended.
        is_cut: whether more was known to be there, or nobody looked: a limit was reached.
        lag_ms: MillisBehindLatest of the last answer, -1 unknown.
        arrived_ms: as :attr:`shardfleet_spark.offsets.plan_token.Stand.arrived_ms`, 0 unknown.
        tip_ms: wall clock before the call that said "nothing behind this", 0 if none did.
        iterator: continues behind ``last``, None if there is none.
        iterator_ms: wall clock at which it was issued.
        free_ms: wall clock before which the shard is not to be asked again.
        lost: what was lost, for a person; empty for nothing.

    """

    shard_id: str
    first: str | None = None
    last: str | None = None
    last_sub: int = 0
    count: int = 0
    size_bytes: int = 0
    digest: str = ""
    ended: bool = False
    children: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    is_cut: bool = False
    lag_ms: int = -1
    arrived_ms: int = 0
    tip_ms: int = 0
    iterator: str | None = None
    iterator_ms: int = 0
    free_ms: int = 0
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """
    What one group of shards contributes to a batch.

    Attributes:
        shards: in the order of the layout.
        calls: GetRecords calls that were answered.
        throttles: calls that were refused.
        paused_ms: how long shards waited for Kinesis, beyond the pause between any two calls.
        writer: who wrote it, for a person: Spark's query and batch id, attempt, host.

    """

    shards: tuple[ShardSeal, ...]
    calls: int = 0
    throttles: int = 0
    paused_ms: int = 0
    writer: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, order=True)
class SealKey:
    """
    Where a seal is kept.

    Attributes:
        sid: of the plan token.
        plan: the token's ``key``; keys of one ``sid`` order by plan number.
        partition: the number of the seal in the plan, or :data:`MARK`.

    """

    sid: str
    plan: str
    partition: int


class SealStore(Protocol):
    """Where seals are kept. Every method may raise ShardfleetError, and may be repeated."""

    def get(self, key: SealKey) -> bytes | None:
        """Return what is stored, read consistently; None when nothing is."""

    def put_if_absent(self, key: SealKey, body: bytes) -> bytes:
        """Store unless something is stored already; return what is stored then."""

    def read_plan(self, sid: str, plan: str) -> Mapping[int, bytes]:
        """Return all that is stored of one plan, by number, read consistently."""

    def delete(self, keys: Sequence[SealKey]) -> None:
        """Delete what is stored under these keys; one that is not there is no error."""


def needed(store: SealStore | None) -> SealStore:
    """
    Return the store of a plan that says nothing itself of what it read.

    Raises:
        ConfigurationError: none is named.

    """
    if store is None:
        raise ConfigurationError(
            "this checkpoint was written with a seal store, which alone says what its last batch "
            "read, and none is named now: set option sealStore to the same store. To go on "
            "without one, begin with a new checkpoint location where the query stands: "
            "shardfleet position export --checkpoint FOLDER --seals STORE --option prints its "
            "startingPosition"
        )
    return store


# The driver's own mark that a plan was made: it tells a plan whose seals were purged from one
# that Spark never ran.
MARK = 99_999_999
# What a repeated reading found gone of the sealed records is noted beside the seals, under numbers
# that no seal has: each text under one that it gives itself.
_LOSSES, _LOSSES_ROOM = 50_000_000, 49_000_000


# Of a seal that the driver put in the place of a task's.
_UNREAD: Mapping[str, str] = {"driver": "nobody had asked for these rows"}


def in_groups(shards: Sequence[T]) -> tuple[Sequence[T], ...]:
    """Return the shards of a partition in groups of one seal each."""
    return tuple(
        shards[first : first + SHARDS_PER_SEAL] for first in range(0, len(shards), SHARDS_PER_SEAL)
    )


def unread_seal(shards: Iterable[str]) -> Seal:
    """Return the seal of shards of which a committed plan read nothing; their positions stay."""
    return Seal(shards=tuple(ShardSeal(shard_id=each) for each in shards), writer=_UNREAD)


def is_unread(seal: Seal) -> bool:
    """Return whether a seal says that nobody had asked for its rows."""
    return seal.writer == _UNREAD


def executed_seals(stored: Mapping[int, bytes], *, seals: int) -> tuple[dict[int, Seal], bool]:
    """
    Return the seals of an executed plan by number, and whether they are all there.

    Args:
        stored: what the store has of the plan.
        seals: how many it had; a partition that Spark never ran has none until it is closed.

    Raises:
        UnreadableSeal: one is damaged, or of another version.

    """
    is_whole = MARK in stored or all(number in stored for number in range(seals))
    found = {number: seal_from_bytes(body) for number, body in stored.items() if number < seals}
    return found, is_whole


def loss_note(key: SealKey, lost: Sequence[str]) -> tuple[SealKey, bytes]:
    """Return where and how it is noted that sealed records are gone, as told to a person."""
    body = json.dumps({"v": SEAL_VERSION, "lost": list(lost)}).encode()
    number = int(blake2b(body, digest_size=8).hexdigest(), 16) % _LOSSES_ROOM
    return replace(key, partition=_LOSSES + number), body


def noted_losses(stored: Mapping[int, bytes]) -> list[str]:
    """
    Return what repeated readings of a plan found gone.

    Args:
        stored: what the store has of the plan.

    Raises:
        UnreadableSeal: a note is damaged.

    """
    notes = (stored[n] for n in sorted(stored) if _LOSSES <= n < _LOSSES + _LOSSES_ROOM)
    try:
        return [str(text) for note in notes for text in read_json(note)["lost"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableSeal(f"a note of lost records is damaged: {error}") from error


def digest_of(sequence_numbers: Iterable[str]) -> str:
    """Return 16 hexadecimal characters that depend on the numbers and their order."""
    # Each number is followed by a comma.
    text = ",".join((*sequence_numbers, ""))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def seal_to_json(seal: Seal) -> dict[str, Any]:
    """Return the seal as JSON-like values."""
    return {
        "v": SEAL_VERSION,
        "shards": [
            {name: getattr(shard, attribute) for attribute, name in _FIELDS.items()}
            | {"children": {child: list(parents) for child, parents in shard.children.items()}}
            for shard in seal.shards
        ],
        "calls": seal.calls,
        "throttles": seal.throttles,
        "paused_ms": seal.paused_ms,
        "writer": dict(seal.writer),
    }


def seal_from_json(found: Mapping[str, Any]) -> Seal:
    """
    Read a seal.

    Raises:
        UnreadableSeal: damaged, or of a version that this code does not know.

    """
    version = found.get("v") if isinstance(found, Mapping) else None
    if version != SEAL_VERSION:
        raise UnreadableSeal(
            f"a seal has version {version!r}; this shardfleet reads version {SEAL_VERSION}: "
            "use the shardfleet that wrote it"
        )
    try:
        return Seal(
            shards=tuple(
                ShardSeal(
                    **{attribute: shard[name] for attribute, name in _FIELDS.items()},
                    children={c: tuple(parents) for c, parents in shard["children"].items()},
                )
                for shard in found["shards"]
            ),
            calls=int(found["calls"]),
            throttles=int(found["throttles"]),
            paused_ms=int(found["paused_ms"]),
            writer=dict(found["writer"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableSeal(f"a seal is damaged: {type(error).__name__}: {error}") from error


def seal_to_bytes(seal: Seal) -> bytes:
    """
    Return the seal as it is stored.

    A seal of very many shards goes without their iterators, which save a call each and no more.
    """
    body = json.dumps(seal_to_json(seal), separators=(",", ":")).encode()
    if len(body) <= _BYTES_MOST:
        return body
    shards = tuple(replace(shard, iterator=None) for shard in seal.shards)
    return json.dumps(seal_to_json(replace(seal, shards=shards)), separators=(",", ":")).encode()


def seal_from_bytes(body: bytes) -> Seal:
    """
    Read a stored seal.

    Raises:
        UnreadableSeal: it is no JSON, damaged, or of another version.

    """
    try:
        found = read_json(body)
    except ValueError as error:
        raise UnreadableSeal(f"a seal: {error}") from error
    return seal_from_json(found)


def check_layout(seal: Seal, shards: Sequence[str], *, number: int) -> None:
    """
    Refuse a seal of other shards (hazard H11).

    Raises:
        SealOfAnotherLayout: it names others, or in another order.

    """
    found = [sealed.shard_id for sealed in seal.shards]
    if found != list(shards):
        raise SealOfAnotherLayout(
            f"seal {number} names the shards {', '.join(found) or 'none'}, "
            f"the plan {', '.join(shards) or 'none'}: another query uses the same seal store and "
            "sid, or the checkpoint was changed by hand"
        )
