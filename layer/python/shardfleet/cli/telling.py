"""What a command answers: one JSON document for programs, or lines and tables for a person."""

import json
from collections.abc import Iterable

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


def tell(document: object, lines: Iterable[str | Text | Table], *, as_json: bool) -> None:
    """Print the document, or the lines."""
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    console = plain_console()
    for line in lines:
        console.print(line, soft_wrap=not isinstance(line, Table))


def plain_console() -> Console:
    """Return a console that shows text as it is: what a record says is no markup and no emoji."""
    return Console(highlight=False, markup=False, emoji=False)


def plain_table(*names: str, right: Iterable[str] = ()) -> Table:
    """Return a table without a frame, to be filled; the columns ``right`` are aligned there."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
