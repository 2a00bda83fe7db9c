"""What a hostile or broken service may answer: refused as botocore's errors, at a linear cost."""

import json
import socket
import threading
from email.utils import parsedate_to_datetime

import pytest
from botocore.exceptions import (
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from shardfleet.adapters.http import answers
from shardfleet.adapters.http.answers import BODY_BYTES_MOST
from shardfleet.adapters.http.connections import Endpoint, HttpConnections
from shardfleet.adapters.sdk_errors import SdkCall
from shardfleet.errors import OutcomeUnknown, Throttled

SECRET = "jane.doe@example.org"


def http(body, *lines, status="200 OK"):
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode("latin-1") + body


CHUNKED = "Transfer-Encoding: chunked"


class Peer:
    """A connection whose other side has sent these pieces; counts what is copied of them."""

    def __init__(self, pieces):
        self.pieces = list(pieces)
        self.received = 0

    def recv(self, size):
        self.received += 1
        return Counted(self.pieces.pop(0)[:size]) if self.pieces else b""

    def recv_into(self, view):
        self.received += 1
        if not self.pieces:
            return 0
        piece = self.pieces[0][: len(view)]
        self.pieces[0] = self.pieces[0][len(piece) :]
        if not self.pieces[0]:
            del self.pieces[0]
        view[: len(piece)] = piece
        return len(piece)

    def sendall(self, data):
        pass

    def close(self):
        pass

    def settimeout(self, seconds):
        pass


class Counted(bytes):
    """Bytes that count what joining and slicing them copies."""

    copied = 0

    def __add__(self, other):
        return self._made(bytes.__add__(self, other))

    def __radd__(self, other):
        if isinstance(other, bytearray):
            other.extend(self)  # In place: what `+=` does without this class.
            return other
        return self._made(bytes(other) + bytes(self))

    def __getitem__(self, place):
        found = bytes.__getitem__(self, place)
        return self._made(found) if isinstance(place, slice) else found

    def _made(self, found):
        Counted.copied += len(found)
        return Counted(found)


class CountedArray(bytearray):
    """A bytearray that counts what slicing and cutting it copies."""

    def __getitem__(self, place):
        found = bytearray.__getitem__(self, place)
        if isinstance(place, slice):
            Counted.copied += len(found)
        return found

    def __delitem__(self, place):
        bytearray.__delitem__(self, place)
        Counted.copied += len(self)


class Seconds:
    """A clock that each look sets forward."""

    def __init__(self, step):
        self.now_s, self.step = 0.0, step

    def __call__(self):
        self.now_s += self.step
        return self.now_s


def reader(peer, **given):
    endpoint = Endpoint(
        host="127.0.0.1",
        port=9,
        tls=None,
        connect_timeout_s=5,
        read_timeout_s=5,
        connections=1,
    )
    found = HttpConnections(endpoint, **given)
    found._connect = lambda: peer
    return found


def answer_of(pieces, **given):
    return reader(Peer(pieces), **given).post({}, b"")


def pieces(data, size=65_536):
    return [data[at : at + size] for at in range(0, len(data), size)]


def body_in_chunks(chunk, size):
    part = b"%x\r\n%s\r\n" % (chunk, bytes(chunk))
    return part * (size // chunk) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("chunk", "size"), [(1, 100_000), (7, 200_000), (65_536, 1 << 22), (1 << 23, 1 << 23)]
)
def test_a_body_in_chunks_is_copied_a_few_times_whatever_the_chunks(monkeypatch, chunk, size):
    monkeypatch.setattr(answers, "bytearray", CountedArray, raising=False)
    monkeypatch.setattr(Counted, "copied", 0)
    data = http(body_in_chunks(chunk, size), CHUNKED)
    answer = answer_of(pieces(data))
    assert len(answer.body) == size // chunk * chunk
    assert Counted.copied <= 4 * len(data) + 1_000_000


def test_a_head_that_comes_byte_by_byte_costs_what_its_bound_allows(monkeypatch):
    monkeypatch.setattr(Counted, "copied", 0)
    with pytest.raises(ConnectionClosedError):
        answer_of(pieces(http(b"", f"X: {'x' * 80_000}"), 1_000))
    assert Counted.copied <= 70 * 70_000


@pytest.mark.parametrize("lines", [["Content-Length: 1000"], [CHUNKED], []])
def test_an_answer_that_drips_is_given_up_as_a_whole(lines):
    drops = [http(b"", *lines), b"400\r\n", *[b"x"] * 999]
    peer = Peer(drops)
    with pytest.raises(ReadTimeoutError):
        reader(peer, monotonic_s=Seconds(1.0)).post({}, b"")
    assert peer.received < 100


@pytest.mark.parametrize(
    "answer",
    [
        http(b"", "Content-Length: " + "9" * 5_000),
        http(b"", "Content-Length: " + "0" * 5_000),
        http(b"x", "Content-Length: +1"),
        http(b"x", "Content-Length: 1", "Content-Length: 1"),
        http(b"xx", "Content-Length: 1", "content-length: 2"),
        http(b"x", "Content-Length: 1, 1"),
        http(b"x", "Content-Length : 1"),
        http(b"x", "Content-Length: 1\nX: y"),
        http(b"x", "Content-Length: 1\rX: y"),
        http(b"x", "Content-Length: 1", " 0"),
        http(b"x", "Content-Length:", " 1"),
        http(b"0\r\n\r\n", CHUNKED, "Content-Length: 5"),
        http(b"0\r\n\r\n", CHUNKED, CHUNKED),
        http(b"0\r\n\r\n", "Transfer-Encoding: gzip, chunked"),
        http(b"x", "Transfer-Encoding: identity"),
        http(b"+1\r\nx\r\n0\r\n\r\n", CHUNKED),
        http(b"0x1\r\nx\r\n0\r\n\r\n", CHUNKED),
        http(b" 1\r\nx\r\n0\r\n\r\n", CHUNKED),
        http(b"-0\r\n\r\n", CHUNKED),
        http(b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n", CHUNKED),
        http(b"\r\nx\r\n0\r\n\r\n", CHUNKED),
        http(b"1;" + b"e" * 100_000 + b"\r\nx\r\n0\r\n\r\n", CHUNKED),
        http(b"f" * 5_000 + b"\r\n", CHUNKED),
        http(b"1\r\nx\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", CHUNKED),
        http(b"x", "Content-Length: 1", status="20 OK"),
        http(b"x", "Content-Length: 1", status="2000 OK"),
        http(b"x", "Content-Length: 1").replace(b"HTTP/1.1", b"HTTP/1.15"),
        http(b"", f"Content-Length: {BODY_BYTES_MOST + 1}"),
        http(b"x" * 100_000, "Content-Length: 100001")[:-60_000],
    ],
    ids=lambda answer: ascii(answer[:60]),
)
def test_what_is_not_exactly_one_answer_is_a_broken_connection(answer):
    with pytest.raises(ConnectionClosedError):
        answer_of(pieces(answer))


@pytest.mark.parametrize(
    "answer",
    [
        f"HTTP/1.1 {SECRET}\r\n\r\n".encode(),
        http(b"", f"Content-Length: {SECRET}"),
        http(SECRET.encode() + b"\r\n", CHUNKED),
        http(b"1\r\n" + SECRET.encode(), CHUNKED),
    ],
)
def test_what_came_is_in_no_message_of_the_error_nor_of_its_causes(answer):
    with pytest.raises(ConnectionClosedError) as caught:
        answer_of([answer])
    error = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize(("writes", "kind"), [(True, OutcomeUnknown), (False, Throttled)])
def test_a_broken_answer_is_an_unknown_outcome_like_any_other(writes, kind):
    call = SdkCall("PutRecords", writes=writes)
    with pytest.raises(kind):
        call.run(answer_of, pieces=[http(b"x", "Content-Length: 1", "Content-Length: 2")])


@pytest.mark.parametrize("closing", ["Connection: close", "Connection: x, Close"])
def test_a_connection_that_the_service_closes_is_not_kept(closing):
    found = reader(Peer([http(b"x", "Content-Length: 1", closing)]))
    assert found.post({}, b"").body == b"x"
    assert not found._idle


@pytest.mark.parametrize(("idle_s", "is_used"), [(4.0, True), (6.0, False)])
def test_a_connection_that_was_idle_for_longer_than_its_limit_is_not_used_again(idle_s, is_used):
    """Fact L04: while a process is frozen, a connection may die without a word."""
    clock = Seconds(0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = reader(ours, monotonic_s=clock)  # The limit is 5 s.
        theirs.sendall(http(b"x", "Content-Length: 1"))
        assert found.post({}, b"").body == b"x"
        clock.now_s += idle_s
        assert (found._kept() is ours) == is_used


def test_over_a_socket_what_follows_an_answer_is_never_taken_for_the_next():
    """A desynchronised service: the answer to one request must not answer another."""
    page = json.dumps({"mine": 1}).encode()
    other = json.dumps({"somebody's": 2}).encode()
    first = http(page, f"Content-Length: {len(page)}")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            for sent in (first + http(other, f"Content-Length: {len(other)}"), first):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(sent)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        given = {"connect_timeout_s": 20, "read_timeout_s": 20, "connections": 1}
        client = HttpConnections(Endpoint(host="127.0.0.1", port=port, tls=None, **given))
        answers = []
        for _ in range(2):
            try:
                answers.append(client.post({}, b"").body)
            except ConnectionClosedError:
                answers.append(None)
        thread.join()
        client.close()
    assert answers == [None, page]


@pytest.mark.parametrize(
    "date",
    [
        "Thu, 01 Jan 1970 00:00:00 GMT",
        "Tue, 29 Feb 2028 23:59:59 GMT",
        "Fri, 31 Dec 9999 09:08:07 GMT",
    ],
)
def test_a_date_is_the_instant_that_it_says(date):
    assert answers.instant_of(date) == parsedate_to_datetime(date)


@pytest.mark.parametrize(
    "date", ["", "1", "soon", "Thu, 01 Jan", "Thu, 99 Jan 2026 00:00:00 GMT", "Thu, 01 Jan 2026"]
)
def test_a_date_that_is_none_is_no_instant(date):
    with pytest.raises(ValueError, match=r"."):
        answers.instant_of(date)


@pytest.mark.parametrize(
    ("host", "looked_up"), [("kinesis.amazonaws.com", b"kinesis.amazonaws.com"), ("ä.aws", "ä.aws")]
)
def test_a_name_in_ascii_needs_no_codec_of_international_names(host, looked_up, monkeypatch):
    asked = []

    def look_up(where, _timeout):
        asked.append(where)
        raise OSError("nobody there")

    monkeypatch.setattr(socket, "create_connection", look_up)
    endpoint = Endpoint(
        host=host, port=1, tls=None, connect_timeout_s=1, read_timeout_s=1, connections=1
    )
    with pytest.raises(EndpointConnectionError):
        HttpConnections(endpoint).post({}, b"")
    assert asked == [(looked_up, 1)]
