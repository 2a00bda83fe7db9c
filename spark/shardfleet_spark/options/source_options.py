"""The options of the source, streaming and batch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from shardfleet_spark.options.access_options import AccessOptions, optional_url
from shardfleet_spark.options.options import (
    boolean,
    choice,
    duration_ms,
    integer,
    names,
    option,
    or_auto,
    size_bytes,
    text,
)
from shardfleet_spark.options.starting import ENDING_KIND, STARTING_KIND, TARGET_KIND, Start

_SEAL_STORE = r"|dynamodb:[\w.-]{3,255}|s3://[\w.-]+(/.*)?|file:.+"


@dataclass(frozen=True, kw_only=True)
class SourceOptions(AccessOptions):
    """
    Options of ``spark.readStream``; docs/spark-options.md is made of them.

    Names in Spark are camel case, without a unit: ``poll_interval_ms`` is ``pollInterval``.
    """

    starting_position: Start = option(  # noqa: RUF009 - a field, made once
        STARTING_KIND,
        default="LATEST",
        doc="Where a query without a checkpoint begins; `LATEST` is fixed once, 5 s before its "
        "start, and shards found later are read from their beginning.",
    )
    seal_store: str = option(
        text(
            pattern=_SEAL_STORE,
            allowed="dynamodb:<table>, s3://<bucket>/<prefix> or file:<folder>, or nothing",
        ),
        default="",
        doc="Where it is written what a batch read, so that a repeated batch is the same to the "
        "record; none: the driver reads and the offset says it, for small streams. A table has "
        "partition key `sid`, sort key `item`, both text, and `expires` as its time to live; what "
        "either store costs is in docs/cost.md.",
    )
    store_endpoint: str = option(
        optional_url(),
        default="",
        doc="URL of DynamoDB, S3 and CloudWatch, for seals, lease tables and metrics; none: AWS's "
        "own.",
    )
    publish_to: str = option(
        text(pattern=r"|[\w.-]{3,255}", allowed="the name of a lease table, or nothing"),
        default="",
        doc="KCL application (the name of its lease table, made if there is none) in which the "
        "query shows its committed positions as checkpoints; best one of its own.",
    )
    publish_interval_ms: int = option(
        duration_ms(1_000),
        default="3s",
        doc="How often each lease of `publishTo` is written; other consumers take a shard whose "
        "lease stands still for their failover time, 10 s in KCL.",
    )
    metrics: str = option(
        text(
            pattern=r"|(emf|cloudwatch):[\w.-]{1,255}",
            allowed="cloudwatch:<fleet>, emf:<fleet> or nothing",
        ),
        default="",
        doc="Where figures go once a minute, as metrics of a fleet of that name: to CloudWatch, "
        "or as lines (embedded metric format) on the driver's standard error.",
    )
    seals_retained: int = option(
        integer(2), default="100", doc="Batches whose seals are kept (Spark keeps 100 itself)."
    )
    max_records_per_batch: int = option(
        integer(),
        default="0",
        doc="Most stream records in a batch (an aggregate counts as one); shards get parts of it "
        "by what waits in each; 0: no limit.",
    )
    max_bytes_per_batch: int = option(
        size_bytes(0),
        default="0",
        doc="Most bytes of stream records in a batch; shards get parts of it by what waits in "
        "each; 0: no limit.",
    )
    max_records_per_shard: int = option(
        integer(), default="0", doc="Most stream records of one shard in a batch; 0: no limit."
    )
    max_bytes_per_partition: int = option(
        size_bytes(1),
        default="64m",
        doc="Most bytes that one task reads in a batch; up to `concurrency` answers may come on "
        "top while it is unknown how large records are. Without a seal store a whole batch has 64 "
        "MiB at most, each record counted with 150 bytes more.",
    )
    max_fetch_time_ms: int | None = option(
        or_auto(duration_ms()),
        default="auto",
        doc="How long a task goes on reading a shard that has more; auto: four fifths of the time "
        "between the last two triggers, but 2 s at least and 60 s at most.",
    )
    max_shard_skew_ms: int = option(
        duration_ms(),
        default="0",
        doc="How far, by arrival, a shard may be ahead of the slowest one, so that a watermark "
        "does not drop what a slow shard still has; at least the trigger's interval; 0: any.",
    )
    partitions: int = option(
        integer(),
        default="0",
        doc="Tasks of a batch, shards spread by measured bytes, and up to four times as many while "
        "more waits than they may read; 0: one per core of the driver's machine. "
        "`options(**shardfleet_spark.of_cluster(spark))` says one per core of the cluster, which "
        "the source itself cannot know; pipelines do so.",
    )
    shards_per_partition: int = option(
        integer(), default="0", doc="Shards of one task; not 0: decides instead of `partitions`."
    )
    concurrency: int = option(
        integer(1, 256), default="16", doc="Shards that one task reads at the same time."
    )
    poll_interval_ms: int = option(
        duration_ms(200),
        default="200ms",
        doc="Least time between two GetRecords of a shard (Kinesis allows 5 a second, shared by "
        "all consumers).",
    )
    probe_interval_ms: int = option(
        duration_ms(200),
        default="1s",
        doc="How often idle shards are asked whether there is something, however often Spark asks.",
    )
    probes_per_second: int = option(
        integer(1), default="100", doc="Most such questions a second over all shards."
    )
    discovery_interval_ms: int = option(
        duration_ms(1_000), default="10s", doc="How often the shard list is read, on the driver."
    )
    retry_first_ms: int = option(
        duration_ms(1), default="100ms", doc="Pause after a first refused or failed call."
    )
    max_retry_pause_ms: int = option(
        duration_ms(1), default="3s", doc="Longest pause; pauses double, half of each is random."
    )
    retry_attempts: int = option(
        integer(), default="0", doc="Attempts of one call before the batch fails; 0: without end."
    )
    records_per_read: int = option(
        integer(1, 10_000), default="10000", doc="Limit of one GetRecords call."
    )
    stream_calls: str = option(
        choice("wire", "boto3"),
        default="wire",
        doc="How GetRecords is made: by this library's own quick way where it can, or by boto3.",
    )
    deaggregate: bool = option(
        boolean(), default="true", doc="Whether KPL aggregates are taken apart."
    )
    misrouted: str = option(
        choice("deliver", "in-range", "kpl"),
        default="deliver",
        doc="An aggregate with records of another shard's keys: deliver all of it, drop those "
        "records, or drop it whole as the KCL does; dropping is right only for producers that send "
        "what is dropped again, as the KPL sends all of it.",
    )
    fail_on_data_loss: bool = option(
        boolean(),
        default="true",
        doc="Whether records that are gone before they were read stop the query; if not, the "
        "loss is stated in the query progress (`lost`) and in the log.",
    )
    available_now_target_ms: int = option(
        TARGET_KIND,
        default="0",
        doc="The instant up to which everything is read, and no further; 0: none. Spark "
        "4.2 says itself when a run began; for 4.0 and 4.1 `drain` sets this.",
    )

    @property
    def tasks(self) -> int:
        """
        Return how many tasks a batch has unless shards per task are given.

        Where no option says it, Spark's driver is all that a source sees of the cluster.
        """
        return self.partitions or os.cpu_count() or 1

    @property
    def stream_name(self) -> str:
        """Return the stream's name, without the rest of its ARN."""
        return self.stream.rsplit("/", 1)[-1]

    @property
    def access(self) -> dict[str, Any]:
        """Return whom to ask: keywords of ``shardfleet.adapters.clients.account_access.Access``."""
        return {**super().access, "connections": self.concurrency + 4}


@dataclass(frozen=True, kw_only=True)
class BatchOptions(SourceOptions):
    """Options of ``spark.read``: those of the stream where they mean something, and these."""

    starting_position: Start = option(  # noqa: RUF009 - a field, made once
        STARTING_KIND, default="TRIM_HORIZON", doc="Where to begin."
    )
    ending_position: Start = option(  # noqa: RUF009 - a field, made once
        ENDING_KIND,
        default="LATEST",
        doc="Where to stop; `LATEST` is the moment of the query.",
    )
    shards: tuple[str, ...] = option(
        names(), default="", doc="The shards to read; none named: all."
    )
