"""
What a Spark job needs on EMR Serverless, as one archive: this library, the user's code, packages.

uv installs wheels for the image's Python and architecture, so that no container is needed to
build it; Spark unpacks the archive beside driver and executors, and PYTHONPATH names it.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import jsii
from aws_cdk import FileSystem, ILocalBundling
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.assets import (
    CACHES,
    asset_folder,
    copy_package,
    package_fingerprint,
    package_folder,
)
from shardfleet_cdk.bundling import (
    REQUIREMENTS,
    asset_options,
    install,
    requirement_lines,
    warn_of_unpinned,
)
from shardfleet_cdk.lambda_platform import Platform

# `emr-spark-8.0.0` has Python 3.9, 3.11 and 3.12; 3.11 is the library's oldest.
PLATFORM = Platform("3.11", "aarch64")
PYTHON = "/usr/bin/python3.11"
UNPACKED = "environment"
# The second is how Spark finds the first.
PACKAGES = ("shardfleet_spark", "pyspark_shardfleet", "shardfleet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformCode:
    """
    Where the user's transform is.

    Attributes:
        folder: its top-level module or package lies here; a `requirements.txt`, if any, is
            installed beside it at synth.
        function: ``package.module:function``.

    Raises:
        ConfigurationError: no such folder or module.

    """

    folder: str | Path
    function: str = "transform:transform"

    def __post_init__(self) -> None:
        """Look for the module without importing it: its packages may not be here."""
        module, colon, name = self.function.partition(":")
        if not (module and colon and name):
            raise ConfigurationError(f"transform {self.function!r}: 'module:function' expected")
        path = Path(self.folder).joinpath(*module.split("."))
        if not path.with_suffix(".py").is_file() and not (path / "__init__.py").is_file():
            raise ConfigurationError(
                f"transform {self.function!r}: no module {module} in {str(self.folder)!r}"
            )


def environment_asset(
    scope: Construct, construct_id: str, *, code: TransformCode | None
) -> assets.Asset:
    """Return the archive: a zip whose root is to be on PYTHONPATH."""
    folder = Path(code.folder) if code else None
    if folder:
        warn_of_unpinned(scope, folder)
    bundling = _Bundling(folder)
    return assets.Asset(
        scope,
        construct_id,
        path=str(asset_folder("spark")),
        **asset_options(bundling, bundling.asked()),
    )


def job_asset(scope: Construct, construct_id: str) -> assets.Asset:
    """Return the program that the job starts."""
    file = package_folder("shardfleet_spark") / "pipelines" / "job.py"
    return assets.Asset(scope, construct_id, path=str(file))


@jsii.implements(ILocalBundling)
class _Bundling:
    """Puts the archive together on this machine."""

    def __init__(self, code: Path | None) -> None:
        self._code = code
        self._lock = asset_folder("spark") / REQUIREMENTS

    def asked(self) -> list[object]:
        """Return what the archive's hash is made from: all that goes in, not what is installed."""
        others = [self._lock, *([self._code] if self._code else [])]
        return [
            *(package_fingerprint(name) for name in PACKAGES),
            *(FileSystem.fingerprint(str(each), exclude=list(CACHES)) for each in others),
            *(PLATFORM.python_version, PLATFORM.machine),
        ]

    def try_bundle(self, output_dir: str, _options: object) -> bool:
        """
        Fill `output_dir`; called by the CDK, which passes the options as one positional object.

        Raises:
            BundlingFailed: never False, which would make the CDK try Docker.

        """
        output = Path(output_dir)
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.proto", "*.pyi")
        install(self._lock, output, PLATFORM, locked=True)
        if self._code and requirement_lines(self._code):
            install(self._code / REQUIREMENTS, output, PLATFORM, locked=False)
        for name in PACKAGES:
            copy_package(name, output, without=("runtime",) if name == "shardfleet" else ())
        if self._code:
            shutil.copytree(self._code, output, ignore=ignored, dirs_exist_ok=True)
        return True
