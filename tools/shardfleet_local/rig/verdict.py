"""
The verdict: what was sent against what was handled, and nothing else believed.

Order is that of *first* deliveries: a record that comes again (at-least-once) is a duplicate, not
out of order. The order of the ledger is the order in which handlers finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.stream.sequence import AT_TIMESTAMP, TRIM_HORIZON
from shardfleet.domain.stream.shards import Shard, ShardGraph
from shardfleet_local.rig.feed import SentRecord
from shardfleet_local.rig.ledger import HandledRecord, LedgerLine


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
        """Tell whether the promises were kept."""
        return (
            not self.lost
            and not self.foreign
            and not self.out_of_order
            and self.parents_before_children
        )


@dataclass(slots=True)
class FirstDeliveries:
    """
    Matches handled records with sent ones, as both come in.

    A handled record is found by its position; by its digest where the position is not known (the
    event contract, or a request whose reply was lost), so a payload that changed on its way
    matches nothing.

    Attributes:
        first_ms: number of a record to when it was first handled, in order of first delivery.
        duplicates: later deliveries.
        foreign: handled records that match nothing sent.

    """

    first_ms: dict[int, int] = field(default_factory=dict)
    duplicates: int = 0
    foreign: int = 0
    _positions: dict[tuple[str, str, int], SentRecord] = field(default_factory=dict)
    _by_digest: dict[str, deque[SentRecord]] = field(default_factory=dict)

    def sent(self, records: Iterable[SentRecord]) -> None:
        """Take note of records that were sent."""
        for record in records:
            receipt = record.receipt
            place = (receipt.shard_id, receipt.sequence_number, receipt.sub_sequence_number)
            self._positions[place] = record
            self._by_digest.setdefault(record.digest, deque()).append(record)

    def handled(self, line: LedgerLine) -> None:
        """Take note of one batch that was handled; what was sent must be known before."""
        for row in line.records:
            number = self._number_of(line.shard_id, row)
            if number is None:
                self.foreign += 1
            elif number in self.first_ms:
                self.duplicates += 1
            else:
                self.first_ms[number] = line.at_ms

    def _number_of(self, shard_id: str, row: HandledRecord) -> int | None:
        place = (shard_id, row.sequence_number, row.sub_sequence_number)
        known = self._positions.get(place)
        if known is not None:
            return known.number if known.digest == row.digest else None
        alike = self._by_digest.get(row.digest)
        if not alike:
            return None
        while len(alike) > 1 and alike[0].number in self.first_ms:
            alike.popleft()
        return alike[0].number


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
    deliveries = FirstDeliveries()
    deliveries.sent(sent)
    for line in lines:
        deliveries.handled(line)
    return RunVerdict(
        records_in=len(sent),
        records_handled_distinct=len(deliveries.first_ms),
        duplicates=deliveries.duplicates,
        lost=tuple(r.number for r in sent if r.number not in deliveries.first_ms),
        foreign=deliveries.foreign,
        out_of_order=_out_of_order(sent, deliveries.first_ms),
        parents_before_children=_parents_first(sent, deliveries.first_ms, shards=shards),
    )


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
