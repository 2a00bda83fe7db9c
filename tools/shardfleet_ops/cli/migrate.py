"""`shardfleet migrate`: leases move from a Java KCL to the fleet and back, while records flow."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins
from rich.table import Table

from shardfleet.domain.balance.kcl3 import Direction
from shardfleet.domain.balance.migration import MigrationStep, MigrationTask, plan_migration
from shardfleet.domain.leases.foreign_leases import set_apart
from shardfleet.domain.stream.shards import ShardGraph
from shardfleet.errors import ConfigurationError, Unsettled
from shardfleet_ops.cli import cost
from shardfleet_ops.cli.approval import (
    DEFAULT_WAIT_S,
    EXIT_NOT_DONE,
    DryRunOption,
    WaitOption,
    YesOption,
    approved,
    exit_code,
    person,
)
from shardfleet_ops.cli.fleet_access import FleetAccess, JsonOption, NobodyListens, with_fleet
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.cost.model import Setup, per_month, workers_for
from shardfleet_ops.explain.migration_report import (
    MigrationFacts,
    ReportLine,
    ReportMark,
    migration_report,
)

if TYPE_CHECKING:
    from shardfleet_ops.operate.migrate import Migrator

_WILL = {
    Direction.FROM_JAVA: (
        "Each lease is handed over once, at a checkpoint of its Java worker; records flow on.",
        "Meanwhile Java's leader sees no slot of the fleet, so that it takes nothing back.",
        "Then you end Java's workers, and this command waits for that.",
    ),
    Direction.TO_JAVA: (
        "Each lease is handed over once to a Java worker, or given up where none shows itself.",
        "Then the fleet is drained: it stays paused, its slots end, and it can be destroyed.",
        "Start Java's workers before, with the applicationName above.",
    ),
}
SAID = {
    MigrationTask.MAKE_INDEX: "The index is made.",
    MigrationTask.AWAIT_INDEX: "Waiting until the index is ACTIVE; a large table takes minutes.",
    MigrationTask.RESUME: "The fleet is resumed: it was paused as a whole.",
    MigrationTask.HIDE: "The fleet's slots are hidden from Java's leader.",
    MigrationTask.AWAIT_HIDDEN: "Waiting until the fleet's rows are gone.",
    MigrationTask.AWAIT_SLOTS: "Waiting for slots with room for {leases}.",
    MigrationTask.AWAIT_LIFE: "Waiting for {workers} to write a new row, as they do each 30 s.",
    MigrationTask.MOVE: "Handed over to {workers}: {leases}.",
    MigrationTask.AWAIT_HANDOVERS: "Waiting for the last checkpoint of {leases}.",
    MigrationTask.AWAIT_EXPIRY: "Waiting until {leases} expire: their owners renew them no more.",
    MigrationTask.AWAIT_JAVAS_END: "Java has no lease any more. End its workers now: {workers}.",
    MigrationTask.DRAIN: "The fleet is drained.",
    MigrationTask.AWAIT_JAVA: "Nobody has {leases}. Start Java's workers now.",
    MigrationTask.SHOW: "All leases are where they are to be.",
    MigrationTask.DONE: "Done.",
}
_AFTER = {
    Direction.FROM_JAVA: (
        "The way back: shardfleet migrate --to-java.",
        (
            "Once nobody goes back, delete the KCL's own tables, as far as they exist: "
            "{own[0]} and {own[1]}. {table} is the fleet's now."
        ),
    ),
    Direction.TO_JAVA: (
        "The way back: shardfleet migrate --from-java.",
        (
            "Once nobody goes back, npx cdk destroy ends the fleet and its cost; {table} stays "
            "unless the stack was told to remove it."
        ),
    ),
}
_LEASES_NAMED = 3


def migrate(
    *,
    from_java: Annotated[
        bool, typer.Option("--from-java", help="Hand the leases of Java's workers to the fleet.")
    ] = False,
    to_java: Annotated[
        bool, typer.Option("--to-java", help="Hand the fleet's leases to Java's workers; drain it.")
    ] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="End what was begun; both sides share again.")
    ] = False,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move all leases between a Java KCL and the fleet, gracefully; run again to go on."""
    if from_java + to_java + abort != 1:
        raise ConfigurationError("--from-java, --to-java, --abort: one of them is allowed")
    name = FleetName(stack, fleet_name)
    if abort:
        raise typer.Exit(with_fleet(name, lambda fleet: _abort(fleet, yes, dry_run, as_json)))
    direction = Direction.FROM_JAVA if from_java else Direction.TO_JAVA
    around = cost.around_of(name)

    async def work(fleet: FleetAccess) -> int:
        migrator = _migrator(fleet)
        found = await _facts(fleet, migrator, direction, around)
        report, first = (
            migration_report(found),
            plan_migration(direction, fleet.config, found.snapshot),
        )
        stops = any(line.standing is ReportMark.STOPS for line in report)
        is_done = first.step is MigrationTask.DONE
        if not as_json:
            will = [] if stops or is_done else _WILL[direction]
            tell(None, [_table(report), *will], as_json=False)
        go_on = not stops and not is_done and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        steps: list[MigrationStep] = []
        if go_on:

            def told(step: MigrationStep) -> None:
                steps.append(step)
                tell(None, [] if as_json else [_words(step)], as_json=False)

            last = await migrator.run(direction, within_ms=round(wait_s * 1000), tell=told)
            is_done = last.step is MigrationTask.DONE
        if as_json:
            document = migration_json(direction, report, steps, written=go_on, is_done=is_done)
            tell(document, (), as_json=True)
        else:
            tell(None, _end(fleet, direction, is_done=is_done, begun=go_on), as_json=False)
        if stops or (go_on and not is_done):
            return EXIT_NOT_DONE
        return exit_code(done=is_done, dry_run=dry_run)

    raise typer.Exit(with_fleet(name, work))


async def _abort(fleet: FleetAccess, yes: bool, dry_run: bool, as_json: bool) -> int:
    if not as_json:
        will = "Java's leader sees the fleet's slots again, and both sides share the leases."
        tell(None, [will], as_json=False)
    go_on = approved(yes=yes, dry_run=dry_run, as_json=as_json)
    ended = await _migrator(fleet).abort() if go_on else False
    done = ["Done." if ended else "No migration was under way."] if go_on else []
    tell({"written": go_on, "ended": ended}, done, as_json=as_json)
    return exit_code(done=go_on, dry_run=dry_run)


def _migrator(fleet: FleetAccess) -> "Migrator":
    from shardfleet_ops.operate.migrate import Migrator
    from shardfleet_ops.operate.pause import Operator

    return Migrator(
        fleet.config,
        Operator(fleet.leases, fleet.state, fleet.clock),
        kcl3=fleet.kcl3,
        index=fleet.index,
        events=NobodyListens(),
        person=person(),
    )


async def _facts(
    fleet: FleetAccess, migrator: "Migrator", direction: Direction, around: Mapping[str, Any]
) -> MigrationFacts:
    """Look at everything once; nothing is written."""
    from shardfleet_ops.operate.migrate import trimmed_after

    config, survey = fleet.config, await fleet.leases.survey()
    snapshot = await migrator.look()
    try:
        refusal = await fleet.index.refusal()
    except Unsettled as error:
        refusal = str(error)
    graph = ShardGraph(await fleet.stream.list_shards())
    survey = set_apart(survey, graph)
    shards = sum(shard.is_open for shard in graph)
    setup = Setup(shards=shards, workers=workers_for(config, shards), **around)
    return MigrationFacts(
        direction=direction,
        config=config,
        snapshot=snapshot,
        unreadable=survey.unreadable,
        foreign_leases=survey.foreign_leases,
        refusal=refusal,
        expired=await trimmed_after(
            survey.leases, fleet.read_ports, stream_arn=fleet.config.stream_arn
        ),
        per_month=per_month(config, setup).total,
    )


def _table(report: list[ReportLine]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in report:
        standing = "" if line.standing is ReportMark.GOOD else line.standing.value
        table.add_row(line.what, standing, line.found)
    return table


def _words(step: MigrationStep) -> str:
    more = len(step.leases) - _LEASES_NAMED
    leases = ", ".join(step.leases[:_LEASES_NAMED]) + (f" and {more} more" if more > 0 else "")
    return SAID[step.step].format(leases=leases, workers=", ".join(step.workers))


def _end(fleet: FleetAccess, direction: Direction, *, is_done: bool, begun: bool) -> Iterator[str]:
    if begun and not is_done:
        yield (
            f"That is still awaited. Nothing is lost: shardfleet migrate --{direction} goes on, "
            "the other direction goes back, --abort leaves the leases where they are."
        )
    if is_done:
        if not begun:
            yield "Nothing is to be done."
        for line in _AFTER[direction]:
            yield line.format(table=fleet.config.lease_table, own=fleet.config.kcl_tables)


def migration_json(
    direction: Direction,
    report: list[ReportLine],
    steps: list[MigrationStep],
    *,
    written: bool,
    is_done: bool,
) -> dict[str, Any]:
    """Return what is printed for a program."""
    told = [
        {"step": each.step, "leases": list(each.leases), "workers": list(each.workers)}
        for each in steps
    ]
    return {
        "direction": direction,
        "report": [to_builtins(line) for line in report],
        "written": written,
        "done": is_done,
        "steps": told,
    }
