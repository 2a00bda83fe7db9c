"""An archive of Spark's classes makes Java start sooner, and nothing else."""

import shlex
import subprocess

import pytest

from shardfleet_spark.host.java import find_java
from tests.conftest import JAVA_OPTIONS, java_options


def test_without_an_archive_none_is_named(tmp_path):
    assert java_options(tmp_path / "none.jsa") == JAVA_OPTIONS


def test_an_archive_that_does_not_fit_is_passed_over_in_silence(tmp_path):
    home = find_java()
    if home is None:
        pytest.skip("Spark needs Java 17 or newer")
    archive = tmp_path / "of another Java.jsa"
    archive.write_bytes(b"another's")
    words = shlex.split(java_options(archive))
    assert str(archive) in words[2]

    java = str(home / "bin" / "java")
    run = subprocess.run([java, *words, "-version"], capture_output=True, text=True, check=True)

    assert run.stdout == ""
    assert "archive" not in run.stderr
    assert str(archive) not in run.stderr
