"""What holds for every command: -o, -h, --region, completion, groups in the help."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from typer.main import get_command

from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.commands import COMMANDS
from shardfleet_ops.cli.yaml_output import YamlWriter
from tests.cli.recorded_runs import stand_in
from tests.cli.test_situations import SHARDFLEET

LINES = '{"who": "a"}\n{"who": "b"}\n'
DOCUMENTS = [
    {},
    [],
    "yes",
    {"a": [], "b": {}, "c": [1, [2, {"d": None}]], "e": {"f": [{"g": 1.5}, {"h": True}]}},
    {"no": "2026-11-28", "": "a\nb: c", "A b": "\x1b[2J\u2028é\x7f", "7": "007", "null": "- x"},
    [[["deep"]], [{"a": [1, 2]}]],
]


@pytest.fixture
def put(tmp_path, capsys):
    (tmp_path / "input").write_text(LINES, "utf-8")

    def run(*options):
        given = ["put", "--dry-run", "--input", str(tmp_path / "input"), *options]
        code = application.run(given)
        return code, capsys.readouterr()

    return run


@pytest.mark.parametrize("document", DOCUMENTS)
def test_yaml_says_what_json_says_and_nothing_is_guessed(document, capsys):
    writer = YamlWriter(sys.stdout)
    for piece in (json.dumps(document, indent=2), "\n", json.dumps([document]), "\n"):
        writer.write(piece)
    writer.flush()

    said = capsys.readouterr().out
    assert list(yaml.safe_load_all(said)) == [document, [document]]
    assert said.isascii()
    assert "\x1b" not in said


def test_one_option_says_in_which_form_a_command_answers(put):
    _, in_json = put("--json")
    assert put("-o", "json")[1] == in_json
    code, in_yaml = put("-o", "yaml")
    assert code == 0
    assert yaml.safe_load(in_yaml.out) == json.loads(in_json.out)
    assert put("-o", "table")[1] == put()[1]
    code, refused = put("-o", "xml")
    assert code == 2
    assert "-o xml: json, yaml, table is what there is" in refused.err


RUN = "--handler shop:handle --input orders.jsonl --key who"
# What ends with a result, and of its document what is known from the recorded run.
RESULTS = {
    "demo": {"passed": True, "lost": 0, "throttled_seconds": 60},
    "chaos --minutes 1": {"passed": True, "lost": 0},
    f"local run {RUN}": {"passed": True, "records": 7, "handled": 7, "took_ms": 2_345, "stops": []},
    "simulate --seeds 1": {"violations": []},
    "simulate --seed 7": {"violations": [], "seeds": 1, "first_seed": 7},
    "init web-shop": {"folder": "web-shop", "stack": "WebShop"},
}
# A page, a process or a session that goes on until somebody ends it; acceptance writes its own.
WITHOUT_DOCUMENT = {"top", "dashboard", "work", "local up", "pipeline run", "acceptance"}


@pytest.mark.parametrize("call", RESULTS)
def test_a_result_is_a_document_and_all_else_is_said_beside_it(call, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    stand_in(monkeypatch, "healthy", tmp_path)

    assert application.run([*call.split(), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.items() >= RESULTS[call].items()


def test_a_result_that_is_none_has_the_same_exit_code(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    stand_in(monkeypatch, "stopped", tmp_path)

    assert application.run(["local", "run", *RUN.split(), "--json"]) == 1
    (stop, _) = json.loads(capsys.readouterr().out)["stops"]
    assert stop["attempts"] == 5
    assert (stop["line"], stop["error"]) == (5, "ValueError: order 7 cannot be shipped")


def test_every_command_that_ends_with_a_result_has_a_document():
    def without(command, path=()):
        for name, part in getattr(command, "commands", {}).items():
            yield from without(part, (*path, name))
        options = {option for each in command.params for option in each.opts}
        if not hasattr(command, "commands") and "--json" not in options:
            yield " ".join(path)

    assert set(without(get_command(application.app))) == WITHOUT_DOCUMENT


def test_watching_is_for_a_person(capsys):
    for command in ("status", "leases"):
        assert application.run([command, "-w", "--json"]) == 2
        assert "take one of them" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["status"], ["position", "import"]])
def test_a_short_option_asks_for_help(command, capsys):
    assert application.run([*command, "-h"]) == 0
    short = capsys.readouterr().out
    assert application.run([*command, "--help"]) == 0
    assert capsys.readouterr().out == short


def test_every_command_is_in_a_group_of_the_help(capsys):
    application.run(["--help"])
    said = capsys.readouterr().out

    heads = [line.split("─ ")[1].split(" ─")[0] for line in said.splitlines() if "╭─" in line]
    assert heads == ["Options", "Begin", "Look", "Records", "Act", "Prove"]
    commands = get_command(application.app).commands
    assert all(f"│ {name} " in said for name in commands)


def test_a_shell_completes_commands():
    asked = {
        "_SHARDFLEET_COMPLETE": "complete_bash",
        "COMP_WORDS": "shardfleet le",
        "COMP_CWORD": "1",
    }
    ran = subprocess.run(
        [SHARDFLEET], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["leases"]


def test_the_help_says_of_each_command_what_the_command_says_of_itself():
    said = {name: entry.says for entries in COMMANDS.values() for name, entry in entries.items()}
    commands = get_command(application.app).commands

    assert {name: command.help for name, command in commands.items()} == said


def test_the_help_imports_no_command():
    program = (
        "import sys; from shardfleet_ops.cli import main; code = main(); "
        "print(*sorted(n for n in sys.modules if 'shardfleet' in n), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=True
    )
    cli = "shardfleet_ops.cli"
    assert ran.stderr.split() == ["shardfleet_ops", cli, f"{cli}.app", f"{cli}.commands"]
