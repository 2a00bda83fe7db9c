"""
Where the Lambda code lies: inside the installed wheel, or in the repository.

The wheel carries `layer/` and `functions/` under ``shardfleet_cdk/_assets``; a checkout (also an
editable install) has them at its root. The wheel's copy wins, because then it is the only one.
"""

from __future__ import annotations

from pathlib import Path

from aws_cdk import IgnoreMode
from aws_cdk import aws_lambda as lambda_

_PACKAGED = Path(__file__).resolve().parent / "_assets"
_REPOSITORY = Path(__file__).resolve().parents[2]

CACHES = ("**/__pycache__", "**/*.pyc")
# Docker's ignore syntax: everything is excluded, then the library is admitted, then the parts
# of it that never run in Lambda are excluded again (architecture.md §3). The layer's own
# requirements and notes therefore never change its hash.
LIBRARY_ONLY = (
    "*",
    "!python",
    "python/*",
    "!python/shardfleet",
    "python/shardfleet/cli",
    "python/shardfleet/domain/template",
    "python/shardfleet/local",
    "python/shardfleet/testing",
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


def library_code() -> lambda_.Code:
    """Return the library as layer code: the `layer` folder as it is, no copy step, no Docker."""
    return lambda_.Code.from_asset(
        str(asset_folder("layer")), exclude=list(LIBRARY_ONLY), ignore_mode=IgnoreMode.DOCKER
    )


def function_code(name: str) -> lambda_.Code:
    """Return one of shardfleet's own function folders as code."""
    return lambda_.Code.from_asset(str(asset_folder(f"functions/{name}")), exclude=list(CACHES))
