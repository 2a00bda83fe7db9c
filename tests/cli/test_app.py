"""The console script: version, usage errors, errors of ours, and an installation without typer."""

import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import typer

from shardfleet.errors import ConfigurationError, StreamGone
from shardfleet_ops import cli
from shardfleet_ops.cli import app as application


def run_with(monkeypatch, command, arguments=("go",)):
    """Run the application with one more command, registered as the module's docstring says."""
    extended = typer.Typer(pretty_exceptions_enable=False)
    extended.callback()(application.root)
    extended.command("go")(command)
    monkeypatch.setattr(application, "app", extended)
    return application.run(list(arguments))


def test_version_prints_the_installed_version(capsys):
    assert application.run(["--version"]) == 0
    assert capsys.readouterr().out == f"shardfleet {version('shardfleet')}\n"


def test_ctrl_c_while_a_command_is_imported_is_quiet(monkeypatch, capsys):
    class Importing:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "shardfleet_ops.cli.app", Importing())
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert cli.main() == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr() == ("", "")


def test_an_unknown_command_is_a_usage_error_that_names_it(capsys):
    assert application.run(["nonsense"]) == application.EXIT_WRONG_INPUT
    assert "nonsense" in capsys.readouterr().err


def test_a_command_that_returns_exits_with_zero(monkeypatch):
    assert run_with(monkeypatch, lambda: None) == 0


def test_a_command_chooses_its_own_exit_code(monkeypatch):
    def go():
        raise typer.Exit(5)

    assert run_with(monkeypatch, go) == 5


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("shards: 0 found, 1 or more allowed"), application.EXIT_WRONG_INPUT),
        (StreamGone("no stream named clicks"), application.EXIT_FAILED),
    ],
)
def test_an_error_of_ours_is_one_message_and_no_traceback(monkeypatch, capsys, error, code):
    def go():
        raise error

    assert run_with(monkeypatch, go) == code
    assert capsys.readouterr().err == f"shardfleet: {error}\n"


def test_a_bug_is_not_hidden(monkeypatch):
    def go():
        return {}["missing"]

    with pytest.raises(KeyError):
        run_with(monkeypatch, go)


def test_without_typer_the_message_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(cli, "find_spec", lambda name: None if name == "typer" else object())

    assert cli.main() == 2
    error = capsys.readouterr().err
    assert "needs typer, not installed here" in error
    assert "pip install 'shardfleet[cli]'" in error


def test_the_console_script_is_installed():
    script = Path(sys.executable).with_name("shardfleet")
    run = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)

    assert run.stdout.startswith("shardfleet ")
