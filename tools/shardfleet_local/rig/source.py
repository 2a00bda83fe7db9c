"""
The records of a run: JSON lines or CSV of the user's, or a generated click stream.

A file is read and checked as a whole before anything starts, so that bad input is one clear
message and not a failure halfway. Payloads are the lines as they are (a row of a CSV file becomes
the JSON object that it means).
"""

from __future__ import annotations

import csv
import io
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardfleet.errors import ConfigurationError, InvalidRecord
from shardfleet.kpl.hash_keys import check_partition_key
from shardfleet.producer.aggregate import MAX_RECORD_BYTES
from shardfleet_local.rig.feed import InputRecord

RECORDS_MOST = 500_000
"""Everything is held in memory and judged record by record; more belongs into a benchmark."""

RECORD_BYTES_MOST = MAX_RECORD_BYTES
"""Data and partition key of one record, in a stream whose ``MaxRecordSizeInKiB`` is the most."""

STANDARD_INPUT = "-"

REJECTS_NAMED = 5
"""So many lines of each reason are named; the counts are of all."""

_SHOWN = 60
_PAGES = ("/", "/search", "/cart", "/checkout", "/help", "/account", "/orders", "/news")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    What to feed.

    Attributes:
        name: for a person: the file's name, or what was generated.
        records: in the order of the input.
        rejects: why lines were left out, and their numbers.

    """

    name: str
    records: tuple[InputRecord, ...]
    rejects: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def rejected(self) -> Iterator[str]:
        """Say for a person, by reason, how many lines were left out, and the first of them."""
        for why, lines in self.rejects.items():
            named = ", ".join(f"{number:,}" for number in lines[:REJECTS_NAMED])
            more = f" and {len(lines) - REJECTS_NAMED:,} more" if lines[REJECTS_NAMED:] else ""
            yield f"rejected lines, {why}: {len(lines):,} (line {named}{more})"

    def largest(self) -> tuple[int, int]:
        """Return the line of the largest record, and its bytes with its key."""
        found = max(self.records, key=_size)
        return found.number, _size(found)


class _Rejected(Exception):
    """A line cannot be a record; the message says why, without the line's number."""


def click_stream(count: int, *, seed: int, visitors: int = 400) -> Source:
    """
    Generate clicks of many visitors, some of them much busier than others.

    The same arguments give the same records, byte for byte.
    """
    source = random.Random(seed)
    names = [f"visitor-{number:04d}" for number in range(visitors)]
    busyness = [1 / (rank + 20) for rank in range(visitors)]
    chosen = source.choices(names, busyness, k=count)
    records = []
    for number, visitor in enumerate(chosen, start=1):
        click = {"click": number, "visitor": visitor, "page": source.choice(_PAGES)}
        records.append(InputRecord(number, visitor, json.dumps(click).encode()))
    return Source(
        name=f"{count:,} clicks of {visitors} visitors (seed {seed})", records=tuple(records)
    )


def read_source(file: str, key: str | None, *, rejects: bool = False) -> Source:
    """
    Read records from a file or from standard input (`-`).

    A file whose first line begins with `{` is JSON lines, any other is CSV with a header.

    Args:
        file: its path.
        key: the field that is the partition key, `a.b` for field `b` of the object `a`, unless
            a field has that very name; None: the line's number is (no order then).
        rejects: leave bad lines out and count them, instead of refusing the file.

    Raises:
        ConfigurationError: no such file, nothing in it, too much in it, or a line is no record;
            the message names file and line.

    """
    name, text = _text_of(file)
    found: list[InputRecord] = []
    reasons: defaultdict[str, list[int]] = defaultdict(list)
    is_json = text.lstrip().startswith("{")
    for number, parsed in _json_lines(text) if is_json else _csv_rows(name, text):
        try:
            if isinstance(parsed, _Rejected):
                raise parsed
            found.append(_record(number, parsed, key=key))
        except _Rejected as problem:
            if not rejects:
                raise ConfigurationError(
                    f"{name}:{number}: {problem}. Correct the line, or count such lines as rejects "
                    "with --rejects"
                ) from None
            reasons[str(problem).partition(":")[0]].append(number)
    if not found:
        raise ConfigurationError(
            f"{name}: no record found in it; expected JSON objects, one per line, or CSV with a "
            f"header{_in_words(reasons)}"
        )
    if len(found) > RECORDS_MOST:
        raise ConfigurationError(
            f"{name}: {len(found):,} records, at most {RECORDS_MOST:,} are taken; "
            f"cut it first: head -n {RECORDS_MOST} {name}"
        )
    return Source(name=name, records=tuple(found), rejects=dict(reasons))


def _text_of(file: str) -> tuple[str, str]:
    if file == STANDARD_INPUT:
        name, read = "standard input", sys.stdin.buffer.read
    else:
        path = Path(file)
        name, read = path.name, path.read_bytes
    try:
        return name, read().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{file}: is a folder, a file is needed") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigurationError(
            f"{name}:{line}: byte {error.object[error.start]:#04x} is no UTF-8; convert the file "
            "to UTF-8"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None


Parsed = tuple[Mapping[str, Any], bytes]
"""A line's fields, and the payload that it becomes."""


def _json_lines(text: str) -> Iterator[tuple[int, Parsed | _Rejected]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except ValueError as error:
            yield number, _Rejected(f"no JSON: {error}: {line.strip()[:_SHOWN]!r}")
            continue
        except RecursionError:
            yield number, _Rejected(f"nested too deeply: {line.strip()[:_SHOWN]!r}")
            continue
        if isinstance(fields, dict):
            yield number, (fields, line.strip().encode())
        else:
            yield number, _Rejected(f"no JSON object: {line.strip()[:_SHOWN]!r}")


def _csv_rows(name: str, text: str) -> Iterator[tuple[int, Parsed | _Rejected]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if not row:
                continue
            if header is None:
                header = row
            elif len(row) == len(header):
                fields = dict(zip(header, row, strict=True))
                yield reader.line_num, (fields, json.dumps(fields, ensure_ascii=False).encode())
            else:
                yield (
                    reader.line_num,
                    _Rejected(f"wrong number of fields: {len(row)}, the header has {len(header)}"),
                )
    except csv.Error as error:
        raise ConfigurationError(
            f"{name}:{reader.line_num}: neither a JSON object nor CSV: {error}"
        ) from None


def _record(number: int, parsed: Parsed, *, key: str | None) -> InputRecord:
    fields, data = parsed
    partition_key = str(number) if key is None else _key_of(fields, key)
    record = InputRecord(number, partition_key, data)
    if _size(record) > RECORD_BYTES_MOST:
        raise _Rejected(
            f"too large: {_size(record):,} bytes with its key, a stream takes "
            f"{RECORD_BYTES_MOST:,} at most"
        )
    return record


def _size(record: InputRecord) -> int:
    return len(record.data) + len(record.key.encode())


def _key_of(fields: Mapping[str, Any], key: str) -> str:
    value = _value_of(fields, key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Rejected(
            f"field '{key}' is no key: {json.dumps(value)[:_SHOWN]} found, text or a number "
            "expected"
        )
    text = str(value)
    try:
        check_partition_key(text)
    except InvalidRecord as error:
        raise _Rejected(f"field '{key}' is no key: {error}") from None
    return text


def _value_of(fields: Mapping[str, Any], key: str) -> Any:
    if key in fields:
        return fields[key]
    inside: Any = fields
    for name in key.split("."):
        if not isinstance(inside, Mapping) or name not in inside:
            names = ", ".join(map(str, inside)) if isinstance(inside, Mapping) else ""
            where = f"at '{name}' " if "." in key else ""
            raise _Rejected(f"no field '{key}': {where}it has {names[: 3 * _SHOWN] or 'no fields'}")
        inside = inside[name]
    return inside


def _in_words(reasons: Mapping[str, Sequence[int]]) -> str:
    if not reasons:
        return ""
    found = ", ".join(f"{len(lines):,} {why}" for why, lines in reasons.items())
    return f" (rejected: {found})"
