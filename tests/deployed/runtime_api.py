"""
Lambda's runtime API on loopback: what a runtime client asks for its next event and tells of it.

https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html: next, response, error, init error.
"""

import json
import queue
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/2018-06-01/runtime/"


class RuntimeApi:
    """The API of one execution environment; a context manager."""

    def __init__(self, function_arn):
        self._arn = function_arn
        self._events = queue.Queue()
        self._replies = queue.Queue()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                api._next(self)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                kind = self.path.removeprefix(PREFIX).rpartition("/")[2]
                api._replies.put((kind, json.loads(body or "null")))
                _answer(self, 202, b'{"status":"OK"}', {})

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()

    def invoke(self, event, *, timeout_s, wait_s):
        """Hand an event out; return ("response" or "error", body); queue.Empty after `wait_s`."""
        self._events.put((event, timeout_s))
        return self._replies.get(timeout=wait_s)

    def _next(self, request):
        event, timeout_s = self._events.get()
        headers = {
            "Lambda-Runtime-Aws-Request-Id": str(uuid.uuid4()),
            "Lambda-Runtime-Deadline-Ms": str(int((time.time() + timeout_s) * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": self._arn,
            "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700",
        }
        _answer(request, 200, json.dumps(event).encode(), headers)


def _answer(request, status, body, headers):
    request.send_response(status)
    # The client's compiled part crashes on an answer without a type.
    usual = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    for name, text in {**usual, **headers}.items():
        request.send_header(name, text)
    request.end_headers()
    request.wfile.write(body)
