"""The wheel that a person installs: our packages, the construct's assets, and nothing else."""

import re
import subprocess
import sys
import zipfile
from collections import defaultdict
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


@pytest.mark.parametrize("root", ["layer/python", "tools", "cdk", "spark"])
def test_the_wheel_holds_every_module(wheel, root):
    folder = ROOT / root
    modules = {str(path.relative_to(folder)) for path in folder.glob("*/**/*.py")}

    assert modules <= set(wheel.namelist())


def test_the_wheel_carries_the_constructs_assets(wheel):
    assets = {
        name.removeprefix("shardfleet_cdk/_assets/")
        for name in wheel.namelist()
        if name.startswith("shardfleet_cdk/_assets/")
    }
    functions = {str(path.relative_to(ROOT)) for path in ROOT.glob("functions/**/handler.py")}

    assert functions <= assets
    assert {
        "layer/requirements.txt",
        "layer/sdk/requirements.txt",
        "spark/requirements.txt",
    } <= assets


def test_the_wheel_holds_each_file_once(wheel):
    names = defaultdict(list)
    for each in wheel.infolist():
        if each.file_size:
            names[wheel.read(each)].append(each.filename)

    assert [same for same in names.values() if len(same) > 1] == []


@pytest.mark.parametrize(
    "package", ["shardfleet", "shardfleet_cdk", "shardfleet_spark", "shardfleet_testkit"]
)
def test_a_face_is_typed_for_who_installs_the_wheel(wheel, package):
    assert f"{package}/py.typed" in wheel.namelist()


def test_the_wheel_holds_nothing_but_our_packages(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}

    assert {top for top in tops if not top.endswith(".dist-info")} <= {
        "shardfleet",
        "shardfleet_cdk",
        "shardfleet_spark",
        "pyspark_shardfleet",
        "shardfleet_ops",
        "shardfleet_local",
        "shardfleet_processes",
        "shardfleet_testkit",
    }
    assert not any("__pycache__" in name for name in wheel.namelist())


def test_the_wheel_offers_the_extras_and_a_core_without_them(wheel):
    name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
    core = {line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}

    assert set(metadata.get_all("Provides-Extra")) == {
        "cdk",
        "cli",
        "connect",
        "dev",
        "local",
        "spark",
    }
    assert {re.split(r"[<>=]", line)[0] for line in core} == {
        "aws-lambda-powertools",
        "boto3",
        "msgspec",
        "protobuf",
        "pybase64",
    }
