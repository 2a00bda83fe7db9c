"""
The options reference, made from the code: ``python -m shardfleet_spark.options_page FILE``.

A test says that docs/spark-options.md is current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shardfleet_spark.options.access_options import AccessOptions
from shardfleet_spark.options.columns import TYPES
from shardfleet_spark.options.options import reference_table
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions
from shardfleet_spark.pipelines.aggregate import AggregateOptions
from shardfleet_spark.pipelines.archive_options import ArchiveOptions

_PAGE = """# Options of the Spark source and sink

This page is made from the code: `python -m shardfleet_spark.options_page docs/spark-options.md`.
Names may be written in any case; a name that does not exist is refused with the nearest one.
Durations have a unit (`200ms`, `2s`, `5m`, `1h`, `1d`); a bare number is milliseconds.
Sizes have a unit (`512k`, `64m`, `1g`, powers of 1,024); a bare number is bytes.

## Source and sink: which stream, where, and as whom

{access}

## Source: `spark.readStream.format("shardfleet")`

{source}

Limits are upper bounds, and a batch that was limited is followed by the next one.
Spark 4.0 and 4.1 run `Trigger.AvailableNow` as a single batch, which the limits then bound.
They tell a source written in Python nothing of the trigger, so it cannot refuse.
`shardfleet pipeline run` goes on until all is read.
For a query of your own `shardfleet_spark.drain` does.
From 4.2 on it runs as many batches as it takes.
A batch that is read twice, or repeated after a crash, has the same records each time.

## Source, batch: `spark.read.format("shardfleet")`

The options above where they mean something to a bounded reading, and these.

{batch}

## Columns of the source

{columns}

## Sink: `df.writeStream.format("shardfleet")` and `df.write.format("shardfleet")`

{sink}

## Settings of the pipeline `aggregate`

`shardfleet pipeline run --transform aggregate --setting NAME=VALUE`, see [pipelines](pipelines.md).

{aggregate}

## Settings of the pipeline `archive`

{archive}
"""


def page() -> str:
    """Return the whole page, Markdown; what several tables say is in the first of them."""
    access, stream = reference_table(AccessOptions), reference_table(SourceOptions)
    columns = "\n".join(
        ["| column | type |", "|---|---|", *(f"| `{name}` | {TYPES[name]} |" for name in TYPES)]
    )
    return _PAGE.format(
        access=access,
        source=_without(stream, access),
        batch=_without(reference_table(BatchOptions), stream),
        columns=columns,
        sink=_without(reference_table(SinkOptions), access),
        aggregate=reference_table(AggregateOptions),
        archive=reference_table(ArchiveOptions),
    )


def _without(table: str, said: str) -> str:
    """Return a table without the rows that another one has."""
    head, rows = table.splitlines()[:2], table.splitlines()[2:]
    known = set(said.splitlines())
    return "\n".join([*head, *(row for row in rows if row not in known)])


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
