"""`shardfleet position`: hand one position from a fleet to a Spark query, and back."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from shardfleet.cli.application_access import (
    ApplicationOption,
    ApplicationTable,
    StreamAccess,
    opened_stream,
    with_application,
)
from shardfleet.cli.approval import DryRunOption, YesOption, approved
from shardfleet.cli.fleet_access import DEFAULT_STACK, JsonOption, StackOption, with_fleet

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.domain.leases.lease import Lease
    from shardfleet.domain.positions.position_import import ImportPlan, ImportStep
    from shardfleet.domain.positions.positions import Positions
    from shardfleet.domain.stream.sequence import StreamIncarnation
    from shardfleet.engine.ports import LeaseStore
    from shardfleet_spark.offsets.seals import SealStore
    from shardfleet_spark.plan.checkpoints import CheckpointFolder

_EXIT_FAILED = 1
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
    stack: StackOption = DEFAULT_STACK,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to; else standard output.")
    ] = None,
    as_option: Annotated[
        bool,
        typer.Option("--option", help="As a query's startingPosition, instead of a document."),
    ] = False,
) -> None:
    """Write the positions of a stopped query, of an application or of a fleet as JSON."""
    from shardfleet.domain.positions.positions import option_text, positions_to_json

    if checkpoint:
        found = _from_checkpoint(checkpoint, seals=seals, stream=stream)
    elif application:
        found = with_application(application, lambda table: _from_table(table, stream))
    else:
        found = with_fleet(stack, _from_fleet)
    text = option_text(found) if as_option else json.dumps(positions_to_json(found), indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(f"{text}\n", encoding="utf-8")
    typer.echo(f"{len(found.shards)} shards; {found.origin}", err=True)


@group.command("import")
def import_(
    *,
    file: Annotated[Path, typer.Argument(help="What `shardfleet position export` wrote.")],
    application: ApplicationOption = "",
    stack: StackOption = DEFAULT_STACK,
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
    from shardfleet.domain.positions.positions import positions_from_text

    wanted = positions_from_text(file.read_text("utf-8"))

    async def into(leases: "LeaseStore", stream: StreamAccess, name: str) -> int:
        await _check_stream(stream, wanted.incarnation)
        plan = await _plan(wanted, leases, stream, watch_s=watch)
        telling = _Telling(name, plan, as_json=as_json)
        telling.preview()
        go_on = not plan.obstacles and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        results = await _carried_out(plan, leases) if go_on else None
        telling.result(results)
        failed = bool(plan.obstacles) or "LOST" in (results or ())
        return _EXIT_FAILED if failed else 0

    async def into_table(table: ApplicationTable) -> int:
        async with opened_stream(wanted.incarnation.stream_arn) as stream:
            return await into(table.leases, stream, table.name)

    async def into_fleet(fleet: "FleetAccess") -> int:
        return await into(fleet.leases, fleet.stream, fleet.config.lease_table)

    if application:
        raise typer.Exit(with_application(application, into_table))
    raise typer.Exit(with_fleet(stack, into_fleet))


# --- export


def _from_checkpoint(folder: str, *, seals: str, stream: str) -> "Positions":
    from shardfleet.adapters.system import SystemClock
    from shardfleet.cli.fleet_access import reaching_aws
    from shardfleet_spark.plan.checkpoints import positions_of, read_logs, standing_after

    with reaching_aws():
        logged = read_logs(_folder(folder), stream=stream)
        family = standing_after(logged, _seal_store(seals))
    if logged.begun is not None:
        typer.echo(
            f"batch {logged.batch + 1} was begun and is not committed: whoever goes on from here "
            "reads its records again, and if the sink has some of them, they are there twice. "
            "Do not start the query again",
            err=True,
        )
    return positions_of(logged, family, at_ms=SystemClock().now_ms())


def _folder(text: str) -> "CheckpointFolder":
    from shardfleet_spark.plan.checkpoints import LocalCheckpoint, S3Checkpoint

    if text.startswith(("s3://", "s3a://")):
        from shardfleet.adapters.clients.account_access import Access, AccountClients

        bucket, _, prefix = text.partition("://")[2].partition("/")
        return S3Checkpoint(AccountClients(Access()).s3(), bucket=bucket, prefix=prefix)
    return LocalCheckpoint(Path(text.removeprefix("file://")))


def _seal_store(text: str) -> "SealStore | None":
    from shardfleet.adapters.clients.account_access import Access, AccountClients
    from shardfleet_spark.access import store_named

    return store_named(text, lambda: AccountClients(Access()))


async def _from_table(table: ApplicationTable, stream: str) -> "Positions":
    from shardfleet.errors import ConfigurationError

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


async def _from_fleet(fleet: "FleetAccess") -> "Positions":
    from dataclasses import replace

    from shardfleet.domain.stream.sequence import AT_LATEST, AT_TIMESTAMP, ExtendedSequenceNumber
    from shardfleet.engine.state.fleet_state import PIN

    leases = []
    for lease in await fleet.leases.scan():
        pin = None
        if lease.checkpoint == AT_LATEST:
            pin = await fleet.state.store.read(PIN, lease.lease_key)
        at = ExtendedSequenceNumber(AT_TIMESTAMP, int(pin.body["instant_ms"])) if pin else None
        leases.append(replace(lease, checkpoint=at or lease.checkpoint))
    return _from_leases(
        leases,
        await fleet.stream.incarnation(),
        origin=f"fleet {fleet.config.fleet}",
        at_ms=fleet.clock.now_ms(),
    )


def _from_leases(
    leases: "Sequence[Lease]", incarnation: "StreamIncarnation", *, origin: str, at_ms: int
) -> "Positions":
    from shardfleet.domain.positions.positions import Positions, position_at
    from shardfleet.errors import ConfigurationError

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
        typer.echo(
            f"{', '.join(held)}: somebody still reads them, so these positions are those of this "
            "moment. To hand over, pause or drain the fleet first",
            err=True,
        )
    shards = {key: position for key, position in found.items() if position is not None}
    return Positions(incarnation=incarnation, shards=shards, origin=origin, at_ms=at_ms)


# --- import


async def _check_stream(stream: StreamAccess, expected: "StreamIncarnation") -> None:
    from shardfleet.errors import ConfigurationError

    found = await stream.incarnation()
    if found != expected:
        raise ConfigurationError(
            f"the positions are of {expected.stream_arn}, created at {expected.created_ms} ms; "
            f"here is {found.stream_arn}, created at {found.created_ms} ms: another stream"
        )


async def _plan(
    wanted: "Positions", leases: "LeaseStore", stream: StreamAccess, *, watch_s: float
) -> "ImportPlan":
    from shardfleet.domain.positions.position_import import plan_import
    from shardfleet.domain.stream.shards import ShardGraph

    before = {lease.lease_key: lease for lease in await leases.scan()}
    now, begun_s = list(before.values()), asyncio.get_running_loop().time()
    moved: set[str] = set()
    while asyncio.get_running_loop().time() - begun_s < watch_s:
        await asyncio.sleep(_LOOK_EVERY_S)
        now = list(await leases.scan())
        moved |= {
            each.lease_key
            for each in now
            if each.lease_key not in before
            or each.lease_counter != before[each.lease_key].lease_counter
        }
    gone = frozenset(set(before) - moved) if watch_s else frozenset[str]()
    return plan_import(wanted, now, ShardGraph(await stream.list_shards()), gone=gone)


async def _carried_out(plan: "ImportPlan", leases: "LeaseStore") -> list[str]:
    """Write in the plan's order, up to the first write that somebody else's got before."""
    results: list[str] = []
    for step in plan.steps:
        results.append("" if "LOST" in results else await _written(leases, step))
    return results


async def _written(leases: "LeaseStore", step: "ImportStep") -> str:
    """Make one write; an answer that never came is looked up."""
    from shardfleet.domain.leases.lease import Applied
    from shardfleet.errors import OutcomeUnknown

    if step.change is None:
        return "SAME"
    try:
        return "WRITTEN" if isinstance(await leases.apply(step.change), Applied) else "LOST"
    except OutcomeUnknown:
        current = await leases.get(step.lease_key)
        at = step.change.sets.values()
        return "WRITTEN" if current is not None and current.checkpoint in at else "LOST"


@dataclass(frozen=True, slots=True)
class _Telling:
    """What a person, or a program, is told."""

    application: str
    plan: "ImportPlan"
    as_json: bool

    def preview(self) -> None:
        if self.as_json:
            return
        console = Console(highlight=False, soft_wrap=True)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("shard", "what", "now", "then"):
            table.add_column(name, overflow="fold")
        for step in self.plan.steps:
            table.add_row(step.lease_key, step.action.value.lower(), step.before, step.after)
        console.print(f"Into the lease table {self.application}:")
        console.print(table)
        for note in self.plan.notes:
            console.print(note, markup=False)
        for obstacle in self.plan.obstacles:
            sys.stderr.write(f"shardfleet: {obstacle}\n")

    def result(self, results: Sequence[str] | None) -> None:
        if self.as_json:
            typer.echo(json.dumps(self.as_json_of(results), indent=2))
            return
        lost = [step.lease_key for step, result in self._rows(results) if result == "LOST"]
        if results is not None:
            typer.echo(f"{results.count('WRITTEN')} leases written.")
        if lost:
            typer.echo(f"Somebody else wrote {', '.join(lost)} meanwhile: look, and import again.")

    def as_json_of(self, results: Sequence[str] | None) -> dict[str, Any]:
        return {
            "application": self.application,
            "applied": results is not None,
            "steps": [_step_json(step, result) for step, result in self._rows(results)],
            "obstacles": list(self.plan.obstacles),
            "notes": list(self.plan.notes),
        }

    def _rows(self, results: Sequence[str] | None) -> "list[tuple[ImportStep, str]]":
        told = results or [""] * len(self.plan.steps)
        return list(zip(self.plan.steps, told, strict=True))


def _step_json(step: "ImportStep", result: str) -> dict[str, Any]:
    return {
        "lease_key": step.lease_key,
        "action": step.action.value,
        "before": step.before,
        "after": step.after,
        "result": result,
    }
