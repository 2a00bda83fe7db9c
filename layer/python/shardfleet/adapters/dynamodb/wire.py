"""
The busy calls of the two tables without the SDK's shapes: a client's interface, JSON underneath.

The SDK's client stays the authority: it judges what is repeated and when (``needs-retry``), and
reads every refusal, and every body that could mean another thing to it than to a JSON parser. It is
not made before that: a worker's start would wait for it.
Requests are not checked before they are sent: DynamoDB does that, and the tests do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import msgspec

from shardfleet.adapters.http.answers import OK
from shardfleet.adapters.http.connections import IDLE_MS
from shardfleet.adapters.http.json_service import JsonService, open_service

if TYPE_CHECKING:
    from collections.abc import Mapping

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


class TableWire:
    """
    The operations of :data:`OPERATIONS` by JSON, every other one by the client itself.

    Safe to share between threads.

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
        self._client: Callable[[], Any] = client
        self._open = opened
        self._count = count
        self._lock = Lock()
        self._services: list[JsonService | None] = []
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        """Return the method of that name, as the SDK's client has it."""
        if name in OPERATIONS:
            return partial(self._call, name)
        return getattr(self._client(), name)

    def close(self) -> None:
        """Close the connections that are kept; the next call connects anew."""
        for service in self._services:
            if service is not None:
                service.close()

    def _call(self, method: str, /, **arguments: Any) -> Any:
        with self._lock:
            if not self._services:
                self._services.append(self._open())
        service = self._services[0]
        if service is None or arguments["TableName"].startswith("arn:"):
            # The endpoint may be that of the account which an ARN names.
            return getattr(self._client(), method)(**arguments)
        name = OPERATIONS[method]
        body = msgspec.json.encode({**arguments, "ReturnConsumedCapacity": "TOTAL"})
        response, parsed = self._repeated(partial(self._once, service, name, body), name)
        self._count(name, parsed)
        if response.status_code != OK:
            kind = self._client().exceptions.from_code(parsed.get("Error", {}).get("Code"))
            raise kind(parsed, name)
        return parsed

    def _repeated(
        self, exchange: Callable[[], tuple[SimpleNamespace, dict[str, Any]]], name: str
    ) -> tuple[SimpleNamespace, dict[str, Any]]:
        """Return the first answer that the client's own policy does not want to have again."""
        attempts, context = 0, dict[str, Any]()
        while True:
            attempts += 1
            failed: Exception | None = None
            answered = None
            try:
                answered = exchange()
                if answered[0].status_code == OK and _is_whole(answered[0]):
                    return answered
            except Exception as error:
                if not _is_sdks(error):
                    raise
                failed = error
            meta = self._client().meta
            asked = meta.events.emit(
                f"needs-retry.dynamodb.{name}",
                response=answered,
                endpoint=None,
                operation=meta.service_model.operation_model(name),
                attempts=attempts,
                caught_exception=failed,
                request_dict={"context": context},
            )
            wait_s = next((told for _, told in asked if told is not None), None)
            if wait_s is not None:
                self._sleep(wait_s)
            elif answered is not None:
                # The text of the error tells of it.
                answered[1].setdefault("ResponseMetadata", {})["RetryAttempts"] = attempts - 1
                return answered
            else:
                raise cast("Exception", failed)

    def _once(
        self, service: JsonService, name: str, body: bytes
    ) -> tuple[SimpleNamespace, dict[str, Any]]:
        answer = service.post(name, body)
        response = SimpleNamespace(
            status_code=answer.status, headers=answer.headers, content=answer.body
        )
        if answer.status != OK:
            return response, service.refusal(answer)
        return response, self._read(service, name, answer)

    def _read(self, service: JsonService, name: str, answer: HttpAnswer) -> dict[str, Any]:
        """Return what botocore makes of an answer, by JSON alone where that is the same."""
        if _is_like_json(answer.body):
            try:
                return msgspec.json.decode(answer.body, type=dict[str, Any])
            except ValueError:
                pass  # What is no JSON to one may be to the other: botocore's word counts.
        model = self._client().meta.service_model.operation_model(name)
        return service.parsed(answer, model.output_shape)


def open_tables(
    client: DynamoDBClient, session: Session, *, idle_ms: int = IDLE_MS
) -> JsonService | None:
    """Return the service as the client would call it, None if that cannot be."""
    example = ("get_item", {"TableName": "none", "Key": {}})
    return open_service(client, session, example=example, idle_ms=idle_ms)


def _is_sdks(error: Exception) -> bool:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - see http/connections.py

    return isinstance(error, BotoCoreError)


def _is_whole(response: SimpleNamespace) -> bool:
    """Say whether a body is what was summed up, as the SDK looks (``RetryDDBChecksumError``)."""
    told = response.headers.get("x-amz-crc32")
    return told is None or int(told) == crc32(response.content)


def _is_like_json(body: bytes | bytearray) -> bool:
    """
    Tell whether a body means the same to botocore as to a JSON parser.

    Binary values are base64, nulls are left out by botocore, and an escape may hide a name. One
    pattern for all three would take a sixth of the time in which a scan is read.
    """
    return b"null" not in body and b"\\u00" not in body and not _BINARY.search(body)
