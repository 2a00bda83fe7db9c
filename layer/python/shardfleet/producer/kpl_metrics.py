"""
What a producer counts, as CloudWatch metrics by the KPL's names, in embedded metric format.

Names are those of the KPL's ``metrics_constants.h``, which its alarms and dashboards know; so is
the dimension ``StreamName``. All told here are counts. Where standard output goes to CloudWatch
Logs, as Lambda's does, CloudWatch makes metrics of it without a call or a right of ours.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import (
    AmazonCloudWatchEMFProvider,
)


class KplMetrics:
    """
    Metrics of one stream.

    Args:
        namespace: of the metrics; the KPL's is ``KinesisProducerLibrary`` unless set otherwise.
        stream_name: their dimension.
        output: where lines go; None: standard output.

    """

    def __init__(self, namespace: str, stream_name: str, *, output: IO[str] | None = None) -> None:
        """Write nothing yet."""
        # No service name whatever POWERTOOLS_* says: it would be a dimension.
        self._provider = AmazonCloudWatchEMFProvider(
            namespace=namespace, service="", metric_set={}, dimension_set={}, metadata_set={}
        )
        self._provider.add_dimension("StreamName", stream_name)
        self._output = output or sys.stdout

    def write(self, counts: Mapping[str, int]) -> None:
        """Write one value of each metric in one line; a stream that is closed takes nothing."""
        for name, count in counts.items():
            self._provider.add_metric(name, MetricUnit.Count, count)
        line: Any = self._provider.serialize_metric_set()
        self._provider.metric_set.clear()
        with suppress(OSError, ValueError):
            self._output.write(json.dumps(line) + "\n")
            self._output.flush()
