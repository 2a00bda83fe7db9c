"""
The records of a run: those of a user's file, or a generated click stream.

A file is read and checked as a whole before anything starts, so that bad input is one clear
message and not a failure halfway.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardfleet.errors import ConfigurationError, InvalidRecord
from shardfleet.kpl.hash_keys import check_partition_key
from shardfleet.producer.aggregate import MAX_RECORD_BYTES
from shardfleet_local.input.packed import text_of
from shardfleet_local.input.rows import InputRow, Unusable, rows_of
from shardfleet_local.rig.feed import InputRecord

RECORDS_MOST = 500_000
"""Everything is held in memory and judged record by record; more belongs into a benchmark."""

RECORD_BYTES_MOST = MAX_RECORD_BYTES
"""Data and partition key of one record, in a stream whose ``MaxRecordSizeInKiB`` is the most."""

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
        form: what the file was read as, for a person; empty where none was.
        unit: what records are numbered by: line, or item of a JSON array.

    """

    name: str
    records: tuple[InputRecord, ...]
    rejects: Mapping[str, Sequence[int]] = field(default_factory=dict)
    form: str = ""
    unit: str = "line"

    def rejected(self) -> Iterator[str]:
        """Say for a person, by reason, how many lines were left out, and the first of them."""
        for why, lines in self.rejects.items():
            named = ", ".join(f"{number:,}" for number in lines[:REJECTS_NAMED])
            more = f" and {len(lines) - REJECTS_NAMED:,} more" if lines[REJECTS_NAMED:] else ""
            yield f"rejected {self.unit}s, {why}: {len(lines):,} ({self.unit} {named}{more})"

    def largest(self) -> tuple[int, int]:
        """Return the number of the largest record, and its bytes with its key."""
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


def read_source(
    file: str, key: str | None, *, delimiter: str | None = None, rejects: bool = False
) -> Source:
    """
    Read records from a file or from standard input (`-`).

    Args:
        file: its path.
        key: the field that is the partition key, `a.b` for field `b` of the object `a`, unless
            a field has that very name; None: the line's number is (no order then).
        delimiter: what divides the columns of CSV; None: it is found.
        rejects: leave bad lines out and count them, instead of refusing the file.

    Raises:
        ConfigurationError: no such file, nothing in it, too much in it, a line is no record, or
            how the file is to be read is not certain; the message names file and line.

    """
    if key == "":
        raise ConfigurationError(
            "--key is empty: name a field, or leave it out, and every line is a key of its own"
        )
    name, text = text_of(file)
    form, unit, rows = rows_of(name, text, key=key, delimiter=delimiter)
    found: list[InputRecord] = []
    reasons: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        try:
            found.append(_record(row, key=key))
        except _Rejected as problem:
            if not rejects:
                item = f"item {row.number}: " if unit == "item" else ""
                raise ConfigurationError(
                    f"{name}:{row.line}: {item}{problem}. Correct the {unit}, or count such "
                    f"{unit}s as rejects with --rejects"
                ) from None
            reasons[str(problem).partition(":")[0]].append(row.number)
    if not found:
        raise ConfigurationError(
            f"{name}: no record found in it; expected JSON objects, one per line or in an array, "
            f"or CSV with a header{_in_words(reasons)}"
        )
    if len(found) > RECORDS_MOST:
        raise ConfigurationError(
            f"{name}: {len(found):,} records, at most {RECORDS_MOST:,} are taken; cut it first"
        )
    return Source(name=name, records=tuple(found), rejects=dict(reasons), form=form, unit=unit)


def _record(row: InputRow | Unusable, *, key: str | None) -> InputRecord:
    if isinstance(row, Unusable):
        raise _Rejected(row.why)
    partition_key = str(row.number) if key is None else _key_of(row.fields, key)
    record = InputRecord(row.number, partition_key, row.data)
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
