"""
What the Spark benchmarks share: a Kinesis, a session, loads, and what a query costs.

CPU time is that of Spark alone, the JVM with all its Python processes, without the Kinesis engine:
it is the figure that a busy machine distorts least. Memory is each process's own high-water mark
(`VmHWM`, put back at the beginning of each run), looked at several times a second, by role: the
JVM, the Python process beside the driver that plans, and the workers that read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import bench_aggregate
import boto3
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from shardfleet.kpl.hash_keys import MAX_HASH_KEY
from shardfleet_spark.java import use_java
from shardfleet_spark.local_python import use_local_python

T = TypeVar("T")
HERE = Path(__file__).parent
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
HEAP = "1g"
_PUT_BYTES, _PUT_RECORDS = 4 * 1024 * 1024, 500
_LOOK_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_END_LIMIT_S = 600
_TOO_SLOW = "Python worker failed to connect back"
_ATTEMPTS = 5


# --- the stream ---


class Kinesis:
    """
    The stand-alone server of our Kinesis engine, in a process of its own.

    Args:
        quotas: whether shards enforce their limits.

    """

    def __init__(self, *, quotas: bool) -> None:
        self._quotas = quotas

    def __enter__(self) -> Self:
        os.environ.update(CREDENTIALS)
        words = [sys.executable, "-m", "shardfleet.local.kinesis"]
        words += [] if self._quotas else ["--no-quotas"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.endpoint = json.loads(self._process.stdout.readline())["endpoint"]
        self.client: Any = boto3.client("kinesis", endpoint_url=self.endpoint)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)

    def options(self, stream: str) -> dict[str, str]:
        """Return the options that name a stream of this server."""
        return {"stream": stream, "region": "us-east-1", "endpoint": self.endpoint}

    def make_stream(self, name: str, *, shards: int) -> None:
        """Create a stream and wait until it can be written to."""
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.client.get_waiter("stream_exists").wait(
            StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60}
        )

    def put(self, stream: str, data: Sequence[bytes], *, shards: int) -> None:
        """Put records one shard after the other, as many into each."""
        batch, size = [], 0
        for index, each in enumerate(data):
            hash_key = (2 * (index % shards) + 1) * (MAX_HASH_KEY + 1) // (2 * shards)
            batch.append(
                {"Data": each, "PartitionKey": f"key-{index}", "ExplicitHashKey": str(hash_key)}
            )
            size += len(each)
            if len(batch) == _PUT_RECORDS or size >= _PUT_BYTES:
                self._put(stream, batch)
                batch, size = [], 0
        self._put(stream, batch)

    def _put(self, stream: str, records: Sequence[dict[str, Any]]) -> None:
        if records:
            answer = self.client.put_records(StreamName=stream, Records=records)
            assert answer["FailedRecordCount"] == 0


@dataclass(frozen=True, kw_only=True)
class Load:
    """
    What is in the stream.

    Attributes:
        name: short.
        data: of the stream records.
        rows: that come of them.
        payload_bytes: of the rows.

    """

    name: str
    data: Sequence[bytes]
    rows: int
    payload_bytes: int


def load(name: str) -> Load:
    """Return a load: `100b_kpl`, `1k`, `10k`, or `few`, which is a byte for each of 64 shards."""
    if name == "few":
        return Load(name=name, data=[b"x"] * 64, rows=64, payload_bytes=64)
    if name == "100b_kpl":
        groups = bench_aggregate.small_records()
        times = 8
        return Load(
            name=name,
            data=list(bench_aggregate.ours(groups)) * times,
            rows=times * sum(map(len, groups)),
            payload_bytes=times * sum(len(user.data) for group in groups for user in group),
        )
    size, count = {"1k": (1024, 262_144), "10k": (10 * 1024, 26_240)}[name]
    block = os.urandom(size + count)
    data = [block[first : first + size] for first in range(count)]
    return Load(name=name, data=data, rows=count, payload_bytes=size * count)


# --- Spark ---


def session(cores: int = 2) -> SparkSession:
    """Start Spark on this machine, with a Java heap of `HEAP` and nothing on the screen."""
    use_java()
    use_local_python()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": HEAP,
        "spark.python.authenticate.socketTimeout": "120s",  # The machine may be busy.
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataProgressEventInterval": "100",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("benchmark")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows_of(query: StreamingQuery) -> int:
    """Return how many rows a query has read."""
    return sum(int(each["numInputRows"]) for each in query.recentProgress)


# --- what it costs ---


@dataclass(slots=True)
class Cost:
    """
    What Spark used.

    Attributes:
        wall_s: seconds.
        cpu_s: CPU seconds of the JVM and all its Python processes, user and system.
        peak_mib: role to the highest `VmHWM` of one process of it.

    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mib: dict[str, int] = field(default_factory=dict)


class Meter:
    """Looks at the processes of a session."""

    def __init__(self, spark: SparkSession) -> None:
        """Find the JVM of the session."""
        jvm: Any = spark._jvm  # noqa: SLF001 - pyspark has no other way to it.
        self._root = int(jvm.java.lang.ProcessHandle.current().pid())

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, of ended processes too."""
        return sum(map(_cpu_ticks, _tree(self._root))) / _TICKS_PER_S

    @contextmanager
    def measured(self) -> Iterator[Cost]:
        """Measure what happens inside; the peaks are those of processes alive meanwhile."""
        cost = Cost()
        for pid in _tree(self._root):
            _forget_peak(pid)
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(cost, stop))
        before, started = self.cpu_s(), time.perf_counter()
        watcher.start()
        try:
            yield cost
        finally:
            cost.wall_s = time.perf_counter() - started
            cost.cpu_s = self.cpu_s() - before
            stop.set()
            watcher.join()

    def _watch(self, cost: Cost, stop: threading.Event) -> None:
        while not stop.wait(_LOOK_S):
            for pid in _tree(self._root):
                role, peak = _role_and_peak(pid, root=self._root)
                cost.peak_mib[role] = max(cost.peak_mib.get(role, 0), peak)


def _tree(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _read(entry / "stat").rpartition(")")[2].split()
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def _cpu_ticks(pid: int) -> int:
    # utime, stime and those of children that have ended.
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def _forget_peak(pid: int) -> None:
    # proc(5): 5 puts the high-water mark back to what is resident now.
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def _role_and_peak(pid: int, *, root: int) -> tuple[str, int]:
    words = _read(Path(f"/proc/{pid}/cmdline"))
    peak = 0
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("VmHWM:"):
            peak = int(line.split()[1]) // 1024
    if pid == root:
        return "jvm", peak
    if "streaming_source_runner" in words:
        return "planner", peak
    return ("worker" if "pyspark.daemon" in words else "other"), peak


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def in_turns(candidates: dict[str, Callable[[str], Cost]], *, rounds: int) -> dict[str, list[Cost]]:
    """Run the candidates in turn, one round to warm up first; each gets the round's name."""
    found: dict[str, list[Cost]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name, run in candidates.items():
            cost = run(f"{name}-{number}")
            if number:
                found[name].append(cost)
    return found


def patiently(run: Callable[[int], T]) -> T:
    """
    Do something with a new query; it gets the number of the attempt.

    Spark gives a new Python process 10 s to start. On a busy machine that may not be enough, and
    then the query, which has not read anything, is started again.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return run(attempt)
        except StreamingQueryException as error:
            if _TOO_SLOW not in str(error):
                raise
            print("the machine is too busy for Spark, once more", flush=True)
    raise RuntimeError(f"{_ATTEMPTS} times: {_TOO_SLOW}")


def to_the_end(writer: DataStreamWriter, meter: Meter) -> tuple[StreamingQuery, Cost]:
    """Read all that is there, to the end; return the query and what it cost."""

    def run(_attempt: int) -> tuple[StreamingQuery, Cost]:
        with meter.measured() as cost:
            return _ended(writer), cost

    return patiently(run)


def _ended(writer: DataStreamWriter) -> StreamingQuery:
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(_END_LIMIT_S), "the query did not end"
    finally:
        query.stop()
    return query
