"""
Where what is deployed lies: inside the installed wheel, or in the repository.

The packages are those that this process would import. What is no package, the functions and the
locks, the wheel carries under ``shardfleet_cdk/_assets``; a checkout (also an editable install) has
it at its root.
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from aws_cdk import FileSystem
from aws_cdk import aws_lambda as lambda_

_PACKAGED = Path(__file__).resolve().parent / "_assets"
_REPOSITORY = Path(__file__).resolve().parents[2]

CACHES = ("**/__pycache__", "**/*.pyc")
NOT_DEPLOYED = ("**/*.proto", "**/*.pyi", *CACHES)


def asset_root() -> Path:
    """Return the folder that holds `functions/`, and the locks in `layer/` and `spark/`."""
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


def package_folder(name: str) -> Path:
    """
    Return where one of shardfleet's packages is installed, without importing it.

    Raises:
        FileNotFoundError: the installation is incomplete.

    """
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        message = f"{name}: not installed beside shardfleet_cdk; install shardfleet again"
        raise FileNotFoundError(message)
    return Path(spec.origin).parent


def package_fingerprint(name: str) -> str:
    """Return the hash of a package as it is deployed, without byte code."""
    return FileSystem.fingerprint(str(package_folder(name)), exclude=list(NOT_DEPLOYED))


def copy_package(name: str, target: Path, *, without: tuple[str, ...] = ()) -> None:
    """Copy a package into `target`, without some of its parts and any byte code."""
    package = package_folder(name)

    def left_out(folder: str, names: list[str]) -> set[str]:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.proto", "*.pyi")(folder, names)
        inside = Path(folder).relative_to(package)
        return ignored | {name for name in names if (inside / name).as_posix() in without}

    shutil.copytree(package, target / name, ignore=left_out, dirs_exist_ok=True)


def function_code(name: str) -> lambda_.Code:
    """Return one of shardfleet's own function folders as code."""
    return lambda_.Code.from_asset(str(asset_folder(f"functions/{name}")), exclude=list(CACHES))
