"""What holds for every command: -o, -h, --region, completion, groups in the help."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from typer.main import get_command

from shardfleet_ops.cli import app as application
from shardfleet_ops.cli.yaml_output import YamlWriter
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
