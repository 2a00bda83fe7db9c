"""`shardfleet tail` and `where` while the stream refuses, and while nobody listens any more."""

import json
import os
import pty
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from shardfleet.config import FleetConfig
from shardfleet.engine.state.fleet_state import FleetState
from shardfleet.errors import ConfigurationError, Throttled
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli import fleet_access
from shardfleet_ops.cli.keys import ENTER, ESCAPE
from shardfleet_ops.cli.tail import Printing
from shardfleet_testkit.clock import VirtualClock, run_virtual
from shardfleet_testkit.memory import MemoryLeaseStore, MemoryStateStore
from shardfleet_testkit.memory_stream import MEMORY_STREAM_ARN, MemoryStream
from tests.cli.memory_access import memory_access

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 3
RECORDS = 50
CONFIG = FleetConfig(
    fleet="clicks", stream_arn=MEMORY_STREAM_ARN, lease_table="leases", state_table="state"
)


class Cloud:
    """A fleet in memory, opened by each command on its own clock."""

    def __init__(self):
        self.fault = lambda _call: None
        self.alter = lambda _shard_id, page: page
        self.calls = []

    def opened(self):
        clock = VirtualClock()
        stream = MemoryStream(clock, shards=SHARDS)
        for number in range(RECORDS):
            for shard_id in stream.open_shard_ids:
                stream.put(b"%d" % number, key=f"k{number}", shard_id=shard_id)
        stream.fault, stream.calls, stream.alter = self.fault, self.calls, self.alter
        state = FleetState(MemoryStateStore(), clock)
        return memory_access(
            CONFIG, leases=MemoryLeaseStore(), state=state, stream=stream, clock=clock
        )


@pytest.fixture
def cloud(monkeypatch):
    made = Cloud()

    @asynccontextmanager
    async def opened(_stack):
        yield made.opened()

    monkeypatch.setattr(fleet_access, "_opened", opened)
    monkeypatch.setattr(fleet_access.asyncio, "run", run_virtual)
    return made


def lines(capsys, *arguments):
    assert application.run(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("count", [1, 3, 4, RECORDS + 1, SHARDS * RECORDS])
def test_tail_prints_as_many_records_as_were_asked_for_in_all(count, cloud, capsys):
    assert len(lines(capsys, "tail", "--since", "1h", "--records", str(count))) == count


def test_tail_shows_the_records_whose_payload_has_a_pattern(cloud, capsys):
    found = lines(capsys, "tail", "--since", "1h", "--records", "6", "--grep", "^4[12]$")

    assert {line.rpartition(" ")[2] for line in found} == {"41", "42"}
    assert application.run(["tail", "--grep", "4["]) == application.EXIT_WRONG_INPUT
    assert "--grep 4[: it is no regular expression" in capsys.readouterr().err


def undated(_, page):
    records = [replace(each, approximate_arrival_ms=0) for each in page.records]
    return replace(page, records=records, millis_behind_latest=None)


def test_an_arrival_and_a_lag_that_nobody_tells_are_neither_1970_nor_the_tip(cloud, capsys):
    cloud.alter = undated
    for line in lines(capsys, "tail", "--since", "1h", "--records", "3"):
        assert line.startswith("- shardId-")
    told = lines(capsys, "tail", "--since", "1h", "--records", "1", "-o", "json")
    assert json.loads(told[0])["arrived_ms"] is None
    assert "arrived" not in " ".join(lines(capsys, "where", "--key", "k7", "--at", "1h"))
    found = json.loads("".join(lines(capsys, "where", "--key", "k7", "--at", "1h", "-o", "json")))
    assert (found["arrived_ms"], found["waited_ms"]) == (None, None)
    # It looks as far as it was told to, for nobody says that there is no more.
    args = ("where", "--key", "nobody", "--at", "1h", "--pages", "3", "-o", "json")
    assert json.loads("".join(lines(capsys, *args)))["searched_to_ms"] is not None


def refusing(times):
    left = [times]

    def refuse(call):
        if call.operation in ("shard_iterator", "get_records") and left[0]:
            left[0] -= 1
            raise Throttled("slow down")

    return refuse


def test_tail_survives_a_hundred_refusals_in_a_row(cloud, capsys):
    cloud.fault = refusing(100)
    found = lines(capsys, "tail", "--since", "1h", "--records", str(SHARDS * RECORDS), "--json")
    numbers = [json.loads(line)["sequence_number"] for line in found]
    assert len(set(numbers)) == SHARDS * RECORDS


def test_where_asks_again_what_was_refused(cloud, capsys):
    cloud.fault = refusing(20)
    (found,) = [json.loads("\n".join(lines(capsys, "where", "--key", "k7", "--json")))]
    assert found["state"] != "NOT_FOUND"


@pytest.mark.parametrize("command", [["tail"], ["where", "--key", "k7"]])
def test_a_right_that_is_missing_is_one_line_and_an_exit_code(command, cloud, capsys):
    def refuse(call):
        if call.operation == "shard_iterator":
            raise ConfigurationError("GetShardIterator: AccessDeniedException: not you")

    cloud.fault = refuse
    assert application.run(command) == application.EXIT_WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "shardfleet: GetShardIterator: AccessDeniedException: not you"


_TAIL = """
import sys
from contextlib import asynccontextmanager
from shardfleet_ops.cli import app, fleet_access
from shardfleet_testkit.clock import run_virtual
from tests.cli import test_tail

test_tail.RECORDS = 5_000  # More than a pipe holds: what fits it is written though nobody reads.

@asynccontextmanager
async def opened(_stack):
    yield test_tail.Cloud().opened()

fleet_access._opened, fleet_access.asyncio.run = opened, run_virtual
sys.exit(app.run(["tail", "--since", "1h"]))
"""


@pytest.mark.processes
def test_a_reader_of_the_output_that_goes_away_ends_tail_quietly():
    command = [sys.executable, "-c", _TAIL]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdout.readline().endswith(" k0 0\n")
        process.stdout.close()
        assert process.wait(60) in (0, 1)
        assert process.stderr.read() == ""


def test_keys_of_tail_filter_hold_and_end():
    out = []
    printing = Printing(lambda record: record.partition_key, out.append, most=0)

    def take(*keys):
        for key in keys:
            printing.take(SimpleNamespace(partition_key=key))

    take("ada", "bob")
    assert out == ["ada", "bob"]
    for key in ["/", *"AD"]:  # Nothing moves while one types.
        assert printing.press(key)
    take("bob", "adam")
    assert out == ["ada", "bob"]
    printing.press(ENTER)
    assert out[2:] == ["adam"]
    printing.press(ESCAPE)
    printing.press(" ")
    take("eve")
    assert out[3:] == []
    printing.press(" ")
    assert out[3:] == ["eve"]
    assert not printing.press("q")


def test_keys_of_a_terminal_reach_tail():
    """The command on a terminal of its own: words typed after `/` hide what lacks them, q ends."""
    person, terminal = pty.openpty()
    ran = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    said = b""
    while b"q ends" not in said:
        said += os.read(person, 1_024)
    os.write(person, b"/x\nq")
    with suppress(OSError):  # Where the terminal has ended.
        while piece := os.read(person, 1_024):
            said += piece
    assert ran.wait(60) == 0
    assert b"filter: x_" in said
    assert b"Traceback" not in said


ON_A_TERMINAL = """
import sys
from contextlib import asynccontextmanager
from shardfleet_ops.cli import app, fleet_access
from tests.cli.test_tail import Cloud

@asynccontextmanager
async def opened(_stack):
    yield Cloud().opened()

fleet_access._opened = opened
sys.exit(app.run(["tail"]))
"""
