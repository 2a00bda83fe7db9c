"""
Every command in the situations that people are in: a few lines that name cause and cure.

Most run in this process; what is missing from a machine (an extra, Node, Java) is missing from a
process that runs all the commands concerned, one after the other.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command

from shardfleet.domain.positions.positions import Positions, positions_to_json
from shardfleet.domain.stream.sequence import StreamIncarnation
from shardfleet_local.access import NOT_ITS_KEY
from shardfleet_local.refusals import refusal_of
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import main
from tests.local.launcher.test_plain_template import write_shop
from tests.test_extras import OURS, installed  # noqa: F401 - a fixture

LINES_MOST = 8
ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/clicks"
SHARDFLEET = Path(sys.executable).with_name("shardfleet")
OWN = ["--handler", "shop:handle"]
# What asks AWS first, each in a way that needs no more of a person.
OF_AWS = [
    "status",
    "status --application clicks",
    "leases",
    "top --rounds 1",
    "dashboard --minutes 1",
    "where --key k",
    "explain",
    "what-if",
    "logs",
    "doctor",
    "cost",
    "tail --records 1",
    "put --input orders.jsonl --key who",
    "redrive --from s3://failed/clicks/",
    "pause --all --yes",
    "resume --all --yes",
    "drain --yes",
    "release s0001 --yes",
    "rewind --all --to 1h --yes",
    "migrate --from-java --yes",
    "documents",
    "position export --output out.json",
    "position export --application clicks --stream clicks --output out.json",
    "position import positions.json --yes",
    "work --stream clicks --application clicks --handler shop:handle --check",
    "acceptance --yes",
]
# What needs the CDK, and thus Node.
OF_NODE = [
    "template --out plain --handler shop:handle --folder .",
    "local up --port 0",
    "local run --handler shop:handle --input orders.jsonl --key who",
    "demo",
    "chaos",
    "acceptance --local --yes",
]
OF_JAVA = ["pipeline run --batch --source shardfleet:clicks --sink parquet:views"]
ALONE = ["config", "init clicks", "simulate --seeds 1 --jobs 1"]


def words(call):
    return call.split()


def test_every_command_is_here():
    def commands(group, *before):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, *before, name)
            else:
                yield " ".join((*before, name))

    asked = [*OF_AWS, *OF_NODE, *OF_JAVA, *ALONE]
    for name in commands(get_command(application.app)):
        assert any(f"{call} ".startswith(f"{name} ") for call in asked), name


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with what the calls name, and an environment with no more than they need."""
    (tmp_path / "orders.jsonl").write_text('{"who": "a"}\n', "utf-8")
    (tmp_path / "shop.py").write_text("def handle(batch): ...\n", "utf-8")
    positions = Positions(incarnation=StreamIncarnation(ARN, 1), shards={}, at_ms=1)
    text = json.dumps(positions_to_json(positions))
    (tmp_path / "positions.json").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("AWS_", "SHARDFLEET_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA" + "A" * 32)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")


@pytest.fixture(scope="module")
def service():
    """An endpoint that refuses every request, in the request's own protocol."""

    class Refusing(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            headers, body = refusal_of(
                {name.lower(): value for name, value in self.headers.items()}, self.server.reason
            )
            code = self.server.code.encode()
            for usual in (b"AccessDeniedException", b"AccessDenied"):
                body = body.replace(usual, code) if usual in body else body
            headers.pop("x-amzn-errortype", None)
            self.send_response(self.server.status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.do_POST()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def told(code, text, *, codes=(1, 2)):
    """Assert that it is a few lines, none of them twice, without a traceback; return them."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert "Traceback" not in text, text
    assert code in codes, (code, text)
    assert 1 <= len(lines) <= LINES_MOST, text
    assert len(set(lines)) == len(lines), text
    return " ".join(" ".join(lines).split())


def ask(capsys, call):
    capsys.readouterr()
    code = application.run(words(call))
    said = capsys.readouterr()
    return told(code, said.out + said.err)


REFUSALS = {
    "stale keys": ("AccessDeniedException", NOT_ITS_KEY, "local up"),
    "foreign keys": (
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        "credentials",
    ),
    "expired keys": ("ExpiredTokenException", "The security token is expired", "expired"),
}


@pytest.mark.parametrize(
    ("situation", "call"),
    [
        *(("stale keys", call) for call in OF_AWS),
        *((each, call) for each in ("foreign keys", "expired keys") for call in OF_AWS[:2]),
        ("foreign keys", "acceptance --yes"),
    ],
)
def test_refused_keys_are_named(keys, service, monkeypatch, capsys, situation, call):
    service.status, (service.code, service.reason, wanted) = 403, REFUSALS[situation]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.server_port}")

    assert wanted in ask(capsys, call)


@pytest.mark.parametrize("call", OF_AWS)
def test_no_network_is_named(keys, monkeypatch, capsys, call):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")

    assert "connect" in ask(capsys, call)


@pytest.mark.parametrize("call", OF_AWS)
def test_a_wrong_region_is_named(keys, service, monkeypatch, capsys, call):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.server_port}")
    service.status, service.code = 400, "ResourceNotFoundException"
    service.reason = "Requested resource not found"

    said = ask(capsys, call)
    assert "region" in said or "eu-central-1" in said


@pytest.mark.parametrize("call", [*OF_AWS[:2], *OF_AWS[-4:], "doctor", "cost", "logs", "dashboard"])
def test_an_environment_without_region_or_keys_is_named(monkeypatch, capsys, call):
    assert "region" in ask(capsys, call)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert "credentials" in ask(capsys, call)


@pytest.mark.parametrize(
    ("options", "word"),
    [("--profile nobody", "nobody"), ("--region=nowhere:1", "nowhere")],
)
def test_a_profile_or_region_that_is_none_is_named_wherever_it_stands(
    keys, monkeypatch, capsys, options, word
):
    monkeypatch.setenv("AWS_PROFILE", "")  # So that it is taken back afterwards.
    monkeypatch.delenv("AWS_PROFILE")
    assert word in ask(capsys, f"status {options}")
    assert word in ask(capsys, f"{options} status")
    assert ask(capsys, "status --region") == "shardfleet: --region: its value is missing"


FILES = [
    "put --dry-run --key who --input",
    "local run --handler shop:handle --key who --input",
    "demo --key who --input",
    "doctor --before",
    "template --out plain --app",
    "local up --port 0 --app",
    "position import --yes --dry-run",
    "simulate --handler shop:handle --key who --input",
]


@pytest.mark.parametrize("call", FILES)
def test_a_file_that_cannot_be_read_is_named(place, capsys, call):
    (place / "binary").write_bytes(b"\xff\xfe\x00\xd8\x00")
    (place / "folder").mkdir()
    (place / "closed").symlink_to("closed")  # Nobody can read that, root neither.
    for file in ("nothing", "binary", "folder", "orders.jsonl/inside", "closed"):
        assert Path(file).name in ask(capsys, f"{call} {file}"), file


@pytest.mark.parametrize("call", ["init clicks", "template --app cdk.out --out plain"])
def test_a_full_disk_is_named(place, monkeypatch, capsys, call):
    write_shop(place / "cdk.out")

    def full(*_, **__):
        raise OSError(28, "No space left on device", "o")

    monkeypatch.setattr(Path, "write_text", full)
    application.run(words(call))
    said = capsys.readouterr().err
    assert "No space left on device; free some space" in told(1, said)


def in_process(calls, *, sites=(), **environment):
    """Run commands in one other process; yield each with its exit code and what it printed."""
    driver = [sys.executable, *(["-S"] if sites else []), "-c", DRIVER]
    path = os.pathsep.join(map(str, [*sites, *OURS]))
    ran = subprocess.run(
        driver,
        input=json.dumps([words(call) for call in calls]),
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for call, (code, text) in zip(calls, json.loads(ran.stdout.splitlines()[-1]), strict=True):
        yield call, code, text


DRIVER = """
import contextlib, io, json, sys, traceback
from shardfleet_ops.cli.app import run
told = []
for arguments in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = run(arguments)
        except BaseException:
            code = traceback.format_exc()
    told.append([code, said.getvalue()])
print(json.dumps(told))
"""


@pytest.mark.parametrize("extra", ["cli", "spark"])
def test_a_missing_extra_is_named(place, installed, keys, extra):  # noqa: F811 - the fixture
    calls = [*OF_AWS[:1], *OF_NODE, *(OF_JAVA if extra == "cli" else [])]
    about = place / f"about/shardfleet-{version('shardfleet')}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Name: shardfleet\nVersion: {version('shardfleet')}\n")
    sites, nowhere = (installed(extra), about.parent), "http://127.0.0.1:1"
    for call, code, text in in_process(calls, sites=sites, AWS_ENDPOINT_URL=nowhere):
        said = told(code, text)
        if call not in OF_AWS:
            assert "pip install 'shardfleet[" in said, (call, text)


def test_a_machine_without_node_is_told_what_to_install(place):
    (place / "bin").mkdir()
    for call, code, text in in_process(OF_NODE, PATH=str(place / "bin"), XDG_CACHE_HOME=str(place)):
        assert "Node 20" in told(code, text), call


def test_a_machine_without_java_is_told_what_to_install(place, keys):
    (place / "bin").mkdir()
    for call, code, text in in_process(OF_JAVA, PATH=str(place / "bin"), JAVA_HOME=""):
        assert "Java 17" in told(code, text), call


@pytest.mark.parametrize("call", ["config", "--help"])
def test_what_nobody_reads_or_no_disk_takes_ends_in_one_line_or_none(call):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([SHARDFLEET, call], stdout=full, stderr=-1, text=True, check=False)
    assert ran.returncode == 1
    assert [ran.stderr.count(word) for word in ("No space left", "\n")] == [1, 1], ran.stderr
    reads, writes = os.pipe()
    os.close(reads)
    ran = subprocess.run([SHARDFLEET, call], stdout=writes, stderr=-1, text=True, check=False)
    os.close(writes)
    assert (ran.returncode, ran.stderr) == (1, "")


def test_output_that_cannot_be_flushed_is_told_once(monkeypatch, capsys):
    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    with contextlib.redirect_stdout(Full()):
        monkeypatch.setattr(sys, "argv", ["shardfleet", "--version"])
        assert main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "shardfleet: No space left on device; free some space, or write elsewhere"
    ]
