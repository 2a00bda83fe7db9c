"""
Which commands there are, and in which group of `--help`.

A command's module is imported when the command is asked for, and by `--help` not at all: what it
prints of each is here. A test compares it with what the command says of itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class CommandEntry(NamedTuple):
    """
    A command, or a group of some.

    Attributes:
        home: `module:name` in this package; a name of its module's `typer.Typer` is a group.
        says: what `--help` says of it.

    """

    home: str
    says: str


COMMANDS: Mapping[str, Mapping[str, CommandEntry]] = {
    "Begin": {
        "init": CommandEntry(
            "init:init", "Write a project that runs, tests and deploys, into a new folder."
        ),
        "template": CommandEntry(
            "cloudformation:template",
            "Write a fleet as plain CloudFormation with its assets, for a deploy without the CDK.",
        ),
        "work": CommandEntry(
            "work:work",
            "Consume a stream in this process; every option of `shardfleet config` goes by its "
            "name.",
        ),
        "demo": CommandEntry(
            "demo:demo",
            "Run the fleet on an embedded AWS, feed it, break it on purpose, and judge what came "
            "out.",
        ),
        "config": CommandEntry(
            "configuration:config",
            "Print every setting of a fleet: name, default, what is allowed, and what it means.",
        ),
        "local": CommandEntry("local:group", "Run on an embedded AWS, without an account."),
    },
    "Look": {
        "status": CommandEntry(
            "status:status",
            "Show the fleet in a few lines: leases by state, worker slots, lag, the last plan's "
            "age.",
        ),
        "leases": CommandEntry(
            "status:leases",
            "Show every lease: its owner, state, checkpoint and lag, and what it waits for.",
        ),
        "top": CommandEntry(
            "top:top",
            "Show the fleet live, until q or Ctrl-C; keys sort, filter, scroll and hold the "
            "leases.",
        ),
        "dashboard": CommandEntry(
            "dashboard:dashboard",
            "Show the fleet's dashboard, alarms and leases in a browser, until Ctrl-C; changes "
            "nothing.",
        ),
        "where": CommandEntry(
            "where:where",
            "Show whether the first record of a key since a point in time is processed, and by "
            "whom.",
        ),
        "explain": CommandEntry(
            "explain:explain",
            "Show why a shard is with its worker and why it moved; without a name, of every shard.",
        ),
        "what-if": CommandEntry(
            "what_if:what_if",
            "Show who would have which shard and why; by default, what happens next. No writes.",
        ),
        "logs": CommandEntry(
            "logs:logs",
            "Print what workers have logged and what your handler has printed; metrics are left "
            "out.",
        ),
        "doctor": CommandEntry(
            "doctor:doctor",
            "Look at tables, functions, stream, schedule and clock; name what is wrong; change "
            "nothing.",
        ),
        "cost": CommandEntry(
            "cost:cost",
            "Show what the fleet has cost by its ledger, an estimate, and the stream's own price.",
        ),
    },
    "Records": {
        "tail": CommandEntry(
            "tail:tail",
            "Print records as they arrive, aggregates taken apart; one GetRecords a second per "
            "shard.",
        ),
        "put": CommandEntry(
            "put:put",
            "Put records into the stream, in order per key; the whole input is checked first.",
        ),
        "redrive": CommandEntry(
            "redrive:redrive",
            "Hand records that were given up to the handler again; delete each that it has "
            "handled.",
        ),
        "pipeline": CommandEntry("pipeline:group", "Process a stream with Spark."),
    },
    "Act": {
        "pause": CommandEntry(
            "operating:pause",
            "Let workers finish their batches, checkpoint and give shards up, until you resume "
            "them.",
        ),
        "resume": CommandEntry(
            "operating:resume",
            "Let shards go on that a failing record stopped, or that a person paused.",
        ),
        "drain": CommandEntry(
            "operating:drain",
            "Pause the whole fleet and end its worker slots, so that another consumer can take "
            "over.",
        ),
        "release": CommandEntry(
            "operating:release",
            "Let workers give leases up now, or a worker all of its own and end; others get them.",
        ),
        "rewind": CommandEntry(
            "rewind:rewind",
            "Set shards back, after a count of what will come again; pauses and resumes them "
            "itself.",
        ),
        "migrate": CommandEntry(
            "migrate:migrate",
            "Move all leases between a Java KCL and the fleet, gracefully; run again to go on.",
        ),
        "documents": CommandEntry(
            "documents:documents",
            "Show documents of the fleet state that cannot be read, and what holds; mend or drop "
            "them.",
        ),
        "position": CommandEntry(
            "position:group", "Hand a position from a fleet to a Spark query, and back."
        ),
    },
    "Prove": {
        "simulate": CommandEntry(
            "simulate:simulate",
            "Run the production engine against failing ports in virtual time, and check "
            "invariants.",
        ),
        "chaos": CommandEntry(
            "demo:chaos",
            "Run the fleet while its processes are killed, its shards resharded and its calls "
            "fail.",
        ),
        "acceptance": CommandEntry(
            "acceptance:acceptance",
            "Deploy a fleet, feed, disturb, rewind, drain and update it; report; destroy "
            "everything.",
        ),
    },
}
"""By the group of `--help`, in its order."""

# `work` takes every option of the configuration by its name, and says itself which there are.
_TAKES_MORE = {"allow_extra_args": True, "ignore_unknown_options": True}


class CommandGroup(TyperGroup):
    """The commands of the table, each loaded when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        """Take what typer gives any group."""
        super().__init__(**settings)
        self.commands = _Loaded()  # type: ignore[assignment]  # Nobody adds one.

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print what there is, by the table."""
        listed = copy(self)
        listed.commands = {
            name: TyperCommand(name, help=entry.says, rich_help_panel=panel)
            for panel, entries in COMMANDS.items()
            for name, entry in entries.items()
        }
        super(CommandGroup, listed).format_help(ctx, formatter)


class _Loaded(Mapping[str, Any]):
    """Commands by name, in the table's order."""

    def __init__(self) -> None:
        self._panels = {name: panel for panel, names in COMMANDS.items() for name in names}

    def __getitem__(self, name: str) -> Any:
        panel = self._panels[name]
        module, _, attribute = COMMANDS[panel][name].home.partition(":")
        found = getattr(import_module(f"{__package__}.{module}"), attribute)
        holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        holder.callback()(lambda: None)  # Else one command alone would be no group.
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=name, rich_help_panel=panel)
        else:
            settings = _TAKES_MORE if name == "work" else None
            holder.command(name, context_settings=settings, rich_help_panel=panel)(found)
        return get_command(holder).commands[name]  # type: ignore[attr-defined]  # A group.

    def __iter__(self) -> Iterator[str]:
        return iter(self._panels)

    def __len__(self) -> int:
        return len(self._panels)
