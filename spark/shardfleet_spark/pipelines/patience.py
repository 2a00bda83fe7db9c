"""
The start of a query on a machine that is busy.

A source written in Python gets a process of its own beside the driver, and so does, over Spark
Connect, a ``foreachBatch``. Spark waits 10 s for each to connect, with no setting for more (4.0 to
4.3), and then ends the query, or does not start it; nothing has been planned yet: it is started
again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException, StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ATTEMPTS = 5
_GIVEN_UP = "Python worker failed to connect back"
_LOOK_S = 0.05


def start_patiently(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """
    Start a query, and again if Spark did not wait for its processes; return it when it has begun.

    A query that fails for another reason, or at the last attempt, is returned as it is: it says
    itself what is wrong.

    Raises:
        pyspark.errors.PySparkException: it cannot be started.

    """
    for _ in range(ATTEMPTS - 1):
        try:
            query = start()
        except PySparkException as error:
            if _GIVEN_UP not in str(error):
                raise
        else:
            if not _is_given_up(query):
                return query
    return start()


def _is_given_up(query: StreamingQuery) -> bool:
    with suppress(StreamingQueryException):  # Looked at below: it may have ended before this.
        while query.status["message"].startswith("Initializing"):
            if query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]  # Takes fractions, too.
                break
    return _GIVEN_UP in str(query.exception())
