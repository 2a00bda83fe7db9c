"""
The records in an input's text: JSON lines, a JSON array, or CSV with a header.

How it is written is seen from the text: `{` and `[` begin JSON, and what divides the columns of CSV
is what divides its header, if only one thing can. Where two could, or nothing does, it is refused
and asked for, for a wrong guess would put other records into the stream, or other fields. A JSON
record keeps its text to the letter; a row becomes the object that it means, every value a text.

pyarrow and polars read CSV faster, and worse for this: they infer types ("007" becomes 7), take
doubled columns or rename them, and name no line.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from shardfleet.errors import ConfigurationError

DELIMITERS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
"""What is looked for in a header; anything else is named with ``--delimiter``."""

_TAB = {"tab": "\t", "\\t": "\t"}
"""How a person writes it."""

_LOOKED_AT = 100
"""So many rows must fit a header where two delimiters divide it."""

_SHOWN = 60
_BLANKS = " \t\r\n"
_BLANK = re.compile(r"[ \t\n\r]*")
_BROKEN_LINE = re.compile(r"[ \t]*[\r\n][ \t\r\n]*")
_NAMED_DELIMITER = re.compile(r"sep=(.)\r?\n")
"""The first line of what some spreadsheets write."""


class InputRow(NamedTuple):
    """
    One record of the input.

    Attributes:
        number: of its line, in an array of the item, from 1; none is there twice.
        line: where it begins.
        fields: what it holds.
        data: the payload that it becomes.

    """

    number: int
    line: int
    fields: Mapping[str, Any]
    data: bytes


class Unusable(NamedTuple):
    """A line or item that is no record; ``why`` begins with the reason, a colon behind it."""

    number: int
    line: int
    why: str


class InputRows(NamedTuple):
    """
    An input's records.

    Attributes:
        form: what it was read as, for a person.
        unit: what is numbered: ``line`` or ``item``.
        rows: in the order of the input, read while one goes through them.

    """

    form: str
    unit: str
    rows: Iterator[InputRow | Unusable]


def rows_of(name: str, text: str, *, key: str | None, delimiter: str | None) -> InputRows:
    """
    Return the records of a text.

    Args:
        name: of the input, for messages.
        text: all of it.
        key: the field that is asked for; it decides where two delimiters could divide a header.
        delimiter: of CSV, one character or ``tab``; None: it is found.

    Raises:
        ConfigurationError: it is ambiguous, or neither JSON nor CSV; also while one goes through
            the rows, where nothing behind that place could be trusted.

    """
    is_array, is_lines = text.lstrip(_BLANKS).startswith("["), _is_json_lines(text)
    if (is_array or is_lines) and delimiter:
        raise ConfigurationError(f"{name}: --delimiter is for CSV, and this is JSON")
    if is_array:
        return InputRows("a JSON array", "item", _items(name, text))
    if is_lines:
        return InputRows("JSON lines", "line", _json_lines(text))
    first_line, delimiter = 1, _TAB.get(delimiter or "", delimiter)
    if named := _NAMED_DELIMITER.match(text):
        text, delimiter, first_line = text[named.end() :], delimiter or named[1], 2
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ConfigurationError(
            f"--delimiter {delimiter!r}: one character, or the word tab, is what divides columns"
        )
    header, delimiter = _divided(name, text, first_line, key=key, delimiter=delimiter)
    form = f"CSV divided by {DELIMITERS.get(delimiter, repr(delimiter))}"
    if header:
        form += f", columns {', '.join(header)}"
    return InputRows(form, "line", _csv_rows(name, text, delimiter, first_line=first_line))


def _is_json_lines(text: str) -> bool:
    """Return whether the first line is an object, or the second: the first may be cut off."""
    first, _, rest = text.lstrip(_BLANKS).partition("\n")
    return first.startswith("{") or _is_object(rest.lstrip(_BLANKS).partition("\n")[0])


def _is_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _json_lines(text: str) -> Iterator[InputRow | Unusable]:
    ends = "\n" if "\n" in text else "\r"
    for number, line in enumerate(text.split(ends), start=1):
        if not line.strip():
            continue
        found, shown = line.strip(" \t\r"), line.strip()[:_SHOWN]
        try:
            fields = json.loads(found)
        except ValueError as error:
            yield Unusable(number, number, f"no JSON: {error}: {shown!r}")
        except RecursionError:
            yield Unusable(number, number, f"nested too deeply: {shown!r}")
        else:
            yield _row(number, fields, found, line=number)


def _items(name: str, text: str) -> Iterator[InputRow | Unusable]:
    decode, at, line, counted = json.JSONDecoder().raw_decode, text.index("[") + 1, 1, 0
    at = _behind_blanks(text, at)
    number = 0
    while not text.startswith("]", at) or number:
        line, counted = line + text.count("\n", counted, at), at
        try:
            fields, end = decode(text, at)
        except (ValueError, RecursionError) as error:
            why = error if isinstance(error, ValueError) else "nested too deeply"
            raise ConfigurationError(
                f"{name}:{line}: item {number + 1} of its JSON array is no JSON: {why}. Correct "
                "it: what follows cannot be told apart"
            ) from None
        number += 1
        yield _row(number, fields, _BROKEN_LINE.sub("", text[at:end]), line=line)
        at = _behind_blanks(text, end)
        if not text.startswith(",", at):
            break
        at = _behind_blanks(text, at + 1)
    line += text.count("\n", counted, at)
    if not text.startswith("]", at):
        raise ConfigurationError(
            f"{name}:{line}: its JSON array is cut off or broken behind item {number}: "
            f"{text[at : at + _SHOWN]!r} found, a comma or ] expected"
        )
    if text[_behind_blanks(text, at + 1) :]:
        raise ConfigurationError(
            f"{name}:{line}: something stands behind the end of its JSON array: "
            f"{text[at + 1 :].strip()[:_SHOWN]!r}"
        )


def _behind_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _row(number: int, fields: object, text: str, *, line: int) -> InputRow | Unusable:
    if not isinstance(fields, dict):
        return Unusable(number, line, f"no JSON object: {text[:_SHOWN]!r}")
    return InputRow(number, line, fields, text.encode())


def _reader(text: str, delimiter: str) -> Any:
    csv.field_size_limit(sys.maxsize)  # What is too large for a stream is told as that.
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)


def _divided(
    name: str, text: str, first_line: int, *, key: str | None, delimiter: str | None
) -> tuple[Sequence[str], str]:
    """Return a text's header, empty where there is none, and what divides it."""
    samples = {each: _sample(text, each) for each in ([delimiter] if delimiter else DELIMITERS)}
    headers = {each: rows[0] for each, rows in samples.items() if rows}
    if not headers or not text.strip():
        return (), delimiter or ","
    wanted = [each for each, header in headers.items() if key in header]
    many = wanted or [each for each, header in headers.items() if len(header) > 1]
    if all(len(headers[each]) == 1 for each in many):  # The key is all that there is.
        many = many[:1]
    if len(many) > 1:
        many = [d for d in many if all(len(row) == len(headers[d]) for row in samples[d])] or many
    if len(many) > 1:
        could = " or ".join(DELIMITERS[each] for each in many)
        raise ConfigurationError(
            f"{name}:{first_line}: its columns could be divided by {could}; say by which with "
            "--delimiter"
        )
    found = delimiter or next(iter(many), None)
    if found is None:
        raise ConfigurationError(
            f"{name}:{first_line}: neither JSON nor CSV of several columns: "
            f"{text.strip().splitlines()[0][:_SHOWN]!r} found, which none of "
            f"{', '.join(DELIMITERS.values())} divides. Name what does with --delimiter, or the "
            "only column with --key"
        )
    _check(name, first_line, headers[found], is_key=key in headers[found])
    return headers[found], found


def _sample(text: str, delimiter: str) -> list[list[str]]:
    rows: list[list[str]] = []
    try:
        rows.extend(islice(filter(None, _reader(text, delimiter)), _LOOKED_AT))
    except csv.Error:  # Told, with its line, to whoever goes through the rows.
        return rows
    return rows


def _check(name: str, line: int, header: Sequence[str], *, is_key: bool) -> None:
    """Refuse a header that names a column twice, or is none."""
    if "\0" in "".join(header):
        raise ConfigurationError(f"{name}:{line}: a NUL byte is in its first line; it is no text")
    doubled = sorted({each for each in header if header.count(each) > 1})
    if doubled:
        raise ConfigurationError(
            f"{name}:{line}: column {', '.join(map(repr, doubled))} is there more than once; give "
            "each a name of its own"
        )
    figures = [each for each in header if _is_number(each)]
    if figures and not is_key:
        raise ConfigurationError(
            f"{name}:{line}: {figures[0]!r} for a column's name: a header is missing; write one as "
            "the first line, or name a column of this one with --key"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _csv_rows(
    name: str, text: str, delimiter: str, *, first_line: int
) -> Iterator[InputRow | Unusable]:
    reader, before = _reader(text, delimiter), first_line - 1
    header: list[str] | None = None
    line = first_line
    try:
        for row in reader:
            line, last = before + 1, first_line - 1 + reader.line_num
            before = last
            if not row:
                continue
            if header is None:
                header = row
            elif len(row) != len(header):
                why = f"wrong number of fields: {len(row)}, the header has {len(header)}"
                yield Unusable(line, line, why)
            elif row == header:
                yield Unusable(line, line, "the header again: two files are behind one another")
            elif any("\0" in cell for cell in row):
                yield Unusable(line, line, "no text: a NUL byte is in it")
            else:
                fields = dict(zip(header, row, strict=True))
                yield InputRow(line, line, fields, json.dumps(fields, ensure_ascii=False).encode())
    except csv.Error as error:
        raise ConfigurationError(
            f"{name}:{before + 1}: neither a JSON object nor CSV: {error}. Look for a quote that "
            "is not closed, or not doubled within a quoted value"
        ) from None
