"""What a producer is told, and what it tells about itself."""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Struct, field

from shardfleet.domain.reading.flow_control import FlowLimits
from shardfleet.domain.reading.pacing import Rate
from shardfleet.errors import ConfigurationError
from shardfleet.producer.aggregate import DEFAULT_MAX_BYTES, MAX_RECORD_BYTES, STREAM_RECORD_BYTES

ENTRIES_MOST = 500
"""Quota of ``PutRecords``: entries in a request."""

REQUEST_BYTES_MOST = 10 * 1024 * 1024
"""Quota of ``PutRecords``: data and partition keys of a request."""

_MIB = 1024 * 1024
# API reference of CloudWatch: ``Namespace`` of ``PutMetricData``.
_NAMESPACE = re.compile(r"(?!:|AWS/)[A-Za-z0-9._\-/#: ]{0,255}")


class ProducerSettings(Struct, frozen=True, kw_only=True):
    """
    Limits of a producer.

    Attributes:
        aggregate_bytes: length of an aggregate (KPL ``AggregationMaxSize``).
        aggregate_records: user records in an aggregate.
        record_bytes: data and key of one record; larger ones are refused before anything is sent.
        request_bytes: data and keys of one request.
        max_requests: requests in flight; one shard is in one of them at most.
        shard_records_per_s: what this producer sends to one shard (quota: 1,000 stream records).
        shard_bytes_per_s: the same in bytes of data and keys (quota: 1 MiB).
        flow: batch size and pause per shard.
        linger_ms: how long ``put`` may wait for company (KPL ``RecordMaxBufferedTime``).
        buffer_bytes: data and keys that may wait; then ``put`` waits for room.
        give_up_ms: how long one record may go on being refused.
        metrics_namespace: where ``open_producer`` writes metrics by the KPL's names to (KPL
            ``MetricsNamespace``); empty: it writes none.

    Raises:
        ConfigurationError: a value outside its range; the message lists all of them.

    """

    aggregate_bytes: int = DEFAULT_MAX_BYTES
    aggregate_records: int = 500
    record_bytes: int = STREAM_RECORD_BYTES
    request_bytes: int = REQUEST_BYTES_MOST
    max_requests: int = 4
    shard_records_per_s: int = 1_000
    shard_bytes_per_s: int = _MIB
    flow: FlowLimits = field(default_factory=FlowLimits)
    linger_ms: int = 100
    buffer_bytes: int = 32 * _MIB
    give_up_ms: int = 300_000
    metrics_namespace: str = ""

    def __post_init__(self) -> None:
        ranges = {
            "aggregate_bytes": (64, min(self.record_bytes, MAX_RECORD_BYTES)),
            "aggregate_records": (1, None),
            "record_bytes": (1, MAX_RECORD_BYTES),
            "request_bytes": (1, REQUEST_BYTES_MOST),
            "max_requests": (1, None),
            "shard_records_per_s": (1, None),
            "shard_bytes_per_s": (1, None),
            "linger_ms": (0, None),
            "buffer_bytes": (1, None),
            "give_up_ms": (0, None),
        }
        wrong = [
            f"{name} = {getattr(self, name)!r} (allowed: {least} to {most or 'any number'})"
            for name, (least, most) in ranges.items()
            if not least <= getattr(self, name) <= (most or getattr(self, name))
        ]
        if not 1 <= self.flow.min_entries <= self.flow.max_entries <= ENTRIES_MOST:
            wrong.append(
                f"flow has batches of {self.flow.min_entries} to {self.flow.max_entries} "
                f"entries (allowed: 1 to {ENTRIES_MOST})"
            )
        namespace = self.metrics_namespace
        if not _NAMESPACE.fullmatch(namespace):
            wrong.append(
                f"metrics_namespace = {namespace!r} (allowed: up to 255 letters, digits and "
                "characters of ._-/#: and blank, no colon at the beginning, and not AWS/)"
            )
        if wrong:
            raise ConfigurationError(f"ProducerSettings: {'; '.join(wrong)}")

    @property
    def record_rate(self) -> Rate:
        """
        Return the pace of stream records to one shard.

        Half a second's worth may go at once, where the shard would take a whole one: the other
        half is for requests that are longer on their way than the next.
        """
        return Rate(self.shard_records_per_s, -(-self.shard_records_per_s // 2))

    @property
    def byte_rate(self) -> Rate:
        """Return the pace of bytes to one shard; a larger record waits for the whole burst."""
        return Rate(self.shard_bytes_per_s, -(-self.shard_bytes_per_s // 2))


class Receipt(NamedTuple):
    """
    Where a record was accepted.

    Attributes:
        shard_id: the shard.
        sequence_number: of the stream record, decimal.
        sub_sequence_number: index inside its aggregate, 0 for a plain record.
        aggregated: whether it travelled in an aggregate.

    """

    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    aggregated: bool


class ProducerCounts(Struct):
    """
    What a producer went through.

    Attributes:
        requests: PutRecords calls.
        refused: entries refused and sent again.
        misrouted: aggregates that were answered by a shard that does not own all of their records.
        unanswered: requests whose outcome stayed unknown; their records may be there twice.
        accepted: records (not stream records) that the stream has.
        entries: stream records that it has, misrouted ones included.
        listings: how often the shards were listed.
        min_batch: smallest batch that flow control has come to; None before any request.
        max_pause_ms: longest pause that it has made.

    """

    requests: int = 0
    refused: int = 0
    misrouted: int = 0
    unanswered: int = 0
    accepted: int = 0
    entries: int = 0
    listings: int = 0
    min_batch: int | None = None
    max_pause_ms: int = 0


class ShardFlow(Struct, frozen=True, kw_only=True):
    """
    The flow to one shard at this moment.

    Attributes:
        shard_id: None for records whose shard no listing has shown.
        batch: most entries of the shard in the next request.
        pause_ms: wait after a refusal; 0 while nothing is refused.
        waiting: records.
        waiting_bytes: their data and keys.

    """

    shard_id: str | None
    batch: int
    pause_ms: int
    waiting: int
    waiting_bytes: int


class ShardAnswer(Struct, frozen=True, kw_only=True):
    """
    What one request did to one shard: for metrics and plots.

    Attributes:
        shard_id: as predicted; None if no listing has shown the shard.
        at_ms: monotonic milliseconds.
        sent: entries.
        refused: of them.
        batch: of flow control after the answer.
        pause_ms: of flow control after the answer.

    """

    shard_id: str | None
    at_ms: int
    sent: int
    refused: int
    batch: int
    pause_ms: int
