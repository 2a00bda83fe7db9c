"""Rows held back until the last of them is checked: in memory, and beyond a size in a file."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Self

import pyarrow as pa


class HeldRows:
    """
    Record batches in, the same ones out again, once.

    Args:
        memory_bytes: what is kept in memory; beyond that all goes to a temporary file.

    Attributes:
        rows: how many are held.

    """

    def __init__(self, memory_bytes: int) -> None:
        self.rows = 0
        self._memory_bytes = memory_bytes
        self._bytes = 0
        self._batches: list[pa.RecordBatch] = []
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, batch: pa.RecordBatch) -> None:
        """Hold a batch; all have one schema."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._writer is None and self._bytes > self._memory_bytes:
            self._file = TemporaryFile(prefix="shardfleet-")  # noqa: SIM115 - closed at exit
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
            for held in self._batches:
                self._writer.write_batch(held)
            self._batches = []
        if self._writer is None:
            self._batches.append(batch)
        else:
            self._writer.write_batch(batch)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield what is held, in the order in which it came."""
        if self._writer is None or self._file is None:
            yield from self._batches
            return
        self._writer.close()
        self._file.seek(0)
        with pa.ipc.open_stream(self._file) as stored:
            yield from stored
