"""
What commands print for a person, at the widths of two terminals, against files that are kept.

`SHARDFLEET_TEST_GOLDEN=write pytest tests/cli/test_presentation.py` writes the files anew; what
they then say is read before it is committed.
"""

import dataclasses
import difflib
import os
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from typer.main import get_command

from shardfleet import Worker
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import (
    approval,
    cost,
    examination,
    fleet_access,
    logs,
    migrate,
    operating,
    rewind,
)
from shardfleet_ops.cli.fleet_access import ApplicationTable
from shardfleet_ops.cli.fleets import DeployedFleet
from shardfleet_ops.cli.telling import TerminalConsole
from shardfleet_testkit.clock import run_virtual
from tests.cli import recorded_runs
from tests.cli.clicks_fleet import FIRST, NUMBER, SECOND, SPLIT, STATES, clicks_fleet
from tests.cli.conftest import AROUND, CONFIG
from tests.domain.test_diagnosis import HEALTHY
from tests.domain.test_log_lines import TWO
from tests.local.launcher.test_plain_template import write_shop

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("SHARDFLEET_TEST_GOLDEN") == "write"
WIDTHS = (80, 120)
ORDERS = "--handler shop:handle --input orders.jsonl --key who"
REDRIVES = (
    "--from s3://failed/shardfleet/failed/",
    "--from s3://failed/shardfleet/failed/ --yes",
)
FLEET = ("status", "leases", "top --rounds 1", "explain", "explain fleet")
CALLS = [
    *((state, call) for state in STATES for call in FLEET),
    ("healthy", "leases --finished"),
    ("healthy", "status --application clicks-leases"),
    ("healthy", "work --stream clicks --application clicks --handler shop:handle --check"),
    ("healthy", "where --key k"),
    ("healthy", "where --key a"),
    ("healthy", "where --key nobody"),
    ("healthy", "where --key nobody --pages 1"),
    ("healthy", "what-if --workers 3"),
    ("begun", "what-if --workers 3"),
    ("healthy", "what-if --lose clicks-consumer-s0001"),
    ("healthy", "tail --since 1h --records 1"),
    ("healthy", f"pause {FIRST} --dry-run"),
    ("healthy", f"pause {FIRST}"),
    ("healthy", "drain --dry-run"),
    ("healthy", f"release {FIRST} --dry-run"),
    ("healthy", "resume"),
    ("stopped", "resume"),
    ("stopped", f"resume {FIRST} --dry-run"),
    ("stopped", f"explain {FIRST}"),
    ("failing", "explain clicks-consumer-s0001"),
    ("healthy", f"rewind {FIRST} --to TRIM_HORIZON --dry-run"),
    ("healthy", f"rewind {FIRST} --to 15m --dry-run"),
    ("healthy", f"pause {FIRST} --yes"),
    ("healthy", f"resume {SPLIT} --yes"),
    ("healthy", "cost"),
    ("empty", "cost"),
    ("healthy", "config"),
    ("empty", "resume"),
    *((state, "doctor") for state in STATES),
    ("healthy", "logs"),
    ("healthy", "position export --output out.json"),
    ("healthy", "position import positions.json --dry-run"),
    ("stopped", "position import positions.json --yes"),
    ("empty", "position import positions.json --yes"),
    ("healthy", "acceptance --local --dry-run"),
    ("healthy", "acceptance --local --dry-run --short"),
    ("healthy", "drain --yes"),
    ("empty", "drain --yes"),
    ("healthy", f"release {FIRST} --yes"),
    ("healthy", f"rewind {FIRST} --to 15m --yes"),
    ("healthy", f"rewind {SPLIT} --to TRIM_HORIZON --yes"),
    *(("healthy", f"migrate --{way} --dry-run") for way in ("from-java", "to-java", "abort")),
    ("java", "pause --all --yes --wait 30"),
    ("java", "migrate --from-java --dry-run"),
    ("java", "migrate --from-java --yes --wait 30"),
    ("healthy", "migrate --to-java --yes --wait 5"),
    ("healthy", "migrate --abort --yes"),
    ("healthy", "migrate"),
    *((state, f"redrive {call}") for state in ("healthy", "failing") for call in REDRIVES),
    ("empty", "redrive --from s3://failed/shardfleet/failed/"),
    ("stopped", "redrive --from s3://failed/shardfleet/failed/"),
    ("healthy", "documents"),
    ("spoiled", "documents"),
    ("spoiled", "status"),
    ("spoiled", "doctor"),
    ("spoiled", "documents --mend --dry-run"),
    ("spoiled", "documents --mend --yes"),
    ("spoiled", f"documents window/{SECOND} --drop"),
    ("spoiled", f"documents window/{SECOND} --drop --yes"),
    ("spoiled", f"documents window/{SECOND} --mend --yes"),
    ("spoiled", f"documents window/{FIRST} --drop --yes"),
    ("healthy", "init clicks"),
    ("healthy", "init a_b"),
    ("healthy", "template --app cdk.out --out plain"),
    ("healthy", "template --out plain"),
    ("healthy", "put --input orders.jsonl --key who"),
    ("healthy", "put --input spoiled.jsonl --rejects --dry-run"),
    ("healthy", "put --input spoiled.jsonl"),
    *((state, f"local run {ORDERS}") for state in ("healthy", "stopped", "failing")),
    *((state, "local up --app cdk.out") for state in ("healthy", "failing")),
    *((state, "demo") for state in ("healthy", "failing")),
    *((state, "chaos") for state in ("healthy", "failing")),
    ("healthy", "dashboard"),
    *((state, "simulate --seed 7 --log --no-shrink") for state in ("healthy", "failing")),
    *((state, "simulate --seeds 2") for state in ("healthy", "failing")),
    ("healthy", "pipeline run --source json:in --sink parquet:out --checkpoint at"),
    ("healthy", "pipeline run --print-plan --source json:in --sink parquet:out --checkpoint at"),
]
# A page of Markdown, what others have logged, what is pasted and what programs read: lines stay.
PAGES = ("config", "logs", "local up", "pipeline run --print-plan")


def named(state, call, width):
    return f"{state}-{re.sub(r'[^a-z0-9]+', '-', call.lower()).strip('-')}-{width}.txt"


class Logs:
    """The worker's log group: what two of its invocations have logged."""

    def get_paginator(self, _operation):
        return self

    def paginate(self, **_asked):
        said = [*TWO, "a line of a handler that is as long as lines are in practice: " + "x " * 40]
        at = {"timestamp": 1_795_240_012_345, "logStreamName": "a"}
        yield {"events": [at | {"message": each} for each in said]}


def examined(name):
    """Return what the doctor sees: a fleet in good order, but for what its tables say."""
    reading = fleet_access.with_fleet(name, lambda fleet: fleet.reading())
    return replace(HEALTHY, reading=replace(reading, planned_ms=reading.at_ms))


def stand_in(monkeypatch):
    """Let the doctor and the logs see what they would ask AWS for."""
    found = DeployedFleet(config=CONFIG, manager="manager", resources=())
    monkeypatch.setattr(fleet_access, "application_config", lambda _name: None)
    missing = ["no table clicks", "no table clicks-fleet"]
    monkeypatch.setattr(Worker, "missing", lambda _self: missing)
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(handle=lambda batch: None))
    monkeypatch.setattr(examination, "examine", examined)
    monkeypatch.setattr(logs, "find_functions", lambda _name: found)
    monkeypatch.setattr(logs, "log_group_of", lambda _function: "group")
    monkeypatch.setattr(logs, "_client", lambda _service: Logs())


@pytest.fixture
def said(monkeypatch, capsys, tmp_path):
    """Return a function: what a command prints at a fleet's state and a terminal's width."""
    monkeypatch.chdir(tmp_path)
    write_shop(tmp_path / "cdk.out")
    stand_in(monkeypatch)

    def say(state, call, width):
        @asynccontextmanager
        async def fleet(_name):
            found = await clicks_fleet(state)
            found = dataclasses.replace(found, writer=found.stream)
            for shard in found.stream.open_shard_ids:
                for key in ("k", "a"):
                    found.stream.put(b"an order", key=key, shard_id=shard)
            yield found

        @asynccontextmanager
        async def table(name):
            found = await clicks_fleet(state)
            yield ApplicationTable(name, found.leases, found.clock)

        # As on a terminal, of the kind that knows no colours.
        for name, value in {
            "COLUMNS": width,
            "LINES": 50,
            "FORCE_COLOR": 1,
            "TERM": "dumb",
        }.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(fleet_access, "_opened", fleet)
        monkeypatch.setattr(fleet_access, "_opened_table", table)
        monkeypatch.setattr(fleet_access.asyncio, "run", run_virtual)
        monkeypatch.setattr(cost, "around_of", lambda _: AROUND)
        for each in (approval, migrate, operating, rewind):
            monkeypatch.setattr(each, "person", lambda: "ann")
        recorded_runs.stand_in(monkeypatch, state, tmp_path)
        if call.startswith("position import"):
            application.run(["position", "export", "--output", "positions.json"])
            capsys.readouterr()
        code = application.run(call.split())
        found = capsys.readouterr()
        lines = "".join(f"{line.rstrip()}\n" for line in found.out.splitlines())
        errors = "".join(f"! {line.rstrip()}\n" for line in found.err.splitlines())
        return f"$ shardfleet {call}\n{lines}{errors}exit code {code}\n"

    return say


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("state", "call"), CALLS)
def test_what_is_printed_is_what_is_kept(said, state, call, width):
    text, file = said(state, call, width), GOLDEN / named(state, call, width)
    if WRITE:
        file.write_text(text, encoding="utf-8")
    kept = file.read_text(encoding="utf-8") if file.exists() else ""
    found = difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "printed", n=2)
    assert text == kept, (
        "\n".join(["", *found])
        + "\nIf it is meant: SHARDFLEET_TEST_GOLDEN=write pytest tests/cli/test_presentation.py"
    )


def test_every_command_has_its_output_kept():
    def commands(group, *before):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from commands(command, *before, name)
            else:
                yield (*before, name)

    kept = {tuple(call.split()[:words]) for _, call in CALLS for words in (1, 2)}
    assert not set(commands(get_command(application.app))) - kept


def test_every_kept_file_is_one_that_is_compared():
    assert {file.name for file in GOLDEN.iterdir()} == {
        named(state, call, width) for state, call in CALLS for width in WIDTHS
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("state", "call"), CALLS)
def test_nothing_is_split_too_wide_or_a_number_for_machines(said, state, call, width):
    _, *lines = said(state, call, width).splitlines()
    text = "\n".join(lines)

    if not call.startswith(PAGES):
        assert not [line for line in lines if len(line.removeprefix("! ")) > width]
    assert NUMBER not in text
    assert not re.findall(r"(?<!\d)\d{13}(?!\d)", text), "epoch milliseconds"
    assert not re.findall(r"\d{4}-\d\d-\d\d \d\d:", text), "a date that may be broken"
    for line in lines:
        for start in re.findall(r"shardId-\d*|(?<!fleet )clicks-consumer\S*", line):
            whole = re.fullmatch(r"shardId-\d{12}:?|clicks-consumer-s\d{4}\W*", start)
            assert whole, f"split: {line!r}"


def test_what_a_program_reads_has_all_columns_and_whole_lines(said, monkeypatch):
    monkeypatch.setattr(TerminalConsole, "is_terminal", False)

    lines = said("failing", "leases", 80).splitlines()

    assert lines[1].split() == ["lease", "state", "owner", "checkpoint", "lag", "counter"]
    assert lines[2].split()[3:] == [f"…{NUMBER[-18:]}:413", "1.5", "min", "1107"]
    assert lines[3].endswith("3 times in a row since 40 s ago")


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (120, "lease state owner checkpoint lag counter"),
        (94, "lease state owner checkpoint lag"),
        (72, "lease state owner lag"),
        (55, "lease state owner"),
        (40, "lease state"),
    ],
)
def test_columns_are_given_up_in_the_order_of_the_page(said, width, columns):
    assert said("healthy", "leases", width).splitlines()[1].split() == columns.split()
