"""What `make` promises: it lists itself, and INPUT is a file as the caller names it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def run_make(*arguments, cwd, shell_folder=None):
    """Run make as a shell in `cwd` would (or a program that says it is a shell elsewhere)."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    for name in ("INPUT", "KEY", "ARGS", "CALLED_FROM"):
        environment.pop(name, None)
    return subprocess.run(
        ["make", *arguments],
        cwd=cwd,
        env=environment | {"PWD": str(shell_folder or cwd)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture
def project(tmp_path):
    """A folder with our Makefile, everything installed, and a `shardfleet` that tells its words."""
    folder = tmp_path / "the project"
    (folder / ".venv/bin").mkdir(parents=True)
    locks = ("requirements.lock", "requirements-node.lock", "requirements-java.lock")
    for name in (*locks, "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, folder)
    for stamp in (".python", ".locked", ".package", ".node", ".java"):
        (folder / ".venv" / stamp).touch()
    command = folder / ".venv/bin/shardfleet"
    command.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    command.chmod(0o755)
    return folder


def test_make_lists_demo_and_test_first():
    lines = [line.split() for line in run_make(cwd=ROOT).splitlines()]

    assert [line[:2] for line in lines[:3]] == [
        ["make", "help"],
        ["make", "demo"],
        ["make", "test"],
    ]
    assert all(len(line) > 2 for line in lines)


def test_the_demo_without_input_gets_no_options(project):
    assert run_make("demo", cwd=project) == "<demo>"


def test_a_relative_input_is_looked_for_where_make_is_called(project):
    assert run_make("demo", "INPUT=my clicks.csv", "KEY=user id", cwd=project) == (
        f"<demo><--input><{project}/my clicks.csv><--key><user id>"
    )


def test_a_relative_input_belongs_to_the_caller_when_make_changes_folder(project):
    printed = run_make("-C", project, "demo", "INPUT=a/b.jsonl", cwd=project.parent)

    assert f"<demo><--input><{project.parent}/a/b.jsonl>" in printed


def test_a_relative_input_that_is_there_is_found_when_a_program_left_the_shells_folder(
    project, tmp_path
):
    (project / "clicks.jsonl").touch()

    printed = run_make("demo", "INPUT=clicks.jsonl", cwd=project, shell_folder=tmp_path)

    assert printed == f"<demo><--input><{project}/clicks.jsonl>"


@pytest.mark.parametrize("file", ["/data/clicks.jsonl", "-"])
def test_an_absolute_input_and_standard_input_are_passed_on(project, file):
    assert run_make("demo", f"INPUT={file}", cwd=project) == f"<demo><--input><{file}>"


def test_a_python_that_does_not_run_is_refused_by_name(project):
    shutil.rmtree(project / ".venv")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run_make("install", "PYTHON=no-such-python", cwd=project)

    assert "PYTHON=no-such-python is no Python 3.11 or newer" in failure.value.stderr
