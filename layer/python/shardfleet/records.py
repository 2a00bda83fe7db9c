"""
What a handler receives: records of one shard, in order.

A native handler is ``def handle(batch)`` or ``async def handle(batch)``. It returns nothing, or
``{"batchItemFailures": [{"itemIdentifier": record.sequence_number}]}``: from the lowest of these on
the records failed; raising means that the batch failed. ``batch.checkpoint(record)`` says that
everything up to and including that record is done, so that a later failure repeats only what
follows. Of an aggregate's records ``"number:sub"`` names one, the bare number the first in the
batch.

With tumbling windows it returns ``{"state": {...}}``, which the next batch of the window has as
``batch.state``; the last batch of a window has none, and ``batch.window.is_final``.

With ``checkpoint`` ``manual``, returning only means that the handler has the records: they stay
open, over as many calls as it likes, until it checkpoints them. It is called without records, too,
so that it can.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
from msgspec import Struct


class Record(msgspec.Struct, frozen=True, gc=False):
    """
    One user record; build it by keywords.

    A page can hold a hundred thousand, and no garbage collection has to look at one.

    Attributes:
        data: the payload.
        partition_key: as the producer gave it.
        sequence_number: decimal string, of the (possibly aggregated) stream record.
        sub_sequence_number: index inside an aggregated stream record, else 0.
        shard_id: where it was read.
        approximate_arrival_ms: epoch milliseconds; of the enclosing stream record; 0: Kinesis did
            not say.
        explicit_hash_key: decimal string, None when the producer gave none.
        encryption_type: ``NONE`` or ``KMS``, None when the service did not say.
        aggregated: whether it came out of a KPL aggregate.

    """

    data: bytes
    partition_key: str
    sequence_number: str
    shard_id: str
    approximate_arrival_ms: int
    sub_sequence_number: int = 0
    explicit_hash_key: str | None = None
    encryption_type: str | None = None
    aggregated: bool = False


class StreamRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as the stream has it."""

    data: bytes
    partition_key: str
    sequence_number: str
    approximate_arrival_ms: int
    encryption_type: str | None = None


def arrival_of(records: Iterable[Record]) -> int:
    """Return when the first of which Kinesis says so arrived, epoch milliseconds; 0: of none."""
    return next((ms for record in records if (ms := record.approximate_arrival_ms)), 0)


def place_of(record: Record) -> tuple[int, int]:
    """Return what orders a shard's records: sequence number and sub-sequence number."""
    return int(record.sequence_number), record.sub_sequence_number


class ShardLife:
    """
    What the batches of one shard have in common for as long as this worker reads it on.

    With manual checkpoints alone. The handler writes to it, in its own thread; the worker reads it
    after each call.

    Attributes:
        handed: sequence number and sub-sequence number of the last record that a batch had.
        through: of the last one that is checkpointed.
        state: the handler's own.

    """

    __slots__ = ("handed", "state", "through")

    def __init__(self) -> None:
        """Begin with nothing handed over."""
        self.handed = self.through = (-1, -1)
        self.state: dict[str, Any] = {}


class TumblingWindow(Struct, frozen=True, kw_only=True):
    """
    The tumbling window that a call is of.

    Attributes:
        start_ms: epoch milliseconds.
        end_ms: likewise; it has no record that arrived then.
        is_final: the window is over; the call is for its result, and has no records.
        is_terminated_early: that is so because its state would be too large.

    """

    start_ms: int
    end_ms: int
    is_final: bool
    is_terminated_early: bool


class Batch(Sequence[Record]):
    """
    Records of one shard in order, and the means to say how far they are done.

    Attributes:
        shard_id: the shard.
        stream_arn: the stream.
        millis_behind_latest: how far this batch is behind the tip, milliseconds; None: Kinesis did
            not say, or it is a redrive's.
        attempt: 1 for the first delivery of these records by this worker.
        deadline_ms: epoch milliseconds at which the handler's time-out ends.
        must_flush: with manual checkpoints: no more records come before what is open is
            checkpointed: a bound is reached, or the shard has ended, is stopped, or is about to go.
        state: with manual checkpoints: yours, empty when the shard comes to this worker; what was
            open elsewhere comes again then. With tumbling windows: what the call before returned.
        window: with tumbling windows: the one that the batch is of; else None.

    """

    __slots__ = (
        "_done",
        "_last",
        "_life",
        "_records",
        "attempt",
        "deadline_ms",
        "millis_behind_latest",
        "must_flush",
        "shard_id",
        "state",
        "stream_arn",
        "window",
    )

    def __init__(
        self,
        records: Sequence[Record],
        *,
        shard_id: str,
        stream_arn: str,
        millis_behind_latest: int | None,
        attempt: int,
        deadline_ms: int,
    ) -> None:
        """Hold the records; nothing is done yet."""
        self._records = tuple(records)
        self._done = 0
        self._life: ShardLife | None = None
        self._last = (-1, -1)
        self.must_flush = False
        self.state: dict[str, Any] = {}
        self.window: TumblingWindow | None = None
        self.shard_id = shard_id
        self.stream_arn = stream_arn
        self.millis_behind_latest = millis_behind_latest
        self.attempt = attempt
        self.deadline_ms = deadline_ms

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def __getitem__(self, index):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN204 - Sequence's overloads
        """Return a record or a slice of records."""
        return self._records[index]

    def __iter__(self) -> Iterator[Record]:
        """Iterate in shard order."""
        return iter(self._records)

    @property
    def has_open(self) -> bool:
        """Return whether, with manual checkpoints, records of the shard wait for theirs."""
        return self._life is not None and self._life.through < self._life.handed

    @property
    def done_count(self) -> int:
        """Return how many leading records the handler has declared done."""
        if self._life is not None:
            return bisect_right(self._records, self._life.through, key=place_of)
        return self._done

    def checkpoint(self, record: Record | None = None) -> None:
        """
        Declare everything up to and including ``record`` as done; without one, up to the batch's.

        With manual checkpoints it may be a record of an earlier batch of the shard, and the batch
        may be an earlier one; what is checkpointed already stays so.

        Raises:
            ValueError: the record is not of this batch; with manual checkpoints: it is of another
                shard, or lies behind this batch; with tumbling windows: always.

        """
        if self.window is not None:
            message = (
                "checkpoint(): not with tumbling windows, where records are done when the state "
                'that has them is returned; return {"state": ..., "batchItemFailures": [...]}'
            )
            raise ValueError(message)
        if self._life is not None:
            place = self._last if record is None else place_of(record)
            if record is not None and (record.shard_id != self.shard_id or place > self._last):
                raise self._unknown(record)
            self._life.through = max(self._life.through, place)
            return
        if record is None:
            self._done = len(self._records)
            return
        # Usually the next one that is not done: a handler that checkpoints each record is not to
        # have each compared with all.
        count = len(self._records)
        for index in chain(range(self._done, count), range(self._done)):
            candidate = self._records[index]
            if candidate is record or (
                candidate.sequence_number == record.sequence_number
                and candidate.sub_sequence_number == record.sub_sequence_number
            ):
                self._done = max(self._done, index + 1)
                return
        raise self._unknown(record)

    def _unknown(self, record: Record) -> ValueError:
        message = (
            f"checkpoint({record.sequence_number}:{record.sub_sequence_number}): "
            f"no such record in this batch of {self.shard_id}"
        )
        return ValueError(message)


def leave_open(batch: Batch, life: ShardLife, *, must_flush: bool) -> None:
    """Make a batch part of a shard's life: what its handler returns from is not done by that."""
    if batch:
        life.handed = max(life.handed, place_of(batch[-1]))
    batch._life, batch._last = life, life.handed  # noqa: SLF001 - the worker's part of a batch
    batch.state, batch.must_flush = life.state, must_flush
