"""
A loopback proxy between the fleet's processes and the embedded AWS, in which calls go wrong.

The fleet runs unchanged: boto3 reads the endpoint of a service from `AWS_ENDPOINT_URL_<SERVICE>`.
Seeded dice decide about each call. Each goes upstream over a fresh connection, so that what is lost
is lost by a fault and never by the proxy's own doing.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from shardfleet_local.access import AccessKey, Door
from shardfleet_local.refusals import REFUSED, refusal_of

SERVICES = ("DYNAMODB", "KINESIS", "SFN")
"""Whose calls go through the proxy, as boto3 spells them in `AWS_ENDPOINT_URL_…`."""

ERROR_RATE = 0.12
"""Part of the calls that go wrong: far more than AWS's, little enough for progress."""

GIVEN_UP_MS = (2_100, 4_500)
"""A late write lands after its caller has given up (`aws_clients.WRITE_TIMEOUT_S`: 2 s)."""

SLOW_MS = (200, 1_500)
"""A slow reply comes in time, but renewals feel it."""

WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "StartExecution"})


# HTTP/2 (RFC 9113): how a connection begins, and the head of a frame.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES, _KIND_AT, _HEADERS = 9, 3, 1
_CHUNK_BYTES = 65_536


class CallFault(StrEnum):
    """What becomes of one call; the values name it in the result."""

    THROTTLED = "throttled"  # refused
    FAILED = "failed"  # answered 500, nothing done
    CUT = "cut"  # the connection breaks, nothing done
    REPLY_LOST = "reply_lost"  # done, and the connection breaks before the reply
    FAILED_AFTER = "failed_after"  # done, and answered 500
    LATE = "late"  # done after the caller has given up
    EXPIRED = "expired"  # an iterator that is too old
    SLOW = "slow"  # done and answered, later than usual: no error


# What befalls a subscription's connection, which carries those to other shards as well.
_SUBSCRIBE = "SubscribeToShard"
_OF_CONNECTIONS = (CallFault.CUT, CallFault.SLOW)
_ANY = (CallFault.THROTTLED, CallFault.FAILED, CallFault.CUT, CallFault.REPLY_LOST, CallFault.SLOW)


Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body of a reply."""


@dataclass(frozen=True, slots=True)
class Misfortune:
    """
    One fault that was drawn.

    Attributes:
        kind: what happens.
        delay_ms: for how long the call is held (`LATE`, `SLOW`).
        code: the error's code (`THROTTLED`, `EXPIRED`).

    """

    kind: CallFault
    delay_ms: int = 0
    code: str = ""


@dataclass(slots=True)
class FaultDice:
    """
    Decides about each call, and counts.

    Attributes:
        chance: the source of its choices.
        rate: part of the calls that go wrong.
        is_on: whether anything goes wrong at all.
        calls: seen so far.
        drawn: per kind of fault.
        operations: errors per operation.

    """

    chance: random.Random
    rate: float = ERROR_RATE
    is_on: bool = True
    calls: int = 0
    drawn: Counter[CallFault] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)

    @property
    def errors(self) -> int:
        """Count the calls that went wrong; a slow one did not."""
        return self.drawn.total() - self.drawn[CallFault.SLOW]

    def roll(self, service: str, operation: str) -> Misfortune | None:
        """Draw what happens to a call; None: nothing."""
        self.calls += 1
        if not self.is_on or self.chance.random() >= self.rate:
            return None
        only_writes = (CallFault.FAILED_AFTER, CallFault.LATE) if operation in WRITES else ()
        only_reads = (CallFault.EXPIRED,) if operation == "GetRecords" else ()
        usual = _OF_CONNECTIONS if operation == _SUBSCRIBE else _ANY
        kind = self.chance.choice((*usual, *only_writes, *only_reads))
        self.drawn[kind] += 1
        if kind is not CallFault.SLOW:
            self.operations[operation] += 1
        delays = {CallFault.LATE: GIVEN_UP_MS, CallFault.SLOW: SLOW_MS}.get(kind, (0, 0))
        codes = {
            CallFault.THROTTLED: _throttle(service, operation),
            CallFault.EXPIRED: "ExpiredIteratorException",
        }
        return Misfortune(kind, self.chance.randint(*delays), codes.get(kind, ""))


def _throttle(service: str, operation: str) -> str:
    """Name the refusal as the service does (each service's API reference, common errors)."""
    if service == "DynamoDB" or operation in ("GetRecords", "GetShardIterator"):
        return "ProvisionedThroughputExceededException"
    return "LimitExceededException" if service == "Kinesis" else "ThrottlingException"


class FaultyProxy(ThreadingHTTPServer):
    """
    The proxy, as a context manager; it serves from threads of its own.

    Args:
        upstream: URL of the embedded AWS.
        dice: decides about each call.
        key: of the embedded AWS, which the proxy asks for as well.

    """

    daemon_threads = True  # Who is still connected at the end is not waited for.
    request_queue_size = 1024

    def __init__(self, upstream: str, dice: FaultDice, *, key: AccessKey) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.upstream = urlsplit(upstream).netloc
        self.dice = dice
        self.rolling = threading.Lock()
        self.door = Door(self.server_port, key)
        self._thread = threading.Thread(target=self.serve_forever, name="chaos-proxy", daemon=True)

    def __enter__(self) -> Self:
        """Serve on a free port of the loopback interface."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take no more connections."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def url(self) -> str:
        """The proxy's endpoint."""
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that make boto3 use the proxy for the services it serves."""
        return {f"AWS_ENDPOINT_URL_{service}": self.url for service in SERVICES}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let it pass that the client has left, or the embedded AWS: either is seen elsewhere."""
        if not isinstance(sys.exc_info()[1], (OSError, http.client.HTTPException)):
            super().handle_error(request, client_address)


class _Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # A reply in one piece: head and body apart would wait for an acknowledgement.
    server: FaultyProxy

    def handle(self) -> None:
        """Serve calls of HTTP/1.1; what is HTTP/2 from its first byte on goes to AWS as it is."""
        if self.connection.recv(2, socket.MSG_PEEK) == _PREFACE[:2]:
            self._tunnel()
        else:
            super().handle()

    def _tunnel(self) -> None:
        """Pass frames on both ways until either side ends, or a request's fault breaks it off."""
        host, _, port = self.server.upstream.partition(":")
        with socket.create_connection((host, int(port))) as there:
            back = threading.Thread(target=_copy, args=(there, self.connection), daemon=True)
            back.start()
            there.sendall(self.rfile.read(len(_PREFACE)))
            while len(head := self.rfile.read(_HEAD_BYTES)) == _HEAD_BYTES:
                if head[_KIND_AT] == _HEADERS:
                    fault = self._draw("Kinesis", _SUBSCRIBE)
                    if fault.kind is CallFault.CUT:
                        break
                    time.sleep(fault.delay_ms / 1000)
                there.sendall(head + self.rfile.read(int.from_bytes(head[:_KIND_AT], "big")))
            _end(there)
            back.join()

    def do_POST(self) -> None:
        """Serve one call; a reply that does not come breaks the connection."""
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        if reason := self.server.door.refusal(headers):
            self._reply(REFUSED, *refusal_of(dict(headers), reason))
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        service, _, operation = self.headers.get("x-amz-target", "").partition(".")
        answer = self._answer(body, self._draw(service.partition("_")[0], operation))
        if answer is None:
            self.close_connection = True
        else:
            self._reply(*answer)

    def _draw(self, service: str, operation: str) -> Misfortune:
        with self.server.rolling:
            fault = self.server.dice.roll(service, operation)
        return fault or Misfortune(CallFault.SLOW)

    def _answer(self, body: bytes, fault: Misfortune) -> Answer | None:
        if fault.code:
            return _error(400, fault.code)
        if fault.kind is CallFault.FAILED:
            return _error(500, "InternalFailure")
        if fault.kind is CallFault.CUT:
            return None
        time.sleep(fault.delay_ms / 1000)
        answer = self._forward(body)
        if fault.kind is CallFault.REPLY_LOST:
            return None
        return _error(500, "InternalFailure") if fault.kind is CallFault.FAILED_AFTER else answer

    def _forward(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.server.upstream)
        try:
            # The connection names its own host.
            headers = {name: text for name, text in self.headers.items() if name.lower() != "host"}
            connection.request("POST", self.path, body, headers)
            reply = connection.getresponse()
            return reply.status, dict(reply.headers), reply.read()
        finally:
            connection.close()

    def _reply(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, text in headers.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    _end(target)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _error(status: int, code: str) -> Answer:
    """Return an error as AWS's JSON protocols write it."""
    headers = {"Content-Type": "application/x-amz-json-1.1", "x-amzn-ErrorType": code}
    message = "This failure was injected (chaos)."
    return status, headers, json.dumps({"__type": code, "message": message}).encode()
