"""Our own way to GetRecords and PutRecords: TLS, proxies, connections, errors."""

import json
import os
import random
import socket
import ssl
import threading
import uuid

import botocore.session
import cbor2
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
    SSLError,
)

from shardfleet.adapters.http.answers import BODY_BYTES_MOST
from shardfleet.adapters.kinesis.wire import JSON_PAGES, open_wire
from shardfleet.adapters.sdk_errors import UnreadableAnswer
from shardfleet.kpl.packing import OutgoingRecord
from shardfleet_spark.aws.columns import CBOR_PAGES
from tests.adapters.kinesis_server import REGION, Stream, kinesis_server
from tests.adapters.loopback import HANG, HANG_UP, Service, error, serving
from tests.adapters.tls import certificate, proxy, tls_front

SHARD_0 = "shardId-000000000000"
ARN = f"arn:aws:kinesis:{REGION}:000000000000:stream/orders"
EMPTY = (200, {"Records": [], "NextShardIterator": "next", "MillisBehindLatest": 0})


@pytest.fixture(scope="module")
def engine():
    with kinesis_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return certificate(tmp_path_factory.mktemp("tls"))


def wire_to(endpoint, *, long_pages=JSON_PAGES, **config):
    session = botocore.session.get_session()
    given = {"connect_timeout": 20, "read_timeout": 20, "retries": {"total_max_attempts": 1}}
    client = session.create_client(
        "kinesis", endpoint_url=endpoint, region_name=REGION, config=Config(**(given | config))
    )
    return open_wire(ARN, client=client, session=session, long_pages=long_pages)


def written_and_read(endpoint, monkeypatch):
    """Put records into a new stream and read them back, all by the wire."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    stream = Stream(endpoint, f"orders-{uuid.uuid4().hex[:8]}").create(1)
    payloads = [b"small", bytes(900_000), b""]
    stream.put(*(OutgoingRecord(data=data, partition_key="k") for data in payloads[:2]))
    pages = stream.read(SHARD_0)
    assert [r.data for page in pages for r in page.records] == payloads[:2]
    return [name for name, _ in stream.sent]


# --- certificates


def test_a_certificate_of_ones_own_is_trusted_where_the_bundle_says_so(engine, pem, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    with tls_front(engine, pem) as endpoint:
        assert "GetRecords" in written_and_read(endpoint, monkeypatch)


def test_the_bundle_of_requests_counts_too(pem, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(pem))
    with serving(Service(EMPTY)) as plain, tls_front(plain, pem) as endpoint:
        assert wire_to(endpoint).get_records("iterator", limit=1).resume_token == "next"


def test_certificates_are_read_once_for_all_services_and_again_when_they_change(
    pem, tmp_path_factory, monkeypatch
):
    bundle = tmp_path_factory.mktemp("bundle") / "trusted.pem"
    bundle.write_bytes(certificate(tmp_path_factory.mktemp("other")).read_bytes())
    os.utime(bundle, ns=(1, 1))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    read = []
    make = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda **of: read.append(of) or make(**of))
    with serving(Service(EMPTY)) as plain, tls_front(plain, pem) as endpoint:
        for _ in range(2):
            with pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"):
                wire_to(endpoint).get_records("iterator", limit=1)
        assert read == [{"cafile": str(bundle)}]
        bundle.write_bytes(pem.read_bytes())
        assert wire_to(endpoint).get_records("iterator", limit=1).resume_token == "next"
    assert len(read) == 2


def test_a_certificate_that_nobody_vouches_for_is_refused(pem):
    service = Service(EMPTY)
    with (
        serving(service) as plain,
        tls_front(plain, pem) as endpoint,
        pytest.raises(SSLError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        wire_to(endpoint).get_records("iterator", limit=1)
    assert service.requests == []


# --- proxies


def test_https_goes_through_the_tunnel_of_a_proxy_with_its_password(engine, pem, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", str(pem))
    seen = []
    with tls_front(engine, pem) as endpoint, proxy(seen) as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://ann:s%40crt@127.0.0.1:{port}")
        assert "PutRecords" in written_and_read(endpoint, monkeypatch)
    target = endpoint.removeprefix("https://")
    assert seen, "nothing went through the proxy"
    assert all(head.startswith(f"CONNECT {target} HTTP/1.") for head in seen)
    assert all("Proxy-Authorization: Basic YW5uOnNAY3J0\r\n" in head for head in seen)


def test_http_is_relayed_by_a_proxy(engine, monkeypatch):
    seen = []
    with proxy(seen) as port:
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{port}")
        assert "GetRecords" in written_and_read(engine, monkeypatch)
    assert any("X-Amz-Target: Kinesis_20131202.PutRecords" in head for head in seen)
    assert all(head.startswith(f"POST {engine}/ HTTP/1.1\r\n") for head in seen)


def test_a_host_excepted_from_the_proxy_is_asked_directly(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(Service(EMPTY)) as endpoint:
        assert wire_to(endpoint).get_records("iterator", limit=1).resume_token == "next"


@pytest.mark.parametrize(
    ("endpoint", "config"),
    [
        ("http://127.0.0.1:9/behind/a/path", {}),
        ("http://127.0.0.1:9", {"proxies": {"http": "http://127.0.0.1:9"}}),
        ("https://127.0.0.1:9", {"proxies": {"https": "127.0.0.1:9"}}),
        ("https://127.0.0.1:9", {"client_cert": "/no/file"}),
        ("http://127.0.0.1:9", {"retries": {"total_max_attempts": 2}}),
    ],
)
def test_what_the_wire_cannot_do_is_left_to_botocore(endpoint, config):
    assert wire_to(endpoint, **config) is None


# --- the endpoint


def test_the_endpoint_follows_botocores_rules_for_the_streams_account():
    session = botocore.session.get_session()
    once = Config(retries={"total_max_attempts": 1})
    client = session.create_client("kinesis", region_name="eu-west-1", config=once)
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    sent = []

    def note(request, **_):
        sent.append(request.url)
        raise ConnectionClosedError(endpoint_url=request.url)

    client.meta.events.register("before-send.kinesis.GetRecords", note)
    with pytest.raises(ConnectionClosedError):
        client.get_records(StreamARN=arn, ShardIterator="iterator")
    wire = open_wire(arn, client=client, session=session)
    assert wire.service._connections.endpoint.url == sent[0]


# --- connections


def test_a_connection_is_used_again_and_no_more_are_kept_than_allowed():
    with serving(Service(EMPTY)) as endpoint:
        wire = wire_to(endpoint, max_pool_connections=2)
        connect, made = wire.service._connections._connect, []
        wire.service._connections._connect = lambda: made.append(1) or connect()
        for _ in range(5):
            wire.get_records("iterator", limit=1)
        assert (len(made), len(wire.service._connections._idle)) == (1, 1)
        together = threading.Barrier(6)

        def overlapping():
            together.wait()
            for _ in range(5):
                wire.get_records("iterator", limit=1)

        threads = [threading.Thread(target=overlapping) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Two for threads, and as many for an event loop.
        assert len(wire.service._connections._idle) <= 4
        wire.close()


def test_small_writes_are_not_held_back_by_the_kernel():
    with serving(Service(EMPTY)) as endpoint:
        wire = wire_to(endpoint)
        wire.get_records("iterator", limit=1)
        ((connection, _),) = wire.service._connections._idle
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        wire.close()


@pytest.fixture
def raw_server():
    """Return a function: serve these bytes, one per connection; yields what was received."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads = []

    def serve(*answers, split=None):
        def run():
            for answer in answers:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    for part in [answer] if split is None else _pieces(answer, split):
                        connection.sendall(part)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield serve
    for thread in threads:
        thread.join()
    listener.close()


def _pieces(data, seed):
    chance, at = random.Random(seed), 0
    while at < len(data):
        size = chance.randrange(1, 60)
        yield data[at : at + size]
        at += size


def http(body, *lines, status="200 OK"):
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode() + body


PAGE = json.dumps({"Records": [], "NextShardIterator": "x" * 500}).encode()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(
    "answer",
    [
        http(PAGE, f"Content-Length: {len(PAGE)}"),
        http(PAGE, "Connection: close"),
        http(
            b"%x\r\n%s\r\n5;x=y\r\n%s\r\n0\r\n\r\n" % (len(PAGE) - 5, PAGE[:-5], PAGE[-5:]),
            "Transfer-Encoding: chunked",
        ),
        http(b"", status="100 Continue") + http(PAGE, f"content-length:{len(PAGE)}"),
    ],
    ids=["length", "to the end", "chunked", "continue"],
)
def test_an_answer_is_read_however_it_comes(answer, number, seed, raw_server):
    endpoint = raw_server(answer, split=f"{seed}-{number}")
    assert wire_to(endpoint).get_records("iterator", limit=1).resume_token == "x" * 500


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        http(PAGE, f"Content-Length: {len(PAGE) + 1}"),
        http(PAGE, f"Content-Length: {len(PAGE) - 1}"),
        http(PAGE, f"Content-Length: {BODY_BYTES_MOST + 1}"),
        http(PAGE, "Content-Length: -5"),
        http(b"zz\r\n", "Transfer-Encoding: chunked"),
        http(b"%x\r\n" % (BODY_BYTES_MOST + 1), "Transfer-Encoding: chunked"),
        http(b"2\r\nabc\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        b"HTTP/1.1 200 OK\r\n" + b"x" * 200_000,
    ],
)
def test_an_answer_that_is_none_is_a_broken_connection(answer, raw_server):
    with pytest.raises(ConnectionClosedError):
        wire_to(raw_server(answer)).get_records("iterator", limit=1)


def test_a_connection_that_the_service_has_closed_is_not_used_again(raw_server):
    answer = http(PAGE, f"Content-Length: {len(PAGE)}")
    wire = wire_to(raw_server(answer, answer))
    for _ in range(2):
        wire.get_records("iterator", limit=1)
        for connection, _ in wire.service._connections._idle:
            connection.settimeout(20)
            assert connection.recv(1, socket.MSG_PEEK) == b"", "the server closes after each"
    wire.close()


# --- errors


def test_a_silent_service_is_given_up_after_the_read_timeout():
    with serving(Service(HANG)) as endpoint, pytest.raises(ReadTimeoutError):
        wire_to(endpoint, read_timeout=0.2).get_records("iterator", limit=1)


def test_nobody_there_is_an_endpoint_that_cannot_be_reached():
    with pytest.raises(EndpointConnectionError):
        wire_to("http://127.0.0.1:1").get_records("iterator", limit=1)


def test_a_refusal_has_code_message_and_status_as_botocore_reads_them():
    with (
        serving(Service(error("ExpiredIteratorException"))) as endpoint,
        pytest.raises(ClientError) as caught,
    ):
        wire_to(endpoint).get_records("iterator", limit=1)
    found = caught.value.response
    assert found["Error"]["Code"] == "ExpiredIteratorException"
    assert found["Error"]["Message"] == "ExpiredIteratorException it is"
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize("answer", [HANG_UP, (503, {}), (500, {})], ids=str)
def test_a_passing_failure_is_told_and_not_repeated(answer):
    service = Service(answer)
    with serving(service) as endpoint, pytest.raises((ClientError, ConnectionClosedError)):
        wire_to(endpoint).get_records("iterator", limit=1)
    assert len(service.requests) == 1


# --- PutRecords in CBOR


REFUSAL = error("ProvisionedThroughputExceededException")[1]


@pytest.mark.parametrize("body", [REFUSAL, cbor2.dumps(REFUSAL)], ids=["json", "cbor"])
def test_a_refusal_of_a_write_is_read_in_either_encoding(body):
    service = Service((400, body))
    with serving(service) as endpoint, pytest.raises(ClientError) as caught:
        wire_to(endpoint).put_records([OutgoingRecord("k", b"data")])
    found = caught.value.response
    assert found["Error"]["Code"] == "ProvisionedThroughputExceededException"
    assert found["Error"]["Message"] == "ProvisionedThroughputExceededException it is"
    assert found["ResponseMetadata"]["HTTPStatusCode"] == 400
    ((headers, sent),) = service.sent
    assert headers["content-type"] == "application/x-amz-cbor-1.1"
    assert cbor2.loads(sent)["Records"] == [{"Data": b"data", "PartitionKey": "k"}]


@pytest.mark.parametrize("body", [b"\xbf", b"\xa1\x01\x02", b"\xa1aa\x3b" + b"\xff" * 8, b""])
def test_of_a_refusal_that_cannot_be_read_the_status_counts(body):
    with serving(Service((503, body))) as endpoint, pytest.raises(ClientError) as caught:
        wire_to(endpoint).put_records([OutgoingRecord("k", b"")])
    assert caught.value.response["Error"]["Code"] == "503"


OUTCOME = {"ShardId": SHARD_0, "SequenceNumber": "4950"}


@pytest.mark.parametrize("encode", [cbor2.dumps, lambda answer: json.dumps(answer).encode()])
def test_an_answer_to_a_write_is_read_in_either_encoding(encode):
    answer = encode({"FailedRecordCount": 0, "Records": [OUTCOME]})
    with serving(Service((200, answer))) as endpoint:
        (found,) = wire_to(endpoint).put_records([OutgoingRecord("k", b"")])
    assert (found.shard_id, found.sequence_number) == (SHARD_0, "4950")


@pytest.mark.parametrize(
    ("told", "encoding"), [("false", "json"), ("FALSE", "json"), ("true", "cbor"), ("", "cbor")]
)
def test_an_endpoint_without_cbor_is_told_of_as_to_the_sdk_for_java(told, encoding, monkeypatch):
    monkeypatch.setenv("CBOR_ENABLED", told)
    service = Service((200, {"FailedRecordCount": 0, "Records": [OUTCOME]}))
    with serving(service) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        (found,) = Stream(endpoint, "orders").put(OutgoingRecord("k", b"data"))
    assert found.shard_id == SHARD_0
    ((headers, _),) = service.sent
    assert headers["content-type"] == f"application/x-amz-{encoding}-1.1"


# --- GetRecords in CBOR


CBOR_ONCE = ("cbor", "json", "json")


def encodings(service):
    return [headers["content-type"] for headers, _ in service.sent]


@pytest.mark.parametrize("encode", [cbor2.dumps, lambda answer: json.dumps(answer).encode()])
def test_a_long_page_is_asked_for_in_its_format_and_read_in_either(encode):
    service = Service((200, encode(EMPTY[1])))
    with serving(service) as endpoint:
        page = wire_to(endpoint, long_pages=CBOR_PAGES).get_records("iterator", limit=7)
    assert (page.resume_token, page.millis_behind_latest) == ("next", 0)
    ((headers, sent),) = service.sent
    assert headers["content-type"] == "application/x-amz-cbor-1.1"
    asked = {"ShardIterator": "iterator", "Limit": 7, "StreamARN": ARN}
    assert cbor2.loads(sent) == asked


def test_once_an_answer_cannot_be_read_pages_are_asked_for_in_json():
    odd = cbor2.dumps({"Records": [{"Data": 1.5}]})
    service = Service((200, odd), EMPTY, EMPTY)
    with serving(service) as endpoint:
        wire = wire_to(endpoint, long_pages=CBOR_PAGES)
        with pytest.raises(UnreadableAnswer):
            wire.get_records("iterator", limit=1)
        assert wire.get_records("iterator", limit=1).resume_token == "next"
        assert wire.get_records("iterator", limit=1).resume_token == "next"
    assert encodings(service) == [
        f"application/x-amz-{kind}-1.1" for kind in ("cbor", "json", "json")
    ]
