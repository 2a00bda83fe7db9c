"""
Writing to a stream: one PutRecords request at a time, sent once.

A request repeated by the SDK would write its records twice without anybody knowing, so the
producer repeats what failed and counts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from shardfleet.adapters.kinesis.shards import list_shards
from shardfleet.adapters.kinesis.wire import takes_cbor
from shardfleet.adapters.sdk_errors import SdkCall, UnreadableAnswer
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.domain.stream.shards import Shard
from shardfleet.engine.ports import PutOutcome
from shardfleet.errors import InvalidRecord, OutcomeUnknown, StreamGone
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet.producer.aggregate import STREAM_RECORD_BYTES

if TYPE_CHECKING:
    from mypy_boto3_kinesis.client import KinesisClient

    from shardfleet.adapters.kinesis.wire import OpenWire


# What is refused as it is, and will be again: by the model and by what producers were told
# (facts K60, K61, K76, K77); 413 by whoever stands between (boto/boto3#1147).
_REFUSED_AS_IT_IS = (
    "InvalidArgumentException",
    "SerializationException",
    "ValidationException",
    "413",
)


class KinesisWriter:
    """
    The ``StreamWriter`` port over one stream.

    Args:
        stream_arn: the stream.
        records: client for PutRecords; sends once.
        control: client for ListShards; may repeat.
        pool: threads of both.
        wire: opens the quick way for PutRecords when first needed; None, or an answer of None:
            the client does it. So it does, too, for an endpoint that does not take CBOR.

    """

    def __init__(
        self,
        stream_arn: str,
        *,
        records: KinesisClient,
        control: KinesisClient,
        pool: ThreadPool,
        wire: OpenWire | None = None,
    ) -> None:
        """Send nothing yet."""
        self._open_wire = wire if takes_cbor() else None
        self._stream_arn = stream_arn
        self._records = records
        self._control = control
        self._pool = pool

    @in_threads_of("_pool")
    def put_records(self, entries: Sequence[OutgoingRecord]) -> Sequence[PutOutcome]:
        """
        Send one request; the answer has one outcome per entry, in order.

        Raises:
            Throttled: the whole request was refused or never sent.
            StreamGone: there is no such stream.
            OutcomeUnknown: sent, but no answer came.
            InvalidRecord: the service refuses the request as it is; the verdict of Unsettled if a
                code that no table knows says so.

        """
        call = SdkCall(
            f"PutRecords of {len(entries)} entries to {self._stream_arn}",
            writes=True,
            codes={
                "ResourceNotFoundException": StreamGone,
                **dict.fromkeys(_REFUSED_AS_IT_IS, InvalidRecord),
            },
            odd=InvalidRecord,
        )
        wire = call.run(self._open_wire) if self._open_wire is not None else None
        if wire is not None:
            outcomes = call.run(wire.put_records, entries=entries)
        else:
            outcomes = call.run(self._by_client, entries=entries)
        if len(outcomes) != len(entries):
            raise OutcomeUnknown(f"{call.what}: {len(outcomes)} outcomes were answered")
        return outcomes

    def _by_client(self, entries: Sequence[OutgoingRecord]) -> list[PutOutcome]:
        records: Any = [_entry(entry) for entry in entries]
        answer: Mapping[str, Any] = self._records.put_records(
            StreamARN=self._stream_arn, Records=records
        )
        try:
            return msgspec.convert(answer.get("Records"), list[PutOutcome])
        except ValueError as error:
            kind = type(error).__name__
            raise UnreadableAnswer(f"PutRecords: the answer cannot be read: {kind}") from None

    @in_threads_of("_pool")
    def list_shards(self) -> Sequence[Shard]:
        """
        List all shards.

        Raises:
            StreamGone: there is no such stream.
            Throttled: try again later.

        """
        return list_shards(self._control, self._stream_arn)

    @in_threads_of("_pool")
    def record_bytes_most(self) -> int:
        """
        Return what the stream takes of one record's data and key, in bytes.

        Raises:
            StreamGone: there is no such stream.
            Throttled: try again later.

        """
        call = SdkCall(
            f"DescribeStreamSummary of {self._stream_arn}",
            codes={"ResourceNotFoundException": StreamGone},
        )
        answer = call.run(self._control.describe_stream_summary, StreamARN=self._stream_arn)
        most_kib = answer["StreamDescriptionSummary"].get("MaxRecordSizeInKiB")
        return STREAM_RECORD_BYTES if most_kib is None else 1024 * most_kib


def _entry(entry: OutgoingRecord) -> dict[str, Any]:
    found: dict[str, Any] = {"Data": entry.data, "PartitionKey": entry.partition_key}
    if entry.explicit_hash_key is not None:
        found["ExplicitHashKey"] = entry.explicit_hash_key
    return found
