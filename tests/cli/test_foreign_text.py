"""
What others wrote is shown, never obeyed: every command, with the worst texts in every place.

It is one idea, tried with all commands. They are those of the registry, so that a new one is tried
by itself: without arguments, until `CALLS` says how it wants to be called.
"""

import ast
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.text import Text
from typer.main import get_command

from shardfleet.config import FleetConfig
from shardfleet.domain.slots.failure import FailureKind
from shardfleet.engine.ports import HandlerResult
from shardfleet.errors import ShardfleetError
from shardfleet_local.aws import launcher, serving
from shardfleet_local.dashboard import server
from shardfleet_local.own import own_run, reloading
from shardfleet_local.rig import fleet as demo_fleet
from shardfleet_local.rig import run
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import cost, examination, fleet_access, position, redrive
from shardfleet_ops.cli.fleet_access import ApplicationTable
from shardfleet_ops.cli.telling import TerminalConsole, complain, plain_table, say_json, shown, tell
from shardfleet_ops.explain.doctor import Facts, FunctionFacts, TableFacts
from shardfleet_ops.explain.fleet_view import FailureRow
from shardfleet_ops.operate.given_up import FailedBucket, GivenUp, RefusedDocument
from shardfleet_testkit.clock import run_virtual
from shardfleet_testkit.simulation import campaign
from tests.cli.hostile_fleet import Names, hostile_fleet
from tests.cli.test_cost import AROUND
from tests.local.rig.builders import an_outcome
from tests.local.rig.test_chaos import a_chaos

TOOLS = Path(__file__).resolve().parents[2] / "tools"
# Markup of rich, hyperlinks of rich, escape sequences (colour, clear, clipboard), their 8-bit
# forms, what moves the cursor back, what turns the direction round, and every kind of line's end.
PIECES = [
    "[/item]",
    "[link=https://evil.example]here",
    "[bold red]",
    ":bee:",
    "\x1b[2J",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;https://evil.example\x1b\\",
    "\x9b31m",
    "\x9d52;c;ZXZpbA==\x9c",
    "\b\b\b",
    "\x7f",
    "\u202eFORGED",
    "\u2066\u200f",
    "\rFORGED",
    "\nFORGED: all is well",
    "\r\nFORGED",
    "\u2028FORGED",
    "\x85FORGED",
    "\vFORGED\fFORGED",
    "{0} %s",
    "plain",
]
foreign = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)


def facts(text):
    """What the doctor finds where everything is missing, or cannot be looked at."""
    table = TableFacts(name=text, wanted=((text, "HASH"),), keys=((text, "RANGE"),))
    function = FunctionFacts(name=text, timeout_ms=0, concurrency=0)
    config = FleetConfig(fleet=text, stream_arn=text, lease_table=text, state_table=text)
    return Facts(
        config=config,
        lease_table=table,
        state_table=table,
        neighbours={text: 1},
        stream=None,
        known_created_ms=0,
        clock_ahead_ms=99_000,
        manager=function,
        worker=function,
        schedule=text,
        machine=text,
        failed_queue_exists=False,
        reading=None,
        unread_shards=(text,),
        unseen=((text, text),),
    )


DEMO = an_outcome(seconds=1, rejects={"x": (1,)})


def demo(options, say, *, text):
    say(text)
    outcome = a_chaos(text) if options.plan.dice else DEMO
    source = replace(outcome.options.source, name=text, rejects={text: (1,)})
    plan = replace(outcome.options, source=source)
    return replace(outcome, options=plan, unsettled={text: text})


def own(options, say, printed, *, found):
    say(found.text)
    printed(found.text)
    stops = [own_run.StoppedShard(note=found.stop, line=None)]
    said = f"s1 fails: {found.text}"
    failing = [
        FailureRow(
            slots=("s1",),
            kind=FailureKind.IMPORT,
            is_certain=True,
            times=2,
            said=said,
            remedy="mend it",
        )
    ]
    return own_run.OwnRunResult(verdict=DEMO.verdict, stops=stops, failures=failing, took_ms=1)


def serve(_aws, *, say, text, **_):
    say(text)


class Page:
    """The dashboard's server: its address is foreign, and nobody looks at it."""

    def __init__(self, *_, text, **__):
        self.url = text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def wait(self):
        raise KeyboardInterrupt


def simulated(*_, text, done, **__):
    totals = SimpleNamespace(line=lambda: text, seeds=[], failed=[])
    done(SimpleNamespace(seed=1, violations=[text]), totals)
    return totals


CALLS = {
    "demo": [["--output", "{here}"]],
    "chaos": [["--output", "{here}"]],
    "leases": [[], ["--finished"], ["--application", "{text}"]],
    "status": [[], ["--application", "{text}"]],
    "top": [["--rounds", "1"], ["--rounds", "1", "--application", "{text}"]],
    "where": [["--key", "{text}"], ["--key", "{text}", "--pages", "1", "--at", "{text}"]],
    "explain": [[], ["{stopped}"], ["{text}"], ["fleet"], ["nobody{text}"]],
    "what-if": [[], ["--lose", "{text}"], ["--workers", "2"]],
    "tail": [["--since", "1h", "--records", "2"], ["--shard", "{text}"]],
    "put": [["--input", "{input}", "--dry-run"], ["--input", "{input}", "--rejects", "--dry-run"]],
    "pause": [
        ["{paused}", "--dry-run"],
        ["nobody{text}", "--yes"],
        ["{paused}", "--yes", "--wait", "0", "--reason", "{text}"],
    ],
    "resume": [[], ["{stopped}", "--yes"], ["{paused}", "--yes"], ["nobody{text}"]],
    "drain": [["--dry-run"], ["--yes", "--wait", "0"]],
    "release": [["{stopped}", "--dry-run"], ["{gone}", "--ended", "--dry-run"]],
    "rewind": [["{stopped}", "--to", "TRIM_HORIZON", "--dry-run"], ["{text}", "--to", "{text}"]],
    "redrive": [["--from", "{text}"], ["--from", "{text}", "--yes"]],
    "migrate": [["--from-java", "--dry-run"], ["--to-java", "--yes", "--wait", "0"]],
    "simulate": [["--seeds", "1"]],
    "work": [["--stream", "{text}", "--application", "{text}", "--handler", "{text}"]],
    "init": [["Clicks"]],
    "template": [["--app", "{here}", "--out", "{here}/plain"]],
    "local run": [["--handler", "a:b", "--input", "{input}", "--rejects"]],
    "pipeline run": [
        ["--source", "json:{text}", "--sink", "console:{text}", "--print-plan"],
        ["--source", "json:{text}", "--sink", "x:y", "--setting", "{text}"],
        ["--source", "json:{text}", "--sink", "console:"],
    ],
    "position export": [[], ["--option"], ["--application", "{text}", "--stream", "{text}"]],
    "position import": [["{positions}", "--dry-run"], ["{positions}", "--application", "{text}"]],
}


def commands(group=None, path=()):
    """Yield the path of every command, as typed."""
    group = group or get_command(application.app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


PATHS = list(commands())


def write_files(folder, names):
    """Write what commands read: lines of which one is none, and positions."""
    (folder / "input.jsonl").write_text(f'{{"a": 1}}\n{json.dumps(names.text)}\n')
    positions = {
        "format": "shardfleet.positions",
        "version": 1,
        "stream": names.text,
        "created_ms": 1,
        "origin": names.text,
        "at_ms": 1,
        "waiting": {},
        "shards": {names.stopped: "TRIM_HORIZON"},
    }
    (folder / "positions.json").write_text(json.dumps(positions))


@asynccontextmanager
async def given_up(place, text):
    """What was given up, of a shard and a place of that name, and a handler that fails so."""
    event = json.dumps({"Records": [{}]})
    document = GivenUp(
        where=f"{place}/{text}",
        stream_arn=text,
        shard_id=text,
        place=(1, 0),
        through=(1, 0),
        count=1,
        first_ms=0,
        last_ms=0,
        payload=event,
        location=text,
    )

    async def look():
        return [document, RefusedDocument(where=document.where, reason=f"{document.where}: {text}")]

    async def take(_, *, within_s):
        return document

    async def leave(_):
        return None

    async def handle(_):
        return HandlerResult(done_count=0, error=text)

    kept = SimpleNamespace(look=look, take=take, leave=leave)
    own = FailedBucket(bucket=text, folder=f"{text}/")
    yield redrive._Opened(kept, handle, text, own, 60)


@pytest.fixture
def hostile(monkeypatch, tmp_path):
    """Return a function: every command meets this text from now on; yields how to fill it in."""

    def meet(text):
        found = Names(text)

        @asynccontextmanager
        async def fleet(_stack):
            yield await hostile_fleet(found)

        @asynccontextmanager
        async def table(name):
            fleet = await hostile_fleet(found)
            yield ApplicationTable(name, fleet.leases, fleet.clock)

        @asynccontextmanager
        async def stream(_name):
            yield (await hostile_fleet(found)).stream

        with_text = {"text": text}
        monkeypatch.setenv("COLUMNS", "20000")
        monkeypatch.setattr(fleet_access, "_opened", fleet)
        monkeypatch.setattr(fleet_access, "_opened_table", table)
        monkeypatch.setattr(fleet_access, "application_config", lambda _: None)
        monkeypatch.setattr(position, "opened_stream", stream)
        monkeypatch.setattr(fleet_access.asyncio, "run", run_virtual)
        monkeypatch.setattr(cost, "around_of", lambda _stack: AROUND)
        monkeypatch.setattr(examination, "examine", lambda _stack: facts(text))
        monkeypatch.setattr(run, "run_rig", lambda o, d: demo(o, d, **with_text))
        monkeypatch.setattr(own_run, "own_run", lambda o, **k: own(o, **k, found=found))
        monkeypatch.setattr(serving, "serve", lambda *a, **k: serve(*a, **k, **with_text))
        monkeypatch.setattr(launcher, "EmbeddedAws", lambda **_: SimpleNamespace())
        monkeypatch.setattr(reloading, "deployed_handlers", lambda *_, **__: [])
        monkeypatch.setattr(demo_fleet, "synthesized", lambda *_, say: tmp_path / "x.template.json")
        monkeypatch.setattr(server, "DashboardServer", lambda *a, **k: Page(*a, **k, **with_text))
        monkeypatch.setattr(campaign, "campaign", lambda *a, **k: simulated(*a, **k, **with_text))
        monkeypatch.setattr(redrive, "_opened", lambda _, place: given_up(place, **with_text))
        monkeypatch.setattr("shardfleet_ops.cli.pipeline._run", lambda *_, **__: refused(text))
        write_files(tmp_path, found)
        return {
            "{text}": text,
            "{stopped}": found.stopped,
            "{paused}": found.paused,
            "{gone}": found.gone,
            "{here}": str(tmp_path),
            "{input}": str(tmp_path / "input.jsonl"),
            "{positions}": str(tmp_path / "positions.json"),
        }

    return meet


def refused(text):
    raise ShardfleetError(f"the pipeline failed: {text}")


def written(template, values):
    for name, value in values.items():
        template = template.replace(name, value)
    return template


def is_harmless(output):
    """Nothing but printable characters and lines of our own."""
    assert all(each.isprintable() for each in output.split("\n")), ascii(output)
    lines = output.splitlines()
    assert not [line for line in lines if line.startswith("FORGED")], ascii(output)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(text="".join(PIECES))
@given(text=foreign)
def test_no_text_of_others_is_obeyed_by_a_terminal_or_by_rich(path, hostile, capsys, text):
    values = hostile(text)
    for call in CALLS.get(" ".join(path), [[]]):
        arguments = [*path, *(written(each, values) for each in call)]
        application.run(arguments)
        said = capsys.readouterr()
        assert "Missing" not in said.err, f"CALLS lacks how to call {' '.join(path)}: {said.err}"
        assert said.out or said.err
        is_harmless(said.out)
        is_harmless(said.err)


PRINTS = {
    ("print",),
    ("echo",),
    ("secho",),
    ("style",),
    ("print_exc",),
    ("Console",),
    ("from_markup",),
    ("from_ansi",),
    ("stdout", "write"),
    ("stderr", "write"),
}
# Where something is printed by another way, and why no text of others can be in it.
OTHER_WAYS = {
    "shardfleet_ops/cli/telling.py": "the one way",
    "shardfleet_ops/cli/__init__.py": "before rich and typer can be imported",
    "shardfleet_local/kinesis/server.py": "a server, which tells its starter its address as JSON",
    "shardfleet_local/kinesis/service.py": "a server of its own: what broke in it goes into a file",
    "shardfleet_local/aws/lambda_bootstrap.py": "a Lambda's process, whose output is a log",
    "shardfleet_local/aws/serving.py": "what it says it hands to its caller",
}


def called(node):
    """The last two names of what a call calls."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (*called(node.value), node.attr)
    return ("",)


def test_nothing_is_printed_by_another_way():
    found = set()
    for path in sorted(TOOLS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = called(node.func) if isinstance(node, ast.Call) else ()
            loose = isinstance(node, ast.Name) and node.id == "print"
            if loose or names[-1:] in PRINTS or names[-2:] in PRINTS:
                found.add(path.relative_to(TOOLS).as_posix())
    assert found == OTHER_WAYS.keys()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("tag\x1b[31m", r"tag\x1b[31m"),
        ("\x9b\x85", r"\x9b\x85"),
        ("a\nb\rc\td\x7f", r"a\nb\rc\td\x7f"),
        ("\u202e\u2066\u2028", r"\u202e\u2066\u2028"),
        ("\U000e0041\ud800", r"\U000e0041\ud800"),
        ("Zürich [/x] 東京 🐝 \\n", "Zürich [/x] 東京 🐝 \\n"),
    ],
)
def test_what_is_no_letter_is_shown_as_its_escape(text, seen):
    assert shown(text) == seen


@given(text=st.text())
def test_any_text_is_one_line_that_a_terminal_prints(text):
    assert shown(text).isprintable()


def test_a_styled_text_and_a_cell_are_shown_as_well(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    table = plain_table(f"\x1b[2J{'head':90}")
    table.add_row("[/x]\nFORGED")
    table.add_row(Text("[link=https://evil.example]\x9b\nFORGED", "red"))
    tell(None, [Text.assemble(("\x1bred", "red"), "\u202e"), table], as_json=False)
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        r"\x1bred\u202e",
        r"\x1b[2Jhead",
        r"[/x]\nFORGED",
        r"[link=https://evil.example]\x9b\nFORGED",
    ]


def test_on_a_terminal_the_only_controls_are_the_colours_of_our_own(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "2000")
    console = TerminalConsole()
    table = plain_table("head")
    table.add_row(Text(shown("\x1b[2J"), "red"))
    console.print(table)
    console.print("".join(PIECES), style="red", soft_wrap=True)
    out = capsys.readouterr().out
    assert "\x1b[31m" in out
    for colour in ("\x1b[31m", "\x1b[1m", "\x1b[0m"):
        out = out.replace(colour, "")
    is_harmless(out)


def test_a_second_line_of_an_error_stands_in(capsys):
    complain(ShardfleetError("first\nshardfleet: all is well\x1b[2J"))
    assert capsys.readouterr().err == "shardfleet: first\n    shardfleet: all is well\\x1b[2J\n"


@given(text=foreign | st.text())
def test_json_is_exact_and_has_no_control_in_it(text):
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.echo", printed.append)
        say_json(json.dumps({text: [text]}))
    assert printed[0].isascii()
    assert printed[0].isprintable()
    assert json.loads(printed[0]) == {text: [text]}
