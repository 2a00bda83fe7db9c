"""`shardfleet pipeline`: from a stream through a function of yours, on Spark."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardfleet.errors import ConfigurationError, ShardfleetError
from shardfleet_ops.cli.telling import say, say_json
from shardfleet_ops.explain.spoken import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardfleet_spark.pipelines.plan import PipelinePlan

_OF_LIBRARIES = re.compile(
    r"/(site-packages|pyspark|shardfleet_spark|shardfleet|lib/python3[.\d]*)/"
)

group = typer.Typer(no_args_is_help=True, help="Process a stream with Spark.")


@group.command("run")
def run(
    *,
    source: Annotated[
        str,
        typer.Option(
            metavar="FORMAT:PLACE", help="shardfleet:STREAM, json:FOLDER, parquet:FOLDER, ..."
        ),
    ],
    sink: Annotated[
        str,
        typer.Option(
            metavar="FORMAT:PLACE", help="shardfleet:STREAM, parquet:FOLDER, console, ..."
        ),
    ],
    transform: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Your function of a table, or archive, or aggregate."
        ),
    ] = "",
    schema: Annotated[
        str,
        typer.Option(
            help="Of the payload, such as 'origin string, delay int'; or a registry's id."
        ),
    ] = "",
    payload: Annotated[
        str, typer.Option(help="json, ndjson, csv, avro, avro-confluent or avro-glue.")
    ] = "json",
    payload_option: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE", help="Of the payload's reader.")
    ] = [],  # noqa: B006 - typer wants a list.
    bad_records: Annotated[
        str, typer.Option(metavar="FOLDER", help="For what does not fit the schema, as Parquet.")
    ] = "",
    source_option: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE", help="Of the source.")
    ] = [],  # noqa: B006 - as above
    sink_option: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="Of the sink.")] = [],  # noqa: B006 - as above
    merge_key: Annotated[
        str,
        typer.Option(
            metavar="COLUMNS", help="Of a table that keeps one row of each key, the newest."
        ),
    ] = "",
    backfill: Annotated[
        str, typer.Option(metavar="FOLDER", help="An archive of the stream, for a table, first.")
    ] = "",
    backfill_positions: Annotated[
        str, typer.Option(metavar="FILE", help="Of the archive: `position export` wrote it.")
    ] = "",
    setting: Annotated[
        list[str], typer.Option(metavar="NAME=VALUE", help="Of archive or aggregate.")
    ] = [],  # noqa: B006 - as above
    checkpoint: Annotated[
        str, typer.Option(metavar="FOLDER", help="Where a stream's query keeps its position.")
    ] = "",
    trigger: Annotated[
        str, typer.Option(help="available-now (all there is, then the end), or 10s, 5m, ...")
    ] = "available-now",
    output_mode: Annotated[str, typer.Option(help="append, update or complete.")] = "append",
    batch: Annotated[bool, typer.Option("--batch", help="Read the source once.")] = False,
    master: Annotated[str, typer.Option(help="The Spark master; local[*] if none is named.")] = "",
    remote: Annotated[
        str, typer.Option(metavar="sc://HOST:PORT", help="A Spark Connect server, not a master.")
    ] = "",
    conf: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="Of Spark itself.")] = [],  # noqa: B006 - as above
    folder: Annotated[
        Path, typer.Option(help="Where the transform's top-level module or package lies.")
    ] = Path(),
    print_plan: Annotated[
        bool, typer.Option("--print-plan", help="Print the job's argument and run nothing.")
    ] = False,
) -> None:
    """Run a pipeline here (`local[*]`) or on a Spark master, until its input is at its end."""
    from shardfleet_spark.pipelines.plan import PipelinePlan

    plan = PipelinePlan(
        source=source,
        sink=sink,
        transform=transform,
        schema=schema,
        payload=payload,
        payload_options=_pairs(payload_option, "--payload-option"),
        bad_records=bad_records,
        source_options=_pairs(source_option, "--source-option"),
        sink_options=_pairs(sink_option, "--sink-option"),
        merge_key=merge_key,
        backfill=backfill,
        backfill_positions=backfill_positions,
        settings=_pairs(setting, "--setting"),
        checkpoint=checkpoint,
        trigger=trigger,
        output_mode=output_mode,
        batch=batch,
    )
    if print_plan:
        say_json(plan.to_json())
        return
    if master and remote:
        raise ConfigurationError(f"--master {master} and --remote {remote}: name one of them")
    # The transform is imported here, and by the workers where it is used inside of functions.
    sys.path.insert(0, str(folder.resolve()))
    settings = {"spark.sql.session.timeZone": "UTC", **_pairs(conf, "--conf")}
    if not remote:
        settings = _of_table(plan.to_place.format, settings) | settings
    if remote:
        _run(plan, _remote_session(remote, settings))
    else:
        _run(plan, _session(master or "local[*]", settings, folder=folder))


def _pairs(given: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise ConfigurationError(f"{option} {each!r}: NAME=VALUE is needed")
        pairs[name] = value
    return pairs


def _run(plan: "PipelinePlan", session: "SparkSession") -> None:
    from pyspark.errors import PySparkException

    from shardfleet_spark.pipelines.running import run_pipeline

    try:
        result = run_pipeline(session, plan)
    except PySparkException as error:
        raise ShardfleetError(f"the pipeline failed: {cause_of(str(error))}") from error
    finally:
        session.stop()
    if not plan.batch:
        say(f"{counted(result.rows, 'row')} in {counted(result.batches, 'micro-batch')}", err=True)


def cause_of(said: str) -> str:
    """
    Return what a person needs of what Spark says of a failure: no plan of the query, no stacks.

    Of a Python traceback that is its last line, and which line of the person's own code was the
    last one to be called.
    """
    said = said.partition("=== Streaming Query ===")[0].partition("JVM stacktrace:")[0]
    head, is_there, stack = said.rpartition("Traceback (most recent call last):\n")
    if not is_there:
        return said.strip()
    lines = [line for line in stack.splitlines() if line.strip()]
    raised = next((line for line in lines if not line.startswith(" ")), head.strip())
    frames = re.findall(r'(?m)^ *File "([^"]+)", line (\d+), in (\S+)', stack)
    own = [frame for frame in frames if not _OF_LIBRARIES.search(frame[0])]
    where = f" ({Path(own[-1][0]).name}:{own[-1][1]} in {own[-1][2]})" if own else ""
    return f"{raised.removeprefix('shardfleet.errors.')}{where}"


def _session(master: str, conf: dict[str, str], *, folder: Path) -> "SparkSession":
    from shardfleet_spark.host.java import NEEDED, use_java
    from shardfleet_spark.host.local_python import use_local_python
    from shardfleet_spark.host.private import LOOPBACK_ONLY

    if not use_java():
        raise ConfigurationError(NEEDED)
    if master.startswith("local"):
        use_local_python()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    seen = [str(folder.resolve()), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in seen if part)
    from pyspark.sql import SparkSession

    # What fails is told once, by us; Spark would log the stacks of several threads before.
    settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "FATAL"}
    if master.startswith("local"):
        settings |= LOOPBACK_ONLY
    builder = SparkSession.builder.master(master).appName("shardfleet pipeline")
    return builder.config(map={**settings, **conf}).getOrCreate()


def _of_table(sink: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a session needs for its sink; jars that were given are used instead of ours."""
    from pyspark import __version__

    from shardfleet_spark.tables.delta import DELTA, delta_settings
    from shardfleet_spark.tables.iceberg import ICEBERG, iceberg_settings

    settings_of = {DELTA: delta_settings, ICEBERG: iceberg_settings}.get(sink)
    found = settings_of(__version__) if settings_of else {}
    if "spark.jars" in given:
        found.pop("spark.jars.packages", None)
    return found


def _remote_session(url: str, conf: Mapping[str, str]) -> "SparkSession":
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.builder.remote(url).config(map={**conf}).getOrCreate()
    except ImportError as error:
        raise ConfigurationError(f"{error}: pip install 'shardfleet[connect]'") from error
    except PySparkException as error:
        raise ConfigurationError(f"--remote {url}: no Spark Connect session: {error}") from error
