"""
Where what was given up is found again, and deleted once it is handled: a bucket or a queue.

A message is hidden from others while it is worked on, and shown to
them again if it is left. An object is deleted as it was read, by its ETag, and one that a message
names only where the fleet itself keeps those records.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from shardfleet.adapters.sdk_errors import ErrorFactory, SdkCall, pages
from shardfleet.adapters.thread_pool import ThreadPool, in_threads_of
from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet.foreign import read_bytes
from shardfleet_ops.operate.given_up import (
    FailedBucket,
    GivenUp,
    RefusedDocument,
    given_up_of,
    is_of_another_fleet,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from mypy_boto3_sqs.client import SQSClient

OBJECTS_MOST = 10_000
# Their texts are held, up to so many bytes.
MESSAGES_MOST = 1_000
MESSAGE_BYTES_MOST = 256 * 1024 * 1024
# A record of 10 MiB in base64, in an event, which is a text in JSON.
_OBJECT_BYTES_MOST = 64 * 1024 * 1024
_MESSAGES_AT_ONCE = 10  # ReceiveMessage
# Long enough for a person to read what is shown and to say yes.
HIDDEN_S = 900
_EMPTY_ANSWERS = 2  # A long poll asks all servers; one answer may still be early.
_LISTING = ("NextContinuationToken", "ContinuationToken")
_CHANGED = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_NO_QUEUE = ("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "InvalidAddress")


class _Gone(ConfigurationError):
    """An object is not there (any more)."""


class _TooLarge(ConfigurationError):
    """An object is larger than anything that a fleet keeps."""


class KeptInBucket:
    """
    Objects below a prefix.

    Args:
        place: ``s3://bucket/prefix``.
        client: may repeat.
        own: the fleet's.
        pool: threads of the calls.

    Raises:
        ConfigurationError: the place is none.

    """

    def __init__(
        self, place: str, *, client: S3Client, own: FailedBucket, pool: ThreadPool
    ) -> None:
        """Read nothing yet."""
        self._pool = pool
        self._own = own
        found = re.fullmatch(r"s3://([^/]+)(?:/(.*))?", place)
        if found is None:
            raise ConfigurationError(f"--from {place}: s3://BUCKET/PREFIX or a queue's URL allowed")
        self._bucket, self._prefix = found[1], found[2] or ""
        self._client = client

    @in_threads_of("_pool")
    def look(self) -> Sequence[GivenUp | RefusedDocument]:
        """
        Read every object below the prefix, its payload aside.

        Raises:
            ConfigurationError: no such bucket.

        """
        missing = {"NoSuchBucket": ConfigurationError, "404": ConfigurationError}
        call = SdkCall(f"ListObjectsV2 of {self._bucket}", codes=missing)
        listing = pages(
            lambda **more: call.run(
                self._client.list_objects_v2, Bucket=self._bucket, Prefix=self._prefix, **more
            ),
            _LISTING,
        )
        keys = (call.whole(each)["Key"] for page in listing for each in page.get("Contents", ()))
        return [self._seen(key) for key in islice(keys, OBJECTS_MOST)]

    def _seen(self, key: str) -> GivenUp | RefusedDocument:
        where = f"s3://{self._bucket}/{key}"
        if is_of_another_fleet(key, folder=self._own.folder, prefix=self._prefix):
            reason = f"{where}: it is another fleet's; name that fleet's folder to take it"
            return RefusedDocument(where=where, reason=reason)
        try:
            text, etag = _read(self._client, where)
        except _TooLarge as error:
            return RefusedDocument(where=where, reason=str(error))
        found = _document(text, where=where)
        if isinstance(found, RefusedDocument):
            return found
        return replace(found, payload="", location="", etag=etag)

    @in_threads_of("_pool")
    def take(self, document: GivenUp, *, within_s: int) -> GivenUp:
        """
        Read an object anew.

        Raises:
            ConfigurationError: it is gone, or another than was looked at.

        """
        del within_s  # An object is not hidden from anybody.
        text, etag = _read(self._client, document.where, etag=document.etag)
        return replace(given_up_of(text, where=document.where), location="", etag=etag)

    @in_threads_of("_pool")
    def delete(self, document: GivenUp) -> None:
        """
        Delete an object as it was read.

        Raises:
            ConfigurationError: it is gone, or another by now, which stays.

        """
        _delete(self._client, document.where, etag=document.etag)

    @in_threads_of("_pool")
    def leave(self, documents: Iterable[GivenUp | RefusedDocument]) -> None:
        """Nothing is to be done: an object is there for all."""


class _Message(Struct, frozen=True):
    receipt: str
    text: str


class KeptInQueue:
    """
    Messages of a queue.

    Args:
        queue_url: the queue.
        client: of SQS; may repeat.
        objects: of S3, for what did not fit into a message.
        own: where the fleet keeps that.
        pool: threads of the calls.

    """

    def __init__(
        self,
        queue_url: str,
        *,
        client: SQSClient,
        objects: S3Client,
        own: FailedBucket,
        pool: ThreadPool,
    ) -> None:
        """Receive nothing yet."""
        self._pool = pool
        self._url = queue_url
        self._client = client
        self._objects = objects
        self._own = own
        self._messages: dict[str, _Message] = {}
        # A message that was sent twice names its object twice.
        self._naming: Counter[str] = Counter()

    @in_threads_of("_pool")
    def look(self) -> Sequence[GivenUp | RefusedDocument]:
        """
        Receive every message, and hide it from others.

        Raises:
            ConfigurationError: no such queue.

        """
        found: list[GivenUp | RefusedDocument] = []
        empty = held = 0
        call = self._call("ReceiveMessage")
        try:
            while (
                empty < _EMPTY_ANSWERS and len(found) < MESSAGES_MOST and held < MESSAGE_BYTES_MOST
            ):
                answer = call.run(
                    self._client.receive_message,
                    QueueUrl=self._url,
                    MaxNumberOfMessages=_MESSAGES_AT_ONCE,
                    VisibilityTimeout=HIDDEN_S,
                    WaitTimeSeconds=1,
                )
                messages = answer.get("Messages", ())
                empty = 0 if messages else empty + 1
                for message in map(call.whole, messages):
                    where = f"{self._url}#{message['MessageId']}"
                    text = message["Body"]
                    is_known = where in self._messages  # A message may come twice.
                    self._messages[where] = _Message(message["ReceiptHandle"], text)
                    if is_known:
                        continue
                    found.append(self._seen(text, where))
                    held += len(text)
        except ShardfleetError:
            self._show(self._messages)
            raise
        return found

    def _seen(self, text: str, where: str) -> GivenUp | RefusedDocument:
        found = _document(text, where=where)
        if isinstance(found, RefusedDocument):
            return found
        self._naming[found.location] += 1
        return replace(found, payload="")

    @in_threads_of("_pool")
    def take(self, document: GivenUp, *, within_s: int) -> GivenUp:
        """
        Hide a message for so long from now on, and return it with its payload.

        Raises:
            ShardfleetError: it is somebody else's by now.
            ConfigurationError: it names a place that is not the fleet's own for these records, or
                the object there is gone, or has others.

        """
        if refusal := self._own.refusal_of(document):
            raise ConfigurationError(refusal)
        message = self._messages[document.where]
        self._hide(message, within_s)
        found = given_up_of(message.text, where=document.where)
        if not found.location:
            return found
        try:
            text, etag = _read(self._objects, found.location)
        except _Gone:
            if not found.payload:
                raise
            return replace(found, location="")  # A topic's message has the records, too.
        kept = given_up_of(text, where=found.location)
        if not kept.has_records_of(found):
            raise ConfigurationError(
                f"{document.where}: {found.location} has other records than the message says; "
                "both are left"
            )
        return replace(kept, where=document.where, location=found.location, etag=etag)

    @in_threads_of("_pool")
    def delete(self, document: GivenUp) -> None:
        """
        Delete a message, then the object that its records were read from: what is left comes twice.

        The object goes with the last message that names it.

        Raises:
            ConfigurationError: the object is another by now, and stays.

        """
        message = self._messages.pop(document.where)
        self._call("DeleteMessage").run(
            self._client.delete_message, QueueUrl=self._url, ReceiptHandle=message.receipt
        )
        if not document.location:
            return
        self._naming[document.location] -= 1
        if not self._naming[document.location]:
            _delete(self._objects, document.location, etag=document.etag)

    @in_threads_of("_pool")
    def leave(self, documents: Iterable[GivenUp | RefusedDocument]) -> None:
        """Show messages to others again."""
        self._show([document.where for document in documents])

    def _show(self, places: Iterable[str]) -> None:
        for where in places:
            # One that is not shown is when its time is over; one that is deleted never.
            if message := self._messages.get(where):
                with suppress(ShardfleetError):
                    self._hide(message, 0)

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


def _document(text: str | bytes, *, where: str) -> GivenUp | RefusedDocument:
    try:
        return given_up_of(text, where=where)
    except ConfigurationError as error:
        return RefusedDocument(where=where, reason=str(error))


def _read(client: S3Client, location: str, *, etag: str = "") -> tuple[bytes, str]:
    """Return an object and its ETag; only the one of that ETag if one is given."""
    call = _object_call("GetObject", location)
    where = _bucket_and_key(location)
    answer = call.run(client.get_object, **where, **({"IfMatch": etag} if etag else {}))
    try:
        text = call.run(lambda: read_bytes(answer["Body"], most=_OBJECT_BYTES_MOST))
    except ValueError as error:
        raise _TooLarge(f"{location}: {error}; the fleet keeps none like it") from error
    return text, answer.get("ETag", "")


def _delete(client: S3Client, location: str, *, etag: str) -> None:
    if not etag:  # Not required of an answer; without it, any object would be deleted.
        raise ConfigurationError(
            f"{location}: GetObject named no ETag; it was handled, and is left"
        )
    call = _object_call("DeleteObject", location, writes=True)
    call.run(client.delete_object, **_bucket_and_key(location), IfMatch=etag)


def _object_call(operation: str, location: str, *, writes: bool = False) -> SdkCall:
    def changed(text: str) -> ConfigurationError:
        return ConfigurationError(
            f"{text}; it is another than was read, and is left: run the command again with "
            "--from and its place"
        )

    codes: dict[str, ErrorFactory] = {
        "NoSuchBucket": ConfigurationError,
        **dict.fromkeys(("NoSuchKey", "404"), _Gone),
        **dict.fromkeys(_CHANGED, changed),
    }
    return SdkCall(f"{operation} of {location}", writes=writes, codes=codes)


def _bucket_and_key(location: str) -> dict[str, str]:
    bucket, _, key = location.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}
