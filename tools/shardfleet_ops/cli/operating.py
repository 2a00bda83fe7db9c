"""`shardfleet pause`, `resume`, `drain` and `release`: workers let go, in good order, and go on."""

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import to_builtins
from msgspec.structs import replace

from shardfleet.domain.delivery.stops import StopNote
from shardfleet.domain.leases.shard_ref import ShardRef
from shardfleet.domain.reasons import Pause
from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.domain.stream.gone_shards import GoneNote, GoneVerdict, judge_gone
from shardfleet.errors import ConfigurationError
from shardfleet_ops.cli.approval import (
    DEFAULT_WAIT_S,
    DryRunOption,
    ReasonOption,
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
from shardfleet_ops.cli.instants import spoken_instant
from shardfleet_ops.cli.status import lease_table, slot_table
from shardfleet_ops.cli.telling import tell
from shardfleet_ops.explain.fleet_view import (
    LeaseRow,
    SlotRow,
    lease_rows,
    slot_rows,
)

if TYPE_CHECKING:
    from shardfleet_ops.operate.pause import Operator


_GO_ON = (
    "Workers of another application know of no pause, and go on: {owners}, with {shards} and "
    "whatever else they are given or take."
)


def pause(
    *,
    shard: Annotated[
        list[str] | None, typer.Argument(metavar="[SHARD]...", help="Shards to be paused.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="The whole fleet, shards still to come included.")
    ] = False,
    reason: ReasonOption = "",
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let workers finish their batches, checkpoint and give shards up, until you resume them."""
    wait_ms = round(wait_s * 1000)

    async def plan(fleet: FleetAccess, operator: "Operator") -> _Plan:
        reading = await fleet.reading()
        leases, _ = operator.in_use(reading.leases, reading.slots)
        if bool(shard) == every:
            raise ConfigurationError("name the shards to be paused, or --all")
        keys = tuple(leases) if every else _known(leases, shard or [])
        ours = {None, *(slot.worker_id for slot in reading.slots)}
        foreign = {key: owner or "" for key in keys if (owner := leases[key]) not in ours}

        async def do() -> Collection[str]:
            why = Pause(person(), fleet.clock.now_ms(), reason)
            return await operator.let_go(keys, why, whole=every, of=ours, within_ms=wait_ms)

        will = "Their workers finish a batch, checkpoint and give them up; nobody reads them then."
        if foreign:
            owners = ", ".join(sorted(set(foreign.values())))
            will = _GO_ON.format(owners=owners, shards=", ".join(foreign))
        return _Plan([will], do, leases=keys)

    _carry_out(FleetName(stack, fleet_name), plan, yes=yes, dry_run=dry_run, as_json=as_json)


def resume(
    *,
    shard: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SHARD]...", help="Stopped or paused shards. None: list them."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Everything stopped or paused, also after a drain.")
    ] = False,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let shards go on that a failing record stopped, or that a person paused."""

    async def let_go_on(fleet: FleetAccess) -> int:
        from shardfleet_ops.operate.pause import Operator

        operator = Operator(fleet.leases, fleet.state, fleet.clock)
        stopped = {note.lease_key: note for note in await fleet.state.stops()}
        pauses = await operator.pauses()
        _check_resumed(shard or [], stopped, pauses)
        chosen = [*stopped, *pauses.leases] if every else shard or []
        is_asked = bool(chosen or (every and (pauses.fleet or pauses.is_unknown)))
        if not as_json:
            to_go_on = _goes_on(chosen, stopped, pauses, every=every)
            tell(None, to_go_on if is_asked else _all_stopped(stopped, pauses), as_json=False)
        go_on = is_asked and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        if go_on:
            await operator.let_go_on(chosen, whole=every)
        if as_json:
            tell(_resumed_json(chosen, stopped, pauses, written=go_on), (), as_json=True)
        return exit_code(done=go_on or not is_asked, dry_run=dry_run)

    raise typer.Exit(with_fleet(FleetName(stack, fleet_name), let_go_on))


def drain(
    *,
    reason: ReasonOption = "",
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pause the whole fleet and end its worker slots, so that another consumer can take over."""
    wait_ms = round(wait_s * 1000)

    async def plan(fleet: FleetAccess, operator: "Operator") -> _Plan:
        reading = await fleet.reading()
        leases, slots = operator.in_use(reading.leases, reading.slots)

        async def do() -> Collection[str]:
            why = Pause(person(), fleet.clock.now_ms(), reason or "drain")
            return await operator.drain_fleet(leases, slots, why, ms=wait_ms)

        will = "Its slots finish their batches, checkpoint, give up every lease, and end."
        return _Plan([will], do, leases=tuple(leases), slots=slots)

    _carry_out(FleetName(stack, fleet_name), plan, yes=yes, dry_run=dry_run, as_json=as_json)


def release(
    *,
    what: Annotated[
        list[str],
        typer.Argument(metavar="SHARD|WORKER...", help="Shards, workers, or slots of workers."),
    ],
    force: Annotated[
        bool,
        typer.Option("--force", help="Take shards now: records since the checkpoint come again."),
    ] = False,
    ended: Annotated[
        bool,
        typer.Option("--ended", help="Shards that are not found any more are over: end them."),
    ] = False,
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let workers give leases up now, or a worker all of its own and end; others get them."""
    wait_ms = round(wait_s * 1000)

    async def plan(fleet: FleetAccess, operator: "Operator") -> _Plan:
        if force and ended:
            raise ConfigurationError("--force and --ended: one of them is allowed")
        if ended:
            will = await preview_of_end(fleet, what, person=person())
            end = partial(operator.end, what, person=person(), within_ms=wait_ms)
            return _Plan(will, end, leases=what)
        reading = await fleet.reading()
        leases, slots = operator.in_use(reading.leases, reading.slots)
        ending = {slot: worker for slot, worker in slots.items() if {slot, worker} & set(what)}
        named = _known(leases, [w for w in what if w not in {*ending, *ending.values()}])
        keys = (*named, *(key for key, owner in leases.items() if owner in ending.values()))
        if force:
            now = "They are taken at once; what was handled since the checkpoint comes again."
            return _Plan([now], partial(operator.take, keys), leases=keys, slots=ending)
        soon = (
            "Their workers finish a batch, checkpoint and give them up; the manager assigns anew."
        )

        async def let_go() -> Collection[str]:
            why = Pause(person(), fleet.clock.now_ms(), "release")
            return await operator.release(named, ending, why, ms=wait_ms)

        return _Plan([soon], let_go, leases=keys, slots=ending)

    _carry_out(FleetName(stack, fleet_name), plan, yes=yes, dry_run=dry_run, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a command would do: in lines, the deed, and the leases and slots it is about."""

    will: list[str]
    do: Callable[[], Awaitable[Collection[str]]]
    leases: Collection[str] = ()
    slots: Collection[str] = ()


def _carry_out(
    name: FleetName,
    plan: "Callable[[FleetAccess, Operator], Awaitable[_Plan]]",
    *,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show, ask, do, and show again."""

    async def work(fleet: FleetAccess) -> int:
        from shardfleet_ops.operate.pause import Operator

        task = await plan(fleet, Operator(fleet.leases, fleet.state, fleet.clock))
        if not as_json:
            await _show(fleet, task)
            tell(None, task.will, as_json=False)
        go_on = approved(yes=yes, dry_run=dry_run, as_json=as_json)
        left = sorted(await task.do()) if go_on else []
        if as_json:
            await _print_json(fleet, task, written=go_on, left=left)
        elif go_on:
            await _show(fleet, task)
            end = f"Not given up in time: {', '.join(left)}" if left else "Done."
            tell(None, [end], as_json=False)
        return 1 if left else exit_code(done=go_on, dry_run=dry_run)

    raise typer.Exit(with_fleet(name, work))


async def _rows(fleet: FleetAccess, task: _Plan) -> tuple[list[LeaseRow], list[SlotRow]]:
    reading = await fleet.reading()
    leases = [row for row in lease_rows(reading) if row.lease_key in task.leases]
    return leases, [row for row in slot_rows(reading) if row.slot_id in task.slots]


async def _show(fleet: FleetAccess, task: _Plan) -> None:
    leases, slots = await _rows(fleet, task)
    tables = [slot_table(slots)] if slots else []
    tell(None, [*tables, lease_table(leases)], as_json=False)


async def _print_json(fleet: FleetAccess, task: _Plan, *, written: bool, left: list[str]) -> None:
    leases, slots = await _rows(fleet, task)
    document = {
        "written": written,
        "leases": [to_builtins(row) for row in leases],
        "slot_rows": [to_builtins(row) for row in slots],
        "left": left,
    }
    tell(document, (), as_json=True)


def _known(leases: Collection[str], given: list[str]) -> tuple[str, ...]:
    """
    Return the leases that were named.

    Raises:
        ConfigurationError: one of them is unknown.

    """
    refuse_unknown(
        given,
        leases,
        "no unfinished lease, and no worker: {unknown}; unfinished leases are: {known}",
    )
    return tuple(dict.fromkeys(given))


def _check_resumed(given: list[str], stopped: dict[str, StopNote], pauses: Pauses) -> None:
    unknown = [shard for shard in given if shard not in stopped and shard not in pauses.leases]
    if unknown and pauses.fleet:
        raise ConfigurationError(
            f"not stopped, and not paused by name: {', '.join(unknown)}; the whole fleet is "
            f"{pauses.fleet}; resume it with --all"
        )
    if unknown:
        raise ConfigurationError(
            f"not stopped: {', '.join(unknown)}; stopped are: {', '.join(stopped) or 'none'}; "
            f"paused are: {', '.join(pauses.leases) or 'none'}"
        )


def _goes_on(
    chosen: Collection[str], stopped: dict[str, StopNote], pauses: Pauses, *, every: bool
) -> Iterator[str]:
    for key in chosen:
        goes_on = f" from {stopped[key].position}" if key in stopped else f": was {pauses.of(key)}"
        yield f"{key} goes on{goes_on}"
    if every and pauses.fleet:
        yield f"The fleet goes on: was {pauses.fleet}"
    if every and pauses.is_unknown:
        yield "Whatever is paused goes on: what that is cannot be read"


def _all_stopped(stopped: dict[str, StopNote], pauses: Pauses) -> Iterator[str]:
    for note in stopped.values():
        yield (
            f"{note.lease_key} is stopped at {note.position} after {note.attempts} attempts: "
            f"{note.error}"
        )
    if pauses.fleet:
        yield f"The whole fleet is {pauses.fleet}"
    for key, pause in sorted(pauses.leases.items()):
        yield f"{key} is {pause}"
    if pauses.is_unknown:
        yield "What is paused cannot be read: shardfleet documents pause/fleet"
    elif not stopped and not pauses.leases and not pauses.fleet:
        yield "No shard is stopped, and none is paused."


def _resumed_json(
    chosen: Collection[str], stopped: dict[str, StopNote], pauses: Pauses, *, written: bool
) -> dict[str, Any]:
    fleet = [{"lease_key": None, **to_builtins(pauses.fleet)}] if pauses.fleet else []
    paused = [
        {"lease_key": key, **to_builtins(each)} for key, each in sorted(pauses.leases.items())
    ]
    return {
        "written": written,
        "resumed": list(chosen) if written else [],
        "stopped": [to_builtins(note) for note in stopped.values()],
        "paused": [*fleet, *paused],
    }


async def preview_of_end(
    fleet: FleetAccess, lease_keys: Collection[str], *, person: str
) -> list[str]:
    """
    Return what is known of missing shards, and what their end would make of them.

    Args:
        fleet: the fleet.
        lease_keys: the shards that were named.
        person: who decides.

    Raises:
        ConfigurationError: one of them is not missed by its worker.
        StreamGone: there is no such stream.

    """
    from shardfleet.engine.state.gone_record import GoneRecord

    missed = {note.lease_key: note for note in await GoneRecord(fleet.state.store).missed()}
    refuse_unknown(
        lease_keys,
        missed,
        "--ended: {unknown} found, of which no worker has been told that the service does not "
        "know it; such shards are: {known}",
    )
    stream = await fleet.stream.incarnation()
    before_ms = fleet.clock.now_ms()
    listing = await fleet.stream.list_shards()
    listed_ms = (before_ms, fleet.clock.now_ms())
    lines = [f"The stream keeps records for {stream.retention_ms // 3_600_000} h."]
    for key in lease_keys:
        verdict = judge_gone(
            replace(missed[key], ended_by=person),
            listing,
            shard_id=ShardRef.of(key, fleet.config.stream_arn).shard_id,
            retention_ms=stream.retention_ms,
            failover_ms=fleet.config.failover_ms,
            listed_ms=listed_ms,
        )
        lines += _end_of(missed[key], verdict, now_ms=before_ms)
    return lines


def _end_of(note: GoneNote, verdict: GoneVerdict, *, now_ms: int) -> list[str]:
    def since(instant_ms: int) -> str:
        return spoken_instant(instant_ms, now_ms=now_ms) if instant_ms else "unknown"

    lines = [
        f"{note.lease_key}: {note.reason or 'not found'}",
        f"  not found since: {since(note.first_ms)}",
        f"  first missing from a whole listing: {since(note.unlisted_ms)}",
        f"  last known to have had records, or to be open: {since(note.known_ms)}",
    ]
    if not verdict.is_over:
        return [*lines, f"  it would not end now: {verdict.reason}"]
    children = ", ".join(child.shard_id for child in verdict.children)
    return [
        *lines,
        f"  its worker would make leases for its children: {children or 'none are listed'}",
        f"  records after {note.checkpoint} that it may have had are lost; that is told",
    ]
