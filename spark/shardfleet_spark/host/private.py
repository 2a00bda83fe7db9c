"""Folders of temporary files that nobody else can have made."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def private_folder(prefix: str) -> Path:
    """
    Make a folder of temporary files that is this user's alone, and goes with this process.

    A name that can be known beforehand would let another user make it first, and what is run from
    it theirs.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
