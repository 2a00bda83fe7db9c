"""
Cloud assemblies, kept by what they were made from.

A synthesis starts Node and takes seconds; what it writes depends on files, settings, versions and
environment alone. The key is a hash of all of these, so what has changed is never served. What is
kept lists its files with their hashes: what is not whole counts as absent, and is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

KEPT_MOST = 8
"""So many assemblies are kept, those used last; each has some 2 MB and the handler's folder."""

LISTING = "files.json"
ASSEMBLY = "assembly"
# The CDK's and our own settings, and where a Python of Lambda's release is looked for.
VARIABLES = ("CDK_", "JSII_", "PATH", "SHARDFLEET_")


def default_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's caches for shardfleet (XDG's, also where it is not set)."""
    caches = environment.get("XDG_CACHE_HOME", "")
    return (Path(caches) if caches else Path.home() / ".cache") / "shardfleet" / "assemblies"


def key_of(
    project: Path | None,
    context: Mapping[str, Any],
    *,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """
    Return the hash of all that a synthesis depends on; Node is not started for it.

    Args:
        project: folder of the handler and of a `cdk.json`; None: shardfleet's own.
        context: overrides of it.
        environment: of the process.

    """
    versions = {each.name: each.version for each in importlib.metadata.distributions()}
    facts = {
        "context": context,
        "files": [_hashes(folder) for folder in (*_own_code(), *([project] if project else []))],
        "python": sys.version,
        "versions": versions,
        "environment": {
            name: value for name, value in environment.items() if name.startswith(VARIABLES)
        },
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class AssemblyCache:
    """
    Assemblies in one folder, by their keys; processes may share it.

    Args:
        folder: is made when the first assembly is kept.

    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, key: str, target: Path) -> bool:
        """
        Copy an assembly to `target`, which must not exist; tell whether it was there and whole.

        What is not whole is removed.
        """
        kept = self._folder / key
        try:
            wanted = json.loads((kept / LISTING).read_text("utf-8"))
            shutil.copytree(kept / ASSEMBLY, target)
            if _hashes(target) == wanted:
                os.utime(kept)  # Used last, so dropped last.
                return True
        except (OSError, ValueError, shutil.Error):
            pass
        shutil.rmtree(target, ignore_errors=True)
        shutil.rmtree(kept, ignore_errors=True)
        return False

    def keep(self, key: str, assembly: Path) -> None:
        """
        Keep a copy of an assembly; it appears under its key at once and as a whole.

        Where nothing can be written, nothing is kept: the next run synthesizes again.
        """
        with contextlib.suppress(OSError, shutil.Error):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".new-") as new:
                made = Path(new) / key
                shutil.copytree(assembly, made / ASSEMBLY)
                (made / LISTING).write_text(json.dumps(_hashes(made / ASSEMBLY)), "utf-8")
                made.rename(self._folder / key)  # Fails where another process was first.
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        kept = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        kept.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in kept[KEPT_MOST:]:
            shutil.rmtree(path, ignore_errors=True)


def _own_code() -> Iterator[Path]:
    """Name what of shardfleet goes into an assembly: in the wheel, or in the repository."""
    for name in ("shardfleet", "shardfleet_cdk", "shardfleet_ops"):
        spec = importlib.util.find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(folder)
            root = Path(folder).parents[1]
            library = root / "layer/python"
            if name == "shardfleet_cdk" and (root / "cdk.json").exists():
                yield from (root / "cdk.json", root / "functions")
                # The library itself is the first of all.
                yield from (each for each in sorted((root / "layer").iterdir()) if each != library)
                yield from sorted(root.glob("requirements*.lock"))


def _hashes(folder: Path) -> dict[str, str]:
    """Return what each file has in it, by its path; without byte code."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }
