"""`shardfleet pause`, `drain` and `release`: workers let go, in good order."""

import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from shardfleet.cli.approval import (
    DEFAULT_WAIT_S,
    DryRunOption,
    ReasonOption,
    WaitOption,
    YesOption,
    approved,
    person,
)
from shardfleet.cli.fleet_access import DEFAULT_STACK, JsonOption, StackOption, with_fleet

if TYPE_CHECKING:
    from shardfleet.cli.fleet_access import FleetAccess
    from shardfleet.domain.explain.fleet_view import LeaseRow, SlotRow
    from shardfleet.engine.operate.pause import Operator

_EXIT_FAILED = 1


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
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let workers finish their batches, checkpoint and give shards up, until you resume them."""

    async def work(fleet: "FleetAccess") -> int:
        from shardfleet.domain.sleep.pauses import Pause
        from shardfleet.errors import ConfigurationError

        leases = await _unfinished(fleet)
        if bool(shard) == every:
            raise ConfigurationError("name the shards to be paused, or --all")
        keys = tuple(leases) if every else _known(leases, shard or [])

        async def do(at_work: "Operator") -> Collection[str]:
            await at_work.pause(
                None if every else keys, Pause(person(), fleet.clock.now_ms(), reason)
            )
            await at_work.prompt()
            return await at_work.until_free(keys, within_ms=manner.wait_ms)

        will = "Their workers finish a batch, checkpoint and give them up; nobody reads them then."
        return await _act(fleet, manner, _Subject(will, leases=keys), do)

    manner = _Manner(yes=yes, dry_run=dry_run, as_json=as_json, wait_ms=round(wait_s * 1000))
    raise typer.Exit(with_fleet(stack, work))


def drain(
    *,
    reason: ReasonOption = "",
    wait_s: WaitOption = DEFAULT_WAIT_S,
    stack: StackOption = DEFAULT_STACK,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pause the whole fleet and end its worker slots, so that another consumer can take over."""

    async def work(fleet: "FleetAccess") -> int:
        from shardfleet.domain.sleep.pauses import Pause

        leases = await _unfinished(fleet)
        slots = await _live_slots(fleet)
        ours = tuple(key for key, owner in leases.items() if owner in slots.values())

        async def do(at_work: "Operator") -> Collection[str]:
            await at_work.pause(None, Pause(person(), fleet.clock.now_ms(), reason or "drain"))
            left = await at_work.drain(slots, within_ms=manner.wait_ms)
            await at_work.prompt()
            return (*left, *await at_work.until_free(ours, within_ms=manner.wait_ms))

        will = "Its slots finish their batches, checkpoint, give up every lease, and end."
        return await _act(fleet, manner, _Subject(will, leases=tuple(leases), slots=slots), do)

    manner = _Manner(yes=yes, dry_run=dry_run, as_json=as_json, wait_ms=round(wait_s * 1000))
    raise typer.Exit(with_fleet(stack, work))


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
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let workers give leases up now, or a worker all of its own and end; others get them."""

    async def work(fleet: "FleetAccess") -> int:
        from shardfleet.domain.sleep.pauses import Pause

        if ended:
            return await _end(fleet, manner, what, force=force)
        leases, slots = await _unfinished(fleet), await _live_slots(fleet)
        ending = {slot: worker for slot, worker in slots.items() if {slot, worker} & set(what)}
        named = _known(leases, [w for w in what if w not in {*ending, *ending.values()}])
        keys = (*named, *(key for key, owner in leases.items() if owner in ending.values()))

        async def do(at_work: "Operator") -> Collection[str]:
            if force:
                await at_work.force(keys)
                await at_work.prompt()
                return ()
            before = await at_work.pause(named, Pause(person(), fleet.clock.now_ms(), "release"))
            try:
                held = await at_work.until_free(named, within_ms=manner.wait_ms)
            finally:
                await at_work.resume(set(named) - before.leases.keys())
            left = await at_work.drain(ending, within_ms=manner.wait_ms)
            await at_work.prompt()
            return (*held, *left)

        will = (
            "Their workers finish a batch, checkpoint and give them up; the manager assigns anew."
        )
        if force:
            will = "They are taken at once; what was handled since the checkpoint comes again."
        return await _act(fleet, manner, _Subject(will, leases=keys, slots=ending), do)

    manner = _Manner(yes=yes, dry_run=dry_run, as_json=as_json, wait_ms=round(wait_s * 1000))
    raise typer.Exit(with_fleet(stack, work))


async def _end(
    fleet: "FleetAccess", manner: "_Manner", lease_keys: Collection[str], *, force: bool
) -> int:
    """Note that shards are over that the service does not know; their workers end them."""
    from shardfleet.cli.ending import preview
    from shardfleet.errors import ConfigurationError

    if force:
        raise ConfigurationError("--force and --ended: one of them is allowed")
    will = await preview(fleet, lease_keys, person=person())

    async def do(at_work: "Operator") -> Collection[str]:
        await at_work.decide_over(lease_keys, person=person())
        return await at_work.until_over(lease_keys, within_ms=manner.wait_ms)

    return await _act(fleet, manner, _Subject(will, leases=lease_keys), do)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manner:
    """How a command is carried out, and how it tells."""

    yes: bool
    dry_run: bool
    as_json: bool
    wait_ms: int


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a command is about: one sentence of what happens, the leases, the slots."""

    will: str
    leases: Collection[str] = ()
    slots: Collection[str] = ()


async def _act(
    fleet: "FleetAccess",
    manner: _Manner,
    subject: _Subject,
    do: "Callable[[Operator], Awaitable[Collection[str]]]",
) -> int:
    """Show, ask, do, and show again; return the exit code."""
    from shardfleet.engine.operate.pause import Operator, OperatorPorts

    if not manner.as_json:
        await _show(fleet, subject)
        typer.echo(subject.will)
    if not approved(yes=manner.yes, dry_run=manner.dry_run, as_json=manner.as_json):
        if manner.as_json:
            await _print_json(fleet, subject, written=False, left=())
        return 0
    ports = OperatorPorts(leases=fleet.leases, state=fleet.state, clock=fleet.clock)
    left = sorted(await do(Operator(ports)))
    if manner.as_json:
        await _print_json(fleet, subject, written=True, left=left)
    else:
        await _show(fleet, subject)
        typer.echo(f"Not given up in time: {', '.join(left)}" if left else "Done.")
    return _EXIT_FAILED if left else 0


async def _rows(fleet: "FleetAccess", subject: _Subject) -> "tuple[list[LeaseRow], list[SlotRow]]":
    from shardfleet.domain.explain.fleet_view import lease_rows, slot_rows

    reading = await fleet.reading()
    leases = [row for row in lease_rows(reading) if row.lease_key in subject.leases]
    return leases, [row for row in slot_rows(reading) if row.slot_id in subject.slots]


async def _show(fleet: "FleetAccess", subject: _Subject) -> None:
    from shardfleet.cli.status import lease_table, slot_table

    leases, slots = await _rows(fleet, subject)
    console = Console(highlight=False)
    if slots:
        console.print(slot_table(slots))
    console.print(lease_table(leases))


async def _print_json(
    fleet: "FleetAccess", subject: _Subject, *, written: bool, left: Collection[str]
) -> None:
    leases, slots = await _rows(fleet, subject)
    document: dict[str, Any] = {
        "written": written,
        "leases": [asdict(row) for row in leases],
        "slot_rows": [asdict(row) for row in slots],
        "left": list(left),
    }
    typer.echo(json.dumps(document, indent=2))


async def _unfinished(fleet: "FleetAccess") -> dict[str, str | None]:
    """Return the leases that are not at SHARD_END, ordered by key, and who has them."""
    leases = (await fleet.leases.survey()).leases
    return {lease.lease_key: lease.effective_owner for lease in leases if not lease.is_finished}


async def _live_slots(fleet: "FleetAccess") -> dict[str, str]:
    """Return the slots that have not ended, and the names of their workers."""
    from shardfleet.domain.slots.slot import SlotState

    found = (each.slot for each in await fleet.state.slots())
    return {slot.slot_id: slot.worker_id for slot in found if slot.state is not SlotState.ENDED}


def _known(leases: Collection[str], given: list[str]) -> tuple[str, ...]:
    """
    Return the leases that were named.

    Raises:
        ConfigurationError: one of them is unknown.

    """
    from shardfleet.errors import ConfigurationError

    unknown = [name for name in given if name not in leases]
    if unknown:
        raise ConfigurationError(
            f"no unfinished lease, and no worker: {', '.join(unknown)}; unfinished leases are: "
            f"{', '.join(leases) or 'none'}"
        )
    return tuple(dict.fromkeys(given))
