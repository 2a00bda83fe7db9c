"""
`shardfleet demo` and `chaos`: the whole fleet on an embedded AWS, disturbed on purpose, judged.

Chaos goes on for minutes, with processes killed and calls to AWS failing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import JsonOption
from shardfleet_ops.cli.input_options import DelimiterOption, RejectsOption
from shardfleet_ops.cli.telling import aside, shown, tell
from shardfleet_ops.explain.spoken import counted

if TYPE_CHECKING:
    from shardfleet_local.rig.outcome import Outcome

RECORDS = 24_000
ReadingOption = Annotated[
    str, typer.Option(help="How records are read: polling, or fan-out, which pushes them.")
]


def demo(
    *,
    input_file: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Your own records: JSON lines, a JSON array or CSV, packed or not (- for "
            "standard input). Default: a generated click stream.",
        ),
    ] = "",
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The field that is the partition key.")
    ] = None,
    delimiter: DelimiterOption = None,
    rejects: RejectsOption = False,
    enforce_iam: Annotated[
        bool, typer.Option("--enforce-iam", help="Let every function have its role's rights only.")
    ] = False,
    unkind: Annotated[
        int | None,
        typer.Option(metavar="SEED", help="Let happen what AWS leaves open, drawn from a seed."),
    ] = None,
    pages: Annotated[
        int | None, typer.Option(metavar="ITEMS", help="Most items of a page of any call.", min=1)
    ] = None,
    spark: Annotated[
        bool,
        typer.Option("--spark/--no-spark", help="Whether the stream goes through Spark, too."),
    ] = True,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Lambda's concurrency in the account; a new one has 10.")
    ] = 1_000,
    reading: ReadingOption = "polling",
    seed: Annotated[int, typer.Option(help="Of the click stream and of every choice.")] = 1,
    output: Annotated[
        Path, typer.Option(help="Folder for result.json, report.html and picture.svg.")
    ] = Path("build/demo"),
    as_json: JsonOption = False,
) -> None:
    """Run the fleet on an embedded AWS, feed it, break it on purpose, and judge what came out."""
    from shardfleet_local.aws.settings import AwsBehaviour
    from shardfleet_local.rig.assembly_cache import AssemblyCache, default_folder
    from shardfleet_local.rig.fleet import FleetPlan, reading_context
    from shardfleet_local.rig.outcome import RunOptions, result_of, write_result
    from shardfleet_local.rig.picture import write_picture
    from shardfleet_local.rig.report import write_report
    from shardfleet_local.rig.run import run_rig
    from shardfleet_local.rig.source import click_stream, read_source

    if input_file and key is None:
        raise ConfigurationError(
            f"--input {input_file} needs --key FIELD, the field that is the partition key: order "
            "is kept per key (with make: KEY=field)"
        )
    if key is not None and not input_file:
        raise ConfigurationError(f"--key {key} needs --input FILE (with make: INPUT=file)")
    source = (
        read_source(input_file, key, delimiter=delimiter, rejects=rejects)
        if input_file
        else click_stream(RECORDS, seed=seed)
    )
    options = RunOptions(
        source=source,
        folder=output,
        seed=seed,
        plan=FleetPlan(
            context=reading_context(reading),
            enforce_iam=enforce_iam,
            behaviour=AwsBehaviour(
                unkind=unkind, page_items=pages, account_concurrency=concurrency
            ),
            cache=AssemblyCache(default_folder()),
        ),
        spark=spark,
    )
    with aside(as_json):
        outcome = run_rig(options, _tell_line)
    files = [write(outcome, output) for write in (write_result, write_report, write_picture)]
    lines = [*_verdict_lines(outcome), "", *map(str, files)]
    tell(result_of(outcome), lines, as_json=as_json)
    if not outcome.passed:
        raise typer.Exit(1)


def _tell_line(text: str) -> None:
    tell(None, [text], as_json=False)


def _verdict_lines(outcome: "Outcome") -> Iterator[str | Text | Table]:
    from shardfleet_local.rig.incidents import KILL_MANAGER, KILL_WORKER
    from shardfleet_local.rig.outcome import RECOVERY_WANTED_S

    verdict = outcome.verdict
    recovered = [took for took in outcome.crash_recovery_s if took is not None]
    rows = [
        ("records in", f"{verdict.records_in:,}"),
        ("handled", f"{verdict.records_handled_distinct:,}"),
        ("handled more than once", f"{verdict.duplicates:,}"),
        ("lost", f"{len(verdict.lost):,}"),
        ("out of order within their key", f"{len(verdict.out_of_order):,}"),
        ("parents before children", "yes" if verdict.parents_before_children else "NO"),
        ("in aggregates", f"{outcome.aggregated:,}"),
        ("resharded", counted(outcome.reshards, "time")),
        (
            "killed",
            (
                f"{counted(outcome.done(KILL_WORKER), 'worker')}, "
                f"{counted(outcome.done(KILL_MANAGER), 'manager')}"
            ),
        ),
        (
            "slowest recovery of a shard",
            f"{max(recovered):.1f} s" if recovered else "none was needed",
        ),
    ]
    rows += _spark_rows(outcome)
    rows += [("", line) for line in outcome.options.source.rejected()]
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        table.add_row(name, value)
    yield ""
    if outcome.passed:
        yield Text("Nothing was lost, and every key kept its order.", "bold green")
    else:
        yield Text("A promise was broken:", "bold red")
        for problem in outcome.problems():
            yield Text(f"  {shown(problem)}", "red")
    yield table
    if outcome.slow_recoveries:
        yield Text(
            f"{outcome.slow_recoveries} of {len(outcome.crash_recovery_s)} recoveries took "
            f"{RECOVERY_WANTED_S:.0f} s or longer: this machine is busy, or a worker was not "
            "started again at once",
            "yellow",
        )


def _spark_rows(outcome: "Outcome") -> list[tuple[str, str]]:
    spark = outcome.spark
    if spark is None:
        return []
    if spark.skipped:
        return [("through Spark", f"skipped: {spark.skipped}")]
    if spark.wrong:
        return [("through Spark", "wrong")]
    what = f"counts and sums of {', '.join(spark.fields)}" if spark.fields else "counts"
    return [
        (
            "through Spark",
            f"{counted(spark.rows, 'record')} in {counted(len(spark.batches), 'micro-batch')}",
        ),
        ("figures out of Spark", f"{what} of {spark.keys:,} keys equal the input's"),
    ]


def chaos(
    *,
    minutes: Annotated[
        float, typer.Option(min=0.1, max=600, help="How long to feed and to make trouble.")
    ] = 5.0,
    records_per_minute: Annotated[
        int, typer.Option(min=60, max=60_000, help="How fast to feed.")
    ] = 11_000,
    error_rate: Annotated[
        float, typer.Option(min=0, max=0.5, help="Part of the calls to AWS that go wrong.")
    ] = 0.12,
    driver: Annotated[
        str, typer.Option(help="What carries the fleet: lambda, or process (`shardfleet work`).")
    ] = "lambda",
    reading: ReadingOption = "polling",
    seed: Annotated[int, typer.Option(help="Of the click stream and of every choice.")] = 1,
    output: Annotated[Path, typer.Option(help="Folder for result.json.")] = Path("build/chaos"),
    as_json: JsonOption = False,
) -> None:
    """Run the fleet while its processes are killed, its shards resharded and its calls fail."""
    from shardfleet_local.rig.fleet import reading_context
    from shardfleet_local.rig.outcome import chaos_options, result_of, write_result
    from shardfleet_local.rig.run import run_rig

    options = chaos_options(
        minutes=minutes,
        records_per_minute=records_per_minute,
        folder=output,
        seed=seed,
        error_rate=error_rate,
        driver=driver,
    )
    options = replace(options, plan=replace(options.plan, context=reading_context(reading)))
    with aside(as_json):
        outcome = run_rig(options, _tell_line)
    file, result = write_result(outcome, output), result_of(outcome)
    tell(result, [*_summary(result), str(file)], as_json=as_json)
    if not outcome.passed:
        raise typer.Exit(1)


def _summary(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the outcome in two lines."""
    done = (
        f"{counted(result['kills'], 'kill')}, {counted(result['freezes'], 'freeze')}, "
        f"{counted(result['reshards'], 'reshard')}, "
        f"{result['injected_errors']:,} injected errors"
    )
    found = (
        f"{result['records']:,} records, {result['lost']:,} lost, {result['out_of_order']:,} out "
        f"of order, {result['duplicates']:,} duplicates, {result['foreign']:,} foreign, "
        f"{len(result['unsettled_leases'])} leases not at their end"
    )
    return done, f"{'PASSED' if result['passed'] else 'FAILED'}: {found}"
