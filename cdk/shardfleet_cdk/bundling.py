"""
Third-party packages for Lambda, installed by pip for Lambda's platform; no Docker.

The asset's hash is computed from what is asked for (requirements, Python version, architecture),
never from what pip wrote. So a template is the same on every machine, and the same when bundling
is skipped; and a changed Python version is never served the old binaries, which the CDK's own
hash does, because it does not see how the local bundler is set up.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jsii
from aws_cdk import AssetHashType, BundlingOptions, DockerImage, FileSystem, ILocalBundling
from aws_cdk import aws_lambda as lambda_

from shardfleet_cdk.assets import CACHES
from shardfleet_cdk.byte_code import compile_folder
from shardfleet_cdk.sdk_data import prune

BUNDLER = "3"  # Raise it when the way of installing changes: it is part of every hash.
REQUIREMENTS = "requirements.txt"


class BundlingFailed(RuntimeError):
    """pip could not install the requirements; the message has its last words."""


@dataclass(frozen=True, slots=True)
class Platform:
    """
    What the functions run on.

    Attributes:
        runtime: the Lambda runtime.
        architecture: the Lambda architecture.
        python_version: e.g. ``"3.14"``, the runtime's.
        machine: the wheel tags' name of the architecture.

    """

    runtime: lambda_.Runtime
    architecture: lambda_.Architecture
    python_version: str
    machine: str


# serverless.md §0.10: wheels for cp314 on aarch64 exist for everything we need.
PLATFORM = Platform(lambda_.Runtime.PYTHON_3_14, lambda_.Architecture.ARM_64, "3.14", "aarch64")


def requirement_lines(folder: Path) -> tuple[str, ...]:
    """Return the requirements of a folder without comments and blank lines; none is empty."""
    file = folder / REQUIREMENTS
    if not file.exists():
        return ()
    lines = (line.split("#", 1)[0].strip() for line in file.read_text("utf-8").splitlines())
    return tuple(line for line in lines if line)


def pip_command(
    requirements: Path, target: Path, platform: Platform = PLATFORM, *, locked: bool = False
) -> list[str]:
    """
    Return the pip command that installs for Lambda's platform: wheels only, no byte code.

    Args:
        requirements: the file.
        target: the folder for the packages.
        platform: what they are to run on.
        locked: the file is a lock: just what it lists, each with a hash that the wheel has.

    """
    tags = [f"{tag}_{platform.machine}" for tag in ("manylinux2014", "manylinux_2_28")]
    return [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--requirement", str(requirements), "--target", str(target)),
        *(word for tag in tags for word in ("--platform", tag)),
        *("--implementation", "cp", "--python-version", platform.python_version),
        *("--only-binary=:all:", "--no-compile"),
        *(("--require-hashes", "--no-deps") if locked else ()),
    ]


@jsii.implements(ILocalBundling)
class PipBundling:
    """
    Installs a folder's requirements into the asset, by pip on this machine.

    Args:
        folder: has the `requirements.txt`.
        inside: where in the asset the packages go: ``"python"`` for a layer.
        copy: whether the folder's own files go along (a function does, a layer does not); without
            them it is a folder of ours, and its `requirements.txt` a lock.
        sdk_services: the packages are the SDK, to be kept for these services only.

    """

    def __init__(
        self,
        folder: Path,
        *,
        inside: str = "",
        copy: bool = False,
        sdk_services: Sequence[str] | None = None,
    ) -> None:
        self._folder = folder
        self._inside = inside
        self._copy = copy
        self._sdk_services = sdk_services

    def try_bundle(self, output_dir: str, _options: object) -> bool:
        """
        Fill `output_dir`; called by the CDK, which passes the options as one positional object.

        Raises:
            BundlingFailed: never False, which would make the CDK try Docker.

        """
        output = Path(output_dir)
        if self._copy:
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(self._folder, output, dirs_exist_ok=True, ignore=ignore)
        requirements = self._folder / REQUIREMENTS
        if importlib.util.find_spec("pip") is None:
            message = f"{requirements}: pip is needed to install it; run `python -m ensurepip`"
            raise BundlingFailed(message)
        run = subprocess.run(  # noqa: S603 - our own command line
            pip_command(requirements, output / self._inside, PLATFORM, locked=not self._copy),
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            message = (
                f"{requirements}: pip could not install it for Python {PLATFORM.python_version} "
                f"on {PLATFORM.machine} (wheels only):\n{run.stderr.strip()}"
            )
            raise BundlingFailed(message)
        if self._sdk_services is not None:
            prune(output / self._inside, self._sdk_services)
        compile_folder(
            output,
            python_version=PLATFORM.python_version,
            deployed_at="/var/task" if self._copy else "/opt",
        )
        return True


def bundled_code(
    folder: Path,
    *,
    inside: str = "",
    copy: bool = False,
    sdk_services: Sequence[str] | None = None,
) -> lambda_.Code:
    """Return the code asset of :class:`PipBundling`, with the hash of what is asked for."""
    content = FileSystem.fingerprint(str(folder), exclude=list(CACHES)) if copy else ""
    asked: Sequence[object] = (
        *(requirement_lines(folder), content, inside),
        *(PLATFORM.python_version, PLATFORM.machine, BUNDLER),
        *(() if sdk_services is None else ("sdk", *sorted(set(sdk_services)))),
    )
    bundler = PipBundling(folder, inside=inside, copy=copy, sdk_services=sdk_services)
    return lambda_.Code.from_asset(
        str(folder),
        asset_hash_type=AssetHashType.CUSTOM,
        asset_hash=hashlib.sha256(json.dumps(asked).encode()).hexdigest(),
        bundling=BundlingOptions(
            image=DockerImage.from_registry("unused"),  # Required by the CDK, never pulled.
            # The CDK declares keyword options but passes one positional object.
            local=bundler,  # type: ignore[arg-type]
        ),
    )
