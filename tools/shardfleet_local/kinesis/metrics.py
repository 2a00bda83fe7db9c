"""
What Kinesis would report to CloudWatch, kept as statistic sets per second until drained.

Names and meanings: developer guide, "Monitoring Kinesis Data Streams with CloudWatch". Stream-level
and shard-level metrics are both kept, whether enhanced monitoring is on or not: here they cost
nothing, and the demo draws them per shard.
"""

from dataclasses import dataclass
from typing import Final

PERIOD_MS: Final = 1_000  # ours
"""Width of a sample; CloudWatch's finest resolution."""
MOST_SAMPLES: Final = 100_000  # ours
"""Samples kept when nobody drains them; then the oldest go."""

SHARD_LEVEL_NAMES: Final = {
    # stream level: shard level
    "IncomingBytes": "IncomingBytes",
    "IncomingRecords": "IncomingRecords",
    "GetRecords.Bytes": "OutgoingBytes",
    "GetRecords.Records": "OutgoingRecords",
    "GetRecords.IteratorAgeMilliseconds": "IteratorAgeMilliseconds",
    "ReadProvisionedThroughputExceeded": "ReadProvisionedThroughputExceeded",
    "WriteProvisionedThroughputExceeded": "WriteProvisionedThroughputExceeded",
    "SubscribeToShardEvent.Records": "OutgoingRecords",
    "SubscribeToShardEvent.Bytes": "OutgoingBytes",
    "SubscribeToShardEvent.MillisBehindLatest": "IteratorAgeMilliseconds",
}
UNITS: Final = {"Bytes": "Bytes", "Milliseconds": "Milliseconds", "BehindLatest": "Milliseconds"}


@dataclass(slots=True)
class MetricSample:
    """
    A statistic set of one metric over one period, in the namespace AWS/Kinesis.

    Dimensions are StreamName and, at shard level, ShardId (None at stream level); `start_ms` is
    the start of the period; `unit` is CloudWatch's.
    """

    name: str
    stream: str
    shard: str | None
    start_ms: int
    unit: str
    count: int = 0
    total: float = 0.0
    minimum: float = float("inf")
    maximum: float = float("-inf")

    def add(self, value: float) -> None:
        """Count one value in."""
        self.count += 1
        self.total += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)


class MetricLog:
    """Samples not yet drained."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str, str | None, int], MetricSample] = {}

    def add(self, name: str, value: float, *, stream: str, shard: str, now_ms: int) -> None:
        """Count a value in at stream level, and at shard level under its name there."""
        start_ms = now_ms - now_ms % PERIOD_MS
        self._sample((name, stream, None, start_ms)).add(value)
        self._sample((SHARD_LEVEL_NAMES[name], stream, shard, start_ms)).add(value)

    def drain(self) -> list[MetricSample]:
        """Return all samples, oldest first, and forget them."""
        samples = list(self._samples.values())
        self._samples.clear()
        return samples

    def _sample(self, key: tuple[str, str, str | None, int]) -> MetricSample:
        sample = self._samples.get(key)
        if sample is None:
            if len(self._samples) >= MOST_SAMPLES:
                del self._samples[next(iter(self._samples))]
            name, stream, shard, start_ms = key
            unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "Count")
            sample = self._samples[key] = MetricSample(name, stream, shard, start_ms, unit)
        return sample


def sample_description(sample: MetricSample) -> dict[str, object]:
    """Return the wire form, shaped like an entry of CloudWatch's PutMetricData."""
    dimensions = [{"Name": "StreamName", "Value": sample.stream}]
    if sample.shard is not None:
        dimensions.append({"Name": "ShardId", "Value": sample.shard})
    return {
        "MetricName": sample.name,
        "Dimensions": dimensions,
        "Timestamp": sample.start_ms / 1000,
        "StatisticValues": {
            "SampleCount": sample.count,
            "Sum": sample.total,
            "Minimum": sample.minimum,
            "Maximum": sample.maximum,
        },
        "Unit": sample.unit,
    }
