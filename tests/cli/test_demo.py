"""`shardfleet demo` and `local`: what is wrong is said before anything starts."""

import sys

import pytest

from shardfleet_local.own import own_run
from shardfleet_local.rig import run
from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.app import EXIT_FAILED, EXIT_WRONG_INPUT
from tests.local.rig.builders import an_outcome


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    """Bad input must be found before a fleet is started."""

    def refuse(*_, **__):
        message = "a fleet was started"
        raise AssertionError(message)

    monkeypatch.setattr(run, "running_fleet", refuse)
    monkeypatch.setattr(own_run, "running_fleet", refuse)


@pytest.fixture
def clicks(tmp_path):
    path = tmp_path / "clicks.jsonl"
    path.write_text('{"who": "a"}\n{"who": "b"}\n')
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--input", "none.jsonl", "--key", "who"], "none.jsonl: no such file"),
        (["demo", "--input", "{clicks}"], "needs --key FIELD"),
        (["demo", "--key", "who"], "needs --input FILE"),
        (["demo", "--input", "{clicks}", "--key", "name"], "clicks.jsonl:1: no field 'name'"),
        (["local", "run", "--handler", "a:b", "--input", "none"], "none: no such file"),
        (["local", "run", "--handler", "a", "--input", "{clicks}"], "package.module:function"),
        (
            ["local", "run", "--handler", "no_such:f", "--input", "{clicks}", "--folder", "{here}"],
            "there is no module 'no_such'",
        ),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments, message, clicks, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    given = [a.format(clicks=clicks, here=tmp_path / "empty") for a in arguments]

    assert application.run(given) == EXIT_WRONG_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


@pytest.fixture
def demo_that_ends_with(monkeypatch, tmp_path):
    def run_it(outcome):
        folder = tmp_path / "out"
        folder.mkdir()
        monkeypatch.setattr(run, "run_rig", lambda options, say: outcome)
        return application.run(["demo", "--output", str(folder)]), folder

    return run_it


def test_a_good_run_exits_with_0_and_leaves_result_and_report(demo_that_ends_with, capsys):
    code, folder = demo_that_ends_with(an_outcome(seconds=30))

    assert code == 0
    assert {path.name for path in folder.iterdir()} == {"result.json", "report.html", "picture.svg"}
    assert "Nothing was lost, and every key kept its order." in capsys.readouterr().out


def test_a_run_that_lost_something_exits_with_1_and_says_what(demo_that_ends_with, capsys):
    code, _ = demo_that_ends_with(an_outcome(seconds=30, lose=(9,)))

    assert code == EXIT_FAILED
    assert "1 records were never handled: 9" in capsys.readouterr().out


@pytest.mark.parametrize(
    "command", [["demo"], ["local", "run"], ["local", "up"], ["resume"], ["top"]]
)
def test_every_command_has_help_without_loading_the_embedded_aws(command, capsys):
    loaded = {name for name in sys.modules if name.startswith("ministack")}

    assert application.run([*command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out
    assert {name for name in sys.modules if name.startswith("ministack")} == loaded
