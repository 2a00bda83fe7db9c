"""
The busy calls of the two tables without the SDK's shapes.

Their units are counted here, as they are where the SDK's client sends them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardfleet.adapters.http.client_wire import ClientWire
from shardfleet.adapters.http.connections import IDLE_MS
from shardfleet.adapters.http.json_service import JsonService, open_service

if TYPE_CHECKING:
    from botocore.session import Session
    from mypy_boto3_dynamodb.client import DynamoDBClient

    from shardfleet.adapters.http.answers import HttpAnswer

OPERATIONS = {
    "delete_item": "DeleteItem",
    "get_item": "GetItem",
    "put_item": "PutItem",
    "query": "Query",
    "scan": "Scan",
    "update_item": "UpdateItem",
}
_BINARY = re.compile(rb'"BS?"\s*:')


class TableWire(ClientWire):
    """
    The operations of :data:`OPERATIONS` by JSON, every other one by the client itself.

    Args:
        client: returns the SDK's.
        opened: opens the service; None says that the client must do.
        count: is told the operation and the answer of each call.
        sleep: between repeats, in seconds.

    """

    def __init__(
        self,
        client: Callable[[], DynamoDBClient],
        opened: Callable[[], JsonService | None],
        *,
        count: Callable[[str, Mapping[str, Any]], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open nothing yet."""

        def of_the_place(owner: str | None) -> JsonService | None:
            return opened() if owner is None else None

        super().__init__(client, of_the_place, operations=OPERATIONS, sleep=sleep)
        self._count = count

    def _place(self, arguments: Mapping[str, Any]) -> str | None:
        """Return an ARN for a name: the endpoint may be that of the account which it names."""
        name: str = arguments["TableName"]
        return name if name.startswith("arn:") else None

    def _asked(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**arguments, "ReturnConsumedCapacity": "TOTAL"}

    def _note(self, operation: str, parsed: Mapping[str, Any]) -> None:
        self._count(operation, parsed)

    def _json(self, answer: HttpAnswer) -> dict[str, Any]:
        if not _is_like_json(answer.body):
            raise ValueError("botocore may read it otherwise")
        return super()._json(answer)


def open_tables(
    client: DynamoDBClient, session: Session, *, idle_ms: int = IDLE_MS
) -> JsonService | None:
    """Return the service as the client would call it, None if that cannot be."""
    example = ("get_item", {"TableName": "none", "Key": {}})
    return open_service(client, session, example=example, idle_ms=idle_ms)


def _is_like_json(body: bytes | bytearray) -> bool:
    """
    Return whether a body means the same to botocore as to a JSON parser.

    Binary values are base64, nulls are left out by botocore, and an escape may hide a name. One
    pattern for all three would take a sixth of the time in which a scan is read.
    """
    has_escape = b"\\" in body and b"\\u00" in body  # One letter is found in a tenth of the time.
    return b"null" not in body and not has_escape and not _BINARY.search(body)
