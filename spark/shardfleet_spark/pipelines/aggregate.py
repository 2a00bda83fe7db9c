"""
The ready pipeline ``aggregate``: counts, sums, least and greatest values per key and window.

One row per key and window: ``key``, ``window_start``, ``window_end`` (ISO 8601, UTC), ``count``,
and for each summed field ``sum_…``, ``min_…``, ``max_…``. Its ``record_id`` is the key and the
window's start: with output mode ``update`` the last record of an id is the one that counts, with
``append`` there is one, written when the watermark has passed the window's end. Records whose
payload is bad, or that have no key or no time, are left out.

Spark's watermark follows the shard that is furthest ahead, and what a slower one still has would be
dropped. So the shards are read in step of arrival (``maxShardSkew``, see :func:`in_step`), and
Spark waits that much longer: ``watermark`` is how late a record may come, whatever backlog its
shard has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as sf

from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.options import names, option, read_options, text
from shardfleet_spark.options.source_options import SourceOptions
from shardfleet_spark.payload.parsing import BAD, PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardfleet_spark.pipelines.plan import PipelinePlan

_INTERVAL = r"\d+ (second|minute|hour|day)s?"
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400}
_SKEW = "maxShardSkew"
# A batch brings at most so much of a backlog: with less than two it would never catch up.
_TRIGGERS_OF_SKEW = 4
_ALLOWED = "an interval such as 10 seconds, 1 minute, 2 hours, 1 day"
_TIME_FORMAT = "yyyy-MM-dd'T'HH:mm:ss'Z'"


@dataclass(frozen=True, kw_only=True)
class AggregateOptions:
    """What can be set; every field is described by its own text."""

    key: str = option(
        text(), default="partition_key", doc="Column, or field of the payload, to group by."
    )
    time: str = option(
        text(),
        default="approximate_arrival_timestamp",
        doc="Column, or field of the payload, with the time; a timestamp.",
    )
    window: str = option(
        text(pattern=_INTERVAL, allowed=_ALLOWED), default="1 minute", doc="Length of a window."
    )
    watermark: str = option(
        text(pattern=_INTERVAL, allowed=_ALLOWED),
        default="10 minutes",
        doc="How late a record may come, measured by its arrival; later ones are dropped. Windows "
        "are closed so long after their end, and by `maxShardSkew` of the source later.",
    )
    sum: tuple[str, ...] = option(
        names(), default="", doc="Numeric fields of which sum, least and greatest are wanted."
    )


def transform(plan: PipelinePlan) -> Callable[[DataFrame], DataFrame]:
    """
    Return the transform of a plan.

    Raises:
        ConfigurationError: a setting is wrong, or (when called) names no column.

    """
    options = read_options(AggregateOptions, plan.settings)
    return lambda df: aggregated(df, options, skew_ms=_skew_ms(plan))


def in_step(plan: PipelinePlan) -> PipelinePlan:
    """
    Return the plan with shards that are read in step, if it does not say how far they may be apart.

    They may be by the watermark, and by four intervals of the trigger: a query that is behind
    catches up by so much of the stream with each batch.

    Raises:
        ConfigurationError: a setting is wrong.

    """
    given = {name.lower() for name in plan.source_options}
    if not plan.from_place.is_stream or _SKEW.lower() in given:
        return plan
    watermark = read_options(AggregateOptions, plan.settings).watermark
    skew_ms = max(_ms(watermark), _TRIGGERS_OF_SKEW * plan.trigger_ms)
    return replace(plan, source_options={**plan.source_options, _SKEW: str(skew_ms)})


def _skew_ms(plan: PipelinePlan) -> int:
    if not plan.from_place.is_stream:
        return 0
    options = {**plan.source_options, "stream": plan.from_place.where}
    return read_options(SourceOptions, options).max_shard_skew_ms


def _ms(interval: str) -> int:
    number, unit = interval.split()
    return int(number) * _SECONDS[unit.removesuffix("s")] * 1_000


def aggregated(df: DataFrame, options: AggregateOptions, *, skew_ms: int = 0) -> DataFrame:
    """
    Return one row per key and window (see the module).

    Args:
        df: the source's columns, and a payload's.
        options: what is wanted.
        skew_ms: how far the shards of the source may be apart.

    Raises:
        ConfigurationError: a column or field is not there.

    """
    if BAD in df.columns:
        df = df.where(sf.col(BAD).isNull())
    named = _columns_of(df)
    chosen = df.select(
        named(options.key).cast("string").alias("key"),
        named(options.time).cast("timestamp").alias("time"),
        *(named(name).alias(f"field_{place}") for place, name in enumerate(options.sum)),
    ).where("key is not null and time is not null")
    figures = [sf.count(sf.lit(1)).alias("count")]
    for place, name in enumerate(options.sum):
        column = sf.col(f"field_{place}")
        figures += [
            sf.sum(column).alias(f"sum_{name}"),
            sf.min(column).alias(f"min_{name}"),
            sf.max(column).alias(f"max_{name}"),
        ]
    grouped = (
        chosen.withWatermark("time", f"{_ms(options.watermark) + skew_ms} milliseconds")
        .groupBy(sf.window("time", options.window).alias("window"), "key")
        .agg(*figures)
    )
    start, end = (_iso(sf.col("window").getField(edge)) for edge in ("start", "end"))
    return grouped.select(
        sf.col("key").alias("partition_key"),
        sf.concat(sf.col("key"), sf.lit("|"), start).alias("record_id"),
        "key",
        start.alias("window_start"),
        end.alias("window_end"),
        *(figure for figure in grouped.columns if figure not in ("window", "key")),
    )


def _columns_of(df: DataFrame) -> Callable[[str], Column]:
    """Return what finds a field of the payload, or a column, by its name."""
    fields = set(df.schema[PAYLOAD].dataType.fieldNames()) if PAYLOAD in df.columns else set()  # type: ignore[attr-defined]

    def named(name: str) -> Column:
        if name in fields:
            return sf.col(PAYLOAD).getField(name)
        if name in df.columns:
            return sf.col(name)
        raise ConfigurationError(
            f"aggregate: there is no column or field {name!r}; there are "
            f"{', '.join(sorted({*df.columns, *fields}))}"
        )

    return named


def _iso(time: Column) -> Column:
    """Spell an instant in UTC, whatever the session's time zone is."""
    utc = sf.to_utc_timestamp(time, sf.current_timezone())
    return sf.date_format(utc, _TIME_FORMAT)
