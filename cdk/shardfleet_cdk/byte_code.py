"""
Byte code for assets.

A layer is read-only, so what is not compiled in it is compiled again at every cold start, which
about doubles it (performance.md §8).

Byte code belongs to one version of Python: it is made only if an interpreter of the runtime's
version is at hand, and the synthesis says so if none is. It is not part of an asset's hash, so that
a template is the same on every machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def interpreter(python_version: str) -> str | None:
    """Return a Python of that version (e.g. ``"3.14"``): the one that runs, or one on PATH."""
    if python_version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    return shutil.which(f"python{python_version}")


def compile_folder(folder: Path, *, python_version: str, deployed_at: str) -> bool:
    """
    Compile every module of a folder; False, and a line on standard error, if that cannot be.

    Args:
        folder: the finished asset.
        python_version: of the Lambda runtime.
        deployed_at: where Lambda unpacks the asset, for tracebacks: ``/opt`` or ``/var/task``.

    """
    python = interpreter(python_version)
    if python is None:
        print(  # noqa: T201 - the synthesis tells
            f"No python{python_version} on PATH: {folder.name} gets no byte code, and a cold start "
            "takes about twice as long. Install one and remove the asset from cdk.out first.",
            file=sys.stderr,
        )
        return False
    # Never compared with the source, which cannot change in a deployed asset; and nothing of the
    # clock is in the files, so two bundles are alike.
    words = [python, "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    where = ["-s", str(folder), "-p", deployed_at, str(folder)]
    # A package may carry files for other versions of Python; they do not stop the rest.
    subprocess.run([*words, *where], check=False, capture_output=True)  # noqa: S603 - our own words
    return True
