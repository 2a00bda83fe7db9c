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
_place = (0, 0)
_seen = 0


def leave_imports_alone(streams: int) -> None:
    """
    Have the collector leave alone what this process holds at its second task; called by each task.

    Not sooner: a process that has one task gains nothing, and a first task imports much on its way.
    Once, and once more at the second task after the first one of another stream, whose clients it
    keeps, too: a task's own objects are in cycles (a function that was unpickled and its globals),
    and those of this task stay for good, those of each later one are collected as ever.

    Args:
        streams: whose clients this process keeps.

    """
    global _place, _seen  # noqa: PLW0603 - the collector is the process's, too.
    # A forked process is another one, which may have imported more.
    here = (os.getpid(), streams)
    _seen = _seen + 1 if _place == here else 1
    _place = here
    if _seen == _SETTLED:
        gc.collect()
        gc.freeze()
