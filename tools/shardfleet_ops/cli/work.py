"""`shardfleet work`: a process, or several, that consume a stream without Lambda."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardfleet.config import DeployedConfig, Option, options
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.approval import YesOption
from shardfleet_ops.cli.fleet_access import ApplicationTable, reaching_aws, with_application
from shardfleet_ops.cli.fleets import FleetName, FleetOption, find_fleet
from shardfleet_ops.cli.telling import say

if TYPE_CHECKING:
    from shardfleet import Worker

EXIT_MISSING = 1


def work(
    context: typer.Context,
    *,
    handler: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="Your handler: package.module:function.")
    ],
    stream: Annotated[str, typer.Option(help="The stream: name or ARN.")] = "",
    application: Annotated[
        str,
        typer.Option(
            metavar="TABLE", help="The lease table, as a KCL application's; the fleet's name."
        ),
    ] = "",
    stack: Annotated[
        str,
        typer.Option(
            metavar="STACK",
            help="Instead of both: the stack of a fleet with `spill`, which says every option.",
        ),
    ] = "",
    fleet: FleetOption = "",
    folder: Annotated[
        Path, typer.Option(help="Where the handler's top-level module or package lies.")
    ] = Path(),
    processes: Annotated[int, typer.Option(help="How many: one uses one core.", min=1)] = 1,
    metrics: Annotated[
        str, typer.Option(help="none; or emf: log lines that CloudWatch Logs bills as metrics.")
    ] = "none",
    health: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|FILE",
            help="For probes: an address that answers HTTP, or a file touched each second.",
        ),
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Say what is missing, and end.")] = False,
    create: Annotated[
        bool, typer.Option("--create/--no-create", help="Make tables that are missing.")
    ] = True,
    yes: YesOption = False,
) -> None:
    """Consume a stream in this process; every option of `shardfleet config` goes by its name."""
    sys.path.insert(0, str(folder.resolve()))
    if not stack and not (stream and application):
        raise ConfigurationError("--stream and --application: give both, or --stack")
    given = {} if stack else _given(os.environ, context.args)
    if stack and (context.args or stream or application):
        raise ConfigurationError("--stack: it says every option; change them where it is deployed")
    from shardfleet import Worker
    from shardfleet.runtime.handler_loading import load_handler

    load_handler(handler, contract=given.get("handler_contract", "auto"))
    joins = find_fleet(FleetName(stack, fleet)).config if stack else None
    worker = Worker(
        stream=joins.stream_arn if joins else stream,
        application=joins or application,
        handler=handler,
        creates_tables=create and not joins,
        metrics=metrics,
        health=health,
        **given,
    )
    if health and processes > 1:
        raise ConfigurationError("--health: of one process; give each its own, without --processes")
    if check:
        with reaching_aws():
            missing = worker.missing()
        for each in missing:
            say(each)
        raise typer.Exit(EXIT_MISSING if missing else 0)
    if sys.stdin.isatty() and not yes and not stack:
        _ask(worker, application)
    if processes > 1:
        raise typer.Exit(_several(processes))
    asyncio.run(_work(worker))


def _ask(worker: "Worker", application: str) -> None:
    """Ask before this process joins what others run."""
    with reaching_aws():
        is_new = bool(worker.missing())
    owners = set() if is_new else with_application(application, _owners)
    if owners:
        say(f"The leases of {application} are held by {', '.join(sorted(owners))}.")
        typer.confirm("Join them?", abort=True)


async def _owners(table: ApplicationTable) -> set[str]:
    found = await table.leases.survey()
    return {lease.lease_owner for lease in found.leases if lease.lease_owner}


async def _work(worker: "Worker") -> None:
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, worker.stop)
    with reaching_aws():
        async with worker:
            await worker.run()


def _several(count: int) -> int:
    """Run this command in so many processes; return the worst of their exit codes."""
    command = [*sys.orig_argv, "--processes", "1", "--yes"]
    children = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603 - this command

    def forward(number: int, _: object) -> None:
        for child in children:
            child.send_signal(number)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, forward)
    return max(abs(child.wait()) for child in children)


def _given(env: Mapping[str, str], arguments: Sequence[str]) -> dict[str, Any]:
    """
    Return the options that environment and command line give, the latter before the former.

    Raises:
        ConfigurationError: no such option, or a value that cannot be read.

    """
    known = {option.name: option for option in options() if _is_free(option)}
    texts = {name: env[each.variable] for name, each in known.items() if each.variable in env}
    texts |= dict(_pairs(arguments))
    if unknown := sorted(texts.keys() - known.keys()):
        raise ConfigurationError(
            f"--{unknown[0].replace('_', '-')}: no such option; `shardfleet config` lists them"
        )
    try:
        return {name: known[name].value_of(text) for name, text in texts.items()}
    except ValueError as error:
        raise ConfigurationError(f"options: {error}") from error


def _is_free(option: Option) -> bool:
    """Return whether a person gives it: what is deployed has a name that follows from another."""
    return option.name not in DeployedConfig.__struct_fields__ or option.name in _FREE


_FREE = (
    *("consumer_arn", "handler_contract"),
    *("failed_queue_url", "failed_bucket", "failed_topic_arn"),
)


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    words = iter(arguments)
    for word in words:
        name, is_joined, value = word.partition("=")
        if not name.startswith("--"):
            raise ConfigurationError(f"{word}: an option expected, as --failover-ms 10000")
        yield name[2:].replace("-", "_"), value if is_joined else next(words, "")
