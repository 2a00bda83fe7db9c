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


FIRST_OF_MANY_BATCHES = (4, 2)
"""The first Spark whose AvailableNow runs a source written in Python for as many batches as it
takes (SPARK-55304)."""


def release_of(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version of Spark, such as ``4.0.2-amzn-0``."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


__all__ = [
    "FIRST_OF_MANY_BATCHES",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "release_of",
]
