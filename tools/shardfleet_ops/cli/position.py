"""`shardfleet position`: hand one position from a fleet to a Spark query, and back."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from shardfleet.domain.leases.lease import Lease
from shardfleet.domain.positions.positions import (
    Positions,
    option_text,
    position_at,
    positions_from_text,
    positions_to_json,
)
from shardfleet.domain.stream.sequence import (
    StreamIncarnation,
)
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_bytes
from shardfleet_ops.cli.approval import DryRunOption, YesOption, approved, exit_code
from shardfleet_ops.cli.fleet_access import (
    ApplicationOption,
    ApplicationTable,
    FleetAccess,
    JsonOption,
    opened_stream,
    reaching_aws,
    with_application,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, DeployedOption, FleetName, FleetOption
from shardfleet_ops.cli.telling import RowListing, complain, say, say_json, tell, warn
from shardfleet_ops.explain.spoken import counted
from shardfleet_ops.positions.position_import import ImportPlan, plan_import

if TYPE_CHECKING:
    from shardfleet.engine.ports import LeaseStore, StreamDirectory

_LOOK_EVERY_S = 1.0

group = typer.Typer(
    no_args_is_help=True, help="Hand a position from a fleet to a Spark query, and back."
)


@group.command("export")
def export(
    *,
    checkpoint: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="A query's checkpointLocation: a folder, or s3://BUCKET/PREFIX."
        ),
    ] = "",
    seals: Annotated[
        str, typer.Option(metavar="STORE", help="The query's sealStore, if it has one.")
    ] = "",
    stream: Annotated[
        str,
        typer.Option(
            metavar="NAME|ARN",
            help="The stream: with --application, or where the query reads several.",
        ),
    ] = "",
    application: ApplicationOption = "",
    stack: DeployedOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; else standard output.")
    ] = None,
    as_option: Annotated[
        bool,
        typer.Option("--option", help="As a query's startingPosition, instead of a document."),
    ] = False,
    as_json: JsonOption = False,  # noqa: ARG001 - a document is what it is.
) -> None:
    """Write the positions of a stopped query, of an application or of a fleet as JSON."""
    if checkpoint:
        found = _from_checkpoint(checkpoint, seals=seals, stream=stream)
    elif application:
        found = with_application(application, lambda table: _from_table(table, stream))
    else:
        found = with_fleet(FleetName(stack, fleet_name), _from_fleet)
    text = option_text(found) if as_option else json.dumps(positions_to_json(found), indent=2)
    if output is None:
        say_json(text)
    else:
        output.write_text(f"{text}\n", encoding="utf-8")
    say(f"{counted(len(found.shards), 'shard')}; {found.origin}", err=True)


@group.command("import")
def import_(
    *,
    file: Annotated[Path, typer.Argument(help="What `shardfleet position export` wrote.")],
    application: ApplicationOption = "",
    stack: DeployedOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    watch: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Look so long whether owners renew their leases; who does not, is gone.",
            min=0.0,
        ),
    ] = 0.0,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write positions as checkpoints into a lease table, after showing what would be written."""
    try:
        with file.open("rb") as opened:
            text = read_bytes(opened).decode()
    except (OSError, ValueError) as error:
        told = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error
        reason = error.strerror if isinstance(error, OSError) else told
        message = f"{file}: {reason}; a file that `shardfleet position export` wrote is expected"
        raise ConfigurationError(message) from error
    wanted = positions_from_text(text)

    async def into(
        at: "FleetAccess | ApplicationTable", stream: "StreamDirectory", name: str
    ) -> int:
        from shardfleet_ops.operate.positions import PositionImporter

        await _check_stream(stream, wanted.incarnation)
        plan = await _plan(wanted, at.leases, stream, watch_s=watch)
        state = at.state.store.raw if isinstance(at, FleetAccess) else None
        importer = PositionImporter(at.leases, clock=at.clock, state=state)
        if not as_json:
            _print_plan(name, plan)
        applied = not plan.obstacles and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        results = await importer.carry_out(plan) if applied else [""] * len(plan.steps)
        document = import_json(name, plan, applied=applied, results=results)
        tell(document, _outcome(plan, results) if applied else (), as_json=as_json)
        if plan.obstacles or "LOST" in results:
            return 1
        return exit_code(done=applied, dry_run=dry_run)

    async def into_table(table: ApplicationTable) -> int:
        async with opened_stream(wanted.incarnation.stream_arn) as stream:
            return await into(table, stream, table.name)

    if application:
        raise typer.Exit(with_application(application, into_table))
    raise typer.Exit(
        with_fleet(FleetName(stack, fleet_name), lambda f: into(f, f.stream, f.config.lease_table))
    )


# --- export


def _from_checkpoint(folder: str, *, seals: str, stream: str) -> Positions:
    from shardfleet.adapters.clients.account_access import Access, AccountClients
    from shardfleet.adapters.system import SystemClock
    from shardfleet_spark.access import store_named
    from shardfleet_spark.plan import checkpoints

    def files() -> checkpoints.CheckpointFolder:
        if not folder.startswith(("s3://", "s3a://")):
            return checkpoints.LocalCheckpoint(Path(folder.removeprefix("file://")))
        bucket, _, prefix = folder.partition("://")[2].partition("/")
        s3 = AccountClients(Access()).s3
        return checkpoints.S3Checkpoint(s3, bucket=bucket, prefix=prefix)

    with reaching_aws():
        try:
            logged = checkpoints.read_logs(files(), stream=stream)
        except ConfigurationError as error:
            raise ConfigurationError(f"--checkpoint {folder}: {error}") from error
        seal_store = store_named(seals, lambda: AccountClients(Access()))
        family = checkpoints.standing_after(logged, seal_store)
    if logged.begun is not None:
        say(
            f"batch {logged.batch + 1} was begun and is not committed: whoever goes on from here "
            "reads its records again, and if the sink has some of them, they are there twice. "
            "Do not start the query again",
            err=True,
        )
    return checkpoints.positions_of(logged, family, at_ms=SystemClock().now_ms())


async def _from_table(table: ApplicationTable, stream: str) -> Positions:
    if not stream:
        raise ConfigurationError(
            "--application needs --stream: a lease table does not say which stream it is about"
        )
    async with opened_stream(stream) as opened:
        incarnation = await opened.incarnation()
    leases = await table.leases.scan()
    return _from_leases(
        leases, incarnation, origin=f"application {table.name}", at_ms=table.clock.now_ms()
    )


async def _from_fleet(fleet: FleetAccess) -> Positions:
    from shardfleet_ops.operate.positions import pinned

    leases = [
        replace(lease, checkpoint=await pinned(fleet.state, lease))
        for lease in await fleet.leases.scan()
    ]
    return _from_leases(
        leases,
        await fleet.stream.incarnation(),
        origin=f"fleet {fleet.config.fleet}",
        at_ms=fleet.clock.now_ms(),
    )


def _from_leases(
    leases: Sequence[Lease], incarnation: StreamIncarnation, *, origin: str, at_ms: int
) -> Positions:
    found = {
        lease.lease_key: position_at(lease.checkpoint, incarnation, lease.lease_key)
        for lease in leases
    }
    vague = sorted(shard_id for shard_id, position in found.items() if position is None)
    if vague:
        raise ConfigurationError(
            f"nothing was ever checkpointed in {', '.join(vague)}, so the lease does not say "
            "where to begin: let it be read once"
        )
    held = [lease.lease_key for lease in leases if lease.lease_owner and not lease.is_finished]
    if held:
        warn(
            f"{', '.join(held)}: somebody still reads them, so these positions are those of this "
            "moment. To hand over, pause or drain the fleet first"
        )
    shards = {key: position for key, position in found.items() if position is not None}
    return Positions(incarnation=incarnation, shards=shards, origin=origin, at_ms=at_ms)


# --- import


async def _check_stream(stream: "StreamDirectory", expected: StreamIncarnation) -> None:
    found = await stream.incarnation()
    if found != expected:
        raise ConfigurationError(
            f"the positions are of {expected.stream_arn}, created at {expected.created_ms} ms; "
            f"here is {found.stream_arn}, created at {found.created_ms} ms: another stream"
        )


async def _plan(
    wanted: Positions, leases: "LeaseStore", stream: "StreamDirectory", *, watch_s: float
) -> ImportPlan:
    """Look at the leases, for a while if that was asked for, and plan by what is there then."""
    now = await leases.scan()
    counters = {lease.lease_key: lease.lease_counter for lease in now}
    gone = set(counters) if watch_s else set[str]()
    loop = asyncio.get_running_loop()
    end_s = loop.time() + watch_s
    while loop.time() < end_s:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = await leases.scan()
        gone -= {le.lease_key for le in now if le.lease_counter != counters.get(le.lease_key)}
    graph = ShardGraph(await stream.list_shards())
    return plan_import(wanted, now, graph, gone=frozenset(gone))


def _print_plan(application: str, plan: ImportPlan) -> None:
    listing = RowListing(("shard", "what", "now", "then"), given_up=("now",))
    for step in plan.steps:
        cells = (step.lease_key, step.action.value.lower(), step.before, step.after)
        listing.rows.append((cells, ""))
    tell(None, [f"Into the lease table {application}:", listing, *plan.notes], as_json=False)
    for obstacle in plan.obstacles:
        complain(obstacle)


def _outcome(plan: ImportPlan, results: Sequence[str]) -> Iterator[str]:
    yield f"{counted(results.count('WRITTEN'), 'lease')} written."
    if "LOST" in results:
        lost = plan.steps[results.index("LOST")].lease_key
        yield f"Somebody else wrote {lost} meanwhile: look, and import again."


def import_json(
    application: str, plan: ImportPlan, *, applied: bool, results: Sequence[str]
) -> dict[str, Any]:
    """Return what an import would write, or has written, for programs."""
    steps = [
        {
            "lease_key": step.lease_key,
            "action": step.action.value,
            "before": step.before,
            "after": step.after,
            "result": result,
        }
        for step, result in zip(plan.steps, results, strict=True)
    ]
    return {
        "application": application,
        "applied": applied,
        "steps": steps,
        "obstacles": list(plan.obstacles),
        "notes": list(plan.notes),
    }
