"""
Records into a stream, in order per partition key, whatever the stream does meanwhile.

Order: a request holds a key once, or within one aggregate; what was refused stays ahead of
everything later of its key. So the accepted records of a key have the order in which they were
given, across throttling, lost replies and resharding.

Aggregates: a builder is filled with the records of one shard, as that shard is known. When the
answer names another shard, some records inside may lie outside its hash range, and a consumer with
Java's rule drops such an aggregate whole (protocol.md §5.3, point 5): all of it is sent again, for
the shards as they are now, before anything later of its keys. The KPL does the same.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardfleet.domain.shards import Shard
from shardfleet.engine.ports import Clock, Entropy, PutEntry, PutOutcome, StreamWriter
from shardfleet.errors import InvalidRecord, OutcomeUnknown, Throttled
from shardfleet.kpl.aggregate import DEFAULT_MAX_BYTES, AggregateBuilder, OutgoingRecord
from shardfleet.kpl.hash_keys import check_partition_key, effective_hash

ENTRIES_MOST = 500
"""Quota of ``PutRecords``: entries in a request."""

REQUEST_BYTES_MOST = 5 * 1024 * 1024
"""Data and keys of a request; half of what ``PutRecords`` takes, to leave room for its frame."""

# A request is chosen from this many waiting records at most: a hot key must not make every
# request look at all of them.
_LOOK_AHEAD = 4 * ENTRIES_MOST
_LISTINGS_MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """
    Limits of a producer.

    Attributes:
        aggregate_bytes: length of an aggregate (KPL ``AggregationMaxSize``).
        aggregate_records: user records in an aggregate.
        retry_first_ms: first back-off after a refusal; doubles, with jitter.
        retry_most_ms: longest back-off.
        give_up_ms: how long one ``send`` may go on being refused.

    """

    aggregate_bytes: int = DEFAULT_MAX_BYTES
    aggregate_records: int = 500
    retry_first_ms: int = 50
    retry_most_ms: int = 2_000
    give_up_ms: int = 300_000


class Receipt(NamedTuple):
    """
    Where a record was accepted.

    Attributes:
        shard_id: the shard.
        sequence_number: of the stream record, decimal.
        sub_sequence_number: index inside its aggregate, 0 for a plain record.
        aggregated: whether it travelled in an aggregate.

    """

    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    aggregated: bool


@dataclass(slots=True)
class ProducerCounts:
    """
    What a producer went through.

    Attributes:
        requests: PutRecords calls.
        refused: entries refused and sent again.
        misrouted: aggregates that were answered by a shard that does not own all of their records.
        unanswered: requests whose outcome stayed unknown; their records may be there twice.

    """

    requests: int = 0
    refused: int = 0
    misrouted: int = 0
    unanswered: int = 0


class _Waiting(NamedTuple):
    number: int
    record: OutgoingRecord
    hash_key: int


@dataclass(slots=True)
class _Entry:
    """One entry of a request in the making: a plain record, or the builder of an aggregate."""

    shard: Shard | None
    builder: AggregateBuilder | None = None
    waiting: list[_Waiting] = field(default_factory=list)

    def put_entry(self) -> PutEntry:
        first = self.waiting[0].record
        if self.builder is None or len(self.waiting) == 1:
            return PutEntry(
                data=first.data,
                partition_key=first.partition_key,
                explicit_hash_key=first.explicit_hash_key,
            )
        built = self.builder.build()
        return PutEntry(
            data=built.data,
            partition_key=built.partition_key,
            explicit_hash_key=built.explicit_hash_key,
        )


class Producer:
    """
    Sends records to one stream; one ``send`` at a time.

    Args:
        writer: the stream.
        clock: for back-off.
        entropy: for jitter.
        settings: limits.

    Attributes:
        counts: what has happened so far.

    """

    def __init__(
        self,
        writer: StreamWriter,
        *,
        clock: Clock,
        entropy: Entropy,
        settings: ProducerSettings | None = None,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or ProducerSettings()
        self._shards: dict[str, Shard] = {}
        self._open: list[Shard] = []
        self.counts = ProducerCounts()

    async def send(
        self, records: Iterable[OutgoingRecord], *, aggregate: bool = False
    ) -> list[Receipt]:
        """
        Send records and return, in their order, where each was accepted.

        Args:
            records: per partition key in the order in which they shall be read.
            aggregate: pack records of one shard together, as far as they fit.

        Raises:
            InvalidRecord: a record breaks a limit of Kinesis; if it is a limit of the key,
                nothing has been sent.
            Throttled: still refused after ``give_up_ms``; some records may have been accepted.
            StreamGone: there is no such stream.

        """
        waiting = [_checked(number, record) for number, record in enumerate(records)]
        receipts: dict[int, Receipt] = {}
        deadline_ms = self._clock.monotonic_ms() + self._settings.give_up_ms
        refusals = 0
        if waiting and not self._shards:
            await self._learn_shards()
        while waiting:
            entries = self._next_request(waiting, aggregate=aggregate)
            outcomes = await self._put(entries)
            refused = await self._take(entries, outcomes, receipts=receipts)
            waiting = [each for each in waiting if each.number not in receipts]
            again = refused and bool(waiting)
            refusals = refusals + 1 if again else 0
            if again:
                await self._back_off(refusals, deadline_ms, waiting=waiting)
        return [receipts[number] for number in range(len(receipts))]

    def _next_request(self, waiting: Sequence[_Waiting], *, aggregate: bool) -> list[_Entry]:
        """Choose what goes into the next request: of each key the first, or the first few."""
        entries: list[_Entry] = []
        filling: dict[str, _Entry] = {}
        holder: dict[str, _Entry] = {}
        size = 0
        for each in waiting[:_LOOK_AHEAD]:
            record = each.record
            more = len(record.data) + 4 * len(record.partition_key)  # UTF-8: 4 bytes at most.
            if len(entries) == ENTRIES_MOST or (entries and size + more > REQUEST_BYTES_MOST):
                break
            shard = self._owner_of(each.hash_key)
            entry = (
                self._place(each, shard, filling=filling) if aggregate and shard else _Entry(shard)
            )
            held_by = holder.get(record.partition_key)
            if held_by is not None and held_by is not entry:
                continue
            size += more
            if not entry.waiting:
                entries.append(entry)
            if entry.builder is not None:
                entry.builder.add(record)
            entry.waiting.append(each)
            holder[record.partition_key] = entry
        return entries

    def _place(self, each: _Waiting, shard: Shard, *, filling: dict[str, _Entry]) -> _Entry:
        """Return the aggregate of that shard with room for the record, or a plain entry."""
        entry = filling.get(shard.shard_id)
        try:
            if entry is None or entry.builder is None or entry.builder.is_full_for(each.record):
                entry = _Entry(shard, self._new_builder())
                assert entry.builder is not None
                entry.builder.is_full_for(each.record)
        except InvalidRecord:
            return _Entry(shard)  # Too large for an aggregate: it goes by itself.
        filling[shard.shard_id] = entry
        return entry

    def _new_builder(self) -> AggregateBuilder:
        return AggregateBuilder(
            max_bytes=self._settings.aggregate_bytes, max_records=self._settings.aggregate_records
        )

    async def _put(self, entries: Sequence[_Entry]) -> Sequence[PutOutcome]:
        self.counts.requests += 1
        try:
            return await self._writer.put_records([entry.put_entry() for entry in entries])
        except Throttled:
            pass
        except OutcomeUnknown:
            self.counts.unanswered += 1
        return [PutOutcome(error_code="NotAccepted") for _ in entries]

    async def _take(
        self,
        entries: Sequence[_Entry],
        outcomes: Sequence[PutOutcome],
        *,
        receipts: dict[int, Receipt],
    ) -> bool:
        """Note what was accepted; return whether anything has to be sent again."""
        refused = misrouted = 0
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome.shard_id is None or outcome.sequence_number is None:
                refused += 1
                continue
            if entry.shard is None or entry.shard.shard_id != outcome.shard_id:
                await self._learn_shards()
            if len(entry.waiting) > 1 and not self._owns_all(outcome.shard_id, entry):
                misrouted += 1
                continue
            for sub, each in enumerate(entry.waiting):
                receipts[each.number] = Receipt(
                    outcome.shard_id, outcome.sequence_number, sub, len(entry.waiting) > 1
                )
        self.counts.refused += refused
        self.counts.misrouted += misrouted
        return refused + misrouted > 0

    def _owns_all(self, shard_id: str, entry: _Entry) -> bool:
        shard = self._shards.get(shard_id)
        return shard is not None and all(
            shard.hash_key_range.contains(each.hash_key) for each in entry.waiting
        )

    def _owner_of(self, hash_key: int) -> Shard | None:
        """Return the open shard of a hash key; None while a listing shows none."""
        place = bisect_right(self._open, hash_key, key=_start) - 1
        owner = self._open[place] if place >= 0 else None
        return owner if owner is not None and owner.hash_key_range.contains(hash_key) else None

    async def _learn_shards(self) -> None:
        """List the shards; if that is throttled for too long, what is known stays."""
        for attempt in range(1, _LISTINGS_MOST + 1):
            try:
                found = await self._writer.list_shards()
            except Throttled:
                await self._clock.sleep_ms(self._delay_ms(attempt))
            else:
                self._shards = {shard.shard_id: shard for shard in found}
                self._open = sorted((each for each in found if each.is_open), key=_start)
                return

    async def _back_off(
        self, refusals: int, deadline_ms: int, *, waiting: Sequence[_Waiting]
    ) -> None:
        if self._clock.monotonic_ms() > deadline_ms:
            raise Throttled(
                f"{len(waiting)} records are still refused after {self._settings.give_up_ms} ms; "
                f"the first has partition key {waiting[0].record.partition_key!r}. Write more "
                "slowly, or give the stream more shards"
            )
        await self._clock.sleep_ms(self._delay_ms(refusals))

    def _delay_ms(self, attempt: int) -> float:
        longest = min(
            self._settings.retry_most_ms, self._settings.retry_first_ms * 2 ** min(attempt - 1, 16)
        )
        return self._entropy.uniform(longest / 2, longest)


def _start(shard: Shard) -> int:
    return shard.hash_key_range.start


def _checked(number: int, record: OutgoingRecord) -> _Waiting:
    check_partition_key(record.partition_key)
    return _Waiting(number, record, effective_hash(record.partition_key, record.explicit_hash_key))
