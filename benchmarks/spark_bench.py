"""
What the Spark benchmarks share: a Kinesis, a session, loads, and what a query costs.

CPU time is that of Spark alone, the JVM with all its Python processes, without the Kinesis engine:
it is the figure that a busy machine distorts least. Memory is each process's own high-water mark
(`VmHWM`, put back at the beginning of each run), looked at several times a second, by role: the
JVM, the Python process beside the driver that plans, and the workers that read. CPU time is told by
role, too, that of the JVM's compiler threads apart: a JVM that is still compiling is not yet warm.
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
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from shardfleet.kpl.hash_keys import MAX_HASH_KEY
from shardfleet_spark.host.java import use_java
from shardfleet_spark.host.local_python import use_local_python

T = TypeVar("T")
HERE = Path(__file__).parent
REGION = {"AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
HEAP = "1g"
_PUT_BYTES, _PUT_RECORDS = 4 * 1024 * 1024, 500
_LOOK_S, _POLL_S = 0.2, 0.03
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_END_LIMIT_S = 600
_TOO_SLOW = "Python worker failed to connect back"
_ATTEMPTS = 5
FLAT, FLAT_LOOKS = 1.15, 3
_COMPILERS = ("C1 CompilerThre", "C2 CompilerThre")


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
        words = [sys.executable, "-P", "-m", "shardfleet_local.kinesis"]
        words += [] if self._quotas else ["--no-quotas"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        told = json.loads(self._process.stdout.readline())
        os.environ |= {**REGION, **told["environment"]}
        self.endpoint = told["endpoint"]
        session = boto3.session.Session()  # The default one keeps the first keys it saw.
        self.client: Any = session.client("kinesis", endpoint_url=self.endpoint)
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
    What one batch is to have.

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
    """Return a load of about 64 MiB: `100b_kpl`, `1k` or `10k`."""
    if name == "100b_kpl":
        groups = bench_aggregate.small_records(320)
        times = 6
        return Load(
            name=name,
            data=list(bench_aggregate.ours(groups)) * times,
            rows=times * sum(map(len, groups)),
            payload_bytes=times * sum(len(user.data) for group in groups for user in group),
        )
    size, count = {"1k": (1024, 65_536), "10k": (10 * 1024, 6_528)}[name]
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


# --- what it costs ---


@dataclass(slots=True)
class Cost:
    """
    What Spark used.

    Attributes:
        wall_s: seconds.
        cpu_s: CPU seconds of the JVM and all its Python processes, user and system.
        parts_s: the same by role; `jit`: the JVM's compiler threads, which `jvm` leaves out.
        peak_mib: role to the highest `VmHWM` of one process of it.

    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    parts_s: dict[str, float] = field(default_factory=dict)
    peak_mib: dict[str, int] = field(default_factory=dict)


class Meter:
    """
    Looks at the processes of a session, several times a second, for as long as this program runs.

    Args:
        spark: the session.

    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - pyspark has no other way to it.
        self._root = int(jvm.java.lang.ProcessHandle.current().pid())
        self._lock = threading.Lock()
        # By process and its start, so that those which have ended still count.
        self._cpu_ticks: dict[tuple[int, str], tuple[str, int]] = {}
        self._peak_mib: dict[str, int] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        with self._lock:
            self._look()
            return sum(self._parts_s().values())

    @contextmanager
    def measured(self) -> Iterator[Cost]:
        """Measure what happens inside; the peaks are those of processes alive meanwhile."""
        cost = Cost()
        for pid in _tree(self._root):
            _forget_peak(pid)
        with self._lock:
            self._peak_mib = cost.peak_mib
        before, started = self.cpu_s(), time.perf_counter()
        try:
            yield cost
        finally:
            cost.wall_s = time.perf_counter() - started
            cost.cpu_s = self.cpu_s() - before

    def so_far(self) -> Cost:
        """Return what was used since this program began to look, without memory."""
        with self._lock:
            self._look()
            parts_s = self._parts_s()
        return Cost(wall_s=time.perf_counter(), cpu_s=sum(parts_s.values()), parts_s=parts_s)

    def _parts_s(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for role, ticks in self._cpu_ticks.values():
            found[role] = found.get(role, 0.0) + ticks / _TICKS_PER_S
        # The process's own figure has its compiler threads in it.
        found["jvm"] = found.get("jvm", 0.0) - found.get("jit", 0.0)
        return found

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            with self._lock:
                self._look()

    def _look(self) -> None:
        for pid in _tree(self._root):
            role, peak = _role_and_peak(pid, root=self._root)
            self._peak_mib[role] = max(self._peak_mib.get(role, 0), peak)
            self._count(pid, Path(f"/proc/{pid}/stat"), role)
        for task in Path(f"/proc/{self._root}/task").iterdir():
            if _read(task / "comm").startswith(_COMPILERS):
                self._count(int(task.name), task / "stat", "jit")

    def _count(self, number: int, stat: Path, role: str) -> None:
        fields = _read(stat).rpartition(")")[2].split()
        if fields:
            # The JVM's first thread has its number, and its start.
            key = (-number if role == "jit" else number, fields[19])
            if role == "other" and key in self._cpu_ticks:
                role = self._cpu_ticks[key][0]  # One that is ending has no words any more.
            self._cpu_ticks[key] = (role, int(fields[11]) + int(fields[12]))


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


def is_flat(took: Sequence[float]) -> bool:
    """Tell whether a candidate is warm: its last three queries lie within 15 % of one another."""
    last = took[-FLAT_LOOKS:]
    return len(last) == FLAT_LOOKS and max(last) <= FLAT * min(last)


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


def to_the_end(
    writer: DataStreamWriter, at_end_of: Callable[[int], object] = lambda _batch: None
) -> StreamingQuery:
    """
    Read all that is there, to the end.

    Args:
        writer: of the query.
        at_end_of: called soon after a batch has ended, with its number; of batches that end at
            nearly the same time, with the last one's only.

    """

    def run(_attempt: int) -> StreamingQuery:
        query, last, deadline = writer.trigger(availableNow=True).start(), -1, _deadline()
        try:
            while query.isActive:
                progress = query.lastProgress
                if progress is not None and progress["batchId"] != last:
                    last = progress["batchId"]
                    at_end_of(last)
                assert time.monotonic() < deadline, "the query did not end"
                time.sleep(_POLL_S)
            query.awaitTermination()  # Raises what ended it.
        finally:
            query.stop()
        return query

    return patiently(run)


def _deadline() -> float:
    return time.monotonic() + _END_LIMIT_S
