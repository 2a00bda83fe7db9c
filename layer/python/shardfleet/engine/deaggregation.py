"""
From a page of stream records to user records: deaggregated, behind the checkpoint, counted.

What the policy ``kpl`` discards and what turns out malformed is told in events; a position always
remains, so that the checkpoint can pass what is not delivered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from shardfleet.config import FleetConfig
from shardfleet.domain.leases import HashKeyRange
from shardfleet.domain.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import EventSink, StreamRecord
from shardfleet.events import AggregatesNotExpanded
from shardfleet.kpl.deaggregate import (
    Deaggregated,
    ExpansionLimits,
    MisroutedPolicy,
    Origin,
    Verdict,
    deaggregate_records,
    records_after,
)
from shardfleet.kpl.envelope import is_framed
from shardfleet.records import Record

# Decoding shares the loop with the renewals (hazard H17): so many user records at a stretch.
_RECORDS_AT_A_STRETCH = 2_000
_ORDINARY = (Verdict.PLAIN, Verdict.EXPANDED)


@dataclass(frozen=True, slots=True)
class UserRecords:
    """
    The user records of one page.

    Attributes:
        records: in order, those behind the position asked for.
        end: position of the last user record of the page, delivered or not.

    """

    records: Sequence[Record]
    end: ExtendedSequenceNumber | None


class Deaggregator:
    """Expands the stream records of one shard."""

    def __init__(
        self,
        shard_id: str,
        hash_range: HashKeyRange | None,
        *,
        config: FleetConfig,
        sink: EventSink,
    ) -> None:
        """Without a hash range (old rows), nothing is ever discarded as misrouted."""
        self._shard_id = shard_id
        self._hash_range = None if hash_range is None else (hash_range.start, hash_range.end)
        self._limits = ExpansionLimits(config.aggregate_records_most, config.aggregate_bytes_most)
        self._policy = cast("MisroutedPolicy", config.misrouted)
        self._sink = sink

    async def expand(
        self, records: Sequence[StreamRecord], done: ExtendedSequenceNumber | None
    ) -> UserRecords:
        """Return the user records after ``done``; all of them if it is None."""
        expanded: list[Record] = []
        last: tuple[str, int] | None = None
        unusual: Counter[Verdict] = Counter()
        dropped: Counter[Verdict] = Counter()
        stretch = 0
        for record in records:
            found = self._user_records(record)
            if found.verdict not in _ORDINARY:
                unusual[found.verdict] += 1
                dropped[found.verdict] += found.dropped
            number = record.sequence_number
            if done is None:
                expanded += found.records
            else:
                expanded += records_after(found, sequence_number=number, done=done)
            last = (number, found.last_sub_sequence)
            stretch += 1 + len(found.records)
            if stretch >= _RECORDS_AT_A_STRETCH:
                stretch = 0
                await asyncio.sleep(0)
        self._tell(unusual, dropped)
        return UserRecords(expanded, None if last is None else ExtendedSequenceNumber(*last))

    def _user_records(self, record: StreamRecord) -> Deaggregated[Record]:
        data, shard_id = record.data, self._shard_id
        number, arrival_ms = record.sequence_number, record.approximate_arrival_ms
        encryption = record.encryption_type
        if not is_framed(data):  # The usual thing, without the ceremony.
            key = record.partition_key
            plain = Record(data, key, number, shard_id, arrival_ms, 0, None, encryption)
            return Deaggregated((plain,), Verdict.PLAIN, 0, 0)
        return deaggregate_records(
            data,
            partition_key=record.partition_key,
            origin=Origin(number, shard_id, arrival_ms, encryption),
            limits=self._limits,
            hash_range=self._hash_range,
            policy=self._policy,
        )

    def _tell(self, unusual: Counter[Verdict], dropped: Counter[Verdict]) -> None:
        for verdict in sorted(unusual):
            self._sink.emit(
                AggregatesNotExpanded(
                    lease_key=self._shard_id,
                    verdict=verdict.value,
                    count=unusual[verdict],
                    records_dropped=dropped[verdict],
                )
            )
