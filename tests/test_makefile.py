"""What `make` promises: it lists itself, targets do what the list says, INPUT is the caller's."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
# What a target does, and the minutes it takes, where it takes any.
TARGET = re.compile(r"^([a-z-]+):.*## ([^[\n]*?)(?: \[(.*)\])?$", re.MULTILINE)
ROW = re.compile(r"^\| `make ([a-z-]+)` \| (.*) \| (.*) \|$", re.MULTILINE)

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


def run_make(*arguments, cwd, shell_folder=None):
    """Run make as a shell in `cwd` would (or a program that says it is a shell elsewhere)."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    for name in ("INPUT", "KEY", "ARGS", "SLOW", "RESULTS", "CALLED_FROM", "GIT_DIR"):
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
    """A folder with our Makefile, everything installed, and programs that tell their words."""
    folder = tmp_path / "the project"
    (folder / ".venv/bin").mkdir(parents=True)
    locks = [f"requirements{each}.lock" for each in ("", "-node", "-java", "-kcl", "-docs")]
    for name in (*locks, "pyproject.toml", "Makefile"):
        shutil.copy(ROOT / name, folder)
    for stamp in (".python", ".locked", ".package", ".node", ".java", ".kcl", ".docs", ".classes"):
        (folder / ".venv" / stamp).touch()
    for program in ("shardfleet", "python", "ruff", "mypy"):
        command = folder / ".venv/bin" / program
        command.write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
        command.chmod(0o755)
    return folder


def fail(project, program):
    (project / ".venv/bin" / program).write_text("#!/bin/sh\nexit 1\n")


def test_install_says_what_it_does_and_how_far_it_is(project):
    packages = re.findall(
        r"^([a-z0-9][\w.-]*)==", (project / "requirements.lock").read_text(), re.MULTILINE
    )
    lines = "".join(f"echo Collecting {name}\n" for name in packages[1:])
    python = f"#!/bin/sh\necho Processing ./{packages[0]}.whl\n{lines}echo Installing collected\n"
    (project / ".venv/bin/python").write_text(python)
    (project / ".venv/.locked").unlink()

    first, *steps, last = run_make(".venv/.locked", cwd=project).splitlines()
    assert "installing the locked dependencies" in first
    many = len(packages)
    assert steps == [f"  {n} of {many} packages fetched" for n in [*range(15, many, 15), many]]
    assert last == "  unpacking them"


def test_an_install_that_fails_stops_make(project):
    fail(project, "python")
    (project / ".venv/.locked").unlink()

    with pytest.raises(subprocess.CalledProcessError):
        run_make(".venv/.locked", cwd=project)
    assert not (project / ".venv/.locked").exists()


def test_make_lists_demo_and_test_first():
    lines = [line.split() for line in run_make(cwd=ROOT).splitlines()]

    assert [line[:2] for line in lines[:3]] == [
        ["make", "help"],
        ["make", "demo"],
        ["make", "test"],
    ]
    assert all(len(line) > 2 for line in lines)


def test_contributing_has_the_targets_and_minutes_of_the_makefile():
    table = ROW.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))

    assert table == TARGET.findall(MAKEFILE)
    printed = [line.split() for line in run_make(cwd=ROOT).splitlines()]
    assert printed == [
        ["make", name, *minutes.split(), *text.split()] for name, text, minutes in table
    ]
    for name in ("test", "quick", "slow", "pr"):
        assert name in [name for name, _, minutes in table if minutes.endswith(" min")]


@pytest.fixture
def history(project):
    """Two commits of the project: `old.py` is of the first, `new.py` of the second."""
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=a")
    (project / "tests").mkdir()
    (project / ".gitignore").write_text(".venv\n")
    git(project, "init", "--quiet")
    for name in ("old.py", "new.py"):
        (project / "tests" / name).write_text("1\n")
        git(project, "add", ".")
        git(project, *commit)
    return project


def git(folder, *arguments):
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def linted(folder):
    """Return what `make quick` gives to ruff."""
    (folder / ".venv/.package").touch()  # A newer pyproject.toml would be installed.
    printed = run_make("quick", cwd=folder).partition("<-m>")[0]
    checked, formatted = re.split("<format><--check>", printed.removeprefix("<check>"))
    assert checked == formatted
    option, *files = re.findall("<(.*?)>", checked)
    assert option == "--force-exclude"
    return sorted(files)


def test_quick_lints_what_the_last_commit_and_the_working_tree_change(history):
    assert linted(history) == ["tests/new.py"]
    (history / "tests/a b.py").touch()
    assert linted(history) == ["tests/a b.py", "tests/new.py"]
    (history / "tests/old.py").write_text("2\n")
    (history / "tests/new.py").unlink()
    assert linted(history) == ["tests/a b.py", "tests/old.py"]


def test_quick_lints_what_a_branch_has_changed_since_it_left_origin(history):
    git(history, "update-ref", "refs/remotes/origin/main", "HEAD^")
    (history / "tests/third.py").touch()
    git(history, "add", ".")
    git(history, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message=a")

    assert linted(history) == ["tests/new.py", "tests/third.py"]


def test_quick_lints_everything_where_git_cannot_say_or_the_rules_changed(history):
    with (history / "pyproject.toml").open("a") as file:
        file.write("\n")
    assert linted(history) == ["tests"]
    git(history, "checkout", "--quiet", "pyproject.toml")
    shutil.rmtree(history / ".git")
    assert linted(history) == ["tests"]


def test_quick_is_lint_the_core_and_one_fleet(history):
    printed = run_make("quick", cwd=history)

    assert printed.startswith("<check><--force-exclude><tests/new.py><format><--check>")
    assert "<tests/domain><tests/engine><tests/kpl>" in printed
    assert printed.endswith("<simulate><--seeds><1><--jobs><1>")


def test_mutants_are_the_known_ones_or_drawn_by_chance(project):
    assert run_make("mutants", cwd=project).startswith("<-m><tests.simulation.mutants.run>")
    assert run_make("mutants", "RANDOM=300", "SEED=7", "SEEDS=20", cwd=project) == (
        "<-m><tests.random_mutants.run><--number><300><--seed><7><--seeds><20>"
        "<--output><benchmarks/results/random_mutants.json>"
    )


def test_what_is_compiled_once_is_kept_whatever_the_caller_wants(project, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    told = "#!/bin/sh\nprintf '<%s>' \"${PYTHONDONTWRITEBYTECODE-kept}\"\n"
    (project / ".venv/bin/python").write_text(told)

    assert run_make("test", cwd=project) == "<kept>"


def test_what_make_says_to_the_tests_is_among_what_they_are_left_with():
    # tests/conftest.py takes every other variable of ours away.
    said = re.findall(r"(SHARDFLEET_\w+)=\S* ", MAKEFILE)

    assert said
    assert [name for name in said if not name.startswith("SHARDFLEET_TEST_")] == []


def test_slow_runs_its_parts_one_after_the_other(project):
    parts = re.search(r"^SLOW \?= (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    printed = run_make("slow", cwd=project)

    assert re.findall(r"make ([a-z-]+)", printed) == parts
    minutes = {name: told.removesuffix(" min") for name, _, told in TARGET.findall(MAKEFILE)}
    assert sum(int(minutes[part]) for part in parts) == int(minutes["slow"])
    # What a short run finds replaces no figures of a long one.
    assert "benchmarks/results" not in printed
    assert "<build/slow/model.json>" in printed


def test_slow_runs_the_parts_that_are_named_and_stops_where_one_fails(project):
    assert re.findall(r"make ([a-z-]+)", run_make("slow", "SLOW=model sim", cwd=project)) == [
        "model",
        "sim",
    ]
    fail(project, "shardfleet")
    with pytest.raises(subprocess.CalledProcessError) as failure:
        run_make("slow", "SLOW=sim model", cwd=project)
    assert re.findall(r"make ([a-z-]+)", failure.value.stdout) == ["sim"]


def test_ci_runs_lint_types_tests_and_of_the_slow_parts_those_it_names():
    lines = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    calls = [line.split(maxsplit=1)[1] for line in lines if line.lstrip().startswith("make ")]
    parts = re.search(r"^SLOW \?= (.*)$", MAKEFILE, re.MULTILINE)[1].split()

    assert calls[:4] == ["install", "lint", "types", "test"]
    for slow in calls[4:]:
        named = re.fullmatch(r'slow SLOW="([a-z -]+)"( [A-Z]+=\d+)*', slow)[1].split()
        assert set(named) <= set(parts)


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
