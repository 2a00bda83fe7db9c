"""
Lambda's Kinesis event, field for field, and what a handler's reply means.

The shape is that of the event source mapping (AWS Lambda developer guide, "Using Lambda with
Kinesis"); a handler written for it runs unmodified. Two fields are ours and appear only where they
say something: ``subSequenceNumber`` on records out of a KPL aggregate, and ``explicitHashKey``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from shardfleet.adapters.payload_text import payload_text
from shardfleet.domain.delivery.progress import position_of
from shardfleet.domain.delivery.replies import FAILURES, failures_of, lowest_failed
from shardfleet.engine.ports import HandlerResult
from shardfleet.records import Batch, Record

_SCHEMA_VERSION = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """
    What every record of an event says about where it comes from.

    Attributes:
        stream_arn: ``eventSourceARN``.
        region: ``awsRegion``.
        invoke_identity_arn: ``invokeIdentityArn``: who calls the handler. An event source
            mapping names the function's role; a worker names its function.

    """

    stream_arn: str
    region: str
    invoke_identity_arn: str

    @classmethod
    def of(cls, stream_arn: str, *, function_arn: str) -> Self:
        """Take the region from the stream's ARN."""
        parts = stream_arn.split(":")
        region = parts[3] if len(parts) > 3 else ""  # noqa: PLR2004 - arn:partition:service:region
        return cls(stream_arn=stream_arn, region=region, invoke_identity_arn=function_arn)


def kinesis_event(records: Iterable[Record], source: EventSource) -> dict[str, Any]:
    """Return the event for a batch's records: one shard, in order, data in base64."""
    return {"Records": [_event_record(record, source) for record in records]}


def _event_record(record: Record, source: EventSource) -> dict[str, Any]:
    kinesis: dict[str, Any] = {
        "kinesisSchemaVersion": _SCHEMA_VERSION,
        "partitionKey": record.partition_key,
        "sequenceNumber": record.sequence_number,
        "data": payload_text(record.data),
        "approximateArrivalTimestamp": record.approximate_arrival_ms / 1000,
    }
    if record.aggregated:
        kinesis["subSequenceNumber"] = record.sub_sequence_number
    if record.explicit_hash_key is not None:
        kinesis["explicitHashKey"] = record.explicit_hash_key
    return {
        "kinesis": kinesis,
        "eventSource": "aws:kinesis",
        "eventVersion": _SCHEMA_VERSION,
        "eventID": f"{record.shard_id}:{record.sequence_number}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": source.invoke_identity_arn,
        "awsRegion": source.region,
        "eventSourceARN": source.stream_arn,
    }


def result_of_reply(reply: object, batch: Batch) -> HandlerResult:
    """
    Return how far a batch got, from the reply of a handler of either contract.

    Partial batch responses are always honoured, as with ``ReportBatchItemFailures``. A record that
    a reply names has failed, even if the handler had declared it done before.

    Raises:
        InvalidReply: the reply means nothing; as when the handler raises, what it has declared
            done is done.

    """
    failures = failures_of(reply)
    if not failures:
        return HandlerResult(done_count=len(batch))
    done_count = lowest_failed(failures, batch)
    if done_count is None:
        error = (
            f"{FAILURES}: an itemIdentifier names no record of this batch, so all of it has "
            "failed; a record's sequence number is allowed, or number:sub for one of an aggregate"
        )
        return HandlerResult(done_count=0, error=error)
    error = f"{FAILURES}: not handled from record {position_of(batch[done_count])} on"
    return HandlerResult(done_count=done_count, error=error)
