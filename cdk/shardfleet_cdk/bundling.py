"""
What goes into an asset beside the sources: third-party packages, and byte code; no Docker.

uv installs the packages for the Python and the processor of the function, which need not be this
machine's: it also judges the markers of their requirements (``; python_version >= "3.13"``) by
them, where pip would judge by the Python that runs it.

An asset's hash is computed from what is asked for (requirements, Python version, processor, and
whether there is an interpreter to make byte code), never from what was installed. So a template is
the same on every machine with the interpreter, and the same when bundling is skipped; and a changed
Python version is never served the old binaries, which the CDK's own hash does, because it does not
see how the local bundler is set up. It follows that a requirement which is not pinned stays at what
it was when the asset was first uploaded: see :func:`unpinned`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsii
from aws_cdk import (
    Annotations,
    AssetHashType,
    BundlingOptions,
    DockerImage,
    FileSystem,
    ILocalBundling,
)
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from shardfleet_cdk.assets import (
    CACHES,
    copy_package,
    package_fingerprint,
)
from shardfleet_cdk.byte_code import compile_folder, interpreter
from shardfleet_cdk.lambda_platform import Platform
from shardfleet_cdk.pip_settings import uv_environment
from shardfleet_cdk.sdk_data import prune

BUNDLER = "4"  # Raise it when the way of installing changes: it is part of every hash.
REQUIREMENTS = "requirements.txt"
# One version and no other (PEP 440), or one file (PEP 508); a marker may follow.
_PINNED = re.compile(r"[\w.-]+ *(\[[^]]*\])? *(===? *[^*,;\s]+|@ *\S+) *(;.*)?")


class BundlingFailed(RuntimeError):
    """The requirements could not be installed; the message has uv's last words."""


def requirement_lines(folder: Path) -> tuple[str, ...]:
    """Return the requirements of a folder without comments and blank lines; none is empty."""
    file = folder / REQUIREMENTS
    if not file.exists():
        return ()
    text = file.read_text("utf-8").replace("\\\n", " ")
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return tuple(" ".join(line.split()) for line in lines if line)


def unpinned(folder: Path) -> tuple[str, ...]:
    """
    Return the requirements of a folder that may be another package tomorrow.

    The asset's hash does not see which one it is, so that what was uploaded first stays.
    """
    lines = (re.sub(r" --hash=\S+", "", line) for line in requirement_lines(folder))
    return tuple(line for line in lines if not _PINNED.fullmatch(line))


def warn_of_unpinned(scope: Construct, folder: Path) -> None:
    """Name the unpinned requirements of a folder, if there are any, as a warning of `scope`."""
    if loose := unpinned(folder):
        Annotations.of(scope).add_warning_v2(
            "shardfleet:unpinned",
            f"{folder / REQUIREMENTS}: {', '.join(loose)}: not pinned, so it stays at the version "
            "of the first deploy, whatever is released later. Pin it (name==1.2.3), or lock it: "
            "uv pip compile --generate-hashes requirements.in -o requirements.txt",
        )


def uv_command(
    requirements: Path, target: Path, platform: Platform, *, locked: bool = False
) -> list[str]:
    """
    Return the command that installs for a platform: wheels only, no byte code.

    Args:
        requirements: the file.
        target: the folder for the packages.
        platform: what they are to run on.
        locked: the file is a lock: it lists all, each with a hash that the wheel has.

    """
    return [
        *(sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable),
        *("--requirement", str(requirements), "--target", str(target)),
        *("--python-version", platform.python_version, "--python-platform", platform.wheels),
        *("--only-binary", ":all:", "--no-compile-bytecode"),
        *(("--require-hashes",) if locked else ()),
    ]


def install(requirements: Path, target: Path, platform: Platform, *, locked: bool) -> None:
    """
    Install requirements into a folder.

    Args:
        requirements: the file.
        target: the folder for the packages.
        platform: what they are to run on.
        locked: as in :func:`uv_command`.

    Raises:
        BundlingFailed: there is no uv, or it says no.

    """
    if importlib.util.find_spec("uv") is None:
        message = f"{requirements}: uv is needed to install it; run `pip install uv`"
        raise BundlingFailed(message)
    run = subprocess.run(  # noqa: S603 - our own command line
        uv_command(requirements, target, platform, locked=locked),
        env=uv_environment(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        message = (
            f"{requirements}: uv could not install it for Python {platform.python_version} "
            f"on {platform.machine} (wheels only):\n{run.stderr.strip()}"
        )
        raise BundlingFailed(message)
    (target / ".lock").unlink(missing_ok=True)  # uv's own, against a second uv


def asset_options(bundler: object, asked: Sequence[object]) -> dict[str, Any]:
    """Return the options of an asset that an ILocalBundling fills, hashed by what is asked."""
    return {
        "asset_hash_type": AssetHashType.CUSTOM,
        "asset_hash": _hash_of(asked),
        "bundling": BundlingOptions(
            image=DockerImage.from_registry("unused"),  # Required by the CDK, never pulled.
            # The CDK declares keyword options but passes one positional object.
            local=bundler,  # type: ignore[arg-type]
        ),
    }


@jsii.implements(ILocalBundling)
class PackageBundling:
    """
    Installs a folder's requirements into the asset, on this machine.

    Args:
        folder: has the `requirements.txt`.
        platform: what the asset is to run on.
        inside: where in the asset the packages go: ``"python"`` for a layer.
        copy: whether the folder's own files go along (a function does, a layer does not); without
            them it is a folder of ours, and its `requirements.txt` a lock.
        sdk_services: the packages are the SDK, to be kept for these services only.

    """

    def __init__(
        self,
        folder: Path,
        *,
        platform: Platform,
        inside: str = "",
        copy: bool = False,
        sdk_services: Sequence[str] | None = None,
    ) -> None:
        self._folder = folder
        self._platform = platform
        self._inside = inside
        self._copy = copy
        self._sdk_services = sdk_services

    def asked(self) -> tuple[object, ...]:
        """Return what the asset's hash is made from."""
        content = FileSystem.fingerprint(str(self._folder), exclude=list(CACHES))
        return (
            *(requirement_lines(self._folder), content if self._copy else "", self._inside),
            *_platform_asked(self._platform),
            *(() if self._sdk_services is None else ("sdk", *sorted(set(self._sdk_services)))),
        )

    def try_bundle(self, output_dir: str, _options: object) -> bool:
        """
        Fill `output_dir`; called by the CDK, which passes the options as one positional object.

        Raises:
            BundlingFailed: never False, which would make the CDK try Docker.

        """
        output = Path(output_dir)
        packages = output / self._inside
        install(self._folder / REQUIREMENTS, packages, self._platform, locked=not self._copy)
        if self._copy:  # After the packages: the user's own file wins.
            ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
            shutil.copytree(self._folder, output, dirs_exist_ok=True, ignore=ignore)
        if self._sdk_services is not None:
            prune(packages, self._sdk_services)
        compile_folder(
            output,
            python_version=self._platform.python_version,
            deployed_at="/var/task" if self._copy else "/opt",
        )
        return True


def package_code(
    folder: Path,
    *,
    platform: Platform,
    inside: str = "",
    copy: bool = False,
    sdk_services: Sequence[str] | None = None,
) -> lambda_.Code:
    """Return the code asset of :class:`PackageBundling`, with the hash of what is asked for."""
    bundler = PackageBundling(
        folder, platform=platform, inside=inside, copy=copy, sdk_services=sdk_services
    )
    return lambda_.Code.from_asset(str(folder), **asset_options(bundler, bundler.asked()))


@contextmanager
def library_code(*, platform: Platform, is_bundled: bool) -> Iterator[lambda_.Code]:
    """
    Provide the library as layer code, with byte code where it can be made.

    It is not bundled by the CDK, whose hash would then depend on whether the app bundles: the
    folder is made here, and there until the layer has been made of it.

    Args:
        platform: what it is to run on.
        is_bundled: whether the app bundles at all; if not, the asset is the library as it is.

    """
    asked = ("library", package_fingerprint("shardfleet"), *_platform_asked(platform))
    options: dict[str, Any] = {
        "asset_hash_type": AssetHashType.CUSTOM,
        "asset_hash": _hash_of(asked),
    }
    with TemporaryDirectory(prefix="library-") as folder:
        copy_package("shardfleet", Path(folder, "python"))
        if is_bundled:
            compile_folder(Path(folder), python_version=platform.python_version, deployed_at="/opt")
        yield lambda_.Code.from_asset(folder, **options)


def _hash_of(asked: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps([*asked, BUNDLER]).encode()).hexdigest()


def _platform_asked(platform: Platform) -> tuple[object, ...]:
    """Return what of a platform changes an asset: also whether it gets byte code."""
    can_compile = interpreter(platform.python_version) is not None
    return (platform.python_version, platform.machine, "compiled" if can_compile else "plain")
