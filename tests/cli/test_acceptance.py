"""`shardfleet acceptance` before anything is done: its plan, its price, and no write call."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from shardfleet_local.acceptance import run
from shardfleet_local.acceptance.steps import STEPS
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_FAILED, EXIT_WRONG_INPUT

ACCOUNT = "111122223333"
IDENTITY = f"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<GetCallerIdentityResult><Arn>arn:aws:iam::{ACCOUNT}:user/me</Arn><UserId>me</UserId>
<Account>{ACCOUNT}</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"""
REFUSED = "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"


def operation_of(method, target, body):
    """Return what is asked for: an action's name, or for REST the method and the path."""
    if target:
        return target.rpartition(".")[2]
    return parse_qs(body).get("Action", [method])[0]


def is_read(operation):
    return operation in ("GET", "HEAD") or operation.startswith(("Get", "List", "Describe"))


@pytest.fixture
def asked(monkeypatch):
    """An AWS that says who asks, refuses everything else, and remembers what it was asked for."""
    calls = []

    class Recorder(BaseHTTPRequestHandler):
        def answer(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
            operation = operation_of(self.command, self.headers.get("X-Amz-Target"), body)
            calls.append(operation)
            known = operation == "GetCallerIdentity"
            text = (IDENTITY if known else REFUSED).encode()
            self.send_response(200 if known else 403)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        # Names: http.server's.
        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    yield calls
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_dry_run_prints_plan_and_price_and_makes_no_write_call(asked, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    assert application.run(["acceptance", "--dry-run"]) == 0

    printed = capsys.readouterr().out
    assert ACCOUNT in printed
    assert "at most $0." in printed
    for step in STEPS:
        assert step.name in printed
        assert step.promise in printed
    # It has looked whose account it is, and nothing else.
    assert asked == ["GetCallerIdentity"]
    assert all(is_read(operation) for operation in asked)


def test_without_a_yes_nothing_is_written_either(asked, capsys):
    assert application.run(["acceptance"]) == 1

    assert "Nothing was changed" in capsys.readouterr().out
    assert asked == ["GetCallerIdentity"]


def test_an_account_that_refuses_writes_fails_the_run_and_the_end_is_told(
    asked, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(run, "GONE_MS", 0)  # Nothing was made that could go late.

    assert application.run(["acceptance", "--yes", "--output", str(tmp_path)]) == EXIT_FAILED

    printed = capsys.readouterr().out
    assert "--destroy shardfleet-acceptance-" in printed
    # The endpoint tells a write: the test above could fail.
    assert [operation for operation in asked if not is_read(operation)] == ["PUT"]
    (page,) = tmp_path.glob("*.md")
    text = page.read_text("utf-8")
    assert "# Acceptance: FAILED" in text
    assert "CreateBucket" in text
    assert "list_streams was refused" in text
    assert ACCOUNT not in text


def test_a_destruction_that_is_not_of_a_run_is_refused(asked, capsys):
    arguments = ["acceptance", "--destroy", "ShardFleetStack", "--yes"]

    assert application.run(arguments) == EXIT_WRONG_INPUT
    assert "six hexadecimal digits expected" in capsys.readouterr().err
    assert all(is_read(operation) for operation in asked)
