"""
Shards that the service does not know, in the fleet state: what is remembered while they wait.

One document per shard, written by its owner, and by a person who decides that it is over. A shard
that answers again has its document emptied: a worker may not delete (hazard H19).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import asdict, replace

from shardfleet.domain.reasons import reason_json
from shardfleet.domain.stream.gone_shards import GoneNote
from shardfleet.engine.ports import StateStore, Written
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.kinds import GONE


class VersionedGone(Struct, frozen=True):
    """A note and the document version it was read at; None: there is no document."""

    note: GoneNote
    version: int | None


class GoneRecord:
    """The documents about shards that are not found."""

    def __init__(self, store: StateStore | Documents) -> None:
        """Wrap the fleet-state table."""
        self._store = Documents.of(store)

    async def read(self, lease_key: str) -> VersionedGone:
        """
        Read what is remembered of a shard; in doubt nothing, so it waits for longer.

        Raises:
            Throttled: try again later.

        """
        found = await self._store.get(GONE, lease_key)
        note = (found and found.body) or GoneNote(lease_key=lease_key)
        return VersionedGone(note, found.version if found else None)

    async def missed(self) -> Sequence[GoneNote]:
        """Read all shards that are being missed, by lease key (manager and CLI only)."""
        return [note for note in await self._store.bodies(GONE) if note.is_open]

    async def write(self, note: GoneNote, version: int | None) -> bool:
        """
        Write a note by compare-and-set; False when somebody else wrote first.

        Raises:
            OutcomeUnknown: no answer came; read again.
            Throttled: not written.

        """
        body = asdict(note) | {"reason": reason_json(note.reason) if note.reason else None}
        key = body.pop("lease_key")
        result = await self._store.raw.write(GONE, key, body, expected_version=version)
        return isinstance(result, Written)

    async def forget(self, found: VersionedGone, *, known_ms: int) -> None:
        """
        Note that a shard has answered, or has ended; keep up to when it is known.

        Raises:
            OutcomeUnknown, Throttled: try again.

        """
        while found.note.is_open:
            known_ms = max(known_ms, found.note.known_ms)
            empty = GoneNote(lease_key=found.note.lease_key, known_ms=known_ms)
            if await self.write(empty, found.version):
                return
            found = await self.read(found.note.lease_key)

    async def decide(self, lease_key: str, *, person: str) -> bool:
        """
        Note that a person has decided that a missed shard is over; False: it is not missed.

        Raises:
            OutcomeUnknown, Throttled: try again.

        """
        while True:
            found = await self.read(lease_key)
            if not found.note.is_open:
                return False
            if await self.write(replace(found.note, ended_by=person), found.version):
                return True
