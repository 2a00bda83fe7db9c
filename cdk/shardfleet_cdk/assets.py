"""
Where the Lambda code lies: inside the installed wheel, or in the repository.

The wheel carries `layer/` and `functions/` under ``shardfleet_cdk/_assets``; a checkout (also an
editable install) has them at its root. The wheel's copy wins, because then it is the only one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from aws_cdk import FileSystem, IgnoreMode
from aws_cdk import aws_lambda as lambda_

_PACKAGED = Path(__file__).resolve().parent / "_assets"
_REPOSITORY = Path(__file__).resolve().parents[2]

CACHES = ("**/__pycache__", "**/*.pyc")
# Docker's ignore syntax: everything is excluded, then the library is admitted. The layer's own
# requirements and notes therefore never change its hash.
LIBRARY_ONLY = (
    "*",
    "!python",
    "python/*",
    "!python/shardfleet",
    "**/*.proto",
    "**/*.pyi",
    *CACHES,
)


def asset_root() -> Path:
    """Return the folder that holds `layer/` and `functions/`."""
    return _PACKAGED if _PACKAGED.is_dir() else _REPOSITORY


def asset_folder(name: str) -> Path:
    """
    Return one asset folder, e.g. ``"functions/lease_manager"``.

    Raises:
        FileNotFoundError: the installation is incomplete.

    """
    folder = asset_root() / name
    if not folder.is_dir():
        message = f"{name}: not found in {asset_root()}; shardfleet is not installed completely"
        raise FileNotFoundError(message)
    return folder


def library_fingerprint() -> str:
    """Return the hash of the library as it goes into a layer, without byte code."""
    return FileSystem.fingerprint(
        str(asset_folder("layer")), exclude=list(LIBRARY_ONLY), ignore_mode=IgnoreMode.DOCKER
    )


def copy_library(target: Path, *, without: tuple[str, ...] = ()) -> None:
    """Copy the library to `target`/shardfleet, without some of its parts and any byte code."""
    library = asset_folder("layer") / "python/shardfleet"

    def left_out(folder: str, names: list[str]) -> set[str]:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.proto", "*.pyi")(folder, names)
        inside = Path(folder).relative_to(library)
        return ignored | {name for name in names if (inside / name).as_posix() in without}

    shutil.copytree(library, target / "shardfleet", ignore=left_out, dirs_exist_ok=True)


def function_code(name: str) -> lambda_.Code:
    """Return one of shardfleet's own function folders as code."""
    return lambda_.Code.from_asset(str(asset_folder(f"functions/{name}")), exclude=list(CACHES))
