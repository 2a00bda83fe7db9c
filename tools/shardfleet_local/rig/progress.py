"""How far a run has come, while it goes on: what waits in each shard, and for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.shards import Shard
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.ledger import LedgerLine
from shardfleet_local.rig.probe.ledger_probe import UNKNOWN_SUB

Place = tuple[str, int]


@dataclass(slots=True)
class Progress:
    """
    Counts by position alone, which is quick; the verdict at the end is stricter.

    Attributes:
        total: records to feed.
        sent: records that the stream has accepted.
        handled: distinct positions that were handled.
        handled_by_shard: the same per shard.

    """

    total: int
    sent: int = 0
    handled: int = 0
    handled_by_shard: Counter[str] = field(default_factory=Counter)
    _waiting: dict[str, dict[Place, int]] = field(default_factory=dict)
    _seen: set[tuple[str, Place]] = field(default_factory=set)
    _next_sub: Counter[tuple[str, str]] = field(default_factory=Counter)

    def note_sent(self, records: Iterable[SentRecord]) -> None:
        """Take note of accepted records; their handling may have been noted before."""
        for record in records:
            self.sent += 1
            receipt = record.receipt
            place = (receipt.sequence_number, receipt.sub_sequence_number)
            if (receipt.shard_id, place) not in self._seen:
                self._waiting.setdefault(receipt.shard_id, {})[place] = record.sent_ms

    def note_handled(self, lines: Iterable[LedgerLine]) -> None:
        """Take note of handled batches."""
        for line in lines:
            for row in line.records:
                sub = row.sub_sequence_number
                if sub == UNKNOWN_SUB:
                    sub = self._next_sub[line.shard_id, row.sequence_number]
                    self._next_sub[line.shard_id, row.sequence_number] += 1
                place = (row.sequence_number, sub)
                if (line.shard_id, place) not in self._seen:
                    self._seen.add((line.shard_id, place))
                    self.handled += 1
                    self.handled_by_shard[line.shard_id] += 1
                    self._waiting.get(line.shard_id, {}).pop(place, None)

    def lag_ms(self, shard_id: str, *, now_ms: int) -> int:
        """Return the age of the oldest record of a shard that waits; 0 if none does."""
        oldest = next(iter(self._waiting.get(shard_id, {}).values()), now_ms)
        return max(0, now_ms - oldest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardView:
    """
    One shard as the live table shows it.

    Attributes:
        shard: as listed.
        lease: None if there is none (yet, or any more).
        handled: records handled.
        lag_ms: age of the oldest record that waits.

    """

    shard: Shard
    lease: Lease | None
    handled: int
    lag_ms: int


def shard_views(
    progress: Progress, shards: Sequence[Shard], *, leases: Sequence[Lease], now_ms: int
) -> list[ShardView]:
    """Return one view per listed shard, ordered by shard."""
    by_key = {lease.lease_key: lease for lease in leases}
    return [
        ShardView(
            shard=shard,
            lease=by_key.get(shard.shard_id),
            handled=progress.handled_by_shard[shard.shard_id],
            lag_ms=progress.lag_ms(shard.shard_id, now_ms=now_ms),
        )
        for shard in sorted(shards, key=lambda shard: shard.shard_id)
    ]
