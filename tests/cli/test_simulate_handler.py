"""`shardfleet simulate --handler`: a handler of one's own, replayed, shrunk and told."""

import re

import pytest

from shardfleet_ops.cli import app as application

HANDLERS = """
from shardfleet_testkit.simulation.sink import current_sink

def naive(batch):
    for record in batch:
        current_sink().add(record.partition_key)

def idempotent(event, context):
    for record in event["Records"]:
        kinesis = record["kinesis"]
        current_sink().put(kinesis["partitionKey"], kinesis["data"])
"""
SHORT = ["--hours", "0.05"]


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    (tmp_path / "simulated_shop.py").write_text(HANDLERS)
    lines = [f'{{"visitor": "v{n % 5}", "page": {n}}}' for n in range(120)]
    (tmp_path / "views.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def run(*arguments):
    return application.run(["simulate", *arguments])


def test_a_handler_that_bears_repeats_passes_and_its_log_is_printed(capsys):
    given = ["--handler", "simulated_shop:idempotent", "--input", "views.jsonl", "--key", "visitor"]

    assert run(*given, *SHORT, "--seed", "3", "--log") == 0
    *log, last = capsys.readouterr().out.splitlines()
    assert last.endswith("0 violations")
    assert any(re.search(r"sink.put v\d", line) for line in log)


def test_a_handler_that_does_not_is_found_shrunk_and_told(capsys):
    assert run("--handler", "simulated_shop:naive", "--hours", "0.02", "--seed", "5") == 1
    printed = capsys.readouterr()
    assert "500 generated page views" in printed.err
    again = re.search(r"with --seed 5 --only (\S*):", printed.out)
    assert again
    assert "EffectsAsWithoutFaults" in printed.out
    assert re.search(r"sink.add visitor-\d+", printed.out)

    given = ["--handler", "simulated_shop:naive", "--hours", "0.02", "--seed", "5", "--no-shrink"]
    assert run(*given, "--only", again[1]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "views.jsonl"], "name it, --handler"),
        (["--handler", "simulated_shop:naiv"], "did you mean naive?"),
        (["--handler", "simulated_shop:naive", "--input", "views.jsonl"], "--key"),
        (["--handler", "simulated_shop:naive", "--hours", "0"], "hours: 0.0 found"),
        (["--only", "earthquakes"], "earthquakes"),
    ],
)
def test_a_wrong_question_gets_one_clear_message_before_anything_runs(arguments, message, capsys):
    assert run(*arguments, "--seed", "1") == application.EXIT_WRONG_INPUT
    assert message in capsys.readouterr().err
