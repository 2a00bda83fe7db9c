"""The wheel that a person installs: our packages, the construct's assets, and nothing else."""

import io
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from email.parser import HeaderParser
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def build(folder, *targets, root=ROOT, **environment):
    """Build a wheel, an sdist or both; return the files."""
    wanted = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", *wanted, "-d", folder]
    built = subprocess.run(
        command,
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("built"), "wheel", "sdist")


@pytest.fixture(scope="module")
def wheel(built):
    (data,) = [data for name, data in built.items() if name.endswith(".whl")]
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        yield archive


def metadata_of(archive):
    name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
    return HeaderParser().parsestr(archive.read(name).decode())


def test_the_same_is_built_again_by_another_umask_and_of_the_sdist_itself(built, tmp_path):
    (sdist,) = [name for name in built if name.endswith(".tar.gz")]
    with tarfile.open(fileobj=io.BytesIO(built[sdist])) as archive:
        archive.extractall(tmp_path / "sdist", filter="data")
    (root,) = (tmp_path / "sdist").iterdir()
    (tmp_path / "again").mkdir()

    assert build(tmp_path / "again", "wheel", "sdist", root=root, TZ="Asia/Tokyo") == built


def test_no_link_of_the_long_description_is_relative(wheel):
    text = metadata_of(wheel).get_payload()

    assert links_of(text) == []
    assert metadata_of(wheel).get_all("Project-URL") is None
    assert "docs/handlers.md" in text
    assert "All pages, by question" in text


def test_who_publishes_it_says_where_it_lies(tmp_path):
    (data,) = build(tmp_path, "wheel", SHARDFLEET_PROJECT_URL="https://example.org/it/").values()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        found = metadata_of(archive)
    links = links_of(found.get_payload())

    at = f"https://example.org/it/blob/v{version('shardfleet')}/"
    ours = [link for link in links if link.startswith(at)]
    assert {*links} - {*ours} == {
        f"https://example.org/it/raw/v{version('shardfleet')}/docs/img/demo.svg"
    }
    assert all((ROOT / link.removeprefix(at).partition("#")[0]).exists() for link in ours[:3])
    assert f"Documentation, {at}docs/README.md" in found.get_all("Project-URL")


def links_of(text):
    without_code = re.sub(r"(?ms)^```.*?^```$", "", text)
    return re.findall(r"\]\(([^)]*)\)", without_code)


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
    metadata = metadata_of(wheel)
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
        "h2",
        "msgspec",
        "protobuf",
        "pybase64",
    }
