"""
The ledger: what handlers finished, in the order in which they finished it.

Written by `probe.ledger_probe` inside the worker processes, read here while it grows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from shardfleet_local.rig.probe import ledger_probe

PROBE_FOLDER = Path(ledger_probe.__file__).parent


class HandledRecord(NamedTuple):
    """
    One record that a handler has finished.

    Attributes:
        sequence_number: decimal.
        sub_sequence_number: index inside its aggregate; -1 if the handler cannot know.
        digest: of key and payload (`ledger_probe.digest`).

    """

    sequence_number: str
    sub_sequence_number: int
    digest: str


class LedgerLine(NamedTuple):
    """
    One batch of one shard.

    Attributes:
        at_ms: when it was finished, epoch milliseconds.
        pid: the worker process.
        shard_id: the shard.
        records: in shard order.

    """

    at_ms: int
    pid: int
    shard_id: str
    records: tuple[HandledRecord, ...]


class DemoLedger:
    """
    Reads a ledger as it grows.

    Attributes:
        path: the file; it need not exist yet.
        lines: everything read so far, in file order.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[LedgerLine] = []
        self._offset = 0

    def environment(self, handler: str) -> dict[str, str]:
        """
        Return the variables that make workers keep this ledger.

        Args:
            handler: the handler they shall call, `module:function`; empty where it is a function of
                its own: what that has handled is not noted.

        """
        if not handler:
            return {}
        return {
            "SHARDFLEET_HANDLER": "ledger_probe:handle",
            ledger_probe.HANDLER_VARIABLE: handler,
            ledger_probe.FILE_VARIABLE: str(self.path),
            "PYTHONPATH": str(PROBE_FOLDER),
        }

    def read(self) -> list[LedgerLine]:
        """Read on and return the new lines; a line without its end is left for the next time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            return []
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        new = [_line(json.loads(text)) for text in complete.splitlines()]
        self.lines += new
        return new

    def last_writer(self, shard_id: str) -> int | None:
        """Return the process that last handled records of a shard, among the lines read."""
        for line in reversed(self.lines):
            if line.shard_id == shard_id:
                return line.pid
        return None

    def shards_of(self, pid: int) -> frozenset[str]:
        """Return the shards whose last writer a process was, among the lines read."""
        last = {line.shard_id: line.pid for line in self.lines}
        return frozenset(shard_id for shard_id, writer in last.items() if writer == pid)


def _line(found: Mapping[str, object]) -> LedgerLine:
    rows = found["rows"]
    assert isinstance(rows, list)
    return LedgerLine(
        int(str(found["at_ms"])),
        int(str(found["pid"])),
        str(found["shard"]),
        tuple(HandledRecord(*row) for row in rows),
    )
