"""A Spark worker does not look again and again through what was imported."""

import os
import subprocess
import sys
import zipfile

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


ARCHIVES = """
from zipimport import zipimporter

def archives():  # Which of the path's are read again before the next task.
    found = [place for place, finder in sys.path_importer_cache.items()
             if isinstance(finder, zipimporter)]
    return len(found), sum(place.endswith(".jar") for place in sys.path)
"""
READS = f"""
import gc, sys
{ARCHIVES}
before = archives()
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
print(rows, planned, gc.get_freeze_count(), len(gc.get_objects()), *before, *archives())
import lazily_imported  # What a path's archive holds can still be had.
"""


WRITES = f"""
import sys
{ARCHIVES}
from shardfleet_spark.options.options import read_options
from shardfleet_spark.options.sink_options import SinkOptions
from shardfleet_spark.sink.sink import BatchSink
before = archives()
BatchSink(read_options(SinkOptions, dict(stream="s", region="eu-central-1"))).write(iter(()))
print(*before, *archives())
"""


@pytest.fixture
def archives(tmp_path):
    """An environment whose path holds what Spark puts on it, a jar and an archive of Python."""
    for name in ("spark-core.jar", "packages.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("lazily_imported.py", "")
    path = os.pathsep.join([str(tmp_path / "spark-core.jar"), str(tmp_path / "packages.zip")])
    return os.environ | {"PYTHONPATH": path}


def test_a_process_that_writes_reads_no_archive_again(archives):
    written = subprocess.run(
        [sys.executable, "-c", WRITES], env=archives, stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert written.stdout.split() == [b"2", b"1", b"0", b"0"]


@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_a_process_that_reads_leaves_its_imports_alone(embedded_aws, make_stream, archives, kind):
    stream = make_stream()
    put(embedded_aws, stream, [("key", b"data")])
    words = [kind, stream, embedded_aws.endpoint_url, embedded_aws.region]
    told = subprocess.run(
        [sys.executable, "-c", READS, *words],
        env=archives,
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    rows, planned, left_alone, looked_at, *read_again = map(int, told.stdout.split())
    assert read_again == [2, 1, 0, 0]
    assert (rows, planned) == (1, 0)
    assert looked_at < 2_000  # What the first task imported on its way is left alone, too.
    assert left_alone > 10_000  # PySpark and pyarrow alone are tens of thousands of objects.
