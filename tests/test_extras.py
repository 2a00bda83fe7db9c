"""
What a person meets without an extra: one line that names it.

An installation with one extra is a folder of links to what its packages have, and to ours.
"""

import importlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.test_faces import FACES
from tests.test_tidy import ROOT

OURS = [ROOT / root for root in ("layer/python", "cdk", "spark", "tools")]
EXTRAS = ("", "cli", "cdk", "local", "spark")
# Which extra a face names, and which others have what it needs.
NEEDED = {
    "shardfleet_cdk": ("cdk", "local"),
    "shardfleet_spark": ("spark",),
    "shardfleet_testkit": ("local",),
}
SHARDFLEET = "import sys; from shardfleet_ops.cli import main; sys.exit(main())"
TEMPLATE = "template --out out --handler handler:handle --folder ."
EXPORT = "position export --checkpoint folder --stream clicks --output positions.json"
PIPELINE = "pipeline run --batch --source shardfleet:clicks --sink parquet:views"
COMMANDS = [
    ("", "--help", "cli"),
    ("cdk", "--help", "cli"),
    ("cli", TEMPLATE, "cdk"),
    ("spark", TEMPLATE, "cdk"),
    *(("cli", command, "local") for command in ("demo", "chaos", "local up")),
    *((extra, command, "spark") for extra in ("cli", "local") for command in (PIPELINE, EXPORT)),
]


def packages_of(extra):
    """Return the distributions that an extra installs, all their own needs included."""
    seen, todo = set(), [("shardfleet", extra)]
    while todo:
        name, asked = todo.pop()
        try:
            requires = distribution(name).requires or ()
        except PackageNotFoundError:  # For another platform.
            continue
        seen.add(name)
        for each in map(Requirement, requires):
            if each.marker is None or each.marker.evaluate({"extra": asked}):
                new = [(each.name, inner) for inner in (each.extras or {""})]
                todo += [pair for pair in new if pair[0] == "shardfleet" or pair[0] not in seen]
    return seen - {"shardfleet"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    folders = {}

    def with_extra(extra):
        if extra not in folders:
            folders[extra] = tmp_path_factory.mktemp(extra or "bare")
            for name in packages_of(extra):
                package = distribution(name)
                for top in {file.parts[0] for file in package.files} - {"..", "__pycache__"}:
                    link = folders[extra] / top
                    if not link.exists():
                        link.symlink_to(Path(package.locate_file(top)))
        return folders[extra]

    return with_extra


def run(site, program, *arguments, folder):
    path = os.pathsep.join(map(str, [site, *OURS]))
    return subprocess.run(
        [sys.executable, "-S", "-c", program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("face", sorted(FACES))
def test_a_face_without_its_extra_names_it(installed, tmp_path, face, extra):
    names = importlib.import_module(face).__all__
    found = run(installed(extra), f"from {face} import {', '.join(names)}", folder=tmp_path)

    if extra in NEEDED.get(face, EXTRAS):
        assert found.returncode == 0, found.stderr
    else:
        last = found.stderr.splitlines()[-1]
        assert last.startswith(f"shardfleet.faces.ExtraMissing: {face} needs "), found.stderr
        assert last.endswith(f": pip install 'shardfleet[{NEEDED[face][0]}]'")


@pytest.mark.parametrize(("extra", "command", "named"), COMMANDS)
def test_a_command_without_its_extra_is_one_line_that_names_it(
    installed, tmp_path, extra, command, named
):
    (tmp_path / "handler.py").write_text("def handle(batch): ...\n", "utf-8")
    found = run(installed(extra), SHARDFLEET, *command.split(), folder=tmp_path)

    assert found.returncode == 2, found.stderr
    assert f"pip install 'shardfleet[{named}]'" in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
