"""
The ready pipeline ``aggregate``: counts, sums, least and greatest values per key and window.

One row per key and window: ``key``, ``window_start``, ``window_end`` (ISO 8601, UTC), ``count``,
and for each summed field ``sum_…``, ``min_…``, ``max_…``. Its ``record_id`` is the key and the
window's start: with output mode ``update`` the last record of an id is the one that counts, with
``append`` there is one, written when the watermark has passed the window's end. Records whose
payload is bad, or that have no key or no time, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as sf

from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.options import names, option, read_options, text
from shardfleet_spark.payload.parsing import BAD, PAYLOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from shardfleet_spark.pipelines.plan import PipelinePlan

_INTERVAL = r"\d+ (second|minute|hour|day)s?"
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
        doc="How late a record may come; later ones are dropped.",
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
    return lambda df: aggregated(df, options)


def aggregated(df: DataFrame, options: AggregateOptions) -> DataFrame:
    """Return one row per key and window (see the module)."""
    if BAD in df.columns:
        df = df.where(sf.col(BAD).isNull())
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
        chosen.withWatermark("time", options.watermark)
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


def _iso(time: Column) -> Column:
    """Spell an instant in UTC, whatever the session's time zone is."""
    utc = sf.to_utc_timestamp(time, sf.current_timezone())
    return sf.date_format(utc, _TIME_FORMAT)
