"""
Options of the data source: typed, documented, refused with a useful message when wrong.

A dataclass is the whole truth about a set of options: each field is made by :func:`option`, which
carries how its text is read, its default as text and its line of documentation. The user's name of
a field is its camel case without the unit (``poll_interval_ms`` is ``pollInterval``). Spark hands
options over as text with names in lower case; case therefore never matters.

    @dataclass(frozen=True, kw_only=True)
    class MyOptions:
        stream: str = option(text(), doc="Name or ARN of the stream.")
        poll_interval_ms: int = option(duration_ms(), default="200ms", doc="…")

    read_options(MyOptions, {"stream": "clicks", "pollinterval": "1s"})
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from shardfleet.errors import ConfigurationError
from shardfleet_spark.options.foreign_names import said_of

T = TypeVar("T")

# What Spark itself puts among the options of a source or sink (DataStreamWriter, DataFrameReader).
SPARK_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
_UNITS = re.compile(r"_(ms|bytes)$")
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)?")
_DURATION_MS = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d+)\s*(b|k|kb|kib|m|mb|mib|g|gb|gib)?")
_SIZE_POWER = {None: 0, "b": 0, "k": 1, "m": 2, "g": 3}
_TRUTH = {"true": True, "false": False}
_KEY = "shardfleet_option"


@dataclass(frozen=True, slots=True)
class Kind:
    """
    How the text of an option becomes a value.

    Attributes:
        parse: text to value; raises ``ValueError`` for what is not allowed.
        allowed: what is allowed, for a person, e.g. ``"an integer of 1 or more"``.

    """

    parse: Callable[[str], Any]
    allowed: str


@dataclass(frozen=True, slots=True)
class Described:
    """
    What is known of one option.

    Attributes:
        name: as the user writes it, camel case.
        field: the dataclass's field.
        kind: how it is read.
        default: the default as text; None: the option must be given.
        doc: one line.
        is_secret: its value is shown to nobody.

    """

    name: str
    field: str
    kind: Kind
    default: str | None
    doc: str
    is_secret: bool


def option(kind: Kind, *, default: str | None = None, doc: str, is_secret: bool = False) -> Any:
    """
    Declare a field of a dataclass of options.

    Args:
        kind: how its text is read.
        default: as the user would write it; None makes the option mandatory.
        doc: one line for the reference.
        is_secret: no text is to show its value.

    """
    metadata = {_KEY: (kind, default, doc, is_secret)}
    shown = not is_secret
    if default is None:
        return dataclasses.field(metadata=metadata, repr=shown)
    return dataclasses.field(default=kind.parse(default), metadata=metadata, repr=shown)


def described(options: type[Any]) -> list[Described]:
    """Return the options that a dataclass declares, in its order."""
    return [
        Described(user_name(field.name), field.name, *field.metadata[_KEY])
        for field in dataclasses.fields(options)
    ]


def user_name(field: str) -> str:
    """Return the user's name of a field: camel case, without its unit."""
    first, *rest = _UNITS.sub("", field).split("_")
    return first + "".join(word.capitalize() for word in rest)


def read_options(
    options: type[T],
    given: Mapping[str, str],
    *,
    elsewhere: Iterable[str] = (),
) -> T:
    """
    Read a set of options.

    Args:
        options: the dataclass.
        given: the user's, names in any case.
        elsewhere: user's names that mean something to another part (such as the sink), for a
            better message.

    Raises:
        ConfigurationError: names every unknown, missing or wrong option, what was found, what is
            allowed.

    """
    known = {each.name.lower(): each for each in described(options)}
    found = {name.lower(): str(value) for name, value in given.items()}
    complaints = [
        _unknown(name, known, elsewhere={each.lower() for each in elsewhere})
        for name in sorted(set(found) - set(known) - SPARK_OWN)
    ]
    values: dict[str, Any] = {}
    for name, each in known.items():
        if name not in found:
            if each.default is None:
                complaints.append(f"option {each.name} is missing: {_sentence(each)}")
            continue
        try:
            values[each.field] = each.kind.parse(found[name].strip())
        except (ValueError, ConfigurationError) as error:
            detail = f" ({error})" if str(error) else ""
            value = "(not shown)" if each.is_secret else f"{found[name]!r}{detail}"
            complaints.append(f"option {each.name} = {value}: allowed is {each.kind.allowed}")
    if complaints:
        raise ConfigurationError("; ".join(complaints))
    return options(**values)


def option_names(*options: type[Any]) -> frozenset[str]:
    """Return the user's names of all options of some dataclasses."""
    return frozenset(each.name for some in options for each in described(some))


def _unknown(name: str, known: Mapping[str, Described], *, elsewhere: set[str]) -> str:
    if name in elsewhere:
        return f"option {name} belongs to the other direction (source or sink), not to this one"
    if said := said_of(name):
        return f"option {name} of another connector {said}"
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"option {name} does not exist; the nearest is {known[near[0]].name}"
    return f"option {name} does not exist; there are {', '.join(e.name for e in known.values())}"


def _sentence(each: Described) -> str:
    return f"{each.doc.rstrip('.')}; allowed is {each.kind.allowed}"


# --- kinds ---


def text(*, pattern: str = "", allowed: str = "a text that is not empty") -> Kind:
    """Take a text that a pattern matches as a whole; without one, any that is not empty."""

    def parse(value: str) -> str:
        if not (re.fullmatch(pattern, value) if pattern else value):
            raise ValueError
        return value

    return Kind(parse, allowed)


def optional_text() -> Kind:
    """Take any text; empty means none."""
    return Kind(str, "any text, empty for none")


def integer(least: int = 0, most: int | None = None) -> Kind:
    """Take a whole number between two bounds, both allowed."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"-?\d{1,18}", value):
            raise ValueError
        return _bounded(int(value), least, most)

    return Kind(parse, f"an integer {_range(str(least), None if most is None else str(most))}")


def duration_ms(least: int = 0, most: int | None = None) -> Kind:
    """Take a duration with a unit (``200ms``, ``2s``, ``5m``, ``1h``, ``1d``); bare: ms."""

    def parse(value: str) -> int:
        found = _DURATION.fullmatch(value.lower())
        if found is None:
            raise ValueError
        return _bounded(int(found[1]) * _DURATION_MS[found[2]], least, most)

    bounds = _range(f"{least}ms", None if most is None else f"{most}ms")
    return Kind(parse, f"a duration such as 200ms, 2s, 5m, 1h, {bounds}")


def or_auto(kind: Kind) -> Kind:
    """Take what another kind takes, or ``auto`` for None."""

    def parse(value: str) -> Any:
        return None if value.lower() == "auto" else kind.parse(value)

    return Kind(parse, f"auto or {kind.allowed}")


def size_bytes(least: int = 1, most: int | None = None) -> Kind:
    """Take a size with a unit (``64m``, ``1g``; powers of 1,024); a bare number is bytes."""

    def parse(value: str) -> int:
        found = _SIZE.fullmatch(value.lower())
        if found is None:
            raise ValueError
        power = _SIZE_POWER[found[2][0] if found[2] else None]
        return _bounded(int(found[1]) * 1024**power, least, most)

    bounds = _range(str(least), None if most is None else str(most))
    return Kind(parse, f"a size in bytes such as 65536, 512k, 64m, {bounds}")


def boolean() -> Kind:
    """Take ``true`` or ``false``."""

    def parse(value: str) -> bool:
        if value.lower() not in _TRUTH:
            raise ValueError
        return _TRUTH[value.lower()]

    return Kind(parse, "true or false")


def choice(*words: str) -> Kind:
    """Take one of some words; case does not matter."""
    by_lower = {word.lower(): word for word in words}

    def parse(value: str) -> str:
        if value.lower() not in by_lower:
            raise ValueError
        return by_lower[value.lower()]

    return Kind(parse, " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words))


def names(*, among: tuple[str, ...] = ()) -> Kind:
    """Take a list of names separated by commas, in order and without repeats; may be empty."""

    def parse(value: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        strange = [name for name in found if among and name not in among]
        if strange:
            near = get_close_matches(strange[0], among, n=1)
            hint = f"; the nearest to {strange[0]} is {near[0]}" if near else ""
            raise ValueError(f"{', '.join(strange)} unknown{hint}")
        return found

    return Kind(
        parse, f"names with commas between them{', of ' if among else ''}{', '.join(among)}"
    )


def _bounded(value: int, least: int, most: int | None) -> int:
    if value < least or (most is not None and value > most):
        raise ValueError
    return value


def _range(least: str, most: str | None) -> str:
    return f"of {least} or more" if most is None else f"of {least} to {most}"


# --- the reference page ---


def reference_table(options: type[Any]) -> str:
    """Return a Markdown table of a set of options: name, default, what it is."""
    lines = ["| option | default | what it is |", "|---|---|---|"]
    for each in described(options):
        default = f"`{each.default}`" if each.default else "none"
        default = "required" if each.default is None else default
        allowed = each.kind.allowed
        lines.append(f"| `{each.name}` | {default} | {each.doc} Allowed: {allowed}. |")
    return "\n".join(lines)
