"""
Byte code for assets.

A layer is read-only, so what is not compiled in it is compiled again at every cold start, which
about doubles it (performance.md §8).

Byte code belongs to one version of Python: it is made only if an interpreter of the runtime's
version is at hand, and the synthesis says so if none is. Whether it is made is part of the asset's
hash (`bundling`): else the first who uploads the asset would decide for all who come after.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path


class NothingCompiled(RuntimeError):
    """The asset's hash says that there is byte code, and none could be made."""


def interpreter(python_version: str) -> str | None:
    """
    Return a Python of that version (e.g. ``"3.14"``) that runs, or None.

    It is the one that runs this, one on PATH, or one that `uv python install` has brought.
    """
    if python_version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    return _found(python_version, os.environ.get("PATH", ""))


@cache
def _found(python_version: str, _path: str) -> str | None:
    # A file of the name is not enough: pyenv's are there for versions that are switched off.
    words = (sys.executable, "-m", "uv", "python", "find", "--no-project", "--no-python-downloads")
    run = subprocess.run(  # noqa: S603 - our own command line
        (*words, "--system", python_version), capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or None


def compile_folder(folder: Path, *, python_version: str, deployed_at: str) -> bool:
    """
    Compile every module of a folder; False, and a line on standard error, if that cannot be.

    Args:
        folder: the finished asset.
        python_version: of the Lambda runtime.
        deployed_at: where Lambda unpacks the asset, for tracebacks: ``/opt`` or ``/var/task``.

    Raises:
        NothingCompiled: the interpreter that was found cannot do it.

    """
    python = interpreter(python_version)
    if python is None:
        print(  # noqa: T201 - the synthesis tells
            f"No Python {python_version} was found: {folder.name} gets no byte code, and a cold "
            f"start takes about twice as long. `uv python install {python_version}` brings one; "
            "it is then another asset.",
            file=sys.stderr,
        )
        return False
    # Never compared with the source, which cannot change in a deployed asset; and nothing of the
    # clock is in the files, so two bundles are alike.
    words = [python, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    where = ["-s", str(folder), "-p", deployed_at, str(folder)]
    # A package may carry files for other versions of Python; they do not stop the rest.
    run = subprocess.run(  # noqa: S603 - our own words
        [*words, *where], check=False, capture_output=True, text=True
    )
    if run.returncode and not any(folder.rglob("*.pyc")):
        raise NothingCompiled(f"{python} compiled nothing in {folder.name}: {run.stderr.strip()}")
    return True
