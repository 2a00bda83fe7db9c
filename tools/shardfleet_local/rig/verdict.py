"""
The verdict: what was sent against what was handled, and nothing else believed.

Order is that of *first* deliveries: a record that comes again (at-least-once) is a duplicate, not
out of order. The order of the ledger is the order in which handlers finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_TIMESTAMP, TRIM_HORIZON
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.incidents import KILL_WORKER, THROTTLE, FleetDisturbance, of_kind
from shardfleet_local.rig.ledger import HandledRecord, LedgerLine

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    """
    What became of the records.

    Attributes:
        records_in: accepted by the stream.
        records_handled_distinct: handled at least once.
        duplicates: deliveries beyond the first of a record.
        lost: numbers of records never handled.
        foreign: handled records that nobody sent (altered payloads count here).
        out_of_order: numbers of records first handled after a later record of their key.
        parents_before_children: no record of a child shard was handled before the last record of
            its parents had been handled for the first time.

    """

    records_in: int
    records_handled_distinct: int
    duplicates: int
    lost: tuple[int, ...]
    foreign: int
    out_of_order: tuple[int, ...]
    parents_before_children: bool

    @property
    def passed(self) -> bool:
        """Return whether the promises were kept."""
        return not self.problems()

    def problems(self) -> list[str]:
        """Return what went wrong, in words; nothing when the promises were kept."""
        problems = []
        if self.lost:
            problems.append(f"{len(self.lost):,} records were never handled: {_some(self.lost)}")
        if self.out_of_order:
            problems.append(
                f"{len(self.out_of_order):,} records came after a later one of their key: "
                f"{_some(self.out_of_order)}"
            )
        if self.foreign:
            problems.append(f"{self.foreign:,} handled records match nothing that was sent")
        if not self.parents_before_children:
            problems.append("a child shard was read before its parent was done")
        return problems


@dataclass(slots=True)
class Deliveries:
    """
    Matches handled records with sent ones, as both come in.

    A handled record is found by its position; by its digest where the position is not known (the
    event contract, or a request whose reply was lost), so a payload that changed on its way
    matches nothing.

    Attributes:
        first_ms: number of a record to when it was first handled, in order of first delivery.
        duplicates: later deliveries.
        waiting: per shard what is not handled yet, the oldest first: numbers, and when sent.

    """

    first_ms: dict[int, int] = field(default_factory=dict)
    duplicates: int = 0
    waiting: dict[str, dict[int, int]] = field(default_factory=dict)
    _positions: dict[tuple[str, str, int], SentRecord] = field(default_factory=dict)
    _by_digest: dict[str, deque[SentRecord]] = field(default_factory=dict)
    _unknown: list[tuple[LedgerLine, HandledRecord]] = field(default_factory=list)

    @classmethod
    def of(cls, sent: Iterable[SentRecord], lines: Iterable[LedgerLine]) -> Self:
        """Match all of a run, or of what there is of it."""
        deliveries = cls()
        deliveries.note_sent(sent)
        deliveries.note_handled(lines)
        return deliveries

    @property
    def foreign(self) -> int:
        """Count the handled records that match nothing sent."""
        return len(self._unknown)

    @property
    def sent(self) -> int:
        """Count the records that were sent."""
        return len(self._positions)

    @property
    def lost(self) -> list[int]:
        """Return the numbers of what was sent and is not handled yet."""
        return sorted(number for records in self.waiting.values() for number in records)

    def note_sent(self, records: Iterable[SentRecord]) -> None:
        """Take note of records that were sent, and again of handled ones that matched nothing."""
        for record in records:
            receipt = record.receipt
            place = (receipt.shard_id, receipt.sequence_number, receipt.sub_sequence_number)
            self._positions[place] = record
            self._by_digest.setdefault(record.digest, deque()).append(record)
            self.waiting.setdefault(receipt.shard_id, {})[record.number] = record.sent_ms
        unknown, self._unknown = self._unknown, []
        for line, row in unknown:
            self._take(line, row)

    def note_handled(self, lines: Iterable[LedgerLine]) -> None:
        """Take note of batches that were handled."""
        for line in lines:
            for row in line.records:
                self._take(line, row)

    def lag_ms(self, shard_id: str, *, now_ms: int) -> int:
        """Return the age of the oldest record of a shard that waits; 0 if none does."""
        return max(0, now_ms - next(iter(self.waiting.get(shard_id, {}).values()), now_ms))

    def _take(self, line: LedgerLine, row: HandledRecord) -> None:
        record = self._sent_as(line.shard_id, row)
        if record is None:
            self._unknown.append((line, row))
        elif record.number in self.first_ms:
            self.duplicates += 1
        else:
            self.first_ms[record.number] = line.at_ms
            del self.waiting[record.receipt.shard_id][record.number]

    def _sent_as(self, shard_id: str, row: HandledRecord) -> SentRecord | None:
        known = self._positions.get((shard_id, row.sequence_number, row.sub_sequence_number))
        if known is not None:
            return known if known.digest == row.digest else None
        alike = self._by_digest.get(row.digest)
        if not alike:
            return None
        while len(alike) > 1 and alike[0].number in self.first_ms:
            alike.popleft()
        return alike[0]


def verdict(
    sent: Sequence[SentRecord], lines: Sequence[LedgerLine], *, shards: Sequence[Shard]
) -> RunVerdict:
    """
    Judge a run.

    Args:
        sent: everything that was sent, per key in the order of sending.
        lines: the ledger.
        shards: the stream's final listing, closed shards included.

    """
    deliveries = Deliveries.of(sent, lines)
    return RunVerdict(
        records_in=len(sent),
        records_handled_distinct=len(deliveries.first_ms),
        duplicates=deliveries.duplicates,
        lost=tuple(deliveries.lost),
        foreign=deliveries.foreign,
        out_of_order=_out_of_order(sent, deliveries.first_ms),
        parents_before_children=_parents_first(sent, deliveries.first_ms, shards=shards),
    )


def _some(numbers: Sequence[int]) -> str:
    first = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{first}, ..." if len(numbers) > _SHOWN else first


def _out_of_order(sent: Sequence[SentRecord], first: Mapping[int, int]) -> tuple[int, ...]:
    """Return the records that a later one of their key has overtaken."""
    rank_sent = {record.number: rank for rank, record in enumerate(sent)}
    key_of = {record.number: record.key for record in sent}
    furthest: dict[str, int] = {}
    late = []
    for number in first:
        key, rank = key_of[number], rank_sent[number]
        if rank < furthest.get(key, -1):
            late.append(number)
        else:
            furthest[key] = rank
    return tuple(late)


def _parents_first(
    sent: Sequence[SentRecord], first: Mapping[int, int], *, shards: Sequence[Shard]
) -> bool:
    shard_of = {record.number: record.receipt.shard_id for record in sent}
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for place, number in enumerate(first):
        begins.setdefault(shard_of[number], place)
        ends[shard_of[number]] = place
    graph = ShardGraph(shards)
    return all(
        ends[ancestor] < begins[child]
        for child in begins
        for ancestor in graph.ancestors(child)
        if ancestor in ends
    )


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

    kill: FleetDisturbance
    shard_id: str
    took_ms: int | None


def recoveries(
    happenings: Sequence[FleetDisturbance],
    lines: Sequence[LedgerLine],
    *,
    sent: Sequence[SentRecord],
) -> list[ShardRecovery]:
    """
    Return how long each killed worker's shards stood still, by the ledger, in order.

    A shard counts if the killed process was the last to handle its records, and if more came for
    it; not if it refused to be read just then.
    """
    last_sent_ms = {record.receipt.shard_id: record.sent_ms for record in sent}
    recovered = []
    for kill in of_kind(happenings, KILL_WORKER):
        for shard_id in kill.shard_ids:
            if any(each.covers(shard_id, kill.at_ms) for each in of_kind(happenings, THROTTLE)):
                continue
            back_ms = next(
                (
                    line.at_ms
                    for line in lines
                    if line.shard_id == shard_id
                    and line.at_ms >= kill.at_ms
                    and line.pid != kill.pid
                ),
                None,
            )
            if back_ms is None and last_sent_ms.get(shard_id, 0) < kill.at_ms:
                continue  # The shard has ended: nothing more came, so nothing had to recover.
            took_ms = None if back_ms is None else back_ms - kill.at_ms
            recovered.append(ShardRecovery(kill=kill, shard_id=shard_id, took_ms=took_ms))
    return recovered


def unsettled_leases(shards: Sequence[Shard], leases: Sequence[Lease]) -> dict[str, str]:
    """
    Return, for each closed shard whose lease is not as it should be, what is wrong.

    Right is a lease at SHARD_END, or one deleted after every descendant had started
    (protocol.md §4.8).
    """
    graph = ShardGraph(shards)
    by_key = {lease.lease_key: lease for lease in leases}
    wrong: dict[str, str] = {}
    for shard_id, shard in graph.shards.items():
        if shard.is_open:
            continue
        lease = by_key.get(shard_id)
        if lease is not None:
            if not lease.is_finished:
                wrong[shard_id] = f"its lease stands at {lease.checkpoint}, not at SHARD_END"
        elif not all(
            _has_started(child, graph, leases=by_key) for child in graph.children(shard_id)
        ):
            wrong[shard_id] = "its lease is gone although not every child has started"
    return wrong


def _has_started(shard_id: str, graph: ShardGraph, *, leases: Mapping[str, Lease]) -> bool:
    lease = leases.get(shard_id)
    if lease is not None:
        return lease.checkpoint.sequence_number not in (TRIM_HORIZON, AT_TIMESTAMP)
    children = graph.children(shard_id)
    return bool(children) and all(_has_started(child, graph, leases=leases) for child in children)
