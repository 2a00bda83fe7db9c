"""What keeps a Spark on this machine its user's own: its ports, and its folders."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def loopback_only() -> dict[str, str]:
    """Return the settings of a session whose master is `local`; Spark draws the secret itself."""
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Else another user of this machine may send the driver objects to read (Spark: Security).
        "spark.authenticate": "true",
        "spark.ui.enabled": "false",
        # From Spark 4.1 on, Python workers are met at a socket file, not at a port: what passes
        # there takes two thirds of the time (benchmarks/bench_spark_source.py, prebuilt batches).
        # Spark asks for no secret there, so nobody else may enter the folder.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(private_folder("shardfleet-workers-")),
    }


def private_folder(prefix: str) -> Path:
    """
    Make a folder of temporary files that is this user's alone, and goes with this process.

    A name that can be known beforehand would let another user make it first, and what is run from
    it theirs.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
