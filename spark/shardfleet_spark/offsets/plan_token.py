"""
The offset that Spark stores: a plan token, from which a batch can be planned again at any time.

A token holds everything that decides what a batch reads: where each shard stands, which shards
form a partition, the limits, how records are taken apart. It never depends on what came before it,
because Spark asks for partitions with the *end* offset alone that can be relied on. What a batch
then really read is in its seals (:mod:`shardfleet_spark.offsets.seals`), or, where there is no seal
store, in the token itself.

Versioned JSON: a token of another version is refused, never guessed at.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardfleet.domain.positions.positions import position_of, position_text
from shardfleet.domain.stream.sequence import PointKind, Position, StreamIncarnation
from shardfleet.errors import ShardfleetError
from shardfleet_spark.offsets.seals import Seal, in_groups, seal_from_json, seal_to_json

TOKEN_VERSION = 2


class UnreadableCheckpoint(ShardfleetError):
    """An offset in Spark's checkpoint is none of ours, or of a version that is not understood."""


@dataclass(frozen=True, slots=True)
class Stand:
    """
    Where one shard stands before the batch.

    Attributes:
        position: what is done.
        arrived_ms: arrival of the last record read, or of the first one held back for being too
            far ahead; epoch milliseconds, 0 unknown. Everything that arrived before is done.
        tip_ms: a moment at which the shard was known to be read to its tip, 0 never.

    """

    position: Position
    arrived_ms: int = 0
    tip_ms: int = 0

    @property
    def is_finished(self) -> bool:
        """Return whether the shard is done to its end."""
        return self.position.kind is PointKind.END


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """
    The limits of one partition; each an upper bound.

    Attributes:
        total_bytes: data and keys of stream records that the task buffers.
        fetch_ms: how long the task goes on reading while there is more.
        until_ms: a shard stops before the first record that arrived later; 0: no limit.
        records: stream records (an aggregate counts as one) of each shard, in the order of the
            layout; (): no limit.

    """

    total_bytes: int
    fetch_ms: int
    until_ms: int = 0
    records: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Emission:
    """
    How stream records become rows; part of the token, so that a replay does the same.

    Attributes:
        deaggregate: whether KPL aggregates are taken apart.
        misrouted: see :mod:`shardfleet.kpl.deaggregate`.

    """

    deaggregate: bool = True
    misrouted: str = "deliver"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanToken:
    """
    One plan.

    Attributes:
        sid: random id of the query's reading, made once, carried by every token.
        number: 0 before the first batch, then one more for each.
        run: random id of the run that made the plan: of two that go on from one checkpoint, or
            from copies of it, each has plans and seals of its own; "" before the first batch.
        incarnation: which life of which stream.
        stands: shard to where it stands, finished ones too while the stream lists them.
        layout: the shards of each partition.
        quotas: the limits of each partition.
        emission: how records become rows.
        waiting: shards not admitted yet, and their parents.
        hashes: hash ranges, first and last, where ``misrouted`` is not ``deliver``.
        target_ms: with Trigger.AvailableNow: the plan reads what had arrived by then; else 0.
        sealed: without a seal store: what each partition reads, exactly.
        stats: figures of the plan before, for a person; decides nothing.

    """

    sid: str
    number: int
    incarnation: StreamIncarnation
    stands: Mapping[str, Stand]
    emission: Emission
    layout: tuple[tuple[str, ...], ...] = ()
    quotas: tuple[Quota, ...] = ()
    waiting: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hashes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    target_ms: int = 0
    sealed: tuple[Seal, ...] | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""

    @property
    def needs_store(self) -> bool:
        """Return whether what the plan read is said by a seal store, and nowhere else."""
        return bool(self.layout) and self.sealed is None

    @property
    def groups(self) -> tuple[Sequence[str], ...]:
        """Return the shards of each seal; in the token itself a partition has a single one."""
        if self.sealed is not None:
            return self.layout
        return tuple(group for shards in self.layout for group in in_groups(shards))

    @property
    def key(self) -> str:
        """
        Return the plan's key among those of its ``sid``: number and a digest of its content.

        A checkpoint that was rolled back or copied may make another plan of the same number; it
        must not find the seals of this one (hazard H11).
        """
        deciding = {name: value for name, value in token_to_json(self).items() if name != "stats"}
        text = json.dumps(deciding, sort_keys=True, separators=(",", ":"))
        return f"{self.number:010d}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def token_to_json(token: PlanToken) -> dict[str, Any]:
    """Return the token as JSON-like values."""
    found: dict[str, Any] = {
        "v": TOKEN_VERSION,
        "sid": token.sid,
        "n": token.number,
        "stream": token.incarnation.stream_arn,
        "created_ms": token.incarnation.created_ms,
        "from": {
            shard_id: [position_text(stand.position), stand.arrived_ms, stand.tip_ms]
            for shard_id, stand in sorted(token.stands.items())
        },
        "layout": [list(shards) for shards in token.layout],
        "quotas": [
            {
                "bytes": quota.total_bytes,
                "fetch_ms": quota.fetch_ms,
                "until_ms": quota.until_ms,
                "records": list(quota.records),
            }
            for quota in token.quotas
        ],
        "emit": {
            "deaggregate": token.emission.deaggregate,
            "misrouted": token.emission.misrouted,
        },
        "waiting": {child: list(parents) for child, parents in sorted(token.waiting.items())},
        "stats": dict(token.stats),
    }
    if token.hashes:
        # As text: JVM's JSON has no integers of 128 bits.
        found["hashes"] = {
            shard_id: [str(first), str(last)]
            for shard_id, (first, last) in sorted(token.hashes.items())
        }
    if token.target_ms:
        found["target_ms"] = token.target_ms
    if token.run:
        found["run"] = token.run
    if token.sealed is not None:
        found["sealed"] = [seal_to_json(seal) for seal in token.sealed]
    return found


def token_from_json(found: Mapping[str, Any]) -> PlanToken:
    """
    Read a token.

    Raises:
        UnreadableCheckpoint: it is no token, or of a version that this code does not know.

    """
    version = found.get("v") if isinstance(found, Mapping) else None
    if version != TOKEN_VERSION:
        raise UnreadableCheckpoint(
            f"the checkpoint's offset has version {version!r}; this shardfleet reads version "
            f"{TOKEN_VERSION}. Use the shardfleet that wrote it, or begin with a new checkpoint "
            "location and startingPosition"
        )
    try:
        return _token(found)
    except (AttributeError, KeyError, TypeError, ValueError, ShardfleetError) as error:
        raise UnreadableCheckpoint(
            f"the checkpoint's offset is damaged: {type(error).__name__}: {error}; "
            f"found {json.dumps(found)[:200]}"
        ) from error


def _token(found: Mapping[str, Any]) -> PlanToken:
    incarnation = StreamIncarnation(str(found["stream"]), int(found["created_ms"]))
    sealed = found.get("sealed")
    return PlanToken(
        sid=str(found["sid"]),
        number=int(found["n"]),
        incarnation=incarnation,
        stands={
            shard_id: Stand(position_of(text, incarnation, shard_id), int(arrived), int(tip))
            for shard_id, (text, arrived, tip) in found["from"].items()
        },
        layout=tuple(tuple(shards) for shards in found["layout"]),
        quotas=tuple(
            Quota(
                total_bytes=int(quota["bytes"]),
                fetch_ms=int(quota["fetch_ms"]),
                until_ms=int(quota["until_ms"]),
                records=tuple(int(most) for most in quota["records"]),
            )
            for quota in found["quotas"]
        ),
        emission=Emission(bool(found["emit"]["deaggregate"]), str(found["emit"]["misrouted"])),
        waiting={child: tuple(parents) for child, parents in found["waiting"].items()},
        hashes={
            shard_id: (int(first), int(last))
            for shard_id, (first, last) in found.get("hashes", {}).items()
        },
        target_ms=int(found.get("target_ms", 0)),
        sealed=None if sealed is None else tuple(seal_from_json(each) for each in sealed),
        stats=dict(found["stats"]),
        run=str(found.get("run", "")),
    )
