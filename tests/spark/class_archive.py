"""
Spark's classes, found and checked beforehand: `python -m tests.spark.class_archive`.

In each new process Java looks for thousands of classes, and checks and links them: half of the
processor time of a session that does little. An archive of them (class-data sharing, JEP 350) is
mapped into memory instead. It fits the Java and the PySpark that it was made by; Java passes over
one that does not fit, and over one that is not there, and starts as ever.
"""

import os
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from shardfleet_spark.host.java import use_java
from shardfleet_spark.host.local_python import use_local_python
from tests.conftest import CLASS_ARCHIVE
from tests.spark.conftest import SETTINGS

END_LIMIT_S = 300


class Numbers(DataSource, DataSourceStreamReader, DataSourceReader):
    """A source in Python, as ours is one."""

    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n int, at timestamp"

    def reader(self, schema):
        return self

    streamReader = reader  # noqa: N815 - Spark's name

    def initialOffset(self):  # noqa: N802 - as above
        return {"at": 0}

    def latestOffset(self, start, limit):  # noqa: N802 - as above
        return {"at": 1}

    def partitions(self, start=None, end=None):
        return [InputPartition(0), InputPartition(1)]

    def read(self, _partition):
        yield from ((number, datetime.now(UTC)) for number in range(10))


def work(session, folder):
    """Do a little of each thing that the tests do."""
    session.dataSource.register(Numbers)
    session.read.format("numbers").load().collect()
    rows = [(b'{"a": 1}', number) for number in range(20)]
    table = session.createDataFrame(rows, "data binary, n int")
    table.select(sf.from_json(sf.col("data").cast("string"), "a int")).collect()
    table.mapInArrow(lambda batches: batches, table.schema).groupBy("n").count().collect()
    table.write.partitionBy("n").parquet(f"{folder}/table")
    session.read.parquet(f"{folder}/table").orderBy("n").toJSON().collect()
    stream = session.readStream.format("numbers").load()
    counts = stream.withWatermark("at", "1 day").groupBy(sf.window("at", "1 day"), "n").count()
    writers = {
        "counts": counts.writeStream.outputMode("update").foreachBatch(collect),
        "rows": stream.writeStream.format("parquet").option("path", f"{folder}/rows"),
    }
    for name, writer in writers.items():
        kept = writer.option("checkpointLocation", f"{folder}/{name}-checkpoint")
        kept.trigger(availableNow=True).start().awaitTermination()


def collect(batch, _number):
    batch.collect()


def make(archive):
    """Make the archive; it is there when Java has ended."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        part = Path(folder, archive.name)
        # Java would say of hundreds of classes why they are left out.
        making = f"-XX:ArchiveClassesAtExit={shlex.quote(str(part))} -Xlog:disable"
        os.environ["SPARK_SUBMIT_OPTS"] = making
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        use_local_python()
        own = {"spark.local.dir": f"{folder}/local", "spark.sql.warehouse.dir": folder}
        builder = SparkSession.builder.master("local[2]").config(map=SETTINGS | own)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        work(session, folder)
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(END_LIMIT_S)
        part.replace(archive)


def main():
    """Make it, if there is a Java: what goes wrong is no more than told."""
    if not use_java():
        return
    sys.stdout.write("reading Spark's classes for the tests (once per lock)\n")
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # Spark greets.
    try:
        make(Path(CLASS_ARCHIVE))
    except Exception as error:  # noqa: BLE001 - the tests run without it as well
        sys.stdout.write(f"they will be read by each Java: {error}\n")


if __name__ == "__main__":
    main()
