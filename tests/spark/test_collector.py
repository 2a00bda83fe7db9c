"""A Spark worker's collector does not look again and again through what was imported."""

import subprocess
import sys

import pytest

from tests.spark.test_stream_source import put

pytestmark = pytest.mark.processes

LATER = """
import gc, weakref
from shardfleet_spark.host.collector import leave_imports_alone

class Task:
    def __init__(self):
        self.itself = self

leave_imports_alone(1)
import xml.dom.minidom  # As a first task imports.
first = gc.get_freeze_count()
leave_imports_alone(1)
second = gc.get_freeze_count()
task = Task()
gone = weakref.ref(task)
leave_imports_alone(1)
del task
gc.collect()
looked_at = len(gc.get_objects())
print(first, second > 1_000, gc.get_freeze_count() <= second, gone() is None, looked_at < 100)
clients = [[] for _ in range(9_000)]  # As a first task of another stream makes them.
leave_imports_alone(2)
print(len(gc.get_objects()) > 9_000)
leave_imports_alone(2)
print(len(gc.get_objects()) < 100)
leave_imports_alone(2)
"""


def test_what_a_later_task_leaves_is_collected_as_ever():
    told = subprocess.run(
        [sys.executable, "-c", LATER], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == ["0", *["True"] * 6]


READS = """
import gc, sys
from shardfleet_spark.batch_reader import KinesisBatchReader
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.source_options import BatchOptions, SourceOptions
from shardfleet_spark.stream_reader import KinesisStreamReader

kind, stream, endpoint, region = sys.argv[1:]
options = dict(stream=stream, endpoint=endpoint, region=region, startingPosition="TRIM_HORIZON")
if kind == "stream":
    reader = KinesisStreamReader(read_options(SourceOptions, options))
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start))
else:
    reader = KinesisBatchReader(read_options(BatchOptions, options))
    tasks = reader.partitions()
planned = gc.get_freeze_count()
for _ in range(3):
    rows = sum(batch.num_rows for task in tasks for batch in reader.read(task))
print(rows, planned, gc.get_freeze_count(), len(gc.get_objects()))
"""


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_a_process_that_reads_leaves_its_imports_alone(embedded_aws, make_stream, kind):
    stream = make_stream()
    put(embedded_aws, stream, [("key", b"data")])
    words = [kind, stream, embedded_aws.endpoint_url, embedded_aws.region]
    told = subprocess.run(
        [sys.executable, "-c", READS, *words], stdout=subprocess.PIPE, check=True, timeout=120
    )
    rows, planned, left_alone, looked_at = map(int, told.stdout.split())
    assert (rows, planned) == (1, 0)
    assert looked_at < 2_000  # What the first task imported on its way is left alone, too.
    assert left_alone > 10_000  # PySpark and pyarrow alone are tens of thousands of objects.
