"""
A Kinesis source for Spark as one writes it in an hour: boto3, a task per shard, tuples.

It is what the benchmarks compare with: no positions, no exactly-once, no reshards. A query reads
each shard once from its beginning to its tip.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import boto3
from aws_kinesis_agg.deaggregator import iter_deaggregate_records
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

SCHEMA = (
    "data binary, partition_key string, sequence_number string, sub_sequence_number bigint, "
    "shard_id string, approximate_arrival_timestamp timestamp, stream string"
)
COLUMNS = SCHEMA.replace(",", "").split()[::2]


class NaiveDataSource(DataSource):
    """Options: stream, endpoint, batches (how many there are to be), aggregated."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "naive"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark's
        """Return the reader."""
        return NaiveReader(dict(self.options))


class ShardPartition(InputPartition):
    """One shard."""


class CountedBatches(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset counts batches; option `batches` says how many there are."""

    def __init__(self, options: dict[str, str]) -> None:
        """Keep the options."""
        self._options = options
        self._batches = int(options.get("batches", "1"))

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the beginning."""
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """There are only so many batches."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return one more, until there were enough."""
        del limit
        return {"batch": min(self._batches, start["batch"] + 1)}


class NaiveReader(CountedBatches):
    """Reads everything once."""

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return a task for each shard."""
        del start, end
        client, more = self._client(), {"StreamName": self._options["stream"]}
        shards: list[InputPartition] = []
        while more:
            answer = client.list_shards(**more)
            shards += [ShardPartition(shard["ShardId"]) for shard in answer["Shards"]]
            more = {"NextToken": answer["NextToken"]} if "NextToken" in answer else {}
        return shards

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one shard."""
        client, stream, shard = self._client(), self._options["stream"], partition.value
        iterator = client.get_shard_iterator(
            StreamName=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while iterator:
            answer = client.get_records(ShardIterator=iterator, Limit=10_000)
            yield from self._rows(answer["Records"], shard)
            iterator = answer["NextShardIterator"] if answer["MillisBehindLatest"] else None

    def _rows(self, records: list[dict[str, Any]], shard: str) -> Iterator[tuple[Any, ...]]:
        stream = self._options["stream"]
        if self._options.get("aggregated") != "true":
            for record in records:
                number, arrived = record["SequenceNumber"], record["ApproximateArrivalTimestamp"]
                key = record["PartitionKey"]
                yield record["Data"], key, number, 0, shard, arrived, stream
            return
        for record in iter_deaggregate_records(records, data_format="Boto3"):
            user = record["kinesis"]
            data = b64decode(user["data"]) if "aggregated" in user else user["data"]
            yield (
                *(data, user["partitionKey"], user["sequenceNumber"]),
                *(user.get("subSequenceNumber", 0), shard),
                *(user["approximateArrivalTimestamp"], stream),
            )

    def _client(self) -> Any:
        return boto3.client("kinesis", endpoint_url=self._options["endpoint"])
