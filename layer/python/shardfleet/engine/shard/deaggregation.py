"""
From a page of stream records to user records: deaggregated, behind the checkpoint, filtered.

Some at a time, when the handler is about to get them: as objects a page of small user records takes
three times its size, and a worker holds a page of every shard. What the policy discards and what
turns out malformed is told in events; a position always remains, so that the checkpoint can pass
what is not delivered.

What a stretch costs is bounded by bytes and records, and a large aggregate, which may have been
made to cost as much as it can, is taken apart in steps: between them the leases are renewed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import cast

from shardfleet.config import FleetConfig
from shardfleet.domain.delivery.filters import RecordFilter
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.stream.hash_ranges import HashKeyRange
from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.ports import EventSink
from shardfleet.engine.retry import Halt
from shardfleet.events.delivery import AggregatesNotExpanded, RecordsFiltered
from shardfleet.kpl.content import Steps, at_once
from shardfleet.kpl.deaggregate import (
    Deaggregated,
    ExpansionLimits,
    MisroutedPolicy,
    Origin,
    Verdict,
    records_after,
    records_in_steps,
)
from shardfleet.kpl.envelope import MAGIC, is_framed
from shardfleet.records import Record, StreamRecord

# Decoding shares the loop with the renewals (hazard H17): so many user records at a stretch.
_RECORDS_AT_A_STRETCH = 2_000
# ... and so many bytes of aggregates, whatever they come to; a larger one in steps.
_BYTES_AT_A_STRETCH = 256 * 1024
_ORDINARY = (Verdict.PLAIN, Verdict.EXPANDED)


class UserRecords:
    """
    The user records of one page behind a position, made as they are asked for.

    Args:
        records: the page; its data is let go of record by record.
        done: the last user record that is done; None: none of the page is.
        deaggregator: of the shard.

    """

    __slots__ = ("_deaggregator", "_done", "_left", "end", "records")

    def __init__(
        self,
        records: Sequence[StreamRecord],
        done: ExtendedSequenceNumber | None,
        deaggregator: Deaggregator,
    ) -> None:
        """Make none yet."""
        self._left = list(reversed(records))
        self._done = done
        self._deaggregator = deaggregator
        self.records: list[Record] = []
        """Those that are made and not dropped."""
        self.end: ExtendedSequenceNumber | None = None
        """Position of the last user record that was made or discarded: in the end, of the page."""

    async def waiting(self, count: int) -> Sequence[Record]:
        """
        Return the next records: so many, unless the page has fewer.

        Raises:
            Halted: asked to stop before there were so many.

        """
        while self._left and len(self.records) < count:
            known = len(self.records)
            until = min(count, known + _RECORDS_AT_A_STRETCH)
            if is_large(self._left[-1]):
                taken = await self._deaggregator.take_apart_large(
                    self._left.pop(), self.records, done=self._done
                )
            else:
                taken = self._deaggregator.take_apart(
                    self._left, self.records, until=until, done=self._done
                )
            await self._deaggregator.leave_out(self.records, since=known)
            self.end = ExtendedSequenceNumber(*taken)
            if self._left and len(self.records) < count:
                await self._deaggregator.pause()
        return self.records

    def drop(self, count: int) -> None:
        """Let go of the first of the waiting records."""
        del self.records[:count]


def is_large(record: StreamRecord) -> bool:
    """Return whether taking a record apart is more than a stretch."""
    return len(record.data) > _BYTES_AT_A_STRETCH and is_framed(record.data)


class Deaggregator:
    """Takes the stream records of one shard apart."""

    def __init__(
        self,
        shard: ShardRef,
        hash_range: HashKeyRange | None,
        *,
        config: FleetConfig,
        sink: EventSink,
        halt: Halt | None = None,
    ) -> None:
        """
        Begin with nothing.

        Args:
            shard: the shard.
            hash_range: of the shard; without one (old rows), nothing is discarded as misrouted.
            config: limits, filters and what is done with misrouted records.
            sink: takes events.
            halt: ends what goes on, at its next step; None: nobody asks for that.

        """
        self._shard_id, self._lease_key = shard.shard_id, shard.lease_key
        self._hash_range = None if hash_range is None else (hash_range.start, hash_range.end)
        self._limits = ExpansionLimits(config.max_aggregate_records, config.max_aggregate_bytes)
        self._policy = cast("MisroutedPolicy", config.misrouted)
        self._filter = RecordFilter(config.filters)
        self._passes_all = self._filter.is_open
        self._sink = sink
        self._halt = halt or Halt()

    async def pause(self) -> None:
        """
        Let others have their turn.

        Raises:
            Halted: asked to stop; whoever takes the shard next takes the rest apart.

        """
        await asyncio.sleep(0)
        self._halt.check()

    async def leave_out(self, made: list[Record], *, since: int) -> None:
        """Take what the handler is not to get out of the records from an index on."""
        if self._passes_all:
            return
        fresh, stretch = made[since:], 0
        del made[since:]
        for record in fresh:
            if self._filter.passes(record):
                made.append(record)
            stretch += len(record.data)
            if stretch > _BYTES_AT_A_STRETCH:
                stretch = 0
                await self.pause()
        if count := since + len(fresh) - len(made):
            self._sink.emit(RecordsFiltered(lease_key=self._lease_key, count=count))

    async def expand(
        self, records: Sequence[StreamRecord], done: ExtendedSequenceNumber | None
    ) -> UserRecords:
        """Return all user records behind ``done`` at once; all of the page if it is None."""
        user_records = UserRecords(records, done, self)
        await user_records.waiting(sys.maxsize)
        return user_records

    def take_apart(
        self,
        left: list[StreamRecord],
        made: list[Record],
        *,
        until: int,
        done: ExtendedSequenceNumber | None,
    ) -> tuple[str, int]:
        """
        Move records from a pile of stream records to user records.

        Args:
            left: the first one last; at least one.
            made: what is added to.
            until: how many it is to have, if there are so many and it is no long stretch; it ends
                before a large aggregate, too, which is not to be the first one.
            done: only what lies behind is added; None: all.

        Returns:
            Sequence number and sub-sequence number of the last user record taken or discarded.

        """
        unusual: Counter[Verdict] = Counter()
        dropped: Counter[Verdict] = Counter()
        number, last_sub, stretch = "", 0, 0
        while left and len(made) < until and stretch < _RECORDS_AT_A_STRETCH:
            if is_large(left[-1]):
                break
            if done is None and (plain := self._take_plain(left, made, room=until - len(made))):
                number, last_sub = made[-1].sequence_number, 0
                stretch += plain
                continue
            record = left.pop()
            data, number = record.data, record.sequence_number
            found = at_once(self._user_records(record))
            if found.verdict not in _ORDINARY:
                unusual[found.verdict] += 1
                dropped[found.verdict] += found.dropped
            made += _behind(found, number, done)
            last_sub = found.last_sub_sequence
            # As much as the records that a sound aggregate of its size would have had.
            cost = max(len(found.records), len(data) * _RECORDS_AT_A_STRETCH // _BYTES_AT_A_STRETCH)
            stretch += 1 + cost
        self._tell(unusual, dropped)
        return number, last_sub

    def _take_plain(self, left: list[StreamRecord], made: list[Record], *, room: int) -> int:
        """Move what lies next and is no aggregate, without ceremony; return how many there were."""
        shard_id, append, known = self._shard_id, made.append, len(made)
        for record in islice(reversed(left), min(room, _RECORDS_AT_A_STRETCH)):
            data = record.data
            if data.startswith(MAGIC):
                break
            append(
                Record(
                    data,
                    record.partition_key,
                    record.sequence_number,
                    shard_id,
                    record.approximate_arrival_ms,
                    0,
                    None,
                    record.encryption_type,
                )
            )
        if count := len(made) - known:
            del left[-count:]
        return count

    async def take_apart_large(
        self, record: StreamRecord, made: list[Record], *, done: ExtendedSequenceNumber | None
    ) -> tuple[str, int]:
        """
        Add the user records of one stream record, in steps between which others have their turn.

        Args:
            record: the stream record.
            made: what is added to.
            done: only what lies behind is added; None: all.

        Returns:
            The same as :meth:`take_apart`.

        """
        found = await self._paced(self._user_records(record))
        if found.verdict not in _ORDINARY:
            self._tell(Counter({found.verdict: 1}), Counter({found.verdict: found.dropped}))
        made += _behind(found, record.sequence_number, done)
        return record.sequence_number, found.last_sub_sequence

    async def _paced(self, steps: Steps[Deaggregated[Record]]) -> Deaggregated[Record]:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: Deaggregated[Record] = end.value
                return found
            await self.pause()

    def _user_records(self, record: StreamRecord) -> Steps[Deaggregated[Record]]:
        number, arrival_ms = record.sequence_number, record.approximate_arrival_ms
        origin = Origin(number, self._shard_id, arrival_ms, record.encryption_type)
        return records_in_steps(
            record.data,
            partition_key=record.partition_key,
            origin=origin,
            limits=self._limits,
            hash_range=self._hash_range,
            policy=self._policy,
        )

    def _tell(self, unusual: Counter[Verdict], dropped: Counter[Verdict]) -> None:
        for verdict in sorted(unusual):
            self._sink.emit(
                AggregatesNotExpanded(
                    lease_key=self._lease_key,
                    verdict=verdict.value,
                    count=unusual[verdict],
                    records_dropped=dropped[verdict],
                )
            )


def _behind(
    found: Deaggregated[Record], number: str, done: ExtendedSequenceNumber | None
) -> Sequence[Record]:
    if done is None:
        return found.records
    return records_after(found, sequence_number=number, done=done)
