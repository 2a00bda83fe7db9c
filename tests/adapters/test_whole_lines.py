"""What several threads print comes by whole lines."""

import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardfleet.adapters.telemetry import whole_lines
from shardfleet.adapters.telemetry.whole_lines import WholeLines
from shardfleet.config import FleetConfig

A_HANDLER_PRINTS_WHILE_THE_FLEET_TELLS = """
from concurrent.futures import ThreadPoolExecutor
from threading import Event
import sys

class Unbuffered:  # As Python's runtime of Lambda has it (fact L29).
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        self.stream.write(text)
        self.stream.flush()
    def flush(self):
        self.stream.flush()

sys.stdout, sys.stderr = Unbuffered(sys.stdout), Unbuffered(sys.stderr)

from shardfleet.runtime import invocation
from shardfleet.events.delivery import BatchFailed

begun, told = Event(), Event()

class Slow(int):
    def __str__(self):
        begun.set()
        told.wait(60)
        return "150"

sandbox = invocation.kept_sandbox()
with ThreadPoolExecutor(1) as pool:
    printing = pool.submit(print, "orders", Slow(), file=getattr(sys, sys.argv[1]))
    begun.wait(60)
    sandbox.events.emit(
        BatchFailed(lease_key="a", position="1", attempt=1, reason="ERROR", error="ValueError")
    )
    sandbox.events.flush()
    told.set()
    printing.result()
"""


class Written(io.StringIO):
    """A stream that knows each write."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, text):
        self.writes.append(text)
        return super().write(text)


@pytest.fixture
def stream():
    return Written()


def test_a_line_is_written_at_once_when_it_has_its_end(stream):
    print("orders", 150, "of", 300, file=WholeLines(stream))

    assert stream.writes == ["orders 150 of 300\n"]


def test_what_another_thread_writes_meanwhile_comes_before(stream):
    lines = WholeLines(stream)
    with ThreadPoolExecutor(1) as other:
        other.submit(lines.write, "orders").result()
        lines.write('{"_aws": 1}\n')
        lines.flush()
        other.submit(lines.write, " 150\nmore").result()
        other.submit(lines.write, " to come\n").result()

    assert stream.writes == ['{"_aws": 1}\n', "orders 150\n", "more to come\n"]


def test_several_lines_at_once_are_one_write(stream):
    WholeLines(stream).writelines(["a\nb\nc", "\n"])

    assert stream.writes == ["a\nb\n", "c\n"]


def test_a_line_that_has_no_end_gets_one_at_the_end_of_the_invocation(stream):
    lines = WholeLines(stream)
    lines.write("so far")
    lines.finish()
    lines.finish()
    lines.write("again\n")

    assert stream.writes == ["so far\n", "again\n"]


def test_a_line_that_goes_on_for_ever_is_not_kept_for_ever(stream):
    lines = WholeLines(stream)
    for _ in range(whole_lines.BEGUN_MOST + 1):
        lines.write(".")

    assert stream.writes == ["." * (whole_lines.BEGUN_MOST + 1)]


def test_what_cannot_be_encoded_is_not_in_the_way_of_what_comes_after():
    raw = io.BytesIO()
    lines = WholeLines(io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    with pytest.raises(UnicodeEncodeError):
        print("\ud800", file=lines)
    print("after", file=lines)

    assert raw.getvalue() == b"after\n"
    assert lines.encoding == "utf-8"


@pytest.mark.parametrize("output", ["stdout", "stderr"])
def test_a_handlers_print_and_the_fleets_own_lines_are_not_joined(output):
    config = FleetConfig(
        fleet="clicks",
        stream_arn="arn:aws:kinesis:eu-central-1:123456789012:stream/clicks",
        lease_table="leases",
        state_table="state",
        metrics="all",
    )
    environment = {**config.to_env(), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-u", "-c", A_HANDLER_PRINTS_WHILE_THE_FLEET_TELLS, output]

    told = subprocess.run(
        words, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout

    *of_the_fleet, printed = told.decode().splitlines()
    assert printed == "orders 150"
    log, *metrics = [json.loads(line) for line in of_the_fleet]
    assert log["message"] == "BatchFailed"
    assert ["batch_failed" in each for each in metrics] == [True]
