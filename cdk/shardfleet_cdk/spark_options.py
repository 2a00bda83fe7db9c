"""Options of `SparkPipeline`, in groups; every default is written where it is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sns as sns

from shardfleet.errors import ConfigurationError

AVAILABLE_NOW = "available-now"
AVRO_GLUE, DELTA = "avro-glue", "delta"
CHECKPOINT, SEALS = "checkpoint", "seals"
# EMR Serverless takes 15 to 1,800 (fact R15); a function that ends a job has 900 in all.
STOP_SECONDS_LEAST, STOP_SECONDS_MOST = 15, 600

_RELEASE = re.compile(r"emr-(spark-)?\d+\.\d+(\.\d+)?")
_SCHEDULE = re.compile(r"(rate|cron|at)\(.+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineWork:
    """
    What the pipeline does: the fields of a plan, as `shardfleet pipeline run --print-plan` shows.

    Attributes:
        transform: ``archive``, ``aggregate``, or empty where ``code`` names a function.
        sink_format: ``parquet``, another format of files, or ``delta``, for which Spark needs the
            settings that its refusal names (`SparkOptions.conf`); not used when the sink is a
            stream.
        sink_prefix: of files in the sink's bucket.
        merge_key: columns with commas between them, of which a table of Delta keeps the newest
            row; empty: rows are appended.
        schema: of the payload; empty: the transform gets the source's columns.
        payload: ``json``, ``ndjson``, ``csv``, ``avro``, ``avro-confluent`` or ``avro-glue``.
        payload_options: of the payload's reader.
        bad_records: folder in the sink's bucket for records that do not fit the schema; empty:
            the transform gets them.
        source_options: of the source, such as ``startingPosition``.
        sink_options: of the sink.
        settings: of ``archive`` or ``aggregate``.
        output_mode: ``append``, ``update`` or ``complete``.
        publish: whether the query's positions stand in a lease table, for `shardfleet leases
            --application`, and its figures are metrics of its own.
        trigger: an interval such as ``30s``: the job runs for ever; ``available-now``: it ends
            when it has read what there is, and is started again by the schedule.

    Raises:
        ConfigurationError: bad records cannot be told, or would lie among other files; or the sink
            cannot be merged into.

    """

    transform: str = ""
    sink_format: str = "parquet"
    sink_prefix: str = "data"
    merge_key: str = ""
    schema: str = ""
    payload: str = "json"
    payload_options: Mapping[str, str] = field(default_factory=dict)
    bad_records: str = ""
    source_options: Mapping[str, str] = field(default_factory=dict)
    sink_options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    output_mode: str = "append"
    publish: bool = True
    trigger: str = "30s"

    def __post_init__(self) -> None:
        """Refuse what the job would refuse later, and bad records among other files."""
        if self.merge_key and self.sink_format != DELTA:
            raise ConfigurationError(
                f"merge_key {self.merge_key!r}: sink_format is {self.sink_format!r}, and rows are "
                f"merged into a table: {DELTA!r} is needed"
            )
        if not self.bad_records:
            return
        if not self.schema:
            raise ConfigurationError(
                f"bad_records {self.bad_records!r}: schema is needed to tell them"
            )
        others = (self.sink_prefix, CHECKPOINT, SEALS)
        if any(f"{self.bad_records}/".startswith(f"{each}/") for each in others):
            raise ConfigurationError(
                f"bad_records {self.bad_records!r}: a folder of its own is needed, not "
                f"{', '.join(others)} or one in them"
            )

    @property
    def asks_glue(self) -> bool:
        """Return whether the job itself asks AWS Glue for schemas, not a role that it assumes."""
        given = {name.lower() for name in self.payload_options}
        return self.payload == AVRO_GLUE and "rolearn" not in given

    @property
    def streaming(self) -> bool:
        """Return whether the job is to run for ever."""
        return self.trigger != AVAILABLE_NOW


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """
    The application and its job.

    Attributes:
        release_label: of EMR Serverless, with Spark 4.0 or newer.
        vpc: where the application runs. Without one it reaches AWS services of its own region
            through EMR's network, which Kinesis is not part of: give one, with an interface
            endpoint for Kinesis or a NAT.
        subnets: which subnets of the VPC (default: the private ones).
        security_groups: default: a new one.
        max_cpu: vCPU of all workers together: the breaker of cost.
        max_memory_gb: likewise.
        max_executors: of the job.
        conf: further settings of Spark.
        schedule: how often it is looked after (default: each 5 minutes).
        attempts: how often EMR repeats a failing streaming job within an hour.
        stop_seconds: that a run has to end its batch when a deploy replaces it or the stack goes,
            15 to 600. The new run begins at the first look after that.

    Raises:
        ConfigurationError: a value is out of range.

    """

    release_label: str = "emr-spark-8.0.0"
    vpc: ec2.IVpc | None = None
    subnets: Sequence[ec2.ISubnet] = ()
    security_groups: Sequence[ec2.ISecurityGroup] = ()
    max_cpu: int = 16
    max_memory_gb: int = 64
    max_executors: int = 2
    conf: Mapping[str, str] = field(default_factory=dict)
    schedule: str = "rate(5 minutes)"
    attempts: int = 5
    stop_seconds: int = 120

    def __post_init__(self) -> None:
        """Refuse what EMR Serverless or Scheduler would refuse later."""
        problems = []
        if not _RELEASE.fullmatch(self.release_label):
            problems.append(f"release_label {self.release_label!r}: such as emr-spark-8.0.0")
        if not _SCHEDULE.fullmatch(self.schedule):
            problems.append(f"schedule {self.schedule!r}: rate(...), cron(...) or at(...)")
        problems += [
            f"{name}: {getattr(self, name)} found, 1 or more allowed"
            for name in ("max_cpu", "max_memory_gb", "max_executors", "attempts")
            if getattr(self, name) < 1
        ]
        if not STOP_SECONDS_LEAST <= self.stop_seconds <= STOP_SECONDS_MOST:
            problems.append(
                f"stop_seconds: {self.stop_seconds} found, {STOP_SECONDS_LEAST} to "
                f"{STOP_SECONDS_MOST} allowed"
            )
        if self.vpc is None and (self.subnets or self.security_groups):
            problems.append("subnets and security_groups: only together with `vpc`")
        if problems:
            raise ConfigurationError("; ".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkAlarms:
    """
    Who is told what.

    Attributes:
        topics: told of every alarm.
        failures: so many runs in a row.
        idle_minutes: a streaming job that has not run for so long.
        lag_ms: how far behind for 15 minutes: the query itself, or, where it does not publish,
            the slowest consumer of the source.

    """

    topics: Sequence[sns.ITopic] = ()
    failures: int = 3
    idle_minutes: int = 15
    lag_ms: int = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkBuckets:
    """
    Where files go.

    Attributes:
        work: checkpoint and seals (default: a new one, which is kept when the stack goes).
        sink: the files of a pipeline that ends in files (default: the same as ``work``).

    """

    work: s3.IBucket | None = None
    sink: s3.IBucket | None = None
