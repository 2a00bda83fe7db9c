"""
Sleep in the fleet state: naps, what the manager remembers of its looks, other applications.

A worker writes one nap per shard; only the manager takes naps away, and keeps its glances in
rows, which the turn lock makes a single writer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from shardfleet.domain.leases.foreign_owners import Foreign
from shardfleet.domain.sleep.sleep import Glance, Nap
from shardfleet.engine.ports import StateStore, Written
from shardfleet.engine.state.documents import Documents
from shardfleet.engine.state.kinds import FOREIGN, GLANCES, NAP
from shardfleet.engine.state.rows import read_rows, write_rows
from shardfleet.errors import OutcomeUnknown

FLEET = "fleet"


class NapRecord:
    """The documents about sleep."""

    def __init__(self, store: StateStore | Documents) -> None:
        """Wrap the fleet-state table."""
        self._store = Documents.of(store)

    # --- naps

    async def begin(self, nap: Nap) -> bool:
        """
        Write a nap over whatever nap there was; False when that is not known to have worked.

        Raises:
            Throttled: not written.

        """
        current = await self._store.raw.read(NAP, nap.lease_key)
        version = None if current is None else current.version
        with suppress(OutcomeUnknown):
            written = await self._store.raw.write(
                NAP, nap.lease_key, nap.body(), expected_version=version
            )
            return isinstance(written, Written)
        return False

    async def naps(self) -> Sequence[tuple[Nap, int]]:
        """
        Read all naps with their versions, ordered by lease key (manager and CLI only).

        A shard whose nap cannot be read is awake.
        """
        return [(d.body, d.version) for d in await self._store.all(NAP) if d.body is not None]

    async def end(self, lease_key: str, version: int) -> bool:
        """
        Take a nap away (manager only); False when there is another one by now, or no answer.

        Raises:
            Throttled: not written.

        """
        with suppress(OutcomeUnknown):
            return await self._store.raw.delete(NAP, lease_key, expected_version=version)
        return False

    # --- glances

    async def glances(self) -> dict[str, Glance]:
        """Read what was last stored of the looks at sleeping shards (manager and CLI only)."""
        return await read_rows(self._store, GLANCES)

    async def store_glances(self, glances: Mapping[str, Glance]) -> None:
        """
        Store them instead of those before (manager only); without an answer the next time will do.

        Raises:
            Throttled: not all of them are written.

        """
        with suppress(OutcomeUnknown):
            await write_rows(self._store.raw, GLANCES, glances)

    # --- other applications

    async def foreign(self) -> Foreign | None:
        """Read which other application was last seen in the lease table, as far as is known."""
        found = await self._store.get(FOREIGN, FLEET)
        return None if found is None else found.body

    async def note_foreign(self, foreign: Foreign | None) -> None:
        """
        Note another application, or that there is none (manager only); repeated until it holds.

        Raises:
            Throttled: not written.

        """
        current = await self._store.raw.read(FOREIGN, FLEET)
        version = None if current is None else current.version
        with suppress(OutcomeUnknown):
            if foreign is not None:
                body = {"owner": foreign.owner, "seen_ms": foreign.seen_ms}
                await self._store.raw.write(FOREIGN, FLEET, body, expected_version=version)
            elif version is not None:
                await self._store.raw.delete(FOREIGN, FLEET, expected_version=version)
