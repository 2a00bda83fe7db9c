"""
The ledger: what handlers finished, in the order in which they finished it.

Written inside the workers, by `probe.ledger_probe` into a file, or by `probe.s3_probe` into a
bucket where there is no file that all of them can append to; read here while it grows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shardfleet_local.rig.probe import ledger_probe
from shardfleet_local.rig.probe.s3_probe import NOTES

PROBE_FOLDER = Path(ledger_probe.__file__).parent

_AT_ONCE = 8
_LATE_NS = 60 * 10**9
"""An object may appear after one with a later name: so far back is looked again."""


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

    def shards_of(self, pid: int) -> frozenset[str]:
        """Return the shards whose last writer a process was, among the lines read."""
        last = {line.shard_id: line.pid for line in self.lines}
        return frozenset(shard_id for shard_id, writer in last.items() if writer == pid)


@dataclass(slots=True)
class BatchNotes:
    """
    Reads a ledger in a bucket as it grows.

    Attributes:
        client: of S3.
        bucket: the bucket.
        versions: of the code, and how many batches each has handled.

    """

    client: Any
    bucket: str
    versions: Counter[str] = field(default_factory=Counter)
    _by_key: dict[str, LedgerLine] = field(default_factory=dict)
    _environments: dict[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> list[LedgerLine]:
        """Return all batches, in the order in which they were finished."""
        return [self._by_key[key] for key in sorted(self._by_key)]

    def read(self) -> None:
        """Read what has been added."""
        newest = max(self._by_key, default=f"{NOTES}{_LATE_NS:020d}")
        from_ns = int(newest.removeprefix(NOTES)[:20]) - _LATE_NS
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=NOTES, StartAfter=f"{NOTES}{from_ns:020d}"
        )
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        added = [key for key in keys if key not in self._by_key]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="notes") as pool:
            for key, note in zip(added, pool.map(self._get, added), strict=True):
                self.versions[note["version"]] += 1
                pid = self._environments.setdefault(note["environment"], len(self._environments))
                self._by_key[key] = _line({**note, "pid": pid})

    def _get(self, key: str) -> dict[str, Any]:
        body = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        note: dict[str, Any] = json.loads(body)
        return note


def _line(note: Mapping[str, Any]) -> LedgerLine:
    rows = tuple(HandledRecord(*row) for row in note["rows"])
    return LedgerLine(note["at_ms"], note["pid"], note["shard"], rows)
