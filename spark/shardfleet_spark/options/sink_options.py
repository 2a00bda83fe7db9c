"""The options of the sink, and what can be said against them before a row is seen."""

from __future__ import annotations

from dataclasses import dataclass

from shardfleet.errors import ConfigurationError
from shardfleet.producer.aggregate import DEFAULT_MAX_BYTES, MAX_RECORD_BYTES
from shardfleet_spark.options.access_options import AccessOptions
from shardfleet_spark.options.options import (
    boolean,
    choice,
    duration_ms,
    integer,
    option,
    optional_text,
    size_bytes,
    text,
)

RECORD_IDS = ("none", "position", "column")
_FOLDER = r"|[^:]+|(file|s3[an]?|hdfs|viewfs|gs|abfss?)://.+"
_RUN_ID_MOST = 64  # Together with partition and row it must stay below the 255 bytes of an id.


@dataclass(frozen=True, kw_only=True)
class SinkOptions(AccessOptions):
    """
    What ``df.write`` and ``df.writeStream`` with ``format("shardfleet")`` take.

    Every field is described by its own text (see ``docs/spark-options.md``). A frozen dataclass of
    plain values: it travels to the tasks with the writer.
    """

    aggregate: bool = option(
        boolean(), default="false", doc="Pack rows of a shard into KPL aggregates."
    )
    aggregate_size_bytes: int = option(
        size_bytes(512, MAX_RECORD_BYTES),
        default=str(DEFAULT_MAX_BYTES),
        doc="Length of an aggregate at most (KPL `AggregationMaxSize`); never above "
        "`maxRecordSize`.",
    )
    aggregate_records: int = option(
        integer(1, 100_000), default="500", doc="Rows in an aggregate at most."
    )
    max_record_size_bytes: int = option(
        size_bytes(1, MAX_RECORD_BYTES),
        default="1m",
        doc="Data and key of a record at most: the stream's own limit, 1 MiB unless it was raised.",
    )
    record_id: str = option(
        choice(*RECORD_IDS),
        default="none",
        doc="Id put before the data so that readers can drop repeats: `position` (query, batch, "
        "partition, row) or `column` (`record_id`).",
    )
    run_id: str = option(
        optional_text(),
        default="",
        doc="Stands for the query in the ids of a batch write, which has none; the same for "
        "a repeated run.",
    )
    divert_to: str = option(
        text(pattern=_FOLDER, allowed="a folder, or a URI of file, s3, hdfs, gs or abfs"),
        default="",
        doc="Folder or file system URI for rows that Kinesis would refuse, as JSON lines "
        "(default: the batch fails).",
    )
    held_in_memory_bytes: int = option(
        size_bytes(),
        default="64m",
        doc="Rows of a task are held until all are checked; beyond this, in a temporary file.",
    )
    give_up_after_ms: int = option(
        duration_ms(1_000),
        default="5m",
        doc="How long records may be refused before the batch fails.",
    )

    def __post_init__(self) -> None:
        """Refuse combinations that mean nothing."""
        super().__post_init__()
        if len(self.run_id.encode()) > _RUN_ID_MOST:
            raise ConfigurationError(
                f"option runId has {len(self.run_id.encode())} bytes, {_RUN_ID_MOST} are allowed"
            )
