"""What can be set of an archive."""

from __future__ import annotations

from dataclasses import dataclass

from shardfleet_spark.options.options import choice, duration_ms, integer, option, size_bytes


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions:
    """What can be set of an archive; every field is described by its own text."""

    compression: str = option(
        choice("zstd", "snappy", "gzip", "none"), default="zstd", doc="Of the Parquet files."
    )
    rows_per_file: int = option(
        integer(1), default="1000000", doc="Rows after which a further file is begun."
    )
    files: int = option(
        integer(1, 1_000),
        default="1",
        doc="Files per hour and micro-batch, written at the same time.",
    )
    compact_after_ms: int = option(
        duration_ms(),
        default="1h",
        doc="An hour that ended so long before the newest record's hour began is put together.",
    )
    compact_below_bytes: int = option(
        size_bytes(), default="64m", doc="Files smaller than this are put together."
    )
