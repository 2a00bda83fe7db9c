"""
What a handler receives: records of one shard, in order.

A native handler is ``def handle(batch)`` or ``async def handle(batch)``. It returns nothing, or
``{"batchItemFailures": [{"itemIdentifier": record.sequence_number}]}``: from the lowest of these on
the records failed; raising means that the batch failed. ``batch.checkpoint(record)`` says that
everything up to and including that record is done, so that a later failure repeats only what
follows. Of an aggregate's records ``"number:sub"`` names one, the bare number the first in the
batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """
    One user record; build it by keywords.

    Not a dataclass: a page can hold a hundred thousand, and a frozen dataclass takes about ten
    times as long to make, and is looked at by every garbage collection.

    Attributes:
        data: the payload.
        partition_key: as the producer gave it.
        sequence_number: decimal string, of the (possibly aggregated) stream record.
        sub_sequence_number: index inside an aggregated stream record, else 0.
        shard_id: where it was read.
        approximate_arrival_ms: epoch milliseconds; of the enclosing stream record.
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


class StreamRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record as the stream has it; ``users`` for ``data``: :mod:`shardfleet.kpl.columns`."""

    data: bytes
    partition_key: str
    sequence_number: str
    approximate_arrival_ms: int
    encryption_type: str | None = None
    users: bytes | None = None


class Batch(Sequence[Record]):
    """
    Records of one shard in order, and the means to say how far they are done.

    Attributes:
        shard_id: the shard.
        stream_arn: the stream.
        millis_behind_latest: how far this batch is behind the tip, milliseconds.
        attempt: 1 for the first delivery of these records by this worker.
        deadline_ms: epoch milliseconds at which the handler's time-out ends.

    """

    __slots__ = (
        "_done",
        "_records",
        "attempt",
        "deadline_ms",
        "millis_behind_latest",
        "shard_id",
        "stream_arn",
    )

    def __init__(
        self,
        records: Sequence[Record],
        *,
        shard_id: str,
        stream_arn: str,
        millis_behind_latest: int,
        attempt: int,
        deadline_ms: int,
    ) -> None:
        """Hold the records; nothing is done yet."""
        self._records = tuple(records)
        self._done = 0
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
    def done_count(self) -> int:
        """Return how many leading records the handler has declared done."""
        return self._done

    def checkpoint(self, record: Record) -> None:
        """
        Declare everything up to and including ``record`` as done.

        Raises:
            ValueError: the record is not of this batch.

        """
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
        message = (
            f"checkpoint({record.sequence_number}:{record.sub_sequence_number}): "
            f"no such record in this batch of {self.shard_id}"
        )
        raise ValueError(message)
