"""
Back-fill: what an archive has of a stream, then the stream itself, with one switch of position.

The position is where the archive's query stood when `shardfleet position export` wrote it down. Of
the archive each record up to it is taken, and the stream is read from behind it. So there is no gap
and no overlap, though the archive goes on being written and compacted.

The rows of the archive are one commit of the table. The position, the commit's name and whether it
is done are kept in the checkpoint, so that a start after a crash means the same commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyarrow import fs
from pyspark.sql import functions as sf

from shardfleet.domain.positions.positions import Positions, option_text, positions_from_text
from shardfleet.domain.stream.sequence import PointKind
from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_bytes, read_json
from shardfleet_spark.host.files import file_system
from shardfleet_spark.options.columns import COLUMNS
from shardfleet_spark.payload.json_objects import INDEX
from shardfleet_spark.pipelines.compaction import LIST
from shardfleet_spark.tables.commits import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILE = "backfill.json"
"""In the checkpoint."""

_STREAM = "stream"
_PLACE = ("shard_id", "sequence_number", "sub_sequence_number")
_ALL, _NONE = 1_000, -1
"""Lengths of a sequence number: greater and less than any."""

_LOOKS, _PAUSE_S = 120, 0.5
_POSITIONS, _COMMIT, _BEGUN_MS, _DONE = "positions", "commit", "begun_ms", "done"
_MEMBERS = {_POSITIONS, _COMMIT, _BEGUN_MS, _DONE}


@dataclass(frozen=True, slots=True)
class Backfill:
    """
    A back-fill as the checkpoint tells of it.

    Attributes:
        positions: the switch.
        commit: the name of the archive's commit.
        begun_ms: when it was written down first, epoch milliseconds.
        is_done: whether the table has the archive's rows.
        checkpoint: folder of the query's checkpoint.

    """

    positions: Positions
    commit: str
    begun_ms: int
    is_done: bool
    checkpoint: str

    @property
    def starting_position(self) -> str:
        """Return where the stream's query begins."""
        return option_text(self.positions)

    def as_commit(self) -> Commit:
        """Return the archive's rows as a table's commit names them."""
        return Commit(self.commit, 0, self.begun_ms)

    def done(self) -> None:
        """Write down that the table has the archive's rows."""
        _write(self.checkpoint, {**_noted(self.checkpoint), _DONE: True})


def begun(positions_file: str, *, stream: str, checkpoint: str, now_ms: int) -> Backfill:
    """
    Return a query's back-fill: the one that it has begun, or a new one.

    Args:
        positions_file: what `shardfleet position export` wrote.
        stream: name or ARN of the stream.
        checkpoint: of the query.
        now_ms: this moment, epoch milliseconds.

    Raises:
        ConfigurationError: the file is none, of another stream, or not the one of the beginning.

    """
    root = checkpoint.rstrip("/")
    noted = _noted(root)
    text = _text(positions_file)
    if text:
        positions = positions_from_text(text)
    elif noted:
        positions = positions_from_text(json.dumps(noted[_POSITIONS]))
    else:
        raise ConfigurationError(
            f"backfill positions {positions_file}: no such file; shardfleet position export "
            "--checkpoint FOLDER --output FILE writes where the archive's query stands"
        )
    arn = positions.incarnation.stream_arn
    if stream not in (arn, _name_of(arn)):
        raise ConfigurationError(
            f"backfill positions {positions_file}: they are of {arn}, and the source is {stream}"
        )
    if not noted:
        _refuse_begun(root)
        noted = {
            _POSITIONS: read_json(text),
            _COMMIT: f"backfill-{uuid4().hex}",
            _BEGUN_MS: now_ms,
            _DONE: False,
        }
        _write(root, noted)
    elif text and noted[_POSITIONS] != read_json(text):
        raise ConfigurationError(
            f"backfill positions {positions_file}: the query has begun with others "
            f"({root}/{FILE}); name the same file, or begin with a new checkpoint and a new table"
        )
    return Backfill(positions, noted[_COMMIT], noted[_BEGUN_MS], noted[_DONE], root)


def _refuse_begun(checkpoint: str) -> None:
    """Refuse a query that has read from the stream: its own position would be the switch."""
    system, root = file_system(checkpoint)
    if system.get_file_info(f"{root}/offsets").type != fs.FileType.NotFound:
        raise ConfigurationError(
            f"backfill: the query of checkpoint {checkpoint} has begun without one; begin with a "
            "new checkpoint and a new table"
        )


def archived(
    spark: SparkSession, folder: str, positions: Positions, *, columns: Sequence[str] = COLUMNS
) -> DataFrame:
    """
    Return the records of an archive up to a position.

    Args:
        spark: that reads it.
        folder: the archive.
        positions: up to and including them.
        columns: that the query has of the source.

    Raises:
        ConfigurationError: it is no archive of records, or a compaction of it does not end.

    """
    rows = _settled(
        folder, lambda: spark.read.option("ignoreMissingFiles", "false").parquet(folder)
    )
    _check_columns(rows, folder, columns)
    if _STREAM in rows.columns:
        rows = rows.where(sf.col(_STREAM) == _name_of(positions.incarnation.stream_arn))
    names = ("stands_at", "up_to_length", "up_to_number", "up_to_sub")
    schema = f"{names[0]} string, {names[1]} int, {names[2]} string, {names[3]} bigint"
    ends = spark.createDataFrame(_ends(positions), schema)
    shard, number, sub = (sf.col(name) for name in _PLACE)
    place = sf.struct(sf.length(number), number, sub)
    # Any other shard was done long ago or, made later, has a greater number.
    is_older = shard < sf.lit(max([*positions.shards, *positions.waiting], default=""))
    nowhere = sf.raise_error(
        sf.lit(
            f"backfill {folder}: a row does not say where its record was: not all of its files "
            f"have {', '.join(_PLACE)}"
        )
    ).cast("boolean")
    is_before = (
        sf.when(shard.isNull() | number.isNull() | sub.isNull(), nowhere)
        .when(sf.col(names[0]).isNull(), is_older)
        .otherwise(place <= sf.struct(*names[1:]))
    )
    joined = rows.join(sf.broadcast(ends), shard == sf.col(names[0]), "left")
    return joined.where(is_before).select(*columns)


def _check_columns(rows: DataFrame, folder: str, columns: Sequence[str]) -> None:
    missing = [name for name in dict.fromkeys((*_PLACE, *columns)) if name not in rows.columns]
    if missing:
        raise ConfigurationError(
            f"backfill {folder}: the archive has no column {', '.join(missing)}; where a record "
            f"was ({', '.join(_PLACE)}) is needed, and what the query reads of the source: leave "
            "the others out with --source-option columns=..."
        )
    if INDEX in rows.columns:
        raise ConfigurationError(
            f"backfill {folder}: the archive has {INDEX}: its rows are parts of records; an "
            "archive of the records themselves is needed, written without --payload ndjson"
        )


def _ends(positions: Positions) -> list[tuple[str, int, str, int]]:
    """Return for each shard up to where its records are done: length, number, sub-number."""
    found = {shard_id: (shard_id, _NONE, "", 0) for shard_id in positions.waiting}
    for shard_id, position in positions.shards.items():
        length, number, sub = _NONE, "", 0
        if position.kind is PointKind.END:
            length = _ALL
        elif position.done is not None:
            number, sub = position.done.sequence_number, position.done.sub_sequence_number
            length = len(number)
        found[shard_id] = (shard_id, length, number, sub)
    return [*found.values()]


def _settled(folder: str, read: Callable[[], DataFrame]) -> DataFrame:
    """Read an archive's list of files at a moment when no compaction changes it."""
    for _ in range(_LOOKS):
        before = _files(folder)
        if not any(name.endswith(f"/{LIST}") for name in before):
            found = read()
            if _files(folder) == before:
                return found
        time.sleep(_PAUSE_S)
    raise ConfigurationError(
        f"backfill {folder}: files are being put together there ({LIST}) and it does not end; "
        "start the archive's query, which goes on with it"
    )


def _name_of(arn: str) -> str:
    return arn.rsplit("/", 1)[-1]


def _files(folder: str) -> set[str]:
    system, root = file_system(folder)
    found = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    return {
        each.path
        for each in found
        if each.base_name == LIST or not each.base_name.startswith(("_", "."))
    }


def _noted(root: str) -> dict[str, Any]:
    """
    Return what is written down of a query's back-fill; nothing before it has begun.

    Raises:
        ConfigurationError: it is damaged.

    """
    try:
        noted: dict[str, Any] = read_json(_text(f"{root}/{FILE}") or "{}")
        if not isinstance(noted, dict) or (noted and not set(noted) >= _MEMBERS):
            raise ValueError(f"it has not {', '.join(sorted(_MEMBERS))}")
    except ValueError as error:
        raise ConfigurationError(
            f"{root}/{FILE}: it is damaged ({error}); begin with a new checkpoint and a new table"
        ) from error
    return noted


def _text(path: str) -> str:
    """
    Return a file's text, empty if there is none.

    Raises:
        ConfigurationError: it is none in UTF-8, or too long.

    """
    system, file = file_system(path)
    if system.get_file_info(file).type == fs.FileType.NotFound:
        return ""
    with system.open_input_stream(file) as stored:
        try:
            return read_bytes(stored).decode()
        except ValueError as error:
            raise ConfigurationError(f"{path}: {error}") from error


def _write(checkpoint: str, document: Mapping[str, Any]) -> None:
    """Write the document, whole or not at all."""
    system, root = file_system(checkpoint)
    system.create_dir(root, recursive=True)
    aside = f"{root}/_writing-{uuid4().hex}"
    with system.open_output_stream(aside) as output:
        output.write(json.dumps(document).encode())
    system.move(aside, f"{root}/{FILE}")
