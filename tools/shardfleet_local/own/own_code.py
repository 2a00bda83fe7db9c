"""
A user's own handler, made ready for a fleet: its folder copied, its loading tried.

The folder is copied without what Lambda would not get either (version control, environments, build
output), so that a project's root can be given as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardfleet.errors import ConfigurationError

UNZIPPED_BYTES_MOST = 250 * 1024 * 1024
"""Quota of Lambda: code and layers, unzipped."""

IMPORT_LIMIT_S = 60.0

LEFT_OUT = frozenset(
    {"__pycache__", "node_modules", "build", "dist", "cdk.out", "site-packages", "venv"}
)

_CHECK = """
import os, sys
from shardfleet.errors import HandlerNotLoaded
from shardfleet.runtime.handler_loading import load_handler
sys.path.insert(0, os.getcwd())  # Where the handler lies: first, as on Lambda.
try:
    load_handler(sys.argv[1])
except HandlerNotLoaded as error:
    sys.exit(" ".join(str(error).split()))
"""


def staged(
    folder: Path, handler: str, *, target: Path, variables: Mapping[str, str] | None = None
) -> Path:
    """
    Copy a folder of code to `target` and make sure that the handler can be imported from there.

    Third-party packages come from the local environment; a `requirements.txt` is left out.

    Args:
        folder: where the handler's top-level module or package lies.
        handler: `module:function`.
        target: a folder that does not exist yet.
        variables: what the environment has where it will run, and not here.

    Raises:
        ConfigurationError: no such folder, too much in it, or the handler does not import, or
            cannot be called; the message is what a worker would say, with the user's own line.

    """
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder")
    module, colon, name = handler.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(
            f"--handler {handler!r}: package.module:function or :Class expected"
        )
    size = sum(path.stat().st_size for path in code_files(folder))
    if size > UNZIPPED_BYTES_MOST:
        raise ConfigurationError(
            f"{folder} has {size / 2**20:,.0f} MiB, Lambda takes {UNZIPPED_BYTES_MOST // 2**20}; "
            "name the folder that holds the handler's package alone with --folder"
        )
    shutil.copytree(folder, target, ignore=_left_out, symlinks=False)
    (target / "requirements.txt").unlink(missing_ok=True)
    _try_import(handler, folder, target=target, environment={**os.environ, **(variables or {})})
    return target


def _try_import(
    handler: str, folder: Path, *, target: Path, environment: Mapping[str, str]
) -> None:
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", _CHECK, handler],
            cwd=target,
            env=environment,
            capture_output=True,
            text=True,
            timeout=IMPORT_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"handler {handler}: its import takes longer than {IMPORT_LIMIT_S:.0f} s"
        ) from None
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["it ended without a message"])[-1]
        # Its own files, not their copies.
        told = reason.replace(f"{target.resolve()}{os.sep}", f"{folder.resolve()}{os.sep}")
        raise ConfigurationError(f"{told}; it was tried from {folder.resolve()}")


def _left_out(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if _is_left_out(Path(folder) / name)}


def _is_left_out(path: Path) -> bool:
    hidden = path.name.startswith(".") or path.name in LEFT_OUT or path.suffix == ".pyc"
    environment = (path / "pyvenv.cfg").exists()
    return hidden or path.is_symlink() or environment or _is_temporary(path)


def _is_temporary(path: Path) -> bool:
    """Return whether it is, or holds, what we write ourselves meanwhile: no copy of the copy."""
    temporary, found = Path(tempfile.gettempdir()).resolve(), path.resolve()
    return found == temporary or (
        found.parent == temporary and found.name.startswith("shardfleet-")
    )


def code_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that go into an asset."""
    for path in folder.iterdir():
        if _is_left_out(path):
            continue
        if path.is_dir():
            yield from code_files(path)
        elif path.is_file():
            yield path
