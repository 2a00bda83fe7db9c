"""`shardfleet local`: your own code, or a whole account, on the embedded AWS."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.fleet_access import JsonOption
from shardfleet_ops.cli.input_options import (
    DelimiterOption,
    InputOption,
    KeyOption,
    RejectsOption,
)
from shardfleet_ops.cli.telling import say, shown, tell
from shardfleet_ops.explain.spoken import counted

if TYPE_CHECKING:
    from shardfleet_local.own.own_run import OwnRunResult
    from shardfleet_local.rig.source import Source

PORT = 4566
"""Of `local up`, always the same, so that what was pasted into a shell keeps its endpoint."""

group = typer.Typer(no_args_is_help=True, help="Run on an embedded AWS, without an account.")


@group.command("run")
def run(
    *,
    handler: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="Your handler: package.module:function.")
    ],
    input_file: InputOption,
    key: KeyOption = None,
    delimiter: DelimiterOption = None,
    shards: Annotated[int, typer.Option(help="Shards of the stream.", min=1, max=64)] = 4,
    folder: Annotated[
        Path, typer.Option(help="Where the handler's top-level module or package lies.")
    ] = Path(),
    rejects: RejectsOption = False,
    enforce_iam: Annotated[
        bool, typer.Option("--enforce-iam", help="Let every function have its role's rights only.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Feed records to your own handler in a fleet on an embedded AWS; print what it prints."""
    from shardfleet_local.own.own_run import OwnRunOptions, own_run
    from shardfleet_local.rig.assembly_cache import AssemblyCache, default_folder
    from shardfleet_local.rig.source import read_source

    source = read_source(input_file, key, delimiter=delimiter, rejects=rejects)
    options = OwnRunOptions(
        handler=handler,
        folder=folder,
        source=source,
        shards=shards,
        enforce_iam=enforce_iam,
        cache=AssemblyCache(default_folder()),
    )
    result = own_run(options, say=partial(say, err=True), printed=partial(say, err=as_json))
    document = _result_document(result, source) if as_json else None
    tell(document, _result_lines(result, source), as_json=as_json, err=True)
    if not result.passed:
        raise typer.Exit(1)


@group.command("up")
def up(
    *,
    app: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Deploy what `cdk synth` wrote there: an assembly of one stack."
        ),
    ] = None,
    handler: Annotated[
        str,
        typer.Option(metavar="MODULE:FUNCTION", help="Deploy a fleet with your handler."),
    ] = "",
    folder: Annotated[
        Path, typer.Option(help="Where the handler's top-level module or package lies.")
    ] = Path(),
    shards: Annotated[
        int, typer.Option(help="Shards of the stream, unless it is --app's.", min=1, max=64)
    ] = 4,
    port: Annotated[
        int, typer.Option(help="Of the endpoint; 0 takes a free one.", min=0, max=65_535)
    ] = PORT,
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
) -> None:
    """Deploy a stack to an embedded AWS and leave it running for boto3 and the AWS CLI."""
    import tempfile

    from shardfleet_local.access import key_of_folder
    from shardfleet_local.aws.launcher import EmbeddedAws
    from shardfleet_local.aws.serving import serve
    from shardfleet_local.aws.settings import AwsBehaviour
    from shardfleet_local.aws.standing import lines_of
    from shardfleet_local.own.own_code import staged
    from shardfleet_local.own.reloading import Reloader, deployed_handlers
    from shardfleet_local.rig.assembly_cache import AssemblyCache, default_folder
    from shardfleet_local.rig.fleet import FleetPlan, synthesized

    if app and handler:
        raise ConfigurationError(
            f"--app {app} and --handler {handler}: one of them says what is deployed"
        )
    standing = default_folder().parent / f"up-{port}" if port else None
    found = lines_of(standing) if standing else []
    if found:
        say("It runs already; Ctrl-C where it was started stops it, --port starts another.")
        for line in found:
            say(line)
        return
    with tempfile.TemporaryDirectory(prefix="shardfleet-") as work:
        if app is None:
            context: dict[str, object] = {"shardfleet:stream": {"shards": shards}}
            project = None
            if handler:
                project = staged(folder, handler, target=Path(work) / "project")
                # On the developer's own machine, of the developer's own records.
                context["shardfleet:config"] = {"log_errors": True}
                context |= {"shardfleet:handler": ".", "shardfleet:function": handler}
            plan = FleetPlan(
                project=project, context=context, cache=AssemblyCache(default_folder())
            )
            assembly = synthesized(Path(work) / "cdk.out", plan, say=say).parent
        else:
            assembly = app
        aws = EmbeddedAws(
            enforce_iam=enforce_iam,
            behaviour=AwsBehaviour(unkind=unkind, page_items=pages),
            port=port,
        )
        if port:  # Shells in which its variables were pasted may go on with the next one.
            aws.key = key_of_folder(Path.cwd(), seed_file=default_folder().parent / "seed")
        handlers = deployed_handlers(assembly, folder=folder if handler else None)
        look = Reloader(aws, handlers, say=say).look
        serve(aws, assembly=assembly, say=say, standing_at=standing, look=look)


def _result_document(result: "OwnRunResult", source: "Source") -> dict[str, object]:
    verdict = result.verdict
    return {
        "passed": result.passed,
        "records": verdict.records_in,
        "handled": verdict.records_handled_distinct,
        "duplicates": verdict.duplicates,
        "out_of_order": len(verdict.out_of_order),
        "rejected": sum(map(len, source.rejects.values())),
        "took_ms": result.took_ms,
        "stops": [
            {
                "lease_key": stop.note.lease_key,
                source.unit: stop.line or None,
                "position": stop.note.position,
                "attempts": stop.note.attempts,
                "error": stop.note.error,
            }
            for stop in result.stops
        ],
        "failures": [failure.said for failure in result.failures],
    }


def _result_lines(result: "OwnRunResult", source: "Source") -> Iterator[str | Text]:
    verdict = result.verdict
    yield from source.rejected()
    yield (
        f"{verdict.records_handled_distinct:,} of {verdict.records_in:,} records handled in "
        f"{result.took_ms / 1000:.1f} s, {verdict.duplicates:,} of them more than once, "
        f"{len(verdict.out_of_order):,} out of order within their key"
    )
    for stop in result.stops:
        where = f"{source.unit} {stop.line}" if stop.line else stop.note.position
        stopped = (
            f"{stop.note.lease_key} was stopped at {where} after {stop.note.attempts} attempts: "
            f"{stop.note.error}"
        )
        yield Text(shown(stopped), "red")
    for failure in result.failures:
        yield Text(shown(failure.said), "red")
    if verdict.lost and not result.stops:
        yield Text(f"not handled: {counted(len(verdict.lost), 'record')}", "red")
