"""
Where what was given up is found again, and deleted once it is handled: a bucket or a queue.

A message is hidden from others while it is worked on, and shown to
them again if it is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from shardfleet.adapters.sdk_errors import SdkCall, pages
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.domain.delivery.given_up import GivenUp, given_up_of
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.values import dataclass

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sqs.client import SQSClient

OBJECTS_MOST = 10_000
# Their texts are held, up to so many bytes.
MESSAGES_MOST = 1_000
MESSAGE_BYTES_MOST = 256 * 1024 * 1024
_MESSAGES_AT_ONCE = 10  # ReceiveMessage
# Long enough for a person to read what is shown and to say yes.
HIDDEN_S = 900
_EMPTY_ANSWERS = 2  # A long poll asks all servers; one answer may still be early.
_LISTING = ("NextContinuationToken", "ContinuationToken")
_LOCATION = re.compile(r"s3://([^/]+)/(.+)")
_GONE = ("NoSuchBucket", "NoSuchKey", "404")
_NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress")


class KeptInBucket:
    """
    Objects below a prefix.

    Args:
        place: ``s3://bucket/prefix``.
        client: may repeat.
        pool: threads of the calls.

    Raises:
        ConfigurationError: the place is none.

    """

    def __init__(self, place: str, *, client: S3Client, pool: ThreadPool) -> None:
        """Read nothing yet."""
        self._pool = pool
        found = re.fullmatch(r"s3://([^/]+)(?:/(.*))?", place)
        if found is None:
            raise ConfigurationError(f"--from {place}: s3://BUCKET/PREFIX or a queue's URL allowed")
        self._bucket, self._prefix = found[1], found[2] or ""
        self._client = client

    @in_threads_of("_pool")
    def look(self) -> Sequence[GivenUp]:
        """
        Read every object below the prefix, its payload aside.

        Raises:
            ConfigurationError: no such bucket, or an object is none of what was given up.

        """
        call = SdkCall(
            f"ListObjectsV2 of {self._bucket}", codes=dict.fromkeys(_GONE, ConfigurationError)
        )
        listing = pages(
            lambda **more: call.run(
                self._client.list_objects_v2, Bucket=self._bucket, Prefix=self._prefix, **more
            ),
            _LISTING,
        )
        keys = (each["Key"] for page in listing for each in page.get("Contents", ()))
        return [
            replace(_document(self._client, self._bucket, key), payload="", location="")
            for key in islice(keys, OBJECTS_MOST)
        ]

    @in_threads_of("_pool")
    def take(self, document: GivenUp, *, within_s: int) -> GivenUp:
        """
        Read an object anew.

        Raises:
            ConfigurationError: it is gone, or another.

        """
        del within_s  # An object is not hidden from anybody.
        bucket, key = _located(document.where)
        return _document(self._client, bucket, key)

    @in_threads_of("_pool")
    def delete(self, document: GivenUp) -> None:
        """Delete an object."""
        _delete(self._client, document.where)

    @in_threads_of("_pool")
    def leave(self, documents: Iterable[GivenUp]) -> None:
        """Nothing is to be done: an object is there for all."""


@dataclass(frozen=True, slots=True)
class _Message:
    receipt: str
    text: str


class KeptInQueue:
    """
    Messages of a queue.

    Args:
        queue_url: the queue.
        client: of SQS; may repeat.
        objects: of S3, for what did not fit into a message.
        pool: threads of the calls.

    """

    def __init__(
        self, queue_url: str, *, client: SQSClient, objects: S3Client, pool: ThreadPool
    ) -> None:
        """Receive nothing yet."""
        self._pool = pool
        self._url = queue_url
        self._client = client
        self._objects = objects
        self._messages: dict[str, _Message] = {}

    @in_threads_of("_pool")
    def look(self) -> Sequence[GivenUp]:
        """
        Receive every message, and hide it from others.

        Raises:
            ConfigurationError: no such queue, or a message is none of what was given up; all are
                left then.

        """
        found: list[GivenUp] = []
        empty = held = 0
        try:
            while (
                empty < _EMPTY_ANSWERS and len(found) < MESSAGES_MOST and held < MESSAGE_BYTES_MOST
            ):
                answer = self._call("ReceiveMessage").run(
                    self._client.receive_message,
                    QueueUrl=self._url,
                    MaxNumberOfMessages=_MESSAGES_AT_ONCE,
                    VisibilityTimeout=HIDDEN_S,
                    WaitTimeSeconds=1,
                )
                messages = answer.get("Messages", ())
                empty = 0 if messages else empty + 1
                for message in messages:
                    where = f"{self._url}#{message['MessageId']}"
                    text = message["Body"]
                    is_known = where in self._messages  # A message may come twice.
                    self._messages[where] = _Message(message["ReceiptHandle"], text)
                    if is_known:
                        continue
                    found.append(replace(given_up_of(text, where=where), payload=""))
                    held += len(text)
        except ShardfleetError:
            self._show(self._messages)
            raise
        return found

    @in_threads_of("_pool")
    def take(self, document: GivenUp, *, within_s: int) -> GivenUp:
        """
        Hide a message for so long from now on, and return it with its payload.

        Raises:
            ShardfleetError: it is somebody else's by now.
            ConfigurationError: the object that has its records is gone.

        """
        message = self._messages[document.where]
        self._hide(message, within_s)
        found = given_up_of(message.text, where=document.where)
        if found.payload:
            return found
        kept = _document(self._objects, *_located(found.location))
        return replace(kept, where=document.where, location=found.location)

    @in_threads_of("_pool")
    def delete(self, document: GivenUp) -> None:
        """Delete a message, then the object that it names: what is left over comes twice."""
        message = self._messages.pop(document.where)
        self._call("DeleteMessage").run(
            self._client.delete_message, QueueUrl=self._url, ReceiptHandle=message.receipt
        )
        if document.location:
            _delete(self._objects, document.location)

    @in_threads_of("_pool")
    def leave(self, documents: Iterable[GivenUp]) -> None:
        """Show messages to others again."""
        self._show([document.where for document in documents])

    def _show(self, places: Iterable[str]) -> None:
        for where in places:
            with suppress(ShardfleetError):  # Then it is shown when its time is over.
                self._hide(self._messages[where], 0)

    def _hide(self, message: _Message, seconds: int) -> None:
        self._call("ChangeMessageVisibility").run(
            self._client.change_message_visibility,
            QueueUrl=self._url,
            ReceiptHandle=message.receipt,
            VisibilityTimeout=seconds,
        )

    def _call(self, operation: str) -> SdkCall:
        codes = dict.fromkeys(_NO_QUEUE, ConfigurationError)
        return SdkCall(f"{operation} of {self._url}", codes=codes)


def _located(location: str) -> tuple[str, str]:
    found = _LOCATION.fullmatch(location)
    if found is None:
        raise ConfigurationError(f"payloadLocation {location}: s3://BUCKET/KEY expected")
    return found[1], found[2]


def _document(client: S3Client, bucket: str, key: str) -> GivenUp:
    where = f"s3://{bucket}/{key}"
    call = SdkCall(f"GetObject of {where}", codes=dict.fromkeys(_GONE, ConfigurationError))
    answer = call.run(client.get_object, Bucket=bucket, Key=key)
    return given_up_of(call.run(answer["Body"].read), where=where)


def _delete(client: S3Client, location: str) -> None:
    bucket, key = _located(location)
    call = SdkCall(f"DeleteObject of {location}", writes=True)
    call.run(client.delete_object, Bucket=bucket, Key=key)
