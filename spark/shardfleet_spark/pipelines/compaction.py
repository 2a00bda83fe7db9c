"""
Many small Parquet files of an hour that is over become a few large ones.

The driver does it, between micro-batches, so that nobody else writes at that moment; and only to
files of earlier micro-batches: the newest may yet be repeated, and would bring its rows again. The
steps of a folder, each of which may be the last before a crash:

1. the rows go into a hidden file;
2. ``_compaction.json`` lists the old files, the hidden one and its final name;
3. the old files are deleted;
4. the hidden file gets its final name;
5. the list is deleted.

A list that is found is worked off first, from step 3. Between 3 and 4 a reader misses these rows
of the hour for a moment; it never sees them twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow.parquet as pq
from pyarrow import fs

from shardfleet.errors import ConfigurationError
from shardfleet.foreign import read_bytes, read_json
from shardfleet_spark.host.files import file_system

if TYPE_CHECKING:
    from shardfleet_spark.pipelines.archive_options import ArchiveOptions

LIST = "_compaction.json"
_FOLDER = re.compile(r"date=(\d{4})-(\d\d)-(\d\d)/hour=(\d\d)$")
_HOUR = timedelta(hours=1)


class Compactor:
    """
    Puts together what one query has written.

    Args:
        folder: the archive.
        options: when, and how large.
        prefix: begins the names of the query's files; the micro-batch's number follows.

    """

    def __init__(self, folder: str, options: ArchiveOptions, *, prefix: str) -> None:
        self._system, self._root = file_system(folder)
        self._options = options
        self._prefix = prefix
        self._name = re.compile(rf"{re.escape(prefix)}(?:to-)?(\d{{10}})-.*\.parquet")
        self._newest = datetime.min.replace(tzinfo=UTC)
        self._open = set(self._hours())

    def after_batch(self, batch: int, *, touched: Iterable[str]) -> list[str]:
        """
        Look at the hours that are over.

        Args:
            batch: the micro-batch that was just written; its files are left alone.
            touched: folders it wrote to, ``date=…/hour=…``.

        Returns:
            The folders in which files were put together.

        """
        self._open |= set(touched)
        self._newest = max([self._newest, *(end_of(each) - _HOUR for each in touched)])
        over = self._newest - timedelta(milliseconds=self._options.compact_after_ms)
        changed = []
        for folder in sorted(each for each in self._open if end_of(each) <= over):
            path = f"{self._root}/{folder}"
            self._work_off_list(path)
            files, is_last = self._small_files(path, batch)
            files = self._alike(path, files)
            if len(files) > 1:
                self._put_together(path, files, upto=batch - 1)
                changed.append(folder)
            if is_last:
                self._open.discard(folder)
        return changed

    def _hours(self) -> list[str]:
        """List the hours that are there when the query starts."""
        found = self._system.get_file_info(
            fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        )
        return [
            each.path[len(self._root) + 1 :]
            for each in found
            if each.type == fs.FileType.Directory and _FOLDER.search(each.path)
        ]

    def _small_files(self, path: str, batch: int) -> tuple[list[str], bool]:
        """Return what can be put together now, and whether nothing is left for later."""
        files, is_last = [], True
        for each in self._system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            name = self._name.fullmatch(each.base_name)
            if name is None:
                continue
            if int(name[1]) >= batch:
                is_last = False
            elif each.size < self._options.compact_below_bytes:
                files.append(each.base_name)
        return sorted(files), is_last

    def _alike(self, path: str, files: Sequence[str]) -> list[str]:
        """Return those that have the columns of the first: the query may have changed."""
        schemas = [pq.read_schema(f"{path}/{each}", filesystem=self._system) for each in files]
        return [
            each for each, schema in zip(files, schemas, strict=True) if schema.equals(schemas[0])
        ]

    def _put_together(self, path: str, files: Sequence[str], *, upto: int) -> None:
        hidden = f"_writing-{uuid4().hex}"
        schema = pq.read_schema(f"{path}/{files[0]}", filesystem=self._system)
        with pq.ParquetWriter(
            f"{path}/{hidden}",
            schema,
            filesystem=self._system,
            compression=self._options.compression,
        ) as output:
            for name in files:
                with pq.ParquetFile(f"{path}/{name}", filesystem=self._system) as small:
                    for batch in small.iter_batches():
                        output.write_batch(batch)
        final = f"{self._prefix}to-{upto:010d}-{hidden[-8:]}.parquet"
        steps = {"old": list(files), "hidden": hidden, "final": final}
        # Written aside and moved, so that a list is there whole or not at all.
        aside = f"{path}/_writing-{uuid4().hex}"
        with self._system.open_output_stream(aside) as output:
            output.write(json.dumps(steps).encode())
        self._system.move(aside, f"{path}/{LIST}")
        self._work_off_list(path)

    def _work_off_list(self, path: str) -> None:
        """Do steps 3 to 5; harmless where there is no list or where some are done."""
        file = f"{path}/{LIST}"
        if self._system.get_file_info(file).type == fs.FileType.NotFound:
            return
        with self._system.open_input_stream(file) as stored:
            try:
                steps = read_json(read_bytes(stored))
                old, hidden, final = steps["old"], steps["hidden"], steps["final"]
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"{file}: the list of a compaction is damaged ({error}); look which files "
                    "there are twice, and delete it"
                ) from error
        for name in old:
            if self._is_there(f"{path}/{name}"):
                self._system.delete_file(f"{path}/{name}")
        if self._is_there(f"{path}/{hidden}"):
            self._system.move(f"{path}/{hidden}", f"{path}/{final}")
        self._system.delete_file(file)

    def _is_there(self, path: str) -> bool:
        return bool(self._system.get_file_info(path).type != fs.FileType.NotFound)


def end_of(folder: str) -> datetime:
    """Return when the hour of a folder ``date=…/hour=…`` ends, UTC."""
    found = _FOLDER.search(folder)
    assert found is not None, folder
    year, month, day, hour = map(int, found.groups())
    return datetime(year, month, day, hour, tzinfo=UTC) + _HOUR
