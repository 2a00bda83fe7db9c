"""Byte code goes into an asset if there is an interpreter to make it, and not otherwise."""

import marshal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
UNCHECKED = 1  # PEP 552: hash-based, never compared with the source


@pytest.fixture(scope="module")
def byte_code():
    from shardfleet_cdk import byte_code  # noqa: PLC0415 - starts Node, which collecting shall not

    return byte_code


@pytest.fixture
def asset(tmp_path):
    (tmp_path / "python/package").mkdir(parents=True)
    (tmp_path / "python/package/module.py").write_text("def answer():\n    return 42\n", "utf-8")
    (tmp_path / "python/package/of_python_2.py").write_text("print 'no'\n", "utf-8")
    return tmp_path


def compiled(asset):
    return sorted(asset.rglob("*.pyc"))


def test_modules_are_compiled_for_where_lambda_unpacks_them(byte_code, asset):
    assert byte_code.compile_folder(asset, python_version=RUNNING, deployed_at="/opt")
    (found,) = compiled(asset)
    content = found.read_bytes()
    assert int.from_bytes(content[4:8], "little") == UNCHECKED
    assert marshal.loads(content[16:]).co_filename == "/opt/python/package/module.py"  # noqa: S302


def test_two_bundles_are_alike(byte_code, asset):
    byte_code.compile_folder(asset, python_version=RUNNING, deployed_at="/opt")
    first = [file.read_bytes() for file in compiled(asset)]
    byte_code.compile_folder(asset, python_version=RUNNING, deployed_at="/opt")
    assert [file.read_bytes() for file in compiled(asset)] == first


def test_without_an_interpreter_of_the_runtime_nothing_is_compiled_and_the_synthesis_says_so(
    byte_code, asset, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", "")
    assert not byte_code.compile_folder(asset, python_version="3.99", deployed_at="/opt")
    assert compiled(asset) == []
    assert "No Python 3.99 was found" in capsys.readouterr().err


def test_an_interpreter_on_the_path_is_found_if_it_runs(byte_code, tmp_path, monkeypatch):
    """A program of the name that does not run is what pyenv leaves of a version switched off."""
    program = tmp_path / f"python{RUNNING}"
    program.symlink_to(Path(sys.base_prefix) / f"bin/python{RUNNING}")
    monkeypatch.setenv("PATH", str(tmp_path))
    another = SimpleNamespace(major=3, minor=0)
    monkeypatch.setattr(
        byte_code, "sys", SimpleNamespace(executable=sys.executable, version_info=another)
    )
    found = byte_code.interpreter(RUNNING)
    assert Path(found).samefile(program)

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / program.name).write_text("#!/bin/sh\nexit 127\n", "utf-8")
    (broken / program.name).chmod(0o755)
    monkeypatch.setenv("PATH", str(broken))
    assert byte_code.interpreter(RUNNING) is None


def test_an_interpreter_that_compiles_nothing_fails_the_synthesis(byte_code, asset, monkeypatch):
    """The hash says that there is byte code; an asset without any is not uploaded under it."""
    monkeypatch.setattr(byte_code, "interpreter", lambda _: "/bin/false")
    with pytest.raises(byte_code.NothingCompiled, match="/bin/false compiled nothing in"):
        byte_code.compile_folder(asset, python_version="3.99", deployed_at="/opt")
