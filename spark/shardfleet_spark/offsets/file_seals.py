"""Seals on a file system that driver and executors share: a laptop, tests, EFS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
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

    def delete_before(self, sid: str, plan: str) -> int:
        """Delete every plan of ``sid`` whose key is smaller; return how many seals that were."""
        deleted = 0
        for folder in (self._folder / sid).glob("*"):
            if folder.name < plan:
                deleted += len(list(folder.glob(f"*{_SUFFIX}")))
                shutil.rmtree(folder, ignore_errors=True)
        return deleted

    def _path(self, key: SealKey) -> Path:
        return self._folder / key.sid / key.plan / f"{key.partition}{_SUFFIX}"
