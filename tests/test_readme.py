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
from shardfleet_ops.cli.app import app

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^In `([\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
WORDS_MOST = 1_000
# How a block begins, and which tests run what is in it.
ANY_APP = "tests/end_to_end/test_any_app.py"
SPARK = "tests/spark/test_readme_spark.py"
RUN_BY = {
    "make install": "tests/test_makefile.py",
    "mkdir": ANY_APP,
    "shardfleet local run": ANY_APP,
    "npx cdk deploy": ANY_APP,  # On the embedded AWS, what `python app.py` writes.
    "export SHARDFLEET_STACK": ANY_APP,
    "shardfleet work": "tests/processes/test_processes.py",
    "pytest": "tests/test_readme.py",
    "make demo": "tests/end_to_end/test_demo.py",
    "shardfleet pipeline run --batch": SPARK,
    "shardfleet pipeline run --source": SPARK,
    "shardfleet position export": SPARK,
}
WITHOUT_BUNDLING = json.dumps({"aws:cdk:bundling-stacks": []})


def blocks(language):
    return [text for found, text in BLOCK.findall(README) if found == language]


def block_with(word):
    (found,) = [text for text in blocks("python") if word in text]
    return found


def paste_files(folder):
    """Put the README's files into a folder, under the names that it gives them."""
    for name, text in FILE.findall(README):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")


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
    paste_files(tmp_path)

    subprocess.run([sys.executable, "app.py"], cwd=tmp_path, env=environment, check=True)

    template = json.loads((tmp_path / "cdk.out/Clicks.template.json").read_text("utf-8"))
    types = [resource["Type"] for resource in template["Resources"].values()]
    assert len(source.splitlines()) <= 10
    assert types.count("AWS::StepFunctions::StateMachine") == 1
    assert types.count("AWS::Kinesis::Stream") == 1


def test_every_python_block_is_run_by_a_test():
    # Three of this file, two of tests/spark/test_readme_spark.py, which needs Java.
    assert len(blocks("python")) == 5


def test_every_block_of_the_shell_is_run_by_a_test():
    begun = {begin: [b for b in blocks("sh") if b.startswith(begin)] for begin in RUN_BY}

    assert [len(found) for found in begun.values()] == [1] * len(RUN_BY)
    assert len(blocks("sh")) == len(RUN_BY)
    assert all((ROOT / file).exists() for file in RUN_BY.values())


def test_the_readme_is_read_in_a_few_minutes():
    assert len(README.split()) <= WORDS_MOST


def test_what_it_promises_and_when_not_comes_before_spark_and_operations():
    first, later = ("guarantees", "does not do", "better choice"), ("act", "Spark")
    headings = re.findall(r"^## .*$", README, re.MULTILINE)
    place = {w: next(n for n, h in enumerate(headings) if h.endswith(w)) for w in first + later}

    assert max(place[word] for word in first) < min(place[word] for word in later)


def test_the_test_of_a_handler_passes_in_the_simulated_fleet(pytester):
    paste_files(pytester.path)
    (line,) = [line for line in shell_lines() if line.startswith("pytest")]

    result = pytester.runpytest_subprocess(
        *shlex.split(line)[1:], "-p", "no:cacheprovider", timeout=500
    )

    result.assert_outcomes(passed=1)


RUN_AS_THEY_ARE = ("mkdir", "python", "pytest", "source")


@pytest.mark.parametrize(
    "line", [line for line in shell_lines() if not line.startswith(RUN_AS_THEY_ARE)]
)
def test_a_shell_line_names_something_that_exists(line):
    program, *words = shlex.split(line)
    if program == "make":
        assert_make_knows(words)
    elif program == "export":
        assert words == ["SHARDFLEET_STACK=Clicks"]
    elif program == "shardfleet":
        assert_the_command_knows(words)
    else:
        assert (program, words[0]) == ("npx", "cdk")
        assert "aws-cdk" in json.loads((ROOT / "package.json").read_text())["devDependencies"]


def assert_make_knows(words):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for word in words[2:] if words[0] == "-C" else words:
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
