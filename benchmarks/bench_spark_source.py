"""
How many records a second does Spark get out of a stream, and what does each cost?

Three loads in 64 shards of our Kinesis engine (quotas off, no TLS): records of about 100 B in KPL
aggregates, of 1 KiB and of 10 KiB. A streaming query reads all there is and throws it away (format
noop), in `local[2]`. The candidates take turns: our source with seals in a folder; our source
without a seal store, when the driver reads; the same rows from Parquet files; and a source as one
writes it in an hour (`naive_source.py`: boto3, tuples, a task per shard). All have the same seven
columns, and the rows of all are compared first. awslabs' spark-sql-kinesis-connector would be a
fifth; each run asks Maven Central for it (`connector_lookup.py`).

Per core means: per CPU second of the JVM and all its Python processes, without the Kinesis engine.
Each candidate also runs over 64 rows; what that takes is the cost of a query, and is left out of
the cost of a record. Wall time is of whole queries, and depends on who else uses the machine.
Memory is the highest resident size of each process; the Java heap is limited to 1 GiB.

    python benchmarks/bench_spark_source.py [--only spark_source_1k] [--folder DIR]
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import charts
import side_by_side
import spark_bench
from connector_lookup import look_up_connector
from naive_source import COLUMNS, SCHEMA, NaiveDataSource
from pyspark.sql import DataFrame, SparkSession
from side_by_side import Figures, Skipped
from spark_bench import Cost, Kinesis, Load, Meter

SHARDS, ROUNDS = 64, 5
LOADS = {"100b_kpl": "100 B in KPL aggregates", "1k": "1 KiB", "10k": "10 KiB"}
MOST_MIB = 600  # Of a worker: 64 MiB of records, the answers under way, and a Python with pyarrow.
FINGERPRINT = ("count(*)", f"sum(cast(xxhash64({', '.join(COLUMNS)}) as decimal(38,0)))")
OURS, NO_STORE, PARQUET, NAIVE = "ours", "ours, no seal store", "Parquet", "naive tuples"
PLOT = Path(__file__).parent.parent / "docs" / "img" / "spark_source.svg"
Make = Callable[[str], DataFrame]


def candidates(spark: SparkSession, kinesis: Kinesis, load: Load, folder: Path) -> dict[str, Make]:
    """Put the load into a stream and into files; return what makes a run's table, by candidate."""
    kinesis.make_stream(load.name, shards=SHARDS)
    kinesis.put(load.name, load.data, shards=SHARDS)
    where, files = kinesis.options(load.name), folder / "parquet" / load.name
    ours = where | {"startingPosition": "TRIM_HORIZON", "columns": ",".join(COLUMNS)}
    spark.read.format("shardfleet").options(**ours).load().write.parquet(str(files))

    def sealed(run: str) -> DataFrame:
        options = ours | {"sealStore": f"file:{folder / 'seals' / run}"}
        return spark.readStream.format("shardfleet").options(**options).load()

    def unsealed(_run: str) -> DataFrame:
        return spark.readStream.format("shardfleet").options(**ours).load()

    def parquet(_run: str) -> DataFrame:
        return spark.readStream.schema(SCHEMA).parquet(str(files))

    def naive(_run: str) -> DataFrame:
        options = where | {"aggregated": "true" if "kpl" in load.name else "false"}
        return spark.readStream.format("naive").options(**options).load()

    return {OURS: sealed, NO_STORE: unsealed, PARQUET: parquet, NAIVE: naive}


def fingerprint(frame: DataFrame, checkpoint: Path, meter: Meter) -> tuple[int, int]:
    """Return the number of rows of a query, and a sum that depends on each of them."""
    found: list[tuple[int, int]] = []

    def add(batch: DataFrame, _number: int) -> None:
        (row,) = batch.selectExpr(*FINGERPRINT).collect()
        found.append((row[0], int(row[1] or 0)))

    writer = frame.writeStream.foreachBatch(add).option("checkpointLocation", str(checkpoint))
    spark_bench.to_the_end(writer, meter)
    return sum(count for count, _ in found), sum(total for _, total in found)


def one_run(run: str, make: Make, meter: Meter, *, load: Load, folder: Path) -> Cost:
    checkpoint = folder / "checkpoints" / load.name / run
    writer = make(f"{load.name}-{run}").writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(checkpoint))
    query, cost = spark_bench.to_the_end(writer, meter)
    assert spark_bench.rows_of(query) == load.rows, run
    return cost


def measure(spark: SparkSession, kinesis: Kinesis, name: str) -> Figures:
    """Compare what the candidates read, then time them in turns."""
    few, load = spark_bench.load("few"), spark_bench.load(name)
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as place:
        folder = Path(place)
        made, meter = candidates(spark, kinesis, load, folder), Meter(spark)
        prints = {
            each: fingerprint(make(f"check-{each}"), folder / "checks" / each, meter)
            for each, make in made.items()
        }
        assert len(set(prints.values())) == 1, prints
        assert prints[OURS][0] == load.rows, prints
        idle = candidates(spark, kinesis, few, folder)
        run = partial(one_run, meter=meter, folder=folder)
        runs = {each: partial(run, make=make, load=load) for each, make in made.items()}
        runs |= {f"{each}, few": partial(run, make=idle[each], load=few) for each in made}
        costs = spark_bench.in_turns(runs, rounds=ROUNDS)
    for stream in (load.name, few.name):
        kinesis.client.delete_stream(StreamName=stream)
    return told(load, {each: (costs[each], costs[f"{each}, few"]) for each in made})


def told(load: Load, costs: dict[str, tuple[Sequence[Cost], Sequence[Cost]]]) -> Figures:
    """Put the medians into words and a result."""
    figures = {name: _of(load, *found) for name, found in costs.items()}
    ours = figures[OURS]
    beside = ", ".join(
        f"{name} {each['records_per_core_s']:,}" for name, each in figures.items() if name != OURS
    )
    worker = ours["peak_mib"]["worker"]
    return Figures(
        name=f"spark_source_{load.name}",
        compares=f"Spark source, {LOADS[load.name]}, {SHARDS} shards, rows to nowhere",
        summary=(
            f"{ours['records_per_core_s']:,} records/s or {ours['mb_per_core_s']:,} MB/s per core "
            f"({beside} records/s); a query itself {ours['query_cpu_s']} CPU seconds; "
            f"peak {worker} MiB a worker, {ours['peak_mib']['planner']} MiB the planner, "
            f"{ours['peak_mib']['jvm']} MiB the JVM"
        ),
        gate=f"a worker below {MOST_MIB} MiB",
        met=worker <= MOST_MIB,
        details={
            "rows": load.rows,
            "payload_bytes": load.payload_bytes,
            "candidates": figures,
        },
    )


def _of(load: Load, costs: Sequence[Cost], few: Sequence[Cost]) -> dict[str, Any]:
    query_cpu_s = statistics.median(each.cpu_s for each in few)
    cpu_s = statistics.median(each.cpu_s for each in costs) - query_cpu_s
    wall_s = statistics.median(each.wall_s for each in costs)
    roles = sorted({role for each in costs for role in each.peak_mib})
    return {
        "records_per_core_s": round(load.rows / cpu_s),
        "mb_per_core_s": round(load.payload_bytes / cpu_s / 1e6, 1),
        "cpu_us_per_record": round(cpu_s * 1e6 / load.rows, 2),
        "query_cpu_s": round(query_cpu_s, 2),
        "records_per_s": round(load.rows / wall_s),
        "mb_per_s": round(load.payload_bytes / wall_s / 1e6, 1),
        "cpu_s": [round(each.cpu_s, 2) for each in costs],
        "cpu_s_of_64_rows": [round(each.cpu_s, 2) for each in few],
        "wall_s": [round(each.wall_s, 2) for each in costs],
        "peak_mib": {role: max(each.peak_mib.get(role, 0) for each in costs) for role in roles},
    }


def plot(found: Sequence[Figures]) -> str:
    """Return the picture: records per CPU second of each candidate at each load."""
    groups = {
        words: {
            name: each["records_per_core_s"] for name, each in result.details["candidates"].items()
        }
        for words, result in zip(LOADS.values(), found, strict=True)
    }
    return charts.bars("records a second and core, Kinesis to nowhere", groups, unit="records/s")


def figures() -> Iterator[Figures | Skipped]:
    """Measure each load."""
    with Kinesis(quotas=False) as kinesis:
        spark = spark_bench.session()
        spark.dataSource.register(NaiveDataSource)
        found = []
        for name in LOADS:
            found.append(measure(spark, kinesis, name))
            yield found[-1]
        spark.stop()
    PLOT.write_text(plot(found), encoding="utf-8")
    yield Skipped(
        name="spark_source_awslabs",
        reason=f"awslabs' connector asked of Maven Central: {look_up_connector()}",
    )


if __name__ == "__main__":
    side_by_side.main(__doc__, figures)
