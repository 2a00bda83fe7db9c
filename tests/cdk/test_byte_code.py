"""Byte code goes into an asset if there is an interpreter to make it, and not otherwise."""

import marshal
import sys

import pytest

from shardfleet_cdk import byte_code

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
UNCHECKED = 1  # PEP 552: hash-based, never compared with the source


@pytest.fixture
def asset(tmp_path):
    (tmp_path / "python/package").mkdir(parents=True)
    (tmp_path / "python/package/module.py").write_text("def answer():\n    return 42\n", "utf-8")
    (tmp_path / "python/package/of_python_2.py").write_text("print 'no'\n", "utf-8")
    return tmp_path


def compiled(asset):
    return sorted(asset.rglob("*.pyc"))


def test_modules_are_compiled_for_where_lambda_unpacks_them(asset):
    assert byte_code.compile_folder(asset, python_version=RUNNING, deployed_at="/opt")
    (found,) = compiled(asset)
    content = found.read_bytes()
    assert int.from_bytes(content[4:8], "little") == UNCHECKED
    assert marshal.loads(content[16:]).co_filename == "/opt/python/package/module.py"  # noqa: S302


def test_two_bundles_are_alike(asset):
    byte_code.compile_folder(asset, python_version=RUNNING, deployed_at="/opt")
    first = [file.read_bytes() for file in compiled(asset)]
    byte_code.compile_folder(asset, python_version=RUNNING, deployed_at="/opt")
    assert [file.read_bytes() for file in compiled(asset)] == first


def test_without_an_interpreter_of_the_runtime_nothing_is_compiled_and_the_synthesis_says_so(
    asset, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", "")
    assert not byte_code.compile_folder(asset, python_version="3.99", deployed_at="/opt")
    assert compiled(asset) == []
    assert "No python3.99 on PATH" in capsys.readouterr().err


def test_an_interpreter_on_the_path_is_found(tmp_path, monkeypatch):
    program = tmp_path / "python3.99"
    program.write_text("#!/bin/sh\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert byte_code.interpreter("3.99") == str(program)
