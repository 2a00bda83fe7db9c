"""What keeps a Spark on this machine its user's own: its ports, and its folders."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

LOOPBACK_ONLY = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Else another user of this machine may send the driver objects to read (Spark: Security).
    "spark.authenticate": "true",
    "spark.ui.enabled": "false",
}
"""Settings of a session whose master is `local`; Spark draws the secret itself."""


def private_folder(prefix: str) -> Path:
    """
    Make a folder of temporary files that is this user's alone, and goes with this process.

    A name that can be known beforehand would let another user make it first, and what is run from
    it theirs.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
