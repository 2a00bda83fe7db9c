"""
Every command in every situation that people are in: a few lines that name cause and cure.

Most run in this process; what is missing from a machine (an extra, Node, Java) is missing from a
process that runs all the commands, one after the other. Of the product of commands and situations
each cell is run, or a rule that is read off the command says why it cannot be in that situation:

* who names neither a stack nor a stream asks no account of anybody's (`asks_aws`);
* who takes no path opens no file of a person's (`paths_of`);
* without typer and rich (the extras none and cdk) nothing gets as far as a command's name
  (`tests/test_extras.py`), and who has the extra that a command needs, misses none (`HAVE`);
* `pipeline run` asks AWS within Spark: tests/spark/test_refused_account.py.
"""

import builtins
import contextlib
import errno
import inspect
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
from tests.cli.test_presentation import CALLS as PRINTED
from tests.cli.test_presentation import said as shown  # noqa: F401 - a fixture
from tests.test_extras import OURS, installed, packages_of  # noqa: F401 - a fixture

LINES_MOST = 8
ARN = "arn:aws:kinesis:eu-central-1:123456789012:stream/clicks"
SHARDFLEET = Path(sys.executable).with_name("shardfleet")
RUN = "--handler shop:handle --key who"
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
ALONE = [
    "config",
    "init clicks",
    f"simulate {RUN} --input orders.jsonl --hours 0.01 --seeds 1 --jobs 1",
]
EVERY = [*OF_AWS, *OF_NODE, *OF_JAVA, *ALONE]


def words(call):
    return call.split()


def commands(group=None, *before):
    """Yield each command, by all its words."""
    for name, command in (group or get_command(application.app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *before, name)
        else:
            yield " ".join((*before, name)), command


COMMANDS = dict(commands())


def named(call):
    """Return the command that a call is of."""
    return next(name for name in COMMANDS if f"{call} ".startswith(f"{name} "))


def asks_aws(command):
    """Return whether it names a fleet, a stream or an application: of somebody's account."""
    return bool({"stack", "stream", "application"} & {each.name for each in command.params})


def paths_of(command):
    """Return the options that are files and folders, by the types of the function behind them."""
    typed = inspect.signature(inspect.unwrap(command.callback), eval_str=True).parameters
    paths = {name for name, each in typed.items() if "pathlib" in str(each.annotation)}
    metavars = ("FILE", "DIR", "FOLDER", "TEMPLATE")
    return {
        each.opts[0]
        for each in command.params
        if each.name in paths or getattr(each, "metavar", "") in metavars
    }


def test_every_command_is_here_and_where_its_rule_puts_it():
    assert {named(call) for call in EVERY} == set(COMMANDS)
    account = {name for name, each in COMMANDS.items() if asks_aws(each)}
    assert {named(call) for call in OF_AWS} == account | {"acceptance"}  # Its stack is its own.
    of_paths = {f"{name} {each}" for name, of in COMMANDS.items() for each in paths_of(of)}
    tried = {f"{named(call)} {words(call)[-1]}" for call in [*FILES, *FOLDERS, *WRITTEN]}
    tried |= {"position import file"}  # The one that is no option.
    assert of_paths - tried == OF_SPARK
    assert {named(call) for _, call in PRINTED} == set(COMMANDS)


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
    return told(code, "".join(capsys.readouterr()))


REFUSALS = {
    "stale keys": ("AccessDeniedException", NOT_ITS_KEY, "local up"),
    "foreign keys": (
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        "credentials",
    ),
    "expired keys": ("ExpiredTokenException", "The security token is expired", "expired"),
}


@pytest.mark.parametrize("call", OF_AWS)
@pytest.mark.parametrize("situation", REFUSALS)
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

    told_of = ask(capsys, call)
    assert "region" in told_of or "eu-central-1" in told_of


@pytest.mark.parametrize("call", OF_AWS)
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
    f"local run {RUN} --input",
    "demo --key who --input",
    "doctor --before",
    "template --out plain --app",
    "local up --port 0 --app",
    "position import --yes --dry-run",
    f"simulate {RUN} --input",
    "cost --prices",
]
FOLDERS = [
    f"local run {RUN} --input orders.jsonl --folder",
    "local up --port 0 --handler shop:handle --folder",
    "template --out plain --handler shop:handle --folder",
    "work --stream clicks --application clicks --handler cart:handle --folder",
    "position export --stream clicks --checkpoint",
]
WRITTEN = [
    "template --handler shop:handle --folder . --out",
    "demo --output",
    "chaos --output",
    "simulate --seeds 1 --output",
    "acceptance --local --output",
    "position export --output",
]
# Opened by Spark's own readers: tests/spark/test_pipelines.py and test_backfill.py.
OF_SPARK = {
    f"pipeline run --{each}"
    for each in ("folder", "checkpoint", "bad-records", "backfill", "backfill-positions")
}


@pytest.mark.parametrize("call", [*FILES, *FOLDERS])
def test_a_file_that_cannot_be_read_is_named(place, keys, monkeypatch, capsys, call):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    (place / "binary").write_bytes(b"\xff\xfe\x00\xd8\x00")
    (place / "folder").mkdir()
    (place / "closed").symlink_to("closed")  # Nobody can read that, root neither.
    for file in ("nothing", "binary", "folder", "orders.jsonl/inside", "closed"):
        told_of = ask(capsys, f"{call} {file}")
        assert Path(file).name in told_of or ("cart" in told_of and "work" in call), file


ONE_OF_EACH = {named(call): call for state, call in reversed(PRINTED) if state == "healthy"}
OUTPUTS = {
    "a closed pipe": BrokenPipeError(errno.EPIPE, "Broken pipe"),
    "a full disk": OSError(errno.ENOSPC, "No space left on device"),
}


@pytest.mark.parametrize("call", ONE_OF_EACH.values())
@pytest.mark.parametrize("situation", OUTPUTS)
def test_what_is_printed_may_go_nowhere(shown, keys, situation, call):  # noqa: F811
    class Broken(io.StringIO):
        def write(self, text):
            if text:
                raise OUTPUTS[situation]

    with contextlib.redirect_stdout(Broken()):
        text = shown("healthy", call, 100)
    assert_told(text, OUTPUTS[situation])


@pytest.mark.parametrize("call", ONE_OF_EACH.values())
def test_a_full_disk_takes_no_file(shown, keys, place, monkeypatch, call):  # noqa: F811
    error, opened = OUTPUTS["a full disk"], io.open
    there = ("orders.jsonl", "spoiled.jsonl", "positions.json")  # What the fixture prepares.

    def full(file, mode="r", *rest, **options):
        if set(mode) & set("wax+") and str(file) != os.devnull and Path(file).name not in there:
            raise OSError(*error.args, str(file))
        return opened(file, mode, *rest, **options)

    with monkeypatch.context() as disk:
        for module in (io, builtins):
            disk.setattr(module, "open", full)
        text = shown("healthy", call, 100)
    if call in WRITING:
        assert "exit code 1" in text
    assert_told(text, error)


# Of the calls above those that write a file; of `chaos` and `demo` the report.
WRITING = {
    call
    for call in ONE_OF_EACH.values()
    if call.startswith(("init", "template", "position export", "demo", "chaos"))
}
DONE_OR_NOT = {"redrive", "work", "position import"}
"""What ends with 1 here, for nobody said yes, or something is missing."""


def assert_told(text, error):
    """Assert that a command ended well, or in one line that says why, or in none for a pipe."""
    lines = text.splitlines()
    assert lines[-1] in ("exit code 0", "exit code 1"), text
    call = lines[0].removeprefix("$ shardfleet ")
    is_named = sum(str(error.strerror) in line for line in lines)
    expected = isinstance(error, BrokenPipeError) or named(call) in DONE_OR_NOT
    assert is_named == 1 or lines[-1] == "exit code 0" or (expected and not is_named), text


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


# Which extra a call needs, and which extras have it.
HAVE = {
    **dict.fromkeys(OF_NODE, ("local",)),
    **dict.fromkeys(OF_JAVA, ("spark",)),
    OF_NODE[0]: ("cdk", "local"),
    "acceptance --yes": ("local",),
}
NOWHERE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}


@pytest.mark.parametrize("extra", ["cli", "local", "spark"])
def test_a_missing_extra_is_named(place, installed, keys, extra):  # noqa: F811 - the fixture
    calls = [call for call in EVERY if extra not in HAVE.get(call, ())]
    if extra != "cli":  # Those that need no more than that one has have it in these, too.
        assert packages_of("cli") <= packages_of(extra)
        calls = [call for call in calls if call in HAVE]
    about = place / f"about/shardfleet-{version('shardfleet')}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Name: shardfleet\nVersion: {version('shardfleet')}\n")
    for call, code, text in in_process(calls, sites=(installed(extra), about.parent), **NOWHERE):
        if call in HAVE:
            assert f"pip install 'shardfleet[{HAVE[call][0]}]'" in told(code, text), (call, text)
        elif call in OF_AWS:
            assert "connect" in told(code, text), (call, text)
        else:
            assert (code, "Traceback" in text) == (0, False), (call, text)


def test_a_machine_without_node_and_java_is_told_what_to_install(place, keys):
    (place / "bin").mkdir()
    machine = {"PATH": str(place / "bin"), "XDG_CACHE_HOME": str(place), "JAVA_HOME": ""}
    for call, code, text in in_process(EVERY, **machine, **NOWHERE):
        if call in ALONE:
            assert (code, "Traceback" in text) == (0, False), (call, text)
            continue
        wanted = {
            **dict.fromkeys([*OF_NODE, "acceptance --yes"], "Node 20"),
            **dict.fromkeys(OF_JAVA, "Java 17"),
        }
        assert wanted.get(call, "connect") in told(code, text), call


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
