"""Each fault of a call, as a client and the service behind the proxy see it."""

import http.client
import http.server
import json
import random
import socket
import socketserver
import threading
from contextlib import contextmanager, suppress
from typing import ClassVar

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from shardfleet_local.access import AccessKey
from shardfleet_local.rig.proxy import WRITES, CallFault, FaultDice, FaultyProxy, Misfortune

REPLY = {"Table": "t" * 100_000}
KEY = AccessKey()
SIGNED = {"Authorization": KEY.authorization()}


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: ClassVar = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers["host"] == f"127.0.0.1:{self.server.server_port}", "its own name"
        self.served.append((self.headers["x-amz-target"], body))
        reply = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            halves = reply[:50_000], reply[50_000:], b""
            self.wfile.write(b"".join(b"%x\r\n%s\r\n" % (len(h), h) for h in halves))
        else:
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

    def log_message(self, *_):
        pass


class Fixed:
    """Dice that draw what they are told, one fault per call."""

    def __init__(self, *faults):
        self.faults = list(faults)
        self.asked = []

    def roll(self, service, operation):
        self.asked.append((service, operation))
        return self.faults.pop(0) if self.faults else None


class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        while data := self.connection.recv(65_536):
            self.connection.sendall(data)


@contextmanager
def proxied(*faults, service=Service):
    Service.served = []
    dice = Fixed(*faults)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            upstream = f"http://127.0.0.1:{server.server_port}"
            with FaultyProxy(upstream, dice, key=KEY) as proxy:
                yield proxy, dice
        finally:
            server.shutdown()
            thread.join()


def call(proxy, path="/"):
    connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)
    try:
        headers = {"X-Amz-Target": "DynamoDB_20120810.UpdateItem", **SIGNED}
        connection.request("POST", path, b'{"a": 1}', headers)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/chunked"])
def test_without_a_fault_a_call_passes_through_unchanged(path):
    with proxied() as (proxy, dice):
        assert call(proxy, path) == (200, REPLY)

    assert Service.served == [("DynamoDB_20120810.UpdateItem", b'{"a": 1}')]
    assert dice.asked == [("DynamoDB", "UpdateItem")]


@pytest.mark.parametrize(
    ("fault", "status", "served"),
    [
        (Misfortune(CallFault.THROTTLED, code="ThrottlingException"), 400, 0),
        (Misfortune(CallFault.EXPIRED, code="ExpiredIteratorException"), 400, 0),
        (Misfortune(CallFault.FAILED), 500, 0),
        (Misfortune(CallFault.FAILED_AFTER), 500, 1),
        (Misfortune(CallFault.SLOW, delay_ms=1), 200, 1),
    ],
)
def test_an_error_is_answered_before_or_after_the_call_is_carried_out(fault, status, served):
    with proxied(fault) as (proxy, _):
        found, body = call(proxy)

    assert (found, len(Service.served)) == (status, served)
    if status == 400:
        assert body["__type"] == fault.code


@pytest.mark.parametrize(("kind", "served"), [(CallFault.CUT, 0), (CallFault.REPLY_LOST, 1)])
def test_a_connection_breaks_before_or_after_the_call_is_carried_out(kind, served):
    with proxied(Misfortune(kind)) as (proxy, _), pytest.raises(http.client.RemoteDisconnected):
        call(proxy)

    assert len(Service.served) == served


def test_a_late_write_lands_after_its_caller_has_gone():
    with proxied(Misfortune(CallFault.LATE, delay_ms=300)) as (proxy, _):
        host = proxy.url.removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=0.05)
        connection.request("POST", "/", b"{}", {"X-Amz-Target": "DynamoDB_1.PutItem", **SIGNED})
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()
        assert Service.served == []
        while not Service.served:
            assert call(proxy)[0] == 200
        served = [target for target, _ in Service.served]
        while "DynamoDB_1.PutItem" not in served:
            served = [target for target, _ in Service.served]


def test_several_calls_share_one_connection():
    with proxied() as (proxy, dice):
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)
        for _ in range(3):
            connection.request("POST", "/", b"{}", {"X-Amz-Target": "DynamoDB_1.GetItem", **SIGNED})
            assert json.loads(connection.getresponse().read()) == REPLY
        connection.close()

    assert len(dice.asked) == 3


def test_a_client_that_is_still_connected_when_the_proxy_ends_is_no_error(caplog):
    with proxied() as (proxy, _):
        connection = http.client.HTTPConnection(proxy.url.removeprefix("http://"), timeout=20)
        connection.request("POST", "/", b"{}", {"X-Amz-Target": "DynamoDB_1.GetItem", **SIGNED})
        assert json.loads(connection.getresponse().read()) == REPLY

    connection.close()
    assert caplog.records == []


def test_boto3_finds_the_proxy_and_reads_the_injected_code(monkeypatch):
    fault = Misfortune(CallFault.THROTTLED, code="ProvisionedThroughputExceededException")
    with proxied(fault, fault) as (proxy, dice):
        for name, value in {**proxy.environment(), **KEY.environment()}.items():
            monkeypatch.setenv(name, value)
        once = Config(retries={"total_max_attempts": 1})
        for service, operation, given in (
            ("dynamodb", "describe_table", {"TableName": "t"}),
            ("kinesis", "list_shards", {"StreamName": "s"}),
        ):
            client = boto3.session.Session().client(service, config=once)
            with pytest.raises(ClientError) as refusal:
                getattr(client, operation)(**given)
            client.close()
            assert refusal.value.response["Error"]["Code"] == fault.code

    assert dice.asked == [("DynamoDB", "DescribeTable"), ("Kinesis", "ListShards")]


def a_frame(kind, payload):
    """RFC 9113, section 4.1: length, type, flags, stream."""
    return len(payload).to_bytes(3, "big") + bytes((kind, 4, 0, 0, 0, 1)) + payload


def test_frames_of_http_2_pass_through_and_a_fault_of_a_request_breaks_the_connection_off():
    headers, data = a_frame(1, b"request" * 3_000), a_frame(0, b"")
    begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + a_frame(4, b"")
    slow, cut = Misfortune(CallFault.SLOW, delay_ms=1), Misfortune(CallFault.CUT)
    with proxied(None, slow, cut, service=Echo) as (proxy, dice):
        host, port = proxy.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as client:
            passed = begin + headers + data + headers + data
            client.sendall(passed)
            assert client.makefile("rb").read(len(passed)) == passed
            client.sendall(headers + data)
            with suppress(ConnectionResetError):
                assert not client.recv(1)
    assert dice.asked == [("Kinesis", "SubscribeToShard")] * 3


def test_what_befalls_a_subscription_befalls_its_connection():
    kinds = {fault.kind for fault in rolls(1, "SubscribeToShard")[1] if fault}
    assert kinds == {CallFault.CUT, CallFault.SLOW}


def rolls(seed, operation, count=2_000):
    dice = FaultDice(random.Random(seed), rate=0.5)
    return dice, [dice.roll("DynamoDB", operation) for _ in range(count)]


def test_the_dice_are_seeded_and_count_what_they_draw():
    dice, drawn = rolls(7, "UpdateItem")

    assert drawn == rolls(7, "UpdateItem")[1]
    assert drawn != rolls(8, "UpdateItem")[1]
    kinds = [fault.kind for fault in drawn if fault]
    assert dice.drawn == {kind: kinds.count(kind) for kind in set(kinds)}
    assert dice.errors == len(kinds) - kinds.count(CallFault.SLOW) == dice.operations.total()
    assert (dice.calls, set(kinds)) == (2_000, set(CallFault) - {CallFault.EXPIRED})


def test_only_writes_land_late_and_only_iterators_expire():
    for operation in ("GetItem", "Scan", "GetRecords"):
        kinds = {fault.kind for fault in rolls(1, operation)[1] if fault}
        assert CallFault.LATE not in kinds
        assert (CallFault.EXPIRED in kinds) == (operation == "GetRecords")
    assert "PutRecords" not in WRITES


def test_dice_that_are_off_count_calls_and_draw_nothing():
    dice = FaultDice(random.Random(1), rate=1.0, is_on=False)

    assert [dice.roll("Kinesis", "GetRecords") for _ in range(5)] == [None] * 5
    assert (dice.calls, dice.errors) == (5, 0)
