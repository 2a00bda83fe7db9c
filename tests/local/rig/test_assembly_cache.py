"""What is kept of a synthesis is served only for what it was made from, and only as a whole."""

import json
import sys
import threading
from types import ModuleType

import pytest

from shardfleet_local.rig import assembly_cache
from shardfleet_local.rig.assembly_cache import AssemblyCache, default_folder, key_of
from shardfleet_local.rig.fleet import FleetPlan, synthesized

ARTIFACT = {
    "type": "aws:cloudformation:stack",
    "properties": {"templateFile": "S.template.json"},
}


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop/orders.py").write_text("def handle(batch): ...\n")
    return folder


@pytest.fixture
def cache(tmp_path):
    return AssemblyCache(tmp_path / "cache")


@pytest.fixture
def synths(monkeypatch):
    """The synthesis, as a list of the folders that it was asked to write."""
    asked = []

    def synthesize(folder, *, context, project):
        asked.append(folder)
        (folder / "asset.1").mkdir(parents=True)
        (folder / "asset.1/code.py").write_text("1")
        (folder / "S.template.json").write_text(json.dumps({"made": len(asked)}))
        (folder / "manifest.json").write_text(json.dumps({"artifacts": {"S": ARTIFACT}}))
        return folder / "S.template.json"

    module = ModuleType("shardfleet_cdk.synthesis")
    module.synthesize = synthesize
    monkeypatch.setitem(sys.modules, "shardfleet_cdk.synthesis", module)
    return asked


def test_what_is_unchanged_is_not_synthesized_again_and_what_is_changed_is(
    tmp_path, project, cache, synths
):
    def made(number, **context):
        plan = FleetPlan(project=project, context=context, cache=cache)
        return json.loads(synthesized(tmp_path / f"out{number}", plan).read_text())["made"]

    assert [made(1), made(2)] == [1, 1]
    assert (tmp_path / "out2/asset.1/code.py").read_text() == "1"
    assert made(3, shards=2) == 2
    (project / "shop/orders.py").write_text("def handle(batch): print(batch)\n")
    assert [made(4), made(5)] == [3, 3]
    assert len(synths) == 3


@pytest.mark.parametrize("name", ["CDK_DEFAULT_REGION", "PATH", "SHARDFLEET_X"])
def test_the_environment_that_matters_is_part_of_the_key(project, name):
    assert key_of(project, {}, environment={}) != key_of(project, {}, environment={name: "1"})
    assert key_of(project, {}, environment={}) == key_of(project, {}, environment={"TERM": "1"})


def test_the_library_and_its_versions_are_part_of_the_key(project, monkeypatch, tmp_path):
    before = key_of(project, {})
    assert key_of(project, {}) == before
    monkeypatch.setattr(assembly_cache.importlib.metadata, "distributions", lambda: ())
    other_versions = key_of(project, {})
    assert other_versions != before
    monkeypatch.setattr(assembly_cache, "_own_code", lambda: [tmp_path])
    assert key_of(project, {}) != other_versions


def test_the_code_that_is_hashed_is_what_is_deployed():
    names = {folder.name for folder in assembly_cache._own_code()}

    assert names >= {"shardfleet", "shardfleet_cdk", "functions", "sdk", "cdk.json"}


@pytest.mark.parametrize("spoil", ["cut", "missing", "more", "listing", "half"])
def test_what_is_not_whole_is_never_used_and_is_made_again(tmp_path, project, cache, synths, spoil):
    plan = FleetPlan(project=project, cache=cache)
    synthesized(tmp_path / "out1", plan)
    (kept,) = (tmp_path / "cache").iterdir()
    template = kept / "assembly/S.template.json"
    {
        "cut": lambda: template.write_bytes(template.read_bytes()[:-3]),
        "missing": template.unlink,
        "more": lambda: (kept / "assembly/asset.1/other.py").write_text("2"),
        "listing": lambda: (kept / "files.json").write_text("{"),
        "half": (kept / "files.json").unlink,
    }[spoil]()

    assert json.loads(synthesized(tmp_path / "out2", plan).read_text()) == {"made": 2}
    assert json.loads(synthesized(tmp_path / "out3", plan).read_text()) == {"made": 2}


def test_processes_that_keep_the_same_assembly_at_once_leave_one_whole(tmp_path, cache):
    assembly = tmp_path / "assembly"
    assembly.mkdir()
    (assembly / "file").write_text("1")
    threads = [threading.Thread(target=cache.keep, args=("k", assembly)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["k"]
    assert cache.take("k", tmp_path / "taken")


def test_a_folder_that_cannot_be_written_keeps_nothing_and_fails_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "assembly").mkdir()
    cache = AssemblyCache(tmp_path / "file")

    cache.keep("k", tmp_path / "assembly")

    assert not cache.take("k", tmp_path / "taken")


def test_those_used_last_are_kept(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(assembly_cache, "KEPT_MOST", 2)
    assembly = tmp_path / "assembly"
    assembly.mkdir()
    clock = iter(range(100, 200))
    for key in ("a", "b"):
        cache.keep(key, assembly)
        assembly_cache.os.utime(tmp_path / "cache" / key, (at := next(clock), at))
    assert cache.take("a", tmp_path / "taken")

    cache.keep("c", assembly)

    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["a", "c"]


def test_the_folder_is_where_the_user_has_caches(monkeypatch, tmp_path):
    assert default_folder({"XDG_CACHE_HOME": "/c"}).as_posix() == "/c/shardfleet/assemblies"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder({}) == tmp_path / ".cache/shardfleet/assemblies"
