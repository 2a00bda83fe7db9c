"""A service that misbehaves: it answers, refuses, hangs or hangs up as the test says."""

import http.client
import json
import socketserver
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

import pytest

from shardfleet.errors import Unsettled


@contextmanager
def doubted(kind, match=None):
    """Expect a refusal that is believed only when it lasts, and then is of that kind."""
    with pytest.raises(Unsettled, match=match) as caught:
        yield caught
    assert isinstance(caught.value.verdict, kind)


HANG = "hang"  # take the request, never answer
HANG_UP = "hang up"  # take the request, close the connection
LOSE_REPLY = "lose the reply"  # carry the request out behind it, then close the connection


def error(code, status=400, **members):
    """Return an answer in the form of the JSON protocols of AWS."""
    return status, {"__type": f"com.amazonaws.x#{code}", "message": f"{code} it is", **members}


class Service:
    """
    What the next requests get.

    `answers` are taken one by one, the last one again and again: `(status, body)`, or one of the
    words above; a body of bytes goes out as it is. `requests` are the operations seen, `sent` their
    headers by lower-case name and their bodies.
    """

    def __init__(self, *answers, behind=None):
        self.answers = list(answers)
        self.behind = behind
        self.requests = []
        self.sent = []
        self.released = threading.Event()
        self._noted = threading.Condition()

    def note(self, operation):
        with self._noted:
            self.requests.append(operation)
            self._noted.notify_all()

    def has_requests(self, count):
        """Wait until so many requests have come; say whether they did."""
        with self._noted:
            return self._noted.wait_for(lambda: len(self.requests) >= count, timeout=60)

    def next_answer(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _handler(service):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # Else a body waits 40 ms for an acknowledgement.

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            service.sent.append(({k.lower(): v for k, v in self.headers.items()}, body))
            service.note(self.headers["X-Amz-Target"].rpartition(".")[2])
            answer = service.next_answer()
            if answer == HANG:
                service.released.wait()
            if answer == LOSE_REPLY:
                self._carry_out(body)
            if isinstance(answer, str):
                self.close_connection = True
                return
            status, members, *more = answer
            payload = members if isinstance(members, bytes) else json.dumps(members).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.0")
            for name, value in more:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def _carry_out(self, body):
            host = urlsplit(service.behind).netloc
            connection = http.client.HTTPConnection(host)
            connection.request("POST", "/", body, {**self.headers, "Host": host})
            assert connection.getresponse().status == http.HTTPStatus.OK
            connection.close()

        def log_message(self, *_):
            pass

    return Handler


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def serving(service):
    """Serve on a free port of the loopback interface; yields the endpoint."""
    with _Server(("127.0.0.1", 0), _handler(service)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            service.released.set()
            server.shutdown()
            thread.join()
