"""
Records given up for good, kept in full in SQS or S3, or in S3 and told to SNS.

The message is the event source mapping's invocation record (``requestContext``,
``responseContext``, ``KinesisBatchInfo``), so that existing re-drive tools read it, plus the whole
event as text in ``payload``, as Lambda writes it to S3. What is particular to shardfleet is in
``shardfleet``. A key in S3 is derived from fleet, stream, first and last position, so a repeated
write replaces the same records, and no others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from shardfleet.adapters.sdk_errors import ErrorFactory, RefusalIsAnswer, SdkCall
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.domain.delivery.given_up import folder_of, key_of
from shardfleet.engine.ports import FailedRecords
from shardfleet.errors import ConfigurationError
from shardfleet.records import Record

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sqs.client import SQSClient

# What SNS takes at most: 256 KiB, unless the topic's MaximumMessageSize says more (Publish).
SNS_BYTES_MOST = 1_048_576
# What SQS takes, and a queue by default (SendMessage; CreateQueue: MaximumMessageSize).
SQS_BYTES_MOST = 1_048_576
# "Message must be shorter than 262144 bytes": a queue may be set to take less.
_REFUSED = ("InvalidParameterValue", "InvalidParameterValueException")
# "Invalid parameter: Message too long"; a topic may take less than SNS does.
_REFUSED_BY_TOPIC = ("InvalidParameter", "InvalidParameterException")
_RECORD_VERSION = "1.0"  # of Lambda's invocation record


class Invocation(Struct, frozen=True, kw_only=True):
    """
    The worker's invocation, as the record names it.

    Attributes:
        fleet: the fleet's name.
        function_arn: of the worker function.
        request_id: of the invocation.
        as_event: turns records into the event that a Lambda handler would have received.

    """

    fleet: str
    function_arn: str
    request_id: str
    as_event: Callable[[Sequence[Record]], Mapping[str, Any]]


class _DeadLetters(Struct, kw_only=True):
    """
    What every destination has.

    Attributes:
        pool: threads of the calls.
        invocation: named in each record.

    """

    pool: ThreadPool
    invocation: Invocation


class S3DeadLetters(_DeadLetters):
    """
    The ``DeadLetters`` port over a bucket.

    Attributes:
        bucket: its name.
        client: may repeat; a write replaces itself.

    """

    bucket: str
    client: S3Client

    @in_threads_of("pool")
    def record(self, failed: FailedRecords) -> str:
        """
        Store durably and return ``s3://bucket/key``.

        Raises:
            Throttled: refused or never sent.
            OutcomeUnknown: sent, but no answer came; a repeat replaces the same object.
            ConfigurationError: no such bucket, or no right to write to it.

        """
        key = object_key(failed, self.invocation)
        call = SdkCall(
            f"PutObject of given-up records to {self.bucket}",
            writes=True,
            codes={"NoSuchBucket": ConfigurationError},
        )
        call.run(
            self.client.put_object,
            Bucket=self.bucket,
            Key=key,
            Body=json.dumps(invocation_record(failed, self.invocation)).encode(),
            ContentType="application/json",
        )
        return f"s3://{self.bucket}/{key}"


class SqsDeadLetters(_DeadLetters):
    """
    The ``DeadLetters`` port over a queue, with S3 for what a message cannot hold.

    Attributes:
        queue_url: the queue.
        client: may repeat; a message may then be there twice.
        overflow: where records too large for a message go; the message then names the object.

    """

    queue_url: str
    client: SQSClient
    overflow: S3DeadLetters | None = None

    async def record(self, failed: FailedRecords) -> str:
        """
        Store durably and return the queue's URL with the message id.

        Raises:
            Throttled: refused or never sent.
            OutcomeUnknown: sent, but no answer came; a repeat may make a second message.
            ConfigurationError: no such queue, no right to send, or the records are too large
                for a message and no bucket is configured.

        """
        body = invocation_record(failed, self.invocation)
        text = json.dumps(body)
        refusal = f"an SQS message has {SQS_BYTES_MOST} bytes at most"
        if len(text) <= SQS_BYTES_MOST:
            try:
                return await self._send(text, refused=RefusalIsAnswer)
            except RefusalIsAnswer as refused:
                refusal = str(refused)
        if self.overflow is None:
            raise ConfigurationError(
                f"{len(failed.records)} given-up record(s) of {_shard_id(failed)} make {len(text)} "
                f"bytes: {refusal}; set failed_bucket"
            )
        del body["payload"]
        body["shardfleet"]["payloadLocation"] = await self.overflow.record(failed)
        return await self._send(json.dumps(body), refused=ConfigurationError)

    @in_threads_of("pool")
    def _send(self, text: str, *, refused: ErrorFactory) -> str:
        missing = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist")
        call = SdkCall(
            f"SendMessage of given-up records to {self.queue_url}",
            writes=True,
            codes={
                **dict.fromkeys(missing, ConfigurationError),
                **dict.fromkeys(_REFUSED, refused),
            },
        )
        answer = call.run(self.client.send_message, QueueUrl=self.queue_url, MessageBody=text)
        return f"{self.queue_url}#{answer['MessageId']}"


class SnsDeadLetters(_DeadLetters):
    """
    The ``DeadLetters`` port over a bucket, of which a topic is told.

    A topic keeps nothing, so a record is in the bucket before it is told, and the message names the
    object; the event is in the message, too, where the topic takes it.

    Attributes:
        topic_arn: the topic; none of the kind FIFO.
        client: may repeat; a message may then come twice.
        kept: where the records are.

    """

    topic_arn: str
    client: Any
    kept: S3DeadLetters

    async def record(self, failed: FailedRecords) -> str:
        """
        Store durably, tell it, and return ``s3://bucket/key``.

        Raises:
            Throttled: refused or never sent.
            OutcomeUnknown: sent, but no answer came; a repeat may make a second message.
            ConfigurationError: no such bucket or topic, or no right to write to it.

        """
        place = await self.kept.record(failed)
        body = invocation_record(failed, self.invocation)
        body["shardfleet"]["payloadLocation"] = place
        text = json.dumps(body)
        if len(text) <= SNS_BYTES_MOST:
            with suppress(RefusalIsAnswer):
                await self._publish(text, refused=RefusalIsAnswer)
                return place
        del body["payload"]
        await self._publish(json.dumps(body), refused=ConfigurationError)
        return place

    @in_threads_of("pool")
    def _publish(self, text: str, *, refused: ErrorFactory) -> None:
        missing = ("NotFound", "NotFoundException")
        call = SdkCall(
            f"Publish of given-up records to {self.topic_arn}",
            writes=True,
            codes={
                **dict.fromkeys(missing, ConfigurationError),
                **dict.fromkeys(_REFUSED_BY_TOPIC, refused),
            },
        )
        call.run(self.client.publish, TopicArn=self.topic_arn, Message=text)


def invocation_record(failed: FailedRecords, invocation: Invocation) -> dict[str, Any]:
    """Return the message: Lambda's invocation record, payload and all."""
    first, last = failed.records[0], failed.records[-1]
    return {
        "requestContext": {
            "requestId": invocation.request_id,
            "functionArn": invocation.function_arn,
            "condition": "RecordAgeExceeded" if failed.is_too_old else "RetryAttemptsExhausted",
            "approximateInvokeCount": failed.attempts,
        },
        "responseContext": {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        },
        "version": _RECORD_VERSION,
        "timestamp": _iso(failed.at_ms),
        "KinesisBatchInfo": {
            "shardId": first.shard_id,
            "startSequenceNumber": first.sequence_number,
            "endSequenceNumber": last.sequence_number,
            **_arrival("approximateArrivalOfFirstRecord", first),
            **_arrival("approximateArrivalOfLastRecord", last),
            "batchSize": len(failed.records),
            "streamArn": failed.stream_arn,
        },
        "payload": json.dumps(invocation.as_event(failed.records)),
        "shardfleet": {
            "workerId": failed.worker_id,
            "error": failed.error,
            "startSubSequenceNumber": first.sub_sequence_number,
            "endSubSequenceNumber": last.sub_sequence_number,
        },
    }


def object_key(failed: FailedRecords, invocation: Invocation) -> str:
    """Return where a fleet keeps records, with its worker's account and region."""
    first, last = failed.records[0], failed.records[-1]
    _arn, _aws, _lambda, region, account, *_ = invocation.function_arn.split(":")
    return key_of(
        folder_of(invocation.fleet, account=account, region=region),
        stream=failed.stream_arn.rpartition("/")[2],
        shard_id=first.shard_id,
        first_ms=first.approximate_arrival_ms,
        span=(_position(first), _position(last)),
    )


def _position(record: Record) -> tuple[int, int]:
    return int(record.sequence_number), record.sub_sequence_number


def _shard_id(failed: FailedRecords) -> str:
    return failed.records[0].shard_id


def _arrival(name: str, record: Record) -> dict[str, str]:
    """Return when a record arrived; nothing where Kinesis did not say."""
    arrived_ms = record.approximate_arrival_ms
    return {name: _iso(arrived_ms)} if arrived_ms else {}


def _iso(instant_ms: int) -> str:
    instant = datetime.fromtimestamp(instant_ms / 1000, tz=UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
