r"""
What a command answers: one JSON document for programs, or lines and tables for a person.

Everything a command says goes through here, because much of it was written by others: keys, names
of shards and workers, reasons, what a handler's error said. A terminal would obey such text
(erase, recolour, fill the clipboard, turn the line round), rich would read it as markup, and a line
break in it would forge a line. So text is shown: what Python does not call printable as its escape,
``\x1b``, ``\u202e``, ``\n``, and markup as it is. What is to be on two lines is said as two.
"""

import json
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from shardfleet_ops.cli.instants import date
from shardfleet_ops.explain.spoken import brief_numbers

_INSTANT = re.compile(r"(?<=AT_TIMESTAMP:)\d{12,14}(?!\d)")
_BETWEEN_COLUMNS = "  "


def shown(text: object) -> str:
    """Return text as one line that a terminal only shows: nothing in it moves, colours or asks."""
    found = str(text)
    if found.isprintable():
        return found
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in found)


def brief(text: object) -> str:
    """Return text as `shown`; of a sequence number its last 18 digits, of a checkpoint its date."""
    return _INSTANT.sub(lambda found: date(int(found[0])), brief_numbers(shown(text)))


def say(line: object = "", *, err: bool = False) -> None:
    """Print one line, on standard error if asked."""
    typer.echo(shown(line), err=err)


def say_over(line: object, *, stays: bool = False) -> None:
    """Print a line on standard error over what is there, and stay in it if asked: a terminal's."""
    sys.stderr.write(f"\r\x1b[K{shown(line)}{'' if stays else chr(10)}")
    sys.stderr.flush()


def complain(error: object) -> None:
    """Print an error; all but its first line is set in, so that none can pass for another."""
    first, *rest = str(error).splitlines() or [""]
    warn(f"shardfleet: {first}", *(f"    {line}" for line in rest))


def warn(*lines: str) -> None:
    """Print lines on standard error, which on a terminal end between words."""
    if TerminalConsole(stderr=True).is_terminal:
        tell(None, lines, as_json=False, err=True)
        return
    for line in lines:
        say(line, err=True)


def tell(document: object, lines: Iterable["Line"], *, as_json: bool, err: bool = False) -> None:
    """
    Print the document, or the lines; these on standard error if asked.

    On a terminal lines end between words; what a program reads is not broken.
    """
    if as_json:
        say_json(json.dumps(document, indent=2))
        return
    console = TerminalConsole(stderr=err)
    for line in lines:
        if console.is_terminal and isinstance(line, str):
            text = line.lstrip(" ")
            console.print(Padding(Text(brief(text)), (0, 0, 0, len(line) - len(text))))
        else:
            console.print(line, soft_wrap=not console.is_terminal and not isinstance(line, Table))


@contextmanager
def aside(as_json: bool) -> Iterator[None]:
    """Say on standard error, meanwhile, what a person reads, if the answer is a document."""
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield


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
        return super().render_str(brief(text), **styles | {"markup": False, "emoji": False})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render; a text that somebody styled is shown like any other."""
        if isinstance(renderable, Text) and renderable.plain != brief(renderable.plain):
            renderable = Text(brief(renderable.plain), style=renderable.style, end=renderable.end)
        return super().render(renderable, options)


def plain_table(*names: str, right: Iterable[str] = ()) -> Table:
    """Return a table without a frame, to be filled; the columns ``right`` are aligned there."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


@dataclass(frozen=True, slots=True)
class RowListing:
    """
    A table whose cells are never broken: a narrow terminal gets fewer columns.

    Attributes:
        columns: their names.
        right: the columns that are aligned there.
        given_up: the columns that are left out where there is no room for all, the first first.
        rows: the cells of each row, and what is said on lines of their own beneath it.

    """

    columns: tuple[str, ...]
    right: Collection[str] = ()
    given_up: tuple[str, ...] = ()
    rows: list[tuple[tuple[str | Text, ...], str]] = field(default_factory=list)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Yield the head, and each row with what belongs to it."""
        table = [
            [cell if isinstance(cell, Text) else Text(brief(cell)) for cell in cells]
            for cells, _ in self.rows
        ]
        head = [Text(name, "bold") for name in self.columns]
        widths = {
            name: max(row[at].cell_len for row in [head, *table])
            for at, name in enumerate(self.columns)
        }
        for name in () if options.no_wrap else self.given_up:
            room = sum(widths.values()) + len(_BETWEEN_COLUMNS) * (len(widths) - 1)
            if room > options.max_width:
                del widths[name]
        yield self._line(head, widths)
        for cells, (_, note) in zip(table, self.rows, strict=True):
            yield self._line(cells, widths)
            if note:
                said = Text(brief(note))
                yield Text("  ").append(said) if options.no_wrap else Padding(said, (0, 0, 0, 2))

    def _line(self, cells: list[Text], widths: dict[str, int]) -> Text:
        kept = []
        for name, cell in zip(self.columns, cells, strict=True):
            if name in widths:
                padded = cell.copy()
                padded.align("right" if name in self.right else "left", widths[name])
                kept.append(padded)
        line = Text(_BETWEEN_COLUMNS).join(kept)
        line.rstrip()
        return line


Line = str | Text | Table | RowListing
