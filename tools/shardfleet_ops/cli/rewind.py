"""`shardfleet rewind`: let shards be read again from an earlier place."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from shardfleet.domain.reasons import Pause
from shardfleet.domain.stream.sequence import AT_TIMESTAMP, AT_TRIM_HORIZON, ExtendedSequenceNumber
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.approval import (
    DEFAULT_WAIT_S,
    DryRunOption,
    WaitOption,
    YesOption,
    approved,
    exit_code,
    person,
)
from shardfleet_ops.cli.fleet_access import (
    FleetAccess,
    JsonOption,
    refuse_unknown,
    with_fleet,
)
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.instants import date, instant_ms
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.positions.rewinds import RewindRow, RewindState, RewindTarget

if TYPE_CHECKING:
    from shardfleet_ops.operate.rewind import RewindPlan

# Kinesis's numbers have 56 digits; epoch milliseconds have 13.
_SEQUENCE = re.compile(r"(\d{20,129})(?::(\d{1,9}))?")
_TO_HELP = "TRIM_HORIZON, a time (15m, epoch ms, ISO 8601), or the last record that stays done."


def rewind(
    *,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help=_TO_HELP)],
    shard: Annotated[
        list[str] | None, typer.Argument(metavar="[SHARD]...", help="Shards with leases.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every lease, finished ones too.")] = False,
    with_children: Annotated[
        bool, typer.Option("--with-children", help="Descendants too, to their beginnings.")
    ] = False,
    stay_paused: Annotated[
        bool, typer.Option("--stay-paused", help="Do not resume them afterwards.")
    ] = False,
    pages_most: Annotated[
        int, typer.Option("--pages", help="Pages of 1,000 counted per shard, one a second.", min=1)
    ] = 60,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set shards back, after a count of what will come again; pauses and resumes them itself."""

    async def work(fleet: FleetAccess) -> int:
        from shardfleet_ops.operate.pause import Operator
        from shardfleet_ops.operate.rewind import Rewinder

        target = _target(to, shard or [], now_ms=fleet.clock.now_ms())
        keys = await _chosen(fleet, shard or [], every=every)
        retention_ms = (await fleet.stream.incarnation()).retention_ms
        kept_ms = fleet.clock.now_ms() - retention_ms
        at_work = Rewinder(
            fleet.config,
            Operator(fleet.leases, fleet.state, fleet.clock),
            stream=fleet.stream,
            reading=fleet.read_ports,
            pages_most=pages_most,
        )
        plan = await at_work.preview(keys, target, with_children=with_children)
        if not as_json:
            tell(None, _preview(plan, kept_ms), as_json=False)
        rows = plan.rows
        go_on = bool(plan.keys) and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        if go_on:
            why = Pause(person(), fleet.clock.now_ms(), f"rewind to {to}")
            rows = await at_work.carry_out(
                plan, why, within_ms=round(wait_s * 1000), stay_paused=stay_paused
            )
        document = {
            "written": go_on,
            "to": to,
            "leases": [to_builtins(row) for row in rows],
            "unleased": list(plan.unleased),
            "kept_since_ms": kept_ms,
        }
        done = [_row_words(row, will="come again now") for row in rows if go_on]
        tell(document, done, as_json=as_json)
        if any(row.state is RewindState.HELD for row in rows):
            return 1
        return exit_code(done=go_on or not plan.keys, dry_run=dry_run)

    raise typer.Exit(with_fleet(FleetName(stack, fleet_name), work))


def _target(text: str, shards: list[str], *, now_ms: int) -> RewindTarget:
    """
    Read where to.

    Raises:
        ConfigurationError: no place, or a record's number for several shards.

    """
    if text.upper() == "TRIM_HORIZON":
        return RewindTarget(AT_TRIM_HORIZON)
    if number := _SEQUENCE.fullmatch(text):
        if len(shards) != 1:
            raise ConfigurationError(
                f"--to {text}: the number of a record belongs to one shard; name that one shard"
            )
        position = ExtendedSequenceNumber(number[1], int(number[2] or 0))
        return RewindTarget(position, whole_record=number[2] is None)
    at_ms = instant_ms("--to", text, now_ms=now_ms)
    return RewindTarget(ExtendedSequenceNumber(AT_TIMESTAMP, at_ms))


async def _chosen(fleet: FleetAccess, given: list[str], *, every: bool) -> tuple[str, ...]:
    if bool(given) == every:
        raise ConfigurationError("name the shards to be set back, or --all")
    known = [lease.lease_key for lease in (await fleet.leases.survey()).leases]
    refuse_unknown(given, known, "no lease: {unknown}; there are: {known}")
    return tuple(known if every else dict.fromkeys(given))


def _preview(plan: "RewindPlan", kept_ms: int) -> Iterator[str]:
    """Yield what would happen, and what would not."""
    for row in plan.rows:
        yield _row_words(row, will="will come again")
        if row.state is RewindState.SET_BACK and row.why:
            yield f"  {row.why}"
        if row.is_stopped:
            yield (
                "  it is stopped, and stays so: nothing of it comes before "
                f"`shardfleet resume {row.lease_key}`"
            )
        if row.children_ahead:
            yield (
                f"  its children are ahead ({', '.join(row.children_ahead)}): at their owner's "
                "next turn they wait for it, and records of a key come again after newer ones; "
                "--with-children sets them back, too"
            )
    if plan.unleased:
        yield f"Not read again, for they have no lease any more: {', '.join(plan.unleased)}"
    asked = (target.checkpoint for target in plan.targets.values())
    asked_ms = max(
        (at.sub_sequence_number for at in asked if at.sequence_number == AT_TIMESTAMP),
        default=kept_ms,
    )
    if asked_ms < kept_ms:
        yield (
            f"The stream has only what arrived since {date(kept_ms)}: records from "
            f"{date(asked_ms)} until then have expired"
        )
    if plan.keys:
        yield "What is handled until the shards are given up comes again as well."


def _row_words(row: RewindRow, *, will: str) -> str:
    if row.state is not RewindState.SET_BACK:
        return f"{row.lease_key} stays as it is: {row.why}"
    least = "" if row.complete else "at least "
    when = ""
    if row.first_arrived_ms is not None and row.last_arrived_ms is not None:
        when = f", arrived {date(row.first_arrived_ms)} to {date(row.last_arrived_ms)}"
    beyond = f", {row.beyond} of them beyond the checkpoint, handled already" if row.beyond else ""
    stays = f"again from {row.checkpoint}"
    place = stays if row.to == row.checkpoint else f"from {row.checkpoint} back to {row.to}"
    return (
        f"{row.lease_key} {place}: {least}{row.records} records "
        f"({row.bytes} bytes{when}{beyond}) {will}"
    )
