"""
First writer wins, on DynamoDB and on S3: where a Spark query keeps what its batches read.

An item is stored only if there is none under its key yet; whoever comes later gets what is stored.
A repeated write is harmless, so an unanswered one may simply be repeated. Calls block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from shardfleet.adapters.sdk_errors import (
    TABLE_PAGING,
    ConditionFailed,
    RefusalIsAnswer,
    SdkCall,
    pages,
    unsettled,
)
from shardfleet.domain.refusals import RefusalKind, refusal_of
from shardfleet.engine.ports import Clock
from shardfleet.errors import ConfigurationError, ShardfleetError, Throttled, Unsettled
from shardfleet.foreign import read_bytes

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_s3.client import S3Client

SID = "sid"
ITEM = "item"
BODY = "body"
EXPIRES = "expires"
"""The attributes of the DynamoDB table: partition and sort key (text), seal, time to live."""

# Longer than any stream retains records (365 days): what a seal speaks of is gone by then. A run of
# a query deletes its own seals; those that it leaves, and those of runs that died, end by this.
_LIVES_S = 400 * 86_400

# DynamoDB: BatchWriteItem takes 25 items; S3: DeleteObjects takes 1,000 keys.
_ITEMS_PER_DELETE = 25
_KEYS_PER_DELETE = 1_000
_READS_AT_ONCE = 8
_LISTING = ("NextContinuationToken", "ContinuationToken")


class Key(Protocol):
    """Where something is kept; plans order as text."""

    @property
    def sid(self) -> str:
        """Return the query's id."""

    @property
    def plan(self) -> str:
        """Return the plan's key, without a slash."""

    @property
    def partition(self) -> int:
        """Return the number within the plan."""


class _NotAllowed(ConfigurationError):
    """A right to read is missing, or the right to know that there is nothing to read."""


class DynamoDBSealStore:
    """
    Seals in a DynamoDB table with partition key ``sid`` and sort key ``item``, both text.

    Attribute ``expires`` is for the table's time to live, if it is switched on: it removes what a
    query has left that was given up.

    Args:
        client: may repeat.
        table: its name.
        clock: for the time to live.

    """

    def __init__(self, client: DynamoDBClient, *, table: str, clock: Clock) -> None:
        self._client = client
        self._table = table
        self._clock = clock

    def get(self, key: Key) -> bytes | None:
        """Return what is stored, read consistently; None when nothing is."""
        found = self._call("GetItem").run(
            self._client.get_item,
            TableName=self._table,
            Key={SID: {"S": key.sid}, ITEM: {"S": _name(key)}},
            ConsistentRead=True,
        )
        return bytes(found["Item"][BODY]["B"]) if "Item" in found else None

    def put_if_absent(self, key: Key, body: bytes) -> bytes:
        """Store unless something is stored already; return what is stored then."""
        expires_s = self._clock.now_ms() // 1_000 + _LIVES_S
        try:
            self._call("PutItem", writes=True).run(
                self._client.put_item,
                TableName=self._table,
                Item={
                    SID: {"S": key.sid},
                    ITEM: {"S": _name(key)},
                    BODY: {"B": body},
                    EXPIRES: {"N": str(expires_s)},
                },
                ConditionExpression="attribute_not_exists(#sid)",
                ExpressionAttributeNames={"#sid": SID},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ConditionFailed as error:
            if error.item is not None:
                return bytes(error.item[BODY]["B"])
            return self._stored(key)
        return body

    def read_plan(self, sid: str, plan: str) -> Mapping[int, bytes]:
        """Return all that is stored of one plan, by number, read consistently."""
        fetch = partial(
            self._call("Query").run,
            self._client.query,
            TableName=self._table,
            KeyConditionExpression="#sid = :sid AND begins_with(#item, :item)",
            ExpressionAttributeNames={"#sid": SID, "#item": ITEM},
            ExpressionAttributeValues={":sid": {"S": sid}, ":item": {"S": f"{plan}/"}},
            ProjectionExpression=f"#item, {BODY}",
            ConsistentRead=True,
        )
        return {
            _number(item[ITEM]["S"]): bytes(item[BODY]["B"])
            for page in pages(fetch, TABLE_PAGING)
            for item in page["Items"]
        }

    def delete(self, keys: Sequence[Key]) -> None:
        """
        Delete what is stored under these keys; one that is not there is no error.

        Raises:
            Throttled: some are left (BatchWriteItem says so with 200); a repeat deletes them.

        """
        left = 0
        for first in range(0, len(keys), _ITEMS_PER_DELETE):
            requests = [
                {"DeleteRequest": {"Key": {SID: {"S": key.sid}, ITEM: {"S": _name(key)}}}}
                for key in keys[first : first + _ITEMS_PER_DELETE]
            ]
            answer = self._call("BatchWriteItem").run(
                self._client.batch_write_item, RequestItems={self._table: requests}
            )
            left += len(answer["UnprocessedItems"].get(self._table, ()))
        if left:
            text = f"BatchWriteItem in seal table {self._table}: {left} of {len(keys)} are left"
            raise Throttled(text)

    def _stored(self, key: Key) -> bytes:
        found = self.get(key)
        if found is None:
            raise Throttled(f"{_name(key)} of {key.sid} was there, and is gone: read again")
        return found

    def _call(self, operation: str, *, writes: bool = False) -> SdkCall:
        missing = {"ResourceNotFoundException": unsettled(self._missing)}
        return SdkCall(f"{operation} in seal table {self._table}", writes=writes, codes=missing)

    def _missing(self, text: str) -> ConfigurationError:
        return ConfigurationError(
            f"{text}; create the table with partition key {SID} and sort key {ITEM}, both strings, "
            f"and {EXPIRES} as its time to live"
        )


class S3SealStore:
    """
    Seals as objects ``<prefix>/<sid>/<plan>/<number>`` of a bucket, by conditional puts.

    Args:
        client: may repeat.
        bucket: its name.
        prefix: without a slash at either end, may be empty.

    """

    def __init__(self, client: S3Client, *, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    def get(self, key: Key) -> bytes | None:
        """Return what is stored; None when nothing is."""
        return self._read(self._path(key))

    def put_if_absent(self, key: Key, body: bytes) -> bytes:
        """Store unless something is stored already; return what is stored then."""
        codes = {
            "PreconditionFailed": RefusalIsAnswer,
            # Two conditional puts at the same moment: one of them is asked to try again.
            "ConditionalRequestConflict": Throttled,
        }
        try:
            self._call("PutObject", writes=True, codes=codes).run(
                self._client.put_object,
                Bucket=self._bucket,
                Key=self._path(key),
                Body=body,
                IfNoneMatch="*",
            )
        except RefusalIsAnswer:
            found = self.get(key)
            if found is None:
                text = f"{self._path(key)} was there, and is gone: read again"
                raise Throttled(text) from None
            return found
        return body

    def read_plan(self, sid: str, plan: str) -> Mapping[int, bytes]:
        """Return all that is stored of one plan, by number."""
        names = self._names(f"{self._prefix}{sid}/{plan}/")
        with ThreadPoolExecutor(_READS_AT_ONCE) as readers:
            bodies = list(readers.map(self._read, names))
        return {
            _number(name): body
            for name, body in zip(names, bodies, strict=True)
            if body is not None
        }

    def delete(self, keys: Sequence[Key]) -> None:
        """
        Delete what is stored under these keys; one that is not there is no error.

        Raises:
            Throttled: some are left (DeleteObjects says so with 200); a repeat deletes them.
            ConfigurationError: they may not be deleted.

        """
        left: list[Mapping[str, Any]] = []
        for first in range(0, len(keys), _KEYS_PER_DELETE):
            some = keys[first : first + _KEYS_PER_DELETE]
            objects: list[Any] = [{"Key": self._path(key)} for key in some]
            answer = self._call("DeleteObjects").run(
                self._client.delete_objects,
                Bucket=self._bucket,
                Delete={"Objects": objects, "Quiet": True},
            )
            left += answer.get("Errors", ())
        if left:
            raise self._left_over(left, whole=len(keys))

    def _left_over(self, left: list[Mapping[str, Any]], *, whole: int) -> ShardfleetError:
        codes = {str(each.get("Code", "")) for each in left}
        text = (
            f"DeleteObjects in seal bucket {self._bucket}: {len(left)} of {whole} are left: "
            + ", ".join(sorted(codes))
        )
        if RefusalKind.DENIED in {refusal_of(code, 0) for code in codes}:
            return Unsettled(ConfigurationError(f"{text}; allow s3:DeleteObject"))
        return Throttled(text)

    def _read(self, name: str) -> bytes | None:
        """
        Return an object; None when there is none.

        Without a right to list the bucket as a whole, GetObject answers 403 for what is not there.
        """
        codes = {"NoSuchKey": RefusalIsAnswer, "AccessDenied": _not_allowed}
        try:
            answer = self._call("GetObject", codes=codes).run(
                self._client.get_object, Bucket=self._bucket, Key=name
            )
        except RefusalIsAnswer:
            return None
        except _NotAllowed as error:
            if name not in self._names(name):
                return None
            raise Unsettled(error) from error
        try:
            return read_bytes(answer["Body"])
        except ValueError as error:
            raise Unsettled(ConfigurationError(f"s3://{self._bucket}/{name}: {error}")) from error

    def _names(self, prefix: str) -> list[str]:
        call = self._call("ListObjectsV2")
        fetch = partial(call.run, self._client.list_objects_v2, Bucket=self._bucket, Prefix=prefix)
        return [
            call.whole(found)["Key"]
            for page in pages(fetch, _LISTING)
            for found in page.get("Contents", ())
        ]

    def _path(self, key: Key) -> str:
        return f"{self._prefix}{key.sid}/{_name(key)}"

    def _call(
        self, operation: str, *, writes: bool = False, codes: Mapping[str, Any] | None = None
    ) -> SdkCall:
        what = f"{operation} in seal bucket {self._bucket}"
        return SdkCall(
            what,
            writes=writes,
            codes={"NoSuchBucket": unsettled(ConfigurationError), **(codes or {})},
        )


def _not_allowed(text: str) -> _NotAllowed:
    return _NotAllowed(f"{text}; allow s3:GetObject")


def _name(key: Key) -> str:
    return f"{key.plan}/{key.partition:08d}"


def _number(name: str) -> int:
    return int(name.rsplit("/", 1)[-1])
