"""
Python's cycle collector in a process that Spark keeps for many tasks.

Between two tasks Spark's daemon has a worker look through everything that it holds
(``gc.collect()`` in ``pyspark.daemon.manager``), and what a task allocates sets off further looks.
Nearly all there is to look at was imported, PySpark, pyarrow and the SDK, and is never garbage.
"""

from __future__ import annotations

import gc
import os

_SETTLED = 2
_seen_in = _seen = 0


def leave_imports_alone() -> None:
    """
    Have the collector leave alone what this process holds at its second task; called by each task.

    Not sooner: a process that has one task gains nothing, and a first task imports much on its way.
    Once, because a task's own objects are in cycles (a function that was unpickled and its
    globals): those of this task stay for good, those of each later one are collected as ever.
    """
    global _seen_in, _seen  # noqa: PLW0603 - the collector is the process's, too.
    # A forked process is another one, which may have imported more.
    _seen = _seen + 1 if _seen_in == os.getpid() else 1
    _seen_in = os.getpid()
    if _seen == _SETTLED:
        gc.collect()
        gc.freeze()
