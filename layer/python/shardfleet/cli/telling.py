r"""
What a command answers: one JSON document for programs, or lines and tables for a person.

Everything a command says goes through here, because much of it was written by others: keys, names
of shards and workers, reasons, what a handler's error said. A terminal would obey such text
(erase, recolour, fill the clipboard, turn the line round), rich would read it as markup, and a line
break in it would forge a line. So text is shown: what Python does not call printable as its escape,
``\x1b``, ``\u202e``, ``\n``, and markup as it is. What is to be on two lines is said as two.
"""

import json
from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text


def shown(text: object) -> str:
    """Return text as one line that a terminal only shows: nothing in it moves, colours or asks."""
    found = str(text)
    if found.isprintable():
        return found
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in found)


def say(line: object = "", *, err: bool = False) -> None:
    """Print one line, on standard error if asked."""
    typer.echo(shown(line), err=err)


def complain(error: object) -> None:
    """Print an error; all but its first line is set in, so that none can pass for another."""
    first, *rest = str(error).splitlines() or [""]
    say(f"shardfleet: {first}", err=True)
    for line in rest:
        say(f"    {line}", err=True)


def tell(
    document: object, lines: Iterable[str | Text | Table], *, as_json: bool, err: bool = False
) -> None:
    """Print the document, or the lines; these on standard error if asked."""
    if as_json:
        say_json(json.dumps(document, indent=2))
        return
    console = TerminalConsole(stderr=err)
    for line in lines:
        console.print(line, soft_wrap=not isinstance(line, Table))


def say_json(text: str) -> None:
    """Print what ``json.dumps`` made, which is ASCII, without the one control that JSON allows."""
    typer.echo(text.replace("\x7f", "\\u007f"))


class TerminalConsole(Console):
    """A console of rich that shows text and obeys none: no markup, no emoji, no controls."""

    def __init__(self, *, stderr: bool = False) -> None:
        """Write to standard output, or to standard error."""
        super().__init__(stderr=stderr, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **styles: Any) -> Text:  # rich calls it with keywords only
        """Return what is to be shown of a text, also of one in a table."""
        return super().render_str(shown(text), **styles | {"markup": False, "emoji": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render; a text that somebody styled is shown like any other."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = Text(shown(renderable.plain), style=renderable.style, end=renderable.end)
        return super().render(renderable, options)


def plain_table(*names: str, right: Iterable[str] = ()) -> Table:
    """Return a table without a frame, to be filled; the columns ``right`` are aligned there."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
