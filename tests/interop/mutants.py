"""
Faults of a bad neighbour, put back: ``python -m tests.interop.mutants``; each must fail its steps.

A mutant is a change of one place, in a copy of the repository that is then deployed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPIED = "layer", "cdk", "functions", "tools", "tests", "cdk.json", "pyproject.toml"


class Mutant(NamedTuple):
    """What is changed where, and the steps of which version of the KCL must fail."""

    name: str
    file: str
    was: str
    becomes: str
    version: str
    steps: str


MUTANTS = (
    Mutant(
        "J1: the fleet shows Java no worker",
        "layer/python/shardfleet/domain/balance/kcl3.py",
        "shown = able if shows else []",
        "shown = []",
        "3.1",
        "java_begins,fleet_joins",
    ),
    Mutant(
        "J2: a slot that fails takes from who works",
        "layer/python/shardfleet/domain/balance/strategy.py",
        "failing = {w for w, slot in able.items() if _crashes(slot) or slot.failure is not None}",
        "failing = set()",
        "2.7",
        "java_begins,fleet_cannot_work",
    ),
    Mutant(
        "J3: a KCL 3 is robbed of what it would hand over",
        "tools/shardfleet_ops/operate/migrate.py",
        "graceful=found.java if found.hands_over else (),",
        "graceful=(),",
        "3.1",
        "java_begins,fleet_joins,migrates_to_fleet",
    ),
)


def is_caught(mutant, folder):
    """Run its steps on a copy that has the fault."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    file = folder / mutant.file
    before = file.read_text("utf-8")
    if before.count(mutant.was) != 1:
        raise LookupError(f"{mutant.name}: {mutant.file} has not once {mutant.was!r}")
    file.write_text(before.replace(mutant.was, mutant.becomes), "utf-8")
    path = os.pathsep.join(str(folder / each) for each in ("layer/python", "cdk", "tools", "."))
    command = [sys.executable, "-m", "tests.interop", "--kcl", mutant.version, "--steps",
               mutant.steps]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=False)
    return done.returncode != 0


def main(names):
    """Run all, or those whose name has one of the words; return 1 if one is not caught."""
    missed = []
    for mutant in MUTANTS:
        if not names or any(name in mutant.name for name in names):
            with tempfile.TemporaryDirectory(prefix="shardfleet-mutant-") as folder:
                caught = is_caught(mutant, Path(folder))
            sys.stdout.write(f"{mutant.name}: {'caught' if caught else 'MISSED'}\n")
            missed += [] if caught else [mutant.name]
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
