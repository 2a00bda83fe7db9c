"""
What a Lambda process of the embedded AWS sees: its folders on disk and its environment variables.

Assets are unpacked once per content and shared read-only, as `/var/task` and `/opt` are on AWS. The
processes run the local interpreter, so what was installed into a layer for Lambda's Python and
processor is left out and the local environment takes its place; see `unpack_layer`.
"""

import hashlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import Parser
from pathlib import Path, PurePosixPath
from typing import Any

KEPT_FROM_SERVER = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "SSL_CERT_FILE")
"""Variables of the server that its Lambda processes inherit: what the interpreter may need."""

RESERVED = frozenset(
    {
        "_HANDLER", "_X_AMZN_TRACE_ID", "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_EXECUTION_ENV",
        "AWS_LAMBDA_FUNCTION_NAME", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE",
        "AWS_LAMBDA_FUNCTION_VERSION",
        "AWS_LAMBDA_INITIALIZATION_TYPE", "AWS_LAMBDA_LOG_GROUP_NAME", "AWS_LAMBDA_LOG_STREAM_NAME",
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "LAMBDA_TASK_ROOT",
        "LAMBDA_RUNTIME_DIR",
    }
)  # fmt: skip
"""Names that a function's own configuration cannot set (AWS: Defined runtime environment)."""


class UnpackFailed(Exception):
    """A code or layer archive is no zip file, or has an entry that would leave its folder."""


def unpack_code(archive: bytes, store: Path) -> Path:
    """
    Unpack a function's code below `store`, once per content, and return its folder.

    Distributions with compiled parts for another platform are left out: the local environment has
    to provide them. Everything else is as deployed. Raises UnpackFailed.
    """
    return _unpack(archive, store, kind="code", left_out=_compiled_distributions)


def unpack_layer(archive: bytes, store: Path) -> Path:
    """
    Unpack a layer below `store`, once per content, and return its folder.

    All files of installed distributions (those listed by a `*.dist-info/RECORD`) are left out: the
    third-party layer is replaced by the local environment. Raises UnpackFailed.
    """
    return _unpack(archive, store, kind="layer", left_out=_all_distributions)


def _unpack(archive: bytes, store: Path, *, kind: str, left_out: Any) -> Path:
    folder = store / f"{kind}-{hashlib.sha256(archive).hexdigest()[:24]}"
    if folder.exists():
        return folder
    store.mkdir(parents=True, exist_ok=True)
    unpacked = Path(tempfile.mkdtemp(prefix="unpacking-", dir=store))
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            names = members.namelist()
            _refuse_escapes(names)
            skipped = left_out(members)
            members.extractall(unpacked, [name for name in names if name not in skipped])
    except zipfile.BadZipFile as error:
        shutil.rmtree(unpacked, ignore_errors=True)
        raise UnpackFailed(f"The {kind} is not a zip file: {error}") from error
    try:
        unpacked.rename(folder)
    except OSError:  # Another thread was faster with the same content.
        shutil.rmtree(unpacked, ignore_errors=True)
    return folder


def _refuse_escapes(names: Iterable[str]) -> None:
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise UnpackFailed(f"The archive's entry '{name}' would leave its folder")


def _all_distributions(archive: zipfile.ZipFile) -> set[str]:
    return {name for record in _records(archive) for name in _listed(archive, record)}


def _compiled_distributions(archive: zipfile.ZipFile) -> set[str]:
    return {
        name
        for record in _records(archive)
        if not _is_pure(archive, record)
        for name in _listed(archive, record)
    }


def _records(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]


def _is_pure(archive: zipfile.ZipFile, record: str) -> bool:
    try:
        text = archive.read(record.removesuffix("RECORD") + "WHEEL").decode()
    except KeyError:
        return True
    return str(Parser().parsestr(text)["Root-Is-Purelib"]).lower() == "true"


def _listed(archive: zipfile.ZipFile, record: str) -> set[str]:
    """Name the archive's entries that a RECORD lists (its paths are relative to its parent)."""
    root = PurePosixPath(record).parent.parent
    lines = archive.read(record).decode().splitlines()
    return {str(root / line.rsplit(",", 2)[0].strip('"')) for line in lines}


def search_path(code: Path, layers: Iterable[Path]) -> list[str]:
    """List the import roots in Lambda's order: the task root, then the layers from the last on."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    roots = [str(code)]
    for layer in reversed(list(layers)):
        roots += [str(layer / "python/lib" / version / "site-packages"), str(layer / "python")]
    return roots


def process_environment(
    config: Mapping[str, Any], *, service: Mapping[str, str], extra: Mapping[str, str]
) -> dict[str, str]:
    """
    Compose the environment of one Lambda process.

    `config` is the function's configuration as GetFunctionConfiguration shows it; `service` are
    the variables that Lambda itself sets; `extra` is what the launcher injects (it wins over the
    function's own variables, except for the reserved names).
    """
    own = (config.get("Environment") or {}).get("Variables") or {}
    wanted = {**own, **extra}
    return {
        **{name: os.environ[name] for name in KEPT_FROM_SERVER if name in os.environ},
        "LANG": "en_US.UTF-8",
        "TZ": ":UTC",
        "NO_PROXY": "127.0.0.1,localhost",
        **{name: value for name, value in wanted.items() if name not in RESERVED},
        **service,
    }
