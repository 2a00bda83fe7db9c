"""
What does a micro-batch cost when there is next to nothing in it, and a trigger when there is none?

Streams of 1, 10, 100 and 1,000 shards of our Kinesis engine (its limits on). A query in `local[2]`
with a trigger twice a second reads one record of each shard per batch, and throws it away. Our
source runs with seals in a folder and without a seal store, beside one small Parquet file per
batch and a source as one writes it in an hour (`naive_source.py`: a task per shard; up to 100
shards). At last the stream is idle for some seconds, while a query is triggered each second, and
another one as often as Spark can.

All but the naive source are measured warm: they take turns, a query of as many batches each, until
of each one the CPU time of a batch is flat (its last three queries lie within 15 % of one another),
and those three are its result. If that takes too long, the result says of whom it was not. The
first batches of each query, which start Python processes, are not counted.

CPU time is that of the JVM and all its Python processes, without the Kinesis engine; it is told
apart by process, and what the JVM's compiler threads took by itself.

    python benchmarks/bench_spark_micro_batch.py [--folder DIR]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import charts
import side_by_side
import spark_bench
from naive_source import COLUMNS, SCHEMA, NaiveDataSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from side_by_side import Figures
from spark_bench import Kinesis, Meter

SHARDS = (1, 10, 100, 1_000)
STARTING, COUNTED = 3, 12
QUERIES_MOST = 7
GOAL = 1.5  # of what a batch of Parquet takes
IDLE_S = 10.0
NAIVE_MOST = 100
PLOT = Path(__file__).parent.parent / "docs" / "img" / "spark_micro_batch.svg"
SEALED, NO_STORE, PARQUET, NAIVE = "ours", "ours, no seal store", "Parquet", "naive tuples"
WARM = (SEALED, PARQUET, NO_STORE)
_LIMIT_S = 900


class Case:
    """
    The candidates at one number of shards.

    Args:
        spark: the session.
        kinesis: the engine.
        folder: for files, seals and checkpoints.
        shards: how many.

    """

    def __init__(self, spark: SparkSession, kinesis: Kinesis, folder: Path, *, shards: int) -> None:
        self._spark, self._folder, self._shards = spark, folder / str(shards), shards
        many, one = f"many-{shards}", f"one-{shards}"
        for stream, each in ((many, STARTING + COUNTED), (one, 1)):
            kinesis.make_stream(stream, shards=shards)
            kinesis.put(stream, [b"x" * 100] * shards * each, shards=shards)
        self._ours = kinesis.options(many) | {
            "startingPosition": "TRIM_HORIZON",
            "columns": ",".join(COLUMNS),
            "maxRecordsPerShard": "1",
        }
        self._naive = kinesis.options(one) | {"batches": str(STARTING + COUNTED)}

    def frames(self) -> dict[str, Callable[[], DataFrame]]:
        """Return what makes each candidate's table."""
        found = {SEALED: self._sealed, NO_STORE: self._unsealed, PARQUET: self._parquet}
        return found | ({NAIVE: self._naive_frame} if self._shards <= NAIVE_MOST else {})

    def checkpoint(self, name: str) -> str:
        """Return a folder for a query."""
        return str(self._folder / "checkpoints" / name)

    def idle(self) -> DataFrame:
        """Return the table of a stream of which everything is read."""
        options = self._ours | {"startingPosition": "LATEST"}
        return self._stream(options | {"sealStore": f"file:{self._folder / 'idle-seals'}"})

    def _sealed(self) -> DataFrame:
        return self._stream(self._ours | {"sealStore": f"file:{self._folder / 'seals'}"})

    def _unsealed(self) -> DataFrame:
        return self._stream(self._ours)

    def _parquet(self) -> DataFrame:
        files = self._folder / "parquet"
        rows = self._spark.range(self._shards).selectExpr(
            *(f"cast(null as {kind}) as {name}" for name, kind in _columns())
        )
        for _ in range(STARTING + COUNTED):
            rows.coalesce(1).write.mode("append").parquet(str(files))
        read = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        return read.parquet(str(files))

    def _naive_frame(self) -> DataFrame:
        return self._spark.readStream.format("naive").options(**self._naive).load()

    def _stream(self, options: dict[str, str]) -> DataFrame:
        return self._spark.readStream.format("shardfleet").options(**options).load()


def _columns() -> Iterator[tuple[str, str]]:
    for each in SCHEMA.split(", "):
        name, _, kind = each.partition(" ")
        yield name, kind


def start(frame: DataFrame, checkpoint: str, *, every: str) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime=every).start()


def batches_done(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of each batch that had rows."""
    if (failure := query.exception()) is not None:
        raise failure
    return [dict(each) for each in query.recentProgress if int(each["numInputRows"])]


def until(query: StreamingQuery, count: int) -> list[dict[str, Any]]:
    deadline = time.monotonic() + _LIMIT_S
    while len(done := batches_done(query)) < count:
        assert time.monotonic() < deadline, f"{len(done)} of {count} batches"
        time.sleep(0.05)
    return done


def small_batches(query: StreamingQuery, meter: Meter) -> dict[str, Any]:
    """Return what the counted batches of a query cost."""
    until(query, STARTING)
    before = meter.so_far().parts_s
    done = until(query, STARTING + COUNTED)[STARTING:]
    after = meter.so_far().parts_s
    parts_ms = {
        role: round((seconds - before.get(role, 0.0)) * 1_000 / COUNTED)
        for role, seconds in after.items()
    }
    took = {
        name: round(statistics.median(int(each["durationMs"].get(name, 0)) for each in done))
        for name in ("triggerExecution", "latestOffset", "addBatch", "walCommit", "commitOffsets")
    }
    cpu_ms = round((sum(after.values()) - sum(before.values())) * 1_000 / COUNTED)
    rows = int(done[-1]["numInputRows"])
    return {"cpu_ms": cpu_ms, "cpu_ms_by_part": parts_ms, "took_ms": took, "rows": rows}


def idle_time(query: StreamingQuery, meter: Meter) -> dict[str, Any]:
    """Return what a query costs that has nothing to read."""
    before = meter.cpu_s()
    time.sleep(IDLE_S)
    share = (meter.cpu_s() - before) / IDLE_S
    last = query.lastProgress
    took = int(last["durationMs"].get("latestOffset", 0)) if last else 0
    return {"share_of_a_core": round(share, 3), "latest_offset_ms": took}


def measure(case: Case, meter: Meter, *, shards: int) -> dict[str, Any]:
    """Measure all candidates at one number of shards."""
    frames = {name: frame() for name, frame in case.frames().items()}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in frames}

    def once(name: str, *, then_idle: bool = False) -> dict[str, Any]:
        label = f"{name}-{len(runs[name])}-{then_idle}"
        run = partial(of_candidate, case, meter, label=label, frame=frames[name], idle=then_idle)
        found = spark_bench.patiently(run)
        print(f"{shards} shards, {name}: {found}", flush=True)
        return found

    def is_warm(name: str) -> bool:
        return spark_bench.is_flat([each["cpu_ms"] for each in runs[name]])

    while len(runs[SEALED]) < QUERIES_MOST and not all(map(is_warm, WARM)):
        for name in WARM:
            runs[name].append(once(name))
    found = {name: of_the_last(runs[name]) | {"flat": is_warm(name)} for name in WARM}
    found[SEALED] |= once(SEALED, then_idle=True)["idle"]
    found[SEALED]["idle, triggered at once"] = spark_bench.patiently(partial(idle, case, meter))
    found[SEALED]["of_parquet"] = round(found[SEALED]["cpu_ms"] / found[PARQUET]["cpu_ms"], 2)
    if NAIVE in frames:
        found[NAIVE] = once(NAIVE)
    return found


def of_the_last(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the last queries, and what each of all took."""
    last = runs[-spark_bench.FLAT_LOOKS :]
    parts = {
        role: round(statistics.median(each["cpu_ms_by_part"].get(role, 0) for each in last))
        for role in last[-1]["cpu_ms_by_part"]
    }
    return last[-1] | {
        "cpu_ms": round(statistics.median(each["cpu_ms"] for each in last)),
        "cpu_ms_by_part": parts,
        "cpu_ms_of_each_query": [each["cpu_ms"] for each in runs],
    }


def of_candidate(
    case: Case, meter: Meter, attempt: int, *, label: str, frame: DataFrame, idle: bool
) -> dict[str, Any]:
    """Return what one query costs."""
    every = "1 second" if idle else "500 milliseconds"
    query = start(frame, case.checkpoint(f"{label}-{attempt}"), every=every)
    try:
        found = small_batches(query, meter)
        if idle:
            found["idle"] = {"idle, triggered each second": idle_time(query, meter)}
    finally:
        query.stop()
    return found


def idle(case: Case, meter: Meter, attempt: int) -> dict[str, Any]:
    """Return what our source costs when nothing comes and Spark asks as often as it can."""
    query = start(case.idle(), case.checkpoint(f"idle-{attempt}"), every="0 seconds")
    try:
        deadline = time.monotonic() + _LIMIT_S
        while query.lastProgress is None and query.exception() is None:
            assert time.monotonic() < deadline, "the query does not begin"
            time.sleep(0.1)
        batches_done(query)
        return idle_time(query, meter)
    finally:
        query.stop()


def plot(found: dict[int, dict[str, Any]]) -> str:
    """Return the picture: CPU time of a small batch and of idleness, by shards."""
    batches = {
        name: [(shards, each[name]["cpu_ms"]) for shards, each in found.items() if name in each]
        for name in (SEALED, NO_STORE, PARQUET, NAIVE)
    }
    idle = {
        kind: [(shards, 100 * each[SEALED][f"idle, triggered {kind}"]["share_of_a_core"])
               for shards, each in found.items()]
        for kind in ("each second", "at once")
    }  # fmt: skip
    return charts.picture(
        [
            charts.Chart(
                title="CPU ms of a micro-batch with one record of each shard",
                lines=batches,
                x_name="shards",
                x_marks=SHARDS,
                y_marks=(10, 100, 1_000, 10_000),
                logarithmic=True,
            ),
            charts.Chart(
                title="per cent of a core while nothing comes (ours), triggered",
                lines=idle,
                x_name="shards",
                x_marks=SHARDS,
                y_marks=(0.1, 1, 10, 100),
                logarithmic=True,
            ),
        ]
    )


def figures() -> Iterator[Figures]:
    """Measure at each number of shards."""
    with Kinesis(quotas=True) as kinesis, tempfile.TemporaryDirectory() as folder:
        spark = spark_bench.session()
        spark.dataSource.register(NaiveDataSource)
        meter, found = Meter(spark), {}
        for shards in SHARDS:
            case = Case(spark, kinesis, Path(folder), shards=shards)
            found[shards] = measure(case, meter, shards=shards)
        spark.stop()
    PLOT.write_text(plot(found), encoding="utf-8")
    costs = ", ".join(
        f"{shards:,} shards {each[SEALED]['cpu_ms']:,} ms" for shards, each in found.items()
    )
    idle = found[1_000][SEALED]["idle, triggered each second"]["share_of_a_core"]
    of_parquet = [each[SEALED]["of_parquet"] for each in found.values()]
    yield Figures(
        name="spark_micro_batch",
        compares="Spark source: a micro-batch of one record per shard, CPU time",
        summary=(
            f"{costs} ({', '.join(map(str, of_parquet))} x Parquet, naive tuples at 100 shards "
            f"{found[NAIVE_MOST][NAIVE]['cpu_ms']:,} ms); "
            f"no batch while nothing comes: {idle:.1%} of a core at 1,000 shards"
        ),
        goal=f"{GOAL} x a batch of Parquet, warm",
        details={f"{shards} shards": each for shards, each in found.items()},
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
