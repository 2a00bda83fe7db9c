"""
What a producer counts, as CloudWatch metrics by the KPL's names, in embedded metric format.

Names are those of the KPL's ``metrics_constants.h``, which its alarms and dashboards know; so is
the dimension ``StreamName``. All told here are counts. Where standard output goes to CloudWatch
Logs, as Lambda's does, CloudWatch makes metrics of it without a call or a right of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from shardfleet.adapters.telemetry.metrics import metric_line
from shardfleet.engine.ports import Clock


class KplMetrics:
    """
    Metrics of one stream.

    Args:
        namespace: of the metrics; the KPL's is ``KinesisProducerLibrary`` unless set otherwise.
        stream_name: their dimension.
        clock: for the times of the lines.
        output: where lines go; None: standard output.

    """

    def __init__(
        self, namespace: str, stream_name: str, *, clock: Clock, output: IO[str] | None = None
    ) -> None:
        """Write nothing yet."""
        self._namespace = namespace
        self._dimensions = {"StreamName": stream_name}
        self._clock = clock
        self._output = output or sys.stdout

    def write(self, counts: Mapping[str, int]) -> None:
        """Write one value of each metric in one line; a stream that is closed takes nothing."""
        values = {name: [count] for name, count in counts.items()}
        line = metric_line(self._namespace, values, self._dimensions, now_ms=self._clock.now_ms())
        with suppress(OSError, ValueError):
            self._output.write(line)
            self._output.flush()
