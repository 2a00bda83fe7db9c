"""Seals on a file system that driver and executors share: a laptop, tests, EFS."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from shardfleet_spark.offsets.seals import SealKey

_SUFFIX = ".json"


class FileSealStore:
    """
    A :class:`shardfleet_spark.offsets.seals.SealStore` in a folder.

    The first writer wins by ``link``, which fails when the name exists, on local file systems and
    on NFS. Layout: ``folder/<sid>/<plan key>/<partition>.json``.
    """

    def __init__(self, folder: Path) -> None:
        """Use a folder; it is made when first written to."""
        self._folder = folder

    def get(self, key: SealKey) -> bytes | None:
        """Return what is stored; None when nothing is."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    def put_if_absent(self, key: SealKey, body: bytes) -> bytes:
        """Store unless something is stored already; return what is stored then."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{uuid4().hex}.draft")
        with draft.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return path.read_bytes()
        finally:
            draft.unlink()
        return body

    def read_plan(self, sid: str, plan: str) -> Mapping[int, bytes]:
        """Return all that is stored of one plan, by partition."""
        folder = self._folder / sid / plan
        return {int(path.stem): path.read_bytes() for path in folder.glob(f"*{_SUFFIX}")}

    def delete(self, keys: Sequence[SealKey]) -> None:
        """Delete what is stored under these keys; one that is not there is no error."""
        for key in keys:
            self._path(key).unlink(missing_ok=True)
        for folder in {self._path(key).parent for key in keys}:
            with suppress(OSError):  # It is gone, or something of somebody else is in it.
                folder.rmdir()

    def _path(self, key: SealKey) -> Path:
        return self._folder / key.sid / key.plan / f"{key.partition}{_SUFFIX}"
