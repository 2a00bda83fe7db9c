"""What a mutant is: a bug, where it is known from, and the text that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_LIBRARY, _TOOLS = _ROOT / "layer/python/shardfleet", _ROOT / "tools"


@dataclass(frozen=True, slots=True)
class Edit:
    """
    One replacement in one file.

    Attributes:
        file: below the library, e.g. ``domain/leases/changes.py``, or below `tools/`, e.g.
            ``shardfleet_ops/operate/rewind.py``.
        old: found exactly once in it.
        new: what takes its place.

    """

    file: str
    old: str
    new: str

    @property
    def module(self) -> str:
        """Return the name of the module that is edited."""
        name = self.file.removesuffix(".py").replace("/", ".")
        return name if self.path.is_relative_to(_TOOLS) else f"shardfleet.{name}"

    @property
    def path(self) -> Path:
        """Return where the file is."""
        return (_TOOLS if self.file.startswith("shardfleet_") else _LIBRARY) / self.file


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """
    A bug.

    Attributes:
        name: says what is wrong.
        source: where it is known from: ``L2`` (docs/protocol.md §1.6), ``H9``, ``§8 row 5`` (both
            of the design's lists), or somebody's tracker.
        edits: what makes it.
        arena: the name of the kind of runs in which it is looked for; see ``arenas``.
        test: a test that finds it, for what a simulation cannot express or cannot see.
        why_not: why no seed finds it; empty for all others.

    """

    name: str
    source: str
    edits: tuple[Edit, ...]
    arena: str = "drawn"
    test: str = ""
    why_not: str = ""


def mutant(
    name: str,
    source: str,
    *edits: tuple[str, str, str],
    arena: str = "drawn",
    test: str = "",
    why_not: str = "",
) -> Mutant:
    """Write a mutant down; each edit is file, old text and new text."""
    made = tuple(Edit(*edit) for edit in edits)
    return Mutant(name=name, source=source, edits=made, arena=arena, test=test, why_not=why_not)


def mutated(module: str, text: str, edits: tuple[Edit, ...]) -> str:
    """
    Return a module's source with the edits that concern it.

    Raises:
        ValueError: an old text is not found exactly once: the mutant has to be written anew.

    """
    for edit in edits:
        if edit.module != module:
            continue
        found = text.count(edit.old)
        if found != 1:
            message = f"{edit.file}: {edit.old!r} found {found} times, expected once"
            raise ValueError(message)
        text = text.replace(edit.old, edit.new)
    return text
