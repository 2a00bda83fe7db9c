"""What handlers have finished, read from the bucket while it grows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from shardfleet_local.rig.ledger import HandledRecord, LedgerLine
from shardfleet_local.rig.probe.s3_probe import NOTES

_AT_ONCE = 8
_LATE_NS = 60 * 10**9
"""An object may appear after one with a later name: so far back is looked again."""


@dataclass(slots=True)
class BatchNotes:
    """
    The notes of a run.

    Attributes:
        client: of S3.
        bucket: the bucket.
        lines: what was noted, in order of the time at which batches were finished.
        versions: of the code, by name of the object.

    """

    client: Any
    bucket: str
    versions: dict[str, str] = field(default_factory=dict)
    _by_key: dict[str, LedgerLine] = field(default_factory=dict)
    _environments: dict[str, int] = field(default_factory=dict)

    @property
    def lines(self) -> list[LedgerLine]:
        """Return all batches, in the order in which they were finished."""
        return [self._by_key[key] for key in sorted(self._by_key)]

    def of_version(self, version: str) -> int:
        """Count the batches that a version of the code has handled."""
        return sum(found == version for found in self.versions.values())

    def read(self) -> None:
        """Read what has been added."""
        newest = max(self._by_key, default="")
        after = ""
        if newest:
            from_ns = int(newest.removeprefix(NOTES)[:20]) - _LATE_NS
            after = f"{NOTES}{from_ns:020d}"
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=NOTES, StartAfter=after
        )
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        self._take(key for key in keys if key not in self._by_key)

    def _take(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="notes") as pool:
            for key, note in zip(wanted, pool.map(self._get, wanted), strict=True):
                self.versions[key] = note["version"]
                self._by_key[key] = LedgerLine(
                    note["at_ms"],
                    self._environments.setdefault(note["environment"], len(self._environments)),
                    note["shard"],
                    tuple(HandledRecord(*row) for row in note["rows"]),
                )

    def _get(self, key: str) -> dict[str, Any]:
        body = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        found: dict[str, Any] = json.loads(body)
        return found
