"""
How long a killed worker's shards stood still: from the ledger, not from what anybody claims.

A shard counts if the killed process was the last to handle its records, and if more came for it. A
shard that is throttled on purpose at that time does not count, because nobody can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.ledger import LedgerLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """
    One `kill -9` of a worker process.

    Attributes:
        at_ms: epoch milliseconds.
        pid: the process.
        shard_ids: what it had been reading, by the ledger.

    """

    at_ms: int
    pid: int
    shard_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blackout:
    """
    A time during which a shard cannot be read.

    Attributes:
        shard_id: the shard.
        from_ms: epoch milliseconds.
        until_ms: epoch milliseconds.

    """

    shard_id: str
    from_ms: int
    until_ms: int

    def covers(self, shard_id: str, at_ms: int) -> bool:
        """Tell whether a shard cannot be read at a time."""
        return shard_id == self.shard_id and self.from_ms <= at_ms < self.until_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecovery:
    """
    One shard of one killed worker.

    Attributes:
        kill: what happened.
        shard_id: the shard.
        took_ms: from the kill to the next handled record of the shard; None: there was none,
            although records came.

    """

    kill: Kill
    shard_id: str
    took_ms: int | None


def recoveries(
    kills: Iterable[Kill],
    lines: Sequence[LedgerLine],
    *,
    sent: Sequence[SentRecord],
    blackouts: Sequence[Blackout] = (),
) -> list[ShardRecovery]:
    """Return one entry per kill and shard that counts, in order."""
    last_sent_ms: dict[str, int] = {}
    for record in sent:
        last_sent_ms[record.receipt.shard_id] = record.sent_ms
    found = []
    for kill in kills:
        for shard_id in kill.shard_ids:
            if any(each.covers(shard_id, kill.at_ms) for each in blackouts):
                continue
            back_ms = _back_ms(kill, shard_id, lines=lines)
            if back_ms is None and last_sent_ms.get(shard_id, 0) < kill.at_ms:
                continue  # The shard has ended: nothing more came, so nothing had to recover.
            took_ms = None if back_ms is None else back_ms - kill.at_ms
            found.append(ShardRecovery(kill=kill, shard_id=shard_id, took_ms=took_ms))
    return found


def _back_ms(kill: Kill, shard_id: str, *, lines: Sequence[LedgerLine]) -> int | None:
    return next(
        (
            line.at_ms
            for line in lines
            if line.shard_id == shard_id and line.at_ms >= kill.at_ms and line.pid != kill.pid
        ),
        None,
    )
