"""
Python's cycle collector in a process that Spark keeps for many tasks.

Between two tasks Spark's daemon has a worker look through everything that it holds
(``gc.collect()`` in ``pyspark.daemon.manager``), and what a task allocates sets off further looks.
Nearly all there is to look at was imported, PySpark, pyarrow and the SDK, and is never garbage.
"""

from __future__ import annotations

import gc
import os

_left_alone_in = 0


def leave_imports_alone() -> None:
    """
    Have the collector leave alone what this process holds now; once, however often it is called.

    Once, because a task's own objects are in cycles (a function that was unpickled and its
    globals): those of one task stay for good, those of each later one are collected as ever.
    """
    global _left_alone_in  # noqa: PLW0603 - the collector is the process's, too.
    # A forked process is another one, which may have imported more.
    if _left_alone_in != os.getpid():
        _left_alone_in = os.getpid()
        gc.collect()
        gc.freeze()
