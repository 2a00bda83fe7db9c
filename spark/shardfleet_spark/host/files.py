"""Folders: a path on this machine, or a URI of a file system that pyarrow knows."""

from __future__ import annotations

from pyarrow import fs

from shardfleet.errors import ConfigurationError


def file_system(folder: str) -> tuple[fs.FileSystem, str]:
    """
    Return the file system of a folder and the folder's path in it.

    Args:
        folder: a path, or a URI such as ``s3://bucket/archive`` or ``file:///data``.

    Raises:
        ConfigurationError: the URI is none, or its file system is not known.

    """
    if "://" not in folder:
        return fs.LocalFileSystem(), folder.rstrip("/")
    try:
        # Hadoop's names for S3; pyarrow knows one of them.
        uri = folder.replace("s3a://", "s3://", 1).replace("s3n://", "s3://", 1)
        system, path = fs.FileSystem.from_uri(uri)
    except (ValueError, OSError) as error:
        raise ConfigurationError(
            f"folder {folder!r}: neither a path nor a URI of a known file system: {error}"
        ) from error
    return system, path.rstrip("/")
