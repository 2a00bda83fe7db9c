"""The data source ``shardfleet``: what Spark asks first, and hands on to source or sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSource

from shardfleet_spark.host.collector import unsearched
from shardfleet_spark.options.columns import schema_of
from shardfleet_spark.options.options import option_names, read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

T = TypeVar("T")


class ShardfleetDataSource(DataSource):
    """
    Kinesis in and out of Spark.

    Source, streaming::

        spark.readStream.format("shardfleet").option("stream", "clicks").load()

    Source, batch: ``spark.read``. Sink: ``df.writeStream`` and ``df.write``. The options of both
    directions are in docs/spark-options.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to give to ``format``."""
        return "shardfleet"

    def schema(self) -> StructType:
        """Return the columns of the source."""
        # Asked for both kinds of reading, before it is known which: the batch knows all options.
        return schema_of(self._read(BatchOptions).columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002 - Spark's
        """Return the streaming source."""
        with unsearched():
            from shardfleet_spark.stream_reader import KinesisStreamReader  # noqa: PLC0415

        return KinesisStreamReader(self._read(SourceOptions))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's
        """Return the batch source."""
        from shardfleet_spark.batch_reader import KinesisBatchReader  # noqa: PLC0415

        return KinesisBatchReader(self._read(BatchOptions))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802, FBT001 - Spark's
        """Return the streaming sink."""
        from shardfleet_spark.sink.sink import make_stream_writer  # noqa: PLC0415

        return make_stream_writer(self._given(), schema, overwrite=overwrite)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return the batch sink."""
        from shardfleet_spark.sink.sink import make_batch_writer  # noqa: PLC0415

        return make_batch_writer(self._given(), schema, overwrite=overwrite)

    def _read(self, options: type[T]) -> T:
        return read_options(options, self._given(), elsewhere=option_names(SinkOptions))

    def _given(self) -> dict[str, Any]:
        return dict(self.options)
