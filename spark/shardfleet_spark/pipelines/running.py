"""Runs a pipeline on the Spark that it is given."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from shardfleet.adapters.system import SystemClock
from shardfleet.errors import ConfigurationError
from shardfleet_spark.host.session import of_cluster, query_id
from shardfleet_spark.options.columns import COLUMNS
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.payload.kinds import REGISTERED, SCHEMAS
from shardfleet_spark.payload.parsing import parse_payload
from shardfleet_spark.payload.registered import has_met_more
from shardfleet_spark.pipelines import aggregate, archive, backfill
from shardfleet_spark.pipelines.bad_records import set_aside
from shardfleet_spark.pipelines.draining import drain, rows_of, run_to_end
from shardfleet_spark.pipelines.plan import (
    AGGREGATE,
    ARCHIVE,
    AVAILABLE_NOW,
    TABLES,
    PipelinePlan,
    TablePlace,
)
from shardfleet_spark.sink.by_shard import by_shard
from shardfleet_spark.sink.row_checks import DATA, RECORD_ID, TYPES
from shardfleet_spark.tables.commits import Table, batch_writer, put
from shardfleet_spark.tables.delta import DELTA, DeltaTable
from shardfleet_spark.tables.iceberg import IcebergTable
from shardfleet_spark.tables.merging import check_merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Transform = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """
    What a pipeline did.

    Attributes:
        batches: micro-batches with rows; 1 for a batch.
        rows: read from the source; -1 for a batch, which does not count them.
        progress: of each of those micro-batches, as Spark reports it.

    """

    batches: int
    rows: int
    progress: tuple[Mapping[str, Any], ...] = ()


def run_pipeline(
    spark: SparkSession, plan: PipelinePlan, *, transform: Transform | None = None
) -> PipelineResult:
    """
    Run a pipeline to its end: that of the input, or, with an interval as trigger, a failure.

    Args:
        spark: where; the data source has to be known to it.
        plan: what.
        transform: instead of the one that the plan names.

    Raises:
        ConfigurationError: the transform cannot be found, or a setting is wrong.
        pyspark.errors.PySparkException: what Spark says against it.

    """
    if plan.batch:
        _run_batch(spark, plan, transform or _transform_of(plan))
        return PipelineResult(batches=1, rows=-1)
    if plan.transform == AGGREGATE:
        plan = aggregate.in_step(plan)

    def goes_on() -> bool:
        folder = _payload_options(plan).get(SCHEMAS, "")
        return bool(folder) and has_met_more(folder)

    if plan.backfill:
        plan = _backfilled(spark, plan, transform, goes_on=goes_on)

    def start(target_ms: int) -> StreamingQuery:
        if not target_ms:
            return _started(spark, plan, transform)
        until = {**plan.source_options, "availableNowTarget": str(target_ms)}
        return _started(spark, replace(plan, source_options=until), transform)

    if plan.trigger == AVAILABLE_NOW and plan.from_place.is_stream:
        clock_ms = SystemClock().now_ms
        reports = drain(start, version=spark.version, clock_ms=clock_ms, goes_on=goes_on)
    else:
        reports = run_to_end(partial(start, 0), goes_on=goes_on)
    progress = [each for each in reports if each["numInputRows"]]
    return PipelineResult(batches=len(progress), rows=rows_of(progress), progress=tuple(progress))


def _started(
    spark: SparkSession, plan: PipelinePlan, transform: Transform | None
) -> StreamingQuery:
    source = plan.from_place
    reader = spark.readStream.format(source.format).options(
        **_options(source, _spread(spark, plan))
    )
    if source.format in ("json", "csv", "parquet") and plan.schema:
        reader = reader.schema(plan.schema)
    read = reader.load() if source.is_stream else reader.load(source.where)
    if plan.transform == ARCHIVE:
        return _triggered(archive.writer(_parsed(read, plan), plan), plan).start()
    function = transform or _transform_of(plan)
    rows = function(_parsed(read, plan))
    sink = plan.to_place
    if table := _table_of(spark, plan, rows):
        write = batch_writer(table, plan.merge_keys, plan.checkpoint)
        return _triggered(rows.writeStream.foreachBatch(write), plan).start()
    options = _options(sink, plan.sink_options)
    if sink.is_stream and plan.output_mode == "update":
        # Spark does not let sinks written in Python take updates; batch by batch it does.
        writer = rows.writeStream.outputMode("update").foreachBatch(
            _stream_writer(options, plan.checkpoint)
        )
        return _triggered(writer, plan).start()
    if sink.is_stream:
        rows, options = for_stream(rows, options)
    writer = rows.writeStream.format(sink.format).outputMode(plan.output_mode).options(**options)
    where = None if sink.is_stream else sink.where or None
    return _triggered(writer, plan).start(where)


def _stream_writer(options: Mapping[str, str], checkpoint: str) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, number: int) -> None:
        # Over Spark Connect a task of foreachBatch is not told of which query and batch it is.
        run = {"runid": f"{query_id(batch.sparkSession, checkpoint)}:{number}"}
        given = {name.lower(): value for name, value in options.items()}
        placed, settings = for_stream(batch, run | given)
        placed.write.format("shardfleet").options(**settings).mode("append").save()

    return write


def _run_batch(spark: SparkSession, plan: PipelinePlan, transform: Transform) -> None:
    source, sink = plan.from_place, plan.to_place
    reader = spark.read.format(source.format).options(**_options(source, _spread(spark, plan)))
    if source.format in ("json", "csv") and plan.schema:
        reader = reader.schema(plan.schema)
    read = reader.load() if source.is_stream else reader.load(source.where)
    rows = transform(_parsed(read, plan))
    if sink.format == "console":
        rows.show(n=int(plan.sink_options.get("numRows", "20")), truncate=False)
        return
    if table := _table_of(spark, plan, rows):
        put(table, rows, None, keys=plan.merge_keys)
        return
    options = _options(sink, plan.sink_options)
    if sink.is_stream:
        rows, options = for_stream(rows, options)
    writer = rows.write.format(sink.format).options(**options).mode("append")
    if sink.is_stream or not sink.where:
        writer.save()
    else:
        writer.save(sink.where)


def _backfilled(
    spark: SparkSession,
    plan: PipelinePlan,
    transform: Transform | None,
    *,
    goes_on: Callable[[], bool],
) -> PipelinePlan:
    """Write the archive's rows, unless the table has them; return the plan of what follows."""
    stream = plan.from_place.where
    source = read_options(SourceOptions, {**plan.source_options, "stream": stream})
    columns = source.columns or COLUMNS
    back = backfill.begun(
        plan.backfill_positions,
        stream=stream,
        checkpoint=plan.checkpoint,
        now_ms=SystemClock().now_ms(),
    )
    while not back.is_done:
        try:
            read = backfill.archived(spark, plan.backfill, back.positions, columns=columns)
            rows = (transform or _transform_of(plan))(_parsed(read, plan))
            table = _table_of(spark, plan, rows)
            assert table is not None
            put(table, rows, back.as_commit(), keys=plan.merge_keys)
        except PySparkException:
            if not goes_on():
                raise
        else:
            back.done()
            break
    options = {**plan.source_options, "startingPosition": back.starting_position}
    return replace(plan, source_options=options, backfill="", backfill_positions="")


def _table_of(spark: SparkSession, plan: PipelinePlan, rows: DataFrame) -> Table | None:
    """Return the table that is the sink, if it is one, for one run of the query."""
    sink = plan.to_place
    if sink.format not in TABLES:
        return None
    made = DeltaTable if sink.format == DELTA else IcebergTable
    table: Table = made(sink.where, plan.sink_options)
    table.check(spark)
    if plan.merge_keys:
        check_merge(rows.columns, plan.merge_keys)
    return table


def for_stream(rows: DataFrame, options: Mapping[str, str]) -> tuple[DataFrame, dict[str, str]]:
    """
    Return rows as a sink takes them, one task per shard, and the sink's options for them.

    A table without a column ``data`` becomes one: each row as a JSON object, without the columns
    that a sink knows by name.
    """
    settings = {name.lower(): value for name, value in options.items()}
    if DATA not in rows.columns:
        fields = [name for name in rows.columns if name not in TYPES]
        known = [name for name in rows.columns if name in TYPES]
        rows = rows.select(sf.to_json(sf.struct(*fields)).alias(DATA), *known)
    if RECORD_ID in rows.columns:
        settings.setdefault("recordid", "column")
    placed = by_shard(rows, settings)
    if settings.get("recordid", "").lower() == "position":
        settings["recordid"] = "column"  # Given before the shuffle, where the order is certain.
    return placed, settings


def _triggered(writer: DataStreamWriter, plan: PipelinePlan) -> DataStreamWriter:
    writer = writer.option("checkpointLocation", plan.checkpoint)
    if plan.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{plan.trigger_ms} milliseconds")


def _parsed(read: DataFrame, plan: PipelinePlan) -> DataFrame:
    """Parse the payload, if a schema says how; files have columns of their own already."""
    if not plan.schema or "data" not in read.columns:
        return read
    parsed = parse_payload(read, plan.schema, kind=plan.payload, options=_payload_options(plan))
    return set_aside(parsed, plan.bad_records) if plan.bad_records else parsed


def _payload_options(plan: PipelinePlan) -> dict[str, str]:
    """Return the payload's options: schemas that a query met are kept beside its position."""
    if plan.batch or plan.payload not in REGISTERED:
        return dict(plan.payload_options)
    return {SCHEMAS: f"{plan.checkpoint.rstrip('/')}/{SCHEMAS}", **plan.payload_options}


def _options(place: TablePlace, options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "stream": place.where} if place.is_stream else dict(options)


def _spread(spark: SparkSession, plan: PipelinePlan) -> dict[str, str]:
    """Return the source's options; a stream is read by as many tasks as the cluster has cores."""
    given = {name.lower() for name in plan.source_options}
    if not plan.from_place.is_stream or given & {"partitions", "shardsperpartition"}:
        return dict(plan.source_options)
    return {**of_cluster(spark), **plan.source_options}


def _transform_of(plan: PipelinePlan) -> Transform:
    if plan.transform == AGGREGATE:
        return aggregate.transform(plan)
    if not plan.transform:
        return lambda df: df
    module, _, name = plan.transform.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"transform {plan.transform}: no module {error.name} is found; name the folder in "
            "which it lies (--folder), or install it"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"transform {plan.transform}: {module} has no function {name}")
    needed = [
        each
        for each in inspect.signature(found).parameters.values()
        if each.default is each.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) != 1:
        raise ConfigurationError(
            f"transform {plan.transform} needs {len(needed)} arguments: it has to take one, the "
            "table, and to return one"
        )
    transform: Transform = found
    return transform
