"""`shardfleet documents`: documents of the fleet state that cannot be read, mended or dropped."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from shardfleet.errors import ConfigurationError, ProtocolError
from shardfleet_ops.cli.approval import DryRunOption, YesOption, approved, exit_code, person
from shardfleet_ops.cli.fleet_access import FleetAccess, JsonOption, refuse_unknown, with_fleet
from shardfleet_ops.cli.fleets import DEFAULT_STACK, FleetName, FleetOption, StackOption
from shardfleet_ops.cli.telling import say, tell

if TYPE_CHECKING:
    from shardfleet.engine.state.documents import UnreadableDocument
    from shardfleet_ops.operate.documents import MendingFacts

_ALL_READABLE = "Every document of the fleet state can be read."


def documents(
    *,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KIND/ID]...", help="Documents that cannot be read. None: all."),
    ] = None,
    mend: Annotated[
        bool, typer.Option("--mend", help="Write them anew from what is readable of them.")
    ] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Delete them; each is to be named.")] = False,
    stack: StackOption = DEFAULT_STACK,
    fleet_name: FleetOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show documents of the fleet state that cannot be read, and what holds; mend or drop them."""
    if mend and drop:
        raise ConfigurationError("--mend and --drop: both found, one allowed")
    if drop and not name:
        raise ConfigurationError("--drop: no document named; name each one, as KIND/ID")

    async def look_after(fleet: FleetAccess) -> int:
        from shardfleet_ops.operate.documents import DocumentWard, may_be_mended, row_of

        ward = DocumentWard(fleet.state.store)
        found = {each.name: each for each in await ward.unreadable()}
        refuse_unknown(
            name or [], found, "documents: {unknown} found; those that cannot be read are: {known}"
        )
        chosen = [found[each] for each in name or found]
        if mend and not name:
            chosen = [each for each in chosen if may_be_mended(each)]
        rows = [row_of(each) for each in chosen or found.values()]
        if not as_json:
            lines = [line for row in rows for line in _lines(to_builtins(row), drop=drop)]
            tell(None, lines or [_ALL_READABLE], as_json=False)
        is_asked = bool(chosen) and (mend or drop)
        go_on = is_asked and approved(yes=yes, dry_run=dry_run, as_json=as_json)
        left: list[str] = []
        if go_on and drop:
            left = await _each(chosen, ward.drop)
        elif go_on:
            facts = await _facts(fleet, chosen)
            left = await _each(chosen, lambda each: ward.mend(each, facts))
        if as_json:
            written = go_on and not left
            document = {"written": written, "documents": [to_builtins(row) for row in rows]}
            tell(document, (), as_json=True)
        return exit_code(done=(go_on and not left) or not is_asked, dry_run=dry_run)

    raise typer.Exit(with_fleet(FleetName(stack, fleet_name), look_after))


def _lines(row: dict[str, str], *, drop: bool) -> list[str]:
    lines = [f"{row['name']} cannot be read: {row['reason']}", f"  Meanwhile: {row['meanwhile']}."]
    return lines if drop else [*lines, f"  Mended: {row['mended']}."]


async def _each(
    chosen: "Sequence[UnreadableDocument]", do: "Callable[[UnreadableDocument], Awaitable[bool]]"
) -> list[str]:
    """Do it to each; say of which it could not be done, and return their names."""
    left = []
    for document in chosen:
        try:
            why = "" if await do(document) else "it has changed meanwhile; look again"
        except ProtocolError as error:
            why = str(error)
        if why:
            left.append(document.name)
            say(f"{document.name}: {why}", err=True)
    return left


async def _facts(fleet: FleetAccess, chosen: "Sequence[UnreadableDocument]") -> "MendingFacts":
    from shardfleet_ops.operate.documents import MendingFacts, wants_stream

    return MendingFacts(
        config=fleet.config,
        stream=await fleet.stream.incarnation() if any(map(wants_stream, chosen)) else None,
        now_ms=fleet.clock.now_ms(),
        person=person(),
    )
