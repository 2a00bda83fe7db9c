"""
What a Spark job needs on EMR Serverless, as one archive: this library, the user's code, packages.

pip installs wheels for the image's Python and architecture, so that no container is needed to
build it; Spark unpacks the archive beside driver and executors, and PYTHONPATH names it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import jsii
from aws_cdk import (
    AssetHashType,
    BundlingOptions,
    DockerImage,
    FileSystem,
    ILocalBundling,
)
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from shardfleet.errors import ConfigurationError
from shardfleet_cdk.assets import CACHES, asset_folder
from shardfleet_cdk.bundling import (
    BUNDLER,
    REQUIREMENTS,
    BundlingFailed,
    Platform,
    pip_command,
    requirement_lines,
)

# `emr-spark-8.0.0` has Python 3.9, 3.11 and 3.12 (spark.md §5); 3.11 is the library's oldest.
PLATFORM = Platform(lambda_.Runtime.PYTHON_3_11, lambda_.Architecture.ARM_64, "3.11", "aarch64")
PYTHON = "/usr/bin/python3.11"
UNPACKED = "environment"

_LEFT_OUT = ("cli", "local", "template", "testing", "runtime")


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
    bundling = _Bundling(Path(code.folder) if code else None)
    return assets.Asset(
        scope,
        construct_id,
        path=str(asset_folder("spark")),
        asset_hash_type=AssetHashType.CUSTOM,
        asset_hash=bundling.fingerprint(),
        bundling=BundlingOptions(
            image=DockerImage.from_registry("unused"),  # Required by the CDK, never pulled.
            # The CDK declares keyword options but passes one positional object.
            local=bundling,  # type: ignore[arg-type]
        ),
    )


def job_asset(scope: Construct, construct_id: str) -> assets.Asset:
    """Return the program that the job starts."""
    file = asset_folder("spark") / "shardfleet_spark" / "pipelines" / "job.py"
    return assets.Asset(scope, construct_id, path=str(file))


@jsii.implements(ILocalBundling)
class _Bundling:
    """Puts the archive together on this machine."""

    def __init__(self, code: Path | None) -> None:
        self._code = code
        self._spark = asset_folder("spark")
        self._library = asset_folder("layer") / "python" / "shardfleet"

    def fingerprint(self) -> str:
        """Return the hash of all that goes in, never of what pip wrote."""
        folders = [self._spark, self._library, *([self._code] if self._code else [])]
        asked = [
            *(FileSystem.fingerprint(str(each), exclude=list(CACHES)) for each in folders),
            *(PLATFORM.python_version, PLATFORM.machine, BUNDLER),
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def try_bundle(self, output_dir: str, _options: object) -> bool:
        """
        Fill `output_dir`; called by the CDK, which passes the options as one positional object.

        Raises:
            BundlingFailed: never False, which would make the CDK try Docker.

        """
        output = Path(output_dir)
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.proto", "*.pyi")
        shutil.copytree(self._spark, output, ignore=ignored, dirs_exist_ok=True)
        library = shutil.ignore_patterns("__pycache__", "*.pyc", "*.proto", "*.pyi", *_LEFT_OUT)
        shutil.copytree(self._library, output / "shardfleet", ignore=library, dirs_exist_ok=True)
        if self._code:
            shutil.copytree(self._code, output, ignore=ignored, dirs_exist_ok=True)
        _install(self._spark / REQUIREMENTS, output, locked=True)
        if self._code and requirement_lines(self._code):
            _install(self._code / REQUIREMENTS, output, locked=False)
        return True


def _install(requirements: Path, output: Path, *, locked: bool) -> None:
    command = pip_command(requirements, output, PLATFORM, locked=locked)
    run = subprocess.run(  # noqa: S603 - our own command line
        command, capture_output=True, text=True, check=False
    )
    if run.returncode:
        message = (
            f"{requirements}: pip could not install it for Python {PLATFORM.python_version} on "
            f"{PLATFORM.machine} (wheels only):\n{run.stderr.strip()}"
        )
        raise BundlingFailed(message)
