"""
The busy calls of a client without the SDK's shapes: its interface, JSON underneath.

The SDK's client stays the authority: it judges what is repeated and when (``needs-retry``), and
reads every refusal but the usual ones, and every body that could mean another thing to it than to a
JSON parser. It is not made before that: a process's start would wait for it.
Requests are not checked before they are sent: the service does that, and the tests do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

import msgspec

from shardfleet.adapters.http.answers import OK
from shardfleet.adapters.sdk_errors import UsualRefusal

if TYPE_CHECKING:
    from shardfleet.adapters.http.answers import HttpAnswer
    from shardfleet.adapters.http.json_service import JsonService

# What a process in good order is refused, as when it looks for a table that few fleets have; no
# policy of the SDK's asks again then, nor does the clock of who refuses matter.
USUAL_REFUSALS = frozenset(
    {
        "ConditionalCheckFailedException",
        "ExecutionAlreadyExists",
        "ExecutionDoesNotExist",
        "ResourceNotFoundException",
    }
)
_BAD_REQUEST = 400


class ClientWire:
    """
    Some operations of a client by JSON, every other one by the client itself.

    Safe to share between threads.

    Args:
        client: returns the SDK's.
        opened: opens the service at the place that a call names (``_place``); None says that the
            client must do.
        operations: names of the service's operations, by those of the client's methods.
        sleep: between repeats, in seconds.

    """

    def __init__(
        self,
        client: Callable[[], Any],
        opened: Callable[[str | None], JsonService | None],
        *,
        operations: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Open nothing yet."""
        self._client = client
        self._open = opened
        self._operations = operations
        self._lock = Lock()
        self._services: dict[str | None, JsonService | None] = {}
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        """Return the method of that name, as the SDK's client has it."""
        if name in self._operations:
            return partial(self._call, name)
        return getattr(self._client(), name)

    def close(self) -> None:
        """Close the connections that are kept; the next call connects anew."""
        for service in [*self._services.values()]:
            if service is not None:
                service.close()

    def _place(self, _arguments: Mapping[str, Any]) -> str | None:
        """Return what of a call's arguments its endpoint depends on."""
        return None

    def _asked(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is sent for a call's arguments."""
        return arguments

    def _note(self, operation: str, parsed: Mapping[str, Any]) -> None:
        """Take note of an answer, be it a refusal."""

    def _json(self, answer: HttpAnswer) -> dict[str, Any]:
        """
        Return an answer's body.

        Raises:
            ValueError: botocore is to read it.

        """
        return msgspec.json.decode(answer.body, type=dict[str, Any])

    def _decoded(self, _operation: str, answer: HttpAnswer) -> dict[str, Any]:
        """
        Return what a caller wants of an answer.

        Raises:
            ValueError, KeyError, TypeError: botocore is to read it.

        """
        return self._json(answer)

    def _call(self, method: str, /, **arguments: Any) -> Any:
        place = self._place(arguments)
        with self._lock:
            if place not in self._services:
                self._services[place] = self._open(place)
        service = self._services[place]
        if service is None:
            return getattr(self._client(), method)(**arguments)
        name = self._operations[method]
        body = msgspec.json.encode(self._asked(arguments))
        try:
            response, parsed = self._repeated(partial(self._once, service, name, body), name)
        except UsualRefusal as refused:
            self._note(name, refused.response)
            raise
        self._note(name, parsed)
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
                if isinstance(error, UsualRefusal) or not _is_sdks(error):
                    raise
                failed = error
            meta = self._client().meta
            asked = meta.events.emit(
                f"needs-retry.{meta.service_model.service_id.hyphenize()}.{name}",
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
            if _is_whole(response) and (usual := self._usual_refusal(answer)):
                raise UsualRefusal(usual, name)
            return response, service.refusal(answer)
        try:
            return response, self._decoded(name, answer)
        except (ValueError, KeyError, TypeError):
            # What is no JSON to one may be to the other: botocore's word counts.
            shape = self._client().meta.service_model.operation_model(name).output_shape
            return response, service.parsed(answer, shape)

    def _usual_refusal(self, answer: HttpAnswer) -> dict[str, Any] | None:
        """Return what botocore makes of a usual refusal (``BaseJSONParser``), None: of others."""
        try:
            members = self._json(answer)
            code = members.pop("__type").partition(":")[0].rpartition("#")[2]
        except (ValueError, KeyError, AttributeError):
            return None
        if code not in USUAL_REFUSALS or answer.status != _BAD_REQUEST:
            return None
        message = members.get("message", members.get("Message", ""))
        told = {"HTTPStatusCode": answer.status, "RetryAttempts": 0}
        return {
            **members,
            "Error": {"Message": message, "Code": code},
            "ResponseMetadata": told,
        }


def _is_sdks(error: Exception) -> bool:
    from botocore.exceptions import BotoCoreError  # noqa: PLC0415 - see connections.py

    return isinstance(error, BotoCoreError)


def _is_whole(response: SimpleNamespace) -> bool:
    """Return whether a body is what was summed up, as the SDK looks (``RetryDDBChecksumError``)."""
    told = response.headers.get("x-amz-crc32")
    return told is None or int(told) == crc32(response.content)
