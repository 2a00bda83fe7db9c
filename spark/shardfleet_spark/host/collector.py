"""
What Spark has a process do again for each of the many tasks that it keeps it for.

Between two tasks Spark's daemon has a worker look through everything that it holds
(``gc.collect()`` in ``pyspark.daemon.manager``), and what a task allocates sets off further looks.
Nearly all there is to look at was imported, PySpark, pyarrow and the SDK, and is never garbage.

Before each task PySpark has Python forget what its path holds (``importlib.invalidate_caches()`` in
``pyspark.worker_util``), at which every archive on it is read again: 23 ms of CPU time for the jar
of Spark's core, which Spark puts there (``PythonUtils.sparkPythonPath``).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter

_SETTLED = 2
_place = (0, 0)
_seen = 0


def leave_imports_alone(streams: int) -> None:
    """
    Have this process search what it has imported no more; called by each task.

    The archives of the path are left alone from the first task on, the objects that it holds from
    the second. Not sooner: a process that has one task gains nothing, and a first task imports much
    on its way. Once, and once more at the second task after the first one of another stream, whose
    clients it keeps, too: a task's own objects are in cycles (a function that was unpickled and its
    globals), and those of this task stay for good, those of each later one are collected as ever.

    Args:
        streams: whose clients this process keeps.

    """
    global _place, _seen  # noqa: PLW0603 - the collector is the process's, too.
    # A forked process is another one, which may have imported more.
    here = (os.getpid(), streams)
    _seen = _seen + 1 if _place == here else 1
    forget_archives()
    _place = here
    if _seen == _SETTLED:
        gc.collect()
        gc.freeze()


@contextmanager
def unsearched() -> Iterator[None]:
    """Have this process not search what is imported meanwhile, nor what it had before."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def forget_archives() -> None:
    """
    Take jars from the path, and let no finder of an archive be asked to read it again.

    An archive of Python stays on the path: who imports from it gets a new finder, of the names that
    `zipimport` keeps.
    """
    sys.path[:] = [place for place in sys.path if not place.endswith(".jar")]
    for place, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[place]
