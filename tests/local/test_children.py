"""What a child process of ours imports: nothing from the folder that the user happens to be in."""

import ast
import os
import subprocess
import sys

import pytest

from tests.test_tidy import ROOT

pytestmark = pytest.mark.processes

# Imported by the embedded AWS if they are there, by its server, by boto3, or by every Python.
NAMES = ("uvloop", "h2", "hypercorn", "ministack", "orjson", "cbor2", "boto3", "msgspec", "json")
HOSTILE = "import os\nopen(os.environ['TELLTALE'], 'a').write(__name__ + ' ')\n"

EMBEDDED = "from shardfleet_local.aws.launcher import EmbeddedAws\nwith EmbeddedAws(): pass"
SPARK = """
import subprocess
from shardfleet_spark.host.local_python import local_python
subprocess.run([local_python(), "-m", "msgspec"], check=False)
"""


@pytest.mark.parametrize("program", [EMBEDDED, SPARK])
@pytest.mark.parametrize("path", ["", ":/nowhere"])
def test_nothing_in_the_current_folder_is_run(tmp_path, program, path):
    place, telltale = tmp_path / "somewhere", tmp_path / "telltale"
    place.mkdir()
    for name in NAMES:
        (place / f"{name}.py").write_text(HOSTILE)
    environment = {**os.environ, "TELLTALE": str(telltale)}

    # An empty entry is the current folder; a path that was added to nothing has one.
    given = f"import os\nos.environ['PYTHONPATH'] = {path!r}\n{program}"
    subprocess.run([sys.executable, "-P", "-c", given], cwd=place, env=environment, check=True)

    assert not telltale.exists(), telltale.read_text()


def test_every_child_python_is_started_without_the_current_folder():
    started = {}
    for folder in ("layer/python", "spark", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.List | ast.Tuple):
                    words = [ast.unparse(each) for each in node.elts]
                    if "sys.executable" in words:
                        after = words[words.index("sys.executable") + 1]
                        started[f"{file.relative_to(ROOT)}:{node.lineno}"] = after
    assert len(started) >= 5
    assert {place: after for place, after in started.items() if after != "'-P'"} == {}
