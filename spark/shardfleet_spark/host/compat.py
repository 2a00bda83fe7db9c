"""What newer versions of Spark have and older ones lack, under one name each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # Spark 4.0 and 4.1: no read limits, AvailableNow in a single batch.

        class ReadLimit:
            """A limit of one batch."""

        class ReadAllAvailable(ReadLimit):
            """No limit."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """At most so many rows."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """At most so many bytes."""

            max_bytes: int

        class SupportsTriggerAvailableNow:
            """Marks a reader that knows Trigger.AvailableNow."""


__all__ = [
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
