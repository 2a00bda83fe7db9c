"""The README's code runs, its commands exist, its links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from shardfleet import Batch, Record
from shardfleet.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
WITHOUT_BUNDLING = json.dumps({"aws:cdk:bundling-stacks": []})


def blocks(language):
    return [text for found, text in BLOCK.findall(README) if found == language]


def block_with(word):
    (found,) = [text for text in blocks("python") if word in text]
    return found


def shell_lines():
    return [line for text in blocks("sh") for line in text.splitlines()]


def a_record(number, **fields):
    return Record(
        data=json.dumps(fields).encode(),
        partition_key="ada",
        sequence_number=str(number),
        shard_id="shardId-000000000000",
        approximate_arrival_ms=number,
    )


def a_batch(*records):
    return Batch(
        records,
        shard_id="shardId-000000000000",
        stream_arn="arn:aws:kinesis:eu-central-1:111122223333:stream/clicks",
        millis_behind_latest=0,
        attempt=1,
        deadline_ms=60_000,
    )


def test_the_handler_has_twelve_lines_and_runs(capsys):
    source = block_with("def handle")
    defined = {}
    exec(compile(source, "README.md", "exec"), defined)  # noqa: S102 - it is what readers will run.

    defined["handle"](a_batch(a_record(1, page="/home"), a_record(2, page="/cart")))

    assert len(source.splitlines()) <= 12
    assert capsys.readouterr().out == "ada sees /home, view 1\nada sees /cart, view 2\n"


def test_the_stack_has_ten_lines_and_synthesizes(tmp_path):
    source = block_with("app.synth()")
    environment = os.environ | {
        "CDK_OUTDIR": str(tmp_path / "cdk.out"),
        "CDK_CONTEXT_JSON": WITHOUT_BUNDLING,
    }

    subprocess.run([sys.executable, "-c", source], cwd=ROOT, env=environment, check=True)

    template = json.loads((tmp_path / "cdk.out/Clicks.template.json").read_text("utf-8"))
    types = [resource["Type"] for resource in template["Resources"].values()]
    assert len(source.splitlines()) <= 10
    assert types.count("AWS::StepFunctions::StateMachine") == 1
    assert types.count("AWS::Kinesis::Stream") == 1


def test_every_python_block_is_run_by_a_test():
    # Three of this file, two of tests/spark/test_readme_spark.py, which needs Java.
    assert len(blocks("python")) == 5


def test_the_test_of_a_handler_passes_in_the_simulated_fleet(pytester):
    pytester.makepyfile(test_readme_example=block_with("fleet.run("))

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=500)

    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("line", shell_lines())
def test_a_shell_line_names_something_that_exists(line):
    program, *words = shlex.split(line)
    if program == "make":
        assert_make_knows(words)
    elif program == "export":
        assert words == ["SHARDFLEET_STACK=ShardFleetStack"]
    elif program in (".venv/bin/shardfleet", "shardfleet"):
        assert_the_command_knows(words)
    elif program == "npx":
        assert words[0] in json.loads((ROOT / "package.json").read_text())["devDependencies"] or (
            words[0] == "cdk" and (ROOT / "cdk.json").exists()
        )
    else:
        assert (program, words) == ("npm", ["install"])
        assert (ROOT / "package.json").exists()


def assert_make_knows(words):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in words:
        name, is_variable, _ = word.partition("=")
        wanted = rf"^{name} \?=" if is_variable else rf"^{name}:"
        assert re.search(wanted, makefile, re.MULTILINE), f"make has no {name}"


def assert_the_command_knows(words):
    command = get_command(app)
    while words and (commands := getattr(command, "commands", {})):
        assert words[0] in commands, f"{command.name} has no {words[0]}"
        command = commands[words.pop(0)]
    if words and not words[0].startswith("-"):
        assert "argument" in {each.param_type_name for each in command.params}, words[0]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_named_demo_option_exists():
    (named,) = re.findall(r"make demo ARGS=(--[\w-]+)", README)
    demo = get_command(app).commands["demo"]

    assert named in {option for parameter in demo.params for option in parameter.opts}


def test_links_lead_to_files():
    missing = [
        target
        for target in LINK.findall(README)
        if not target.startswith("https:") and not (ROOT / target).exists()
    ]

    assert missing == []


def test_prose_has_one_sentence_per_line():
    prose = FENCED.sub("", README)
    several = [
        line
        for line in prose.splitlines()
        if not line.startswith("|") and re.search(r"[^\W\d][.!?] [A-Z`]", line)
    ]

    assert several == []
