"""
How many records a second does Spark get out of a stream, and what does each cost?

Three loads in 64 shards of our Kinesis engine (quotas off, no TLS): records of about 100 B in KPL
aggregates, of 1 KiB and of 10 KiB. A streaming query in `local[2]` reads batches of 64 MiB, as many
records of each shard, and throws them away (format noop). The candidates take turns: our source
with seals in a folder; our source without a seal store, when the driver reads; the same rows from
Parquet files; record batches that lie ready in the workers (`prebuilt_source.py`), the least that
a source in Python costs; and a source as one writes it in an hour (`naive_source.py`: boto3,
tuples, a task per shard). All have the same seven columns, and the rows of all are compared first.

The contenders are measured warm. They run in turns, as many queries of as many batches each, until
of each one the CPU time per row is flat: its last three queries lie within 15 % of one another. If
that takes too long, the result says of whom it was not. The other two, which are many times slower
whatever the JVM still compiles, have one query to warm up.

Per core means: per CPU second of the JVM and all its Python processes, without the Kinesis engine;
it is told apart by process, and what the JVM's compiler threads took by itself. The first batches
of a query and the last one do not count, so what starting and ending it takes is left out; what a
batch takes is in. Wall time depends on who else uses the machine. Memory is the highest resident
size of each process; the Java heap is limited to 1 GiB.

    python benchmarks/bench_spark_source.py [--only spark_source_1k] [--folder DIR]
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import charts
import side_by_side
import spark_bench
from naive_source import COLUMNS, SCHEMA, NaiveDataSource
from prebuilt_source import PrebuiltDataSource, write_rows
from pyspark.sql import DataFrame, SparkSession
from side_by_side import Figures
from spark_bench import Cost, Kinesis, Load, Meter

SHARDS, ROUNDS = 64, 5
SLOW_ROUNDS = 2
WARM_MOST = 12
GOAL = 0.75  # of Parquet's rows a second
LOADS = {"100b_kpl": "100 B in KPL aggregates", "1k": "1 KiB", "10k": "10 KiB"}
BATCHES, WARM_UP = 7, 2
MOST_MIB = 600  # Of a worker: 32 MiB of records, the answers under way, and a Python with pyarrow.
FINGERPRINT = ("count(*)", f"sum(cast(xxhash64({', '.join(COLUMNS)}) as decimal(38,0)))")
OURS, NO_STORE, PARQUET, NAIVE = "ours", "ours, no seal store", "Parquet", "naive tuples"
PREBUILT = "prebuilt batches"
CONTENDERS = (OURS, PARQUET, PREBUILT)
PLOT = Path(__file__).parent.parent / "docs" / "img" / "spark_source.svg"
Make = Callable[[str], DataFrame]


@dataclass(frozen=True, slots=True)
class Steady:
    """
    The batches of a query that count.

    Attributes:
        rows: that they had.
        cpu_s: CPU seconds they took.
        parts_s: the same by role.
        wall_s: seconds they took.
        peak_mib: of the whole query, by role.

    """

    rows: int
    cpu_s: float
    parts_s: dict[str, float]
    wall_s: float
    peak_mib: dict[str, int]


def candidates(
    spark: SparkSession, kinesis: Kinesis, load: Load, *, folder: Path, batches: int
) -> dict[str, Make]:
    """Put so many batches into a stream and into files; return what makes a run's table."""
    one, many, files = f"{load.name}-1", f"{load.name}-{batches}", folder / f"files-{batches}"
    for stream, times in {one: 1, many: batches}.items():
        if stream not in kinesis.client.list_streams()["StreamNames"]:
            kinesis.make_stream(stream, shards=SHARDS)
            for _ in range(times):
                kinesis.put(stream, load.data, shards=SHARDS)
    ours = {"startingPosition": "TRIM_HORIZON", "columns": ",".join(COLUMNS)}
    whole = spark.read.format("shardfleet").options(**kinesis.options(one), **ours).load().cache()
    for _ in range(batches):
        whole.write.mode("append").parquet(str(files))
    prebuilt_file = folder / f"rows-{batches}.arrow"
    write_rows(whole, prebuilt_file)
    whole.unpersist()
    of_a_batch = {"maxRecordsPerBatch": str(len(load.data))}

    def sealed(run: str) -> DataFrame:
        store = {"sealStore": f"file:{folder / 'seals' / run}"}
        options = kinesis.options(many) | ours | of_a_batch | store
        return spark.readStream.format("shardfleet").options(**options).load()

    def unsealed(_run: str) -> DataFrame:
        options = kinesis.options(many) | ours | of_a_batch
        return spark.readStream.format("shardfleet").options(**options).load()

    def parquet(_run: str) -> DataFrame:
        files_of_a_batch = len(list(files.glob("*.parquet"))) // batches
        read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_of_a_batch)
        return read.parquet(str(files))

    def naive(_run: str) -> DataFrame:
        aggregated = "true" if "kpl" in load.name else "false"
        options = {"batches": str(batches), "aggregated": aggregated}
        options |= kinesis.options(one)
        return spark.readStream.format("naive").options(**options).load()

    def prebuilt(_run: str) -> DataFrame:
        options = {"batches": str(batches), "file": str(prebuilt_file)}
        return spark.readStream.format("prebuilt").options(**options).load()

    made: dict[str, Make] = {OURS: sealed, PARQUET: parquet, PREBUILT: prebuilt}
    return made | {NO_STORE: unsealed, NAIVE: naive}


def fingerprint(frame: DataFrame, checkpoint: Path) -> tuple[int, int]:
    """Return the number of rows of a query, and a sum that depends on each of them."""
    found: list[tuple[int, int]] = []

    def add(batch: DataFrame, _number: int) -> None:
        (row,) = batch.selectExpr(*FINGERPRINT).collect()
        found.append((row[0], int(row[1] or 0)))

    writer = frame.writeStream.foreachBatch(add).option("checkpointLocation", str(checkpoint))
    spark_bench.to_the_end(writer)
    return sum(count for count, _ in found), sum(total for _, total in found)


def one_run(run: str, make: Make, meter: Meter, *, load: Load, folder: Path) -> Steady:
    """Run one query; return its steady part."""
    writer = make(run).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(folder / "checkpoints" / run))
    ends: dict[int, Cost] = {}
    with meter.measured() as cost:
        query = spark_bench.to_the_end(writer, lambda batch: ends.update({batch: meter.so_far()}))
    rows = {each["batchId"]: int(each["numInputRows"]) for each in query.recentProgress}
    assert sum(rows.values()) == BATCHES * load.rows, f"{run}: {rows}"
    done, before, after = 0, -1, -1
    for batch in sorted(rows):
        done += rows[batch]
        if batch in ends:
            before = batch if before < 0 and done >= WARM_UP * load.rows else before
            after = batch if done < BATCHES * load.rows else after
    took = sum(rows[batch] for batch in range(before + 1, after + 1))
    assert took, f"{run}: no steady part in {rows}"
    return Steady(
        rows=took,
        cpu_s=ends[after].cpu_s - ends[before].cpu_s,
        parts_s={
            role: ends[after].parts_s[role] - ends[before].parts_s.get(role, 0.0)
            for role in ends[after].parts_s
        },
        wall_s=ends[after].wall_s - ends[before].wall_s,
        peak_mib=cost.peak_mib,
    )


def measure(spark: SparkSession, kinesis: Kinesis, meter: Meter, *, name: str) -> Figures:
    """Compare what the candidates read, then time them in turns."""
    load = spark_bench.load(name)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as place:
        folder = Path(place)
        once = candidates(spark, kinesis, load, folder=folder, batches=1)
        prints = {
            each: fingerprint(make(f"check-{each}"), folder / "checks" / each)
            for each, make in once.items()
        }
        assert len(set(prints.values())) == 1, prints
        assert prints[OURS][0] == load.rows, prints
        made = candidates(spark, kinesis, load, folder=folder, batches=BATCHES)
        run = partial(one_run, meter=meter, load=load, folder=folder)
        warm = warm_up(run, {each: made[each] for each in CONTENDERS})
        found: dict[str, list[Steady]] = {each: [] for each in made}
        for number in range(ROUNDS):
            for each in CONTENDERS:
                found[each].append(run(f"{each}-{number}", made[each]))
                print(f"{name}, {each}: {found[each][-1]}", flush=True)
        for each in (NO_STORE, NAIVE):
            runs = [run(f"{each}-{number}", made[each]) for number in range(1 + SLOW_ROUNDS)]
            found[each] = runs[1:]
    for stream in kinesis.client.list_streams()["StreamNames"]:
        kinesis.client.delete_stream(StreamName=stream)
    return told(load, {each: _of(load, runs) for each, runs in found.items()}, warm)


def warm_up(run: Callable[[str, Make], Steady], made: dict[str, Make]) -> dict[str, list[float]]:
    """Run queries of all in turns until all are flat; return CPU us per row of each query."""
    took: dict[str, list[float]] = {each: [] for each in made}
    while len(took[OURS]) < WARM_MOST and not all(map(spark_bench.is_flat, took.values())):
        for each, make in made.items():
            steady = run(f"warm-{each}-{len(took[each])}", make)
            took[each].append(round(steady.cpu_s * 1e6 / steady.rows, 2))
            print(f"warming, {each}: {took[each]}", flush=True)
    return took


def told(load: Load, figures: dict[str, dict[str, Any]], warm: dict[str, list[float]]) -> Figures:
    """Put the figures into words and a result."""
    ours, parquet = figures[OURS], figures[PARQUET]
    kinds = ("records_per_s", "records_per_core_s")
    of_parquet = {
        name: {kind: round(figures[name][kind] / parquet[kind], 3) for kind in kinds}
        for name in (OURS, PREBUILT)
    }
    beside = ", ".join(
        f"{name} {each['records_per_core_s']:,}" for name, each in figures.items() if name != OURS
    )
    worker = ours["peak_mib"]["worker"]
    return Figures(
        name=f"spark_source_{load.name}",
        compares=f"Spark source, {LOADS[load.name]}, {SHARDS} shards, rows to nowhere",
        summary=(
            f"{ours['records_per_core_s']:,} records/s or {ours['mb_per_core_s']:,} MB/s per core "
            f"({beside} records/s), {of_parquet[OURS]['records_per_core_s']} x Parquet, "
            f"{of_parquet[OURS]['records_per_s']} x in wall time; peak {worker} MiB a worker, "
            f"{ours['peak_mib']['planner']} MiB the planner, {ours['peak_mib']['jvm']} MiB the JVM"
        ),
        gate=f"a worker below {MOST_MIB} MiB",
        met=worker <= MOST_MIB,
        goal=f"{GOAL} x Parquet's records/s, warm",
        details={
            "of_parquet": of_parquet,
            "warm_up_cpu_us_per_record": warm,
            "not_flat": [name for name, took in warm.items() if not spark_bench.is_flat(took)],
            "rows_of_a_batch": load.rows,
            "payload_bytes_of_a_batch": load.payload_bytes,
            "candidates": figures,
        },
    )


def _of(load: Load, runs: Sequence[Steady]) -> dict[str, Any]:
    cpu_s = statistics.median(each.cpu_s / each.rows for each in runs)
    wall_s = statistics.median(each.wall_s / each.rows for each in runs)
    mb = load.payload_bytes / load.rows / 1e6
    roles = sorted({role for each in runs for role in each.peak_mib})
    return {
        "records_per_core_s": round(1 / cpu_s),
        "mb_per_core_s": round(mb / cpu_s, 1),
        "cpu_us_per_record": round(cpu_s * 1e6, 2),
        "cpu_us_per_record_of_each_run": [round(e.cpu_s * 1e6 / e.rows, 2) for e in runs],
        "cpu_us_per_record_by_part": {
            role: round(
                statistics.median(each.parts_s.get(role, 0.0) * 1e6 / each.rows for each in runs), 2
            )
            for role in sorted({role for each in runs for role in each.parts_s})
        },
        "records_per_s": round(1 / wall_s),
        "mb_per_s": round(mb / wall_s, 1),
        "peak_mib": {role: max(each.peak_mib.get(role, 0) for each in runs) for role in roles},
    }


def plot(found: Sequence[Figures]) -> str:
    """Return the picture: records per CPU second of each candidate at each load."""
    groups = {
        words: {
            name: each["records_per_core_s"] for name, each in result.details["candidates"].items()
        }
        for words, result in zip(LOADS.values(), found, strict=True)
    }
    return charts.bars(
        "records a second and core, Kinesis to nowhere (bars: logarithmic)",
        groups,
        unit="records/s",
    )


def figures(names: Sequence[str] = tuple(LOADS)) -> Iterator[Figures]:
    """Measure some loads; draw the picture if that is all."""
    with Kinesis(quotas=False) as kinesis:
        spark = spark_bench.session()
        for each in (NaiveDataSource, PrebuiltDataSource):
            spark.dataSource.register(each)
        meter, found = Meter(spark), []
        for name in names:
            found.append(measure(spark, kinesis, meter, name=name))
            yield found[-1]
        spark.stop()
    if len(found) == len(LOADS):
        PLOT.write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
