"""
Sleep in the fleet state: naps, what the manager remembers of its looks, other applications.

A worker writes one nap per shard; only the manager takes naps away, and keeps its glances in
chunks, which the turn lock makes a single writer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from shardfleet.domain.leases.foreign_owners import Foreign
from shardfleet.domain.sleep.sleep import Glance, Nap, glance_of_row, nap_from_body
from shardfleet.engine.ports import StateStore, Written
from shardfleet.errors import OutcomeUnknown

NAP = "nap"
GLANCES = "glances"
FOREIGN = "foreign"
FLEET = "fleet"
# An item of DynamoDB holds 400 KB; a row is some 350 bytes, most of it the iterator.
GLANCES_PER_CHUNK = 500


@dataclass(frozen=True, slots=True)
class VersionedNap:
    """A nap and the document version it was read at."""

    nap: Nap
    version: int


class NapRecord:
    """The documents about sleep."""

    def __init__(self, store: StateStore) -> None:
        """Wrap the fleet-state table."""
        self._store = store

    # --- naps

    async def begin(self, nap: Nap) -> bool:
        """
        Write a nap over whatever nap there was; False when that is not known to have worked.

        Raises:
            Throttled: not written.

        """
        current = await self._store.read(NAP, nap.lease_key)
        version = None if current is None else current.version
        with suppress(OutcomeUnknown):
            written = await self._store.write(
                NAP, nap.lease_key, nap.body(), expected_version=version
            )
            return isinstance(written, Written)
        return False

    async def naps(self) -> Sequence[VersionedNap]:
        """Read all naps, ordered by lease key (manager and CLI only)."""
        found = await self._store.list(NAP)
        return [VersionedNap(nap_from_body(d.id, d.body), d.version) for d in found]

    async def end(self, found: VersionedNap) -> bool:
        """
        Take a nap away (manager only); False when there is another one by now, or no answer.

        Raises:
            Throttled: not written.

        """
        with suppress(OutcomeUnknown):
            return await self._store.delete(
                NAP, found.nap.lease_key, expected_version=found.version
            )
        return False

    # --- glances

    async def glances(self) -> dict[str, Glance]:
        """Read what was last stored of the looks at sleeping shards (manager and CLI only)."""
        found: dict[str, Glance] = {}
        for document in await self._store.list(GLANCES):
            rows = document.body["leases"]
            found |= {key: glance_of_row(row) for key, row in rows.items()}
        return found

    async def store_glances(self, glances: Mapping[str, Glance]) -> None:
        """
        Store them instead of those before (manager only); without an answer the next time will do.

        Raises:
            Throttled: not all of them are written.

        """
        rows = [(key, glance.row()) for key, glance in sorted(glances.items())]
        known = {d.id: d for d in await self._store.list(GLANCES)}
        with suppress(OutcomeUnknown):
            for begin in range(0, len(rows), GLANCES_PER_CHUNK):
                name = f"{begin // GLANCES_PER_CHUNK:04d}"
                before = known.pop(name, None)
                await self._store.write(
                    GLANCES,
                    name,
                    {"leases": dict(rows[begin : begin + GLANCES_PER_CHUNK])},
                    expected_version=None if before is None else before.version,
                )
            for stale in known.values():
                await self._store.delete(GLANCES, stale.id, expected_version=stale.version)

    # --- other applications

    async def foreign(self) -> Foreign | None:
        """Read which other application was last seen in the lease table."""
        document = await self._store.read(FOREIGN, FLEET)
        if document is None:
            return None
        return Foreign(str(document.body["owner"]), int(document.body["seen_ms"]))

    async def note_foreign(self, foreign: Foreign | None) -> None:
        """
        Note another application, or that there is none (manager only); repeated until it holds.

        Raises:
            Throttled: not written.

        """
        current = await self._store.read(FOREIGN, FLEET)
        version = None if current is None else current.version
        with suppress(OutcomeUnknown):
            if foreign is not None:
                body = {"owner": foreign.owner, "seen_ms": foreign.seen_ms}
                await self._store.write(FOREIGN, FLEET, body, expected_version=version)
            elif version is not None:
                await self._store.delete(FOREIGN, FLEET, expected_version=version)


__all__ = ["FOREIGN", "GLANCES", "NAP", "NapRecord", "VersionedNap"]
