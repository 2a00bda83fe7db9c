"""
Pausing leases: the document that says so, the worker's look at it, and the manager's.

The document is versioned as every document of the fleet state; only the command line writes it.
A worker looks once per failover time and at the beginning of a turn, so a paused shard is given up
within that time and the rest of its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from shardfleet.domain.sleep.pauses import Pauses
from shardfleet.engine.ownership.checkpointer import Checkpointer
from shardfleet.engine.ports import StateStore, Written
from shardfleet.engine.retry import Halt
from shardfleet.engine.state.documents import Documents, malformed
from shardfleet.engine.state.kinds import PAUSE
from shardfleet.errors import MalformedDocument, OutcomeUnknown, ProtocolError, Throttled

FLEET = "fleet"
_NOTHING = Pauses()
_ROUNDS_MOST = 20  # several people may pause and resume at a time; more rounds mean a bug


class PauseRecord:
    """The one document about pauses."""

    def __init__(self, store: StateStore | Documents) -> None:
        """Wrap the fleet-state table."""
        self._store = Documents.of(store)

    async def read(self) -> Pauses:
        """
        Read what is paused; of a document that cannot be read, that nobody knows.

        Raises:
            Throttled: no answer; try again.

        """
        try:
            pauses, _ = await self._read()
        except MalformedDocument:
            return Pauses(is_unknown=True)
        return pauses

    async def _read(self) -> tuple[Pauses, int | None]:
        found = await self._store.get(PAUSE, FLEET)
        if found is None:
            return _NOTHING, None
        if found.body is None:
            raise malformed(PAUSE, found)
        return found.body, found.version

    async def change(
        self, change: Callable[[Pauses], Pauses], *, whatever_was: bool = False
    ) -> Pauses:
        """
        Apply a pure change, again until the write goes through.

        A document that says that nothing is paused is kept, and made: a write that is still on its
        way, or lands once more, would pause again what a person has resumed, if there were none.

        Args:
            change: what is paused to what is to be; the same object: nothing is written.
            whatever_was: what cannot be read is changed, too, as if nothing were paused: the change
                concerns the whole fleet.

        Returns:
            What is paused now.

        Raises:
            Throttled: not written; try again.
            ProtocolError: the document would not hold still, or cannot be read.

        """
        for _ in range(_ROUNDS_MOST):
            try:
                current, version = await self._read()
            except MalformedDocument as error:
                if not whatever_was:
                    raise
                current, version = Pauses(is_unknown=True), error.version
            wanted = change(current)
            if wanted is current:
                return current
            wanted = replace(wanted, is_unknown=False)
            with suppress(OutcomeUnknown):
                body = msgspec.to_builtins(wanted)
                del body["is_unknown"]
                written = await self._store.raw.write(PAUSE, FLEET, body, expected_version=version)
                if isinstance(written, Written):
                    return wanted
        raise ProtocolError(
            f"{PAUSE} {FLEET}: not written in {_ROUNDS_MOST} rounds of compare-and-set"
        )


class PauseWatch:
    """A worker's eye on the document."""

    def __init__(
        self,
        record: PauseRecord,
        *,
        checkpointer: Checkpointer,
        give_up: Callable[[Collection[str]], None],
        every_ms: int,
    ) -> None:
        """
        Begin without a look.

        Args:
            record: the document.
            checkpointer: knows what is held.
            give_up: called with the keys of held leases that are paused.
            every_ms: time between two looks.

        """
        self._record = record
        self._checkpointer = checkpointer
        self._give_up = give_up
        self._every_ms = every_ms

    async def look(self) -> None:
        """Give up what is paused; without an answer the next look will do."""
        if not self._checkpointer.held:
            return
        with suppress(Throttled, OutcomeUnknown):
            pauses = await self._record.read()
            held = [held.lease_key for held in self._checkpointer.held]
            if paused := pauses.among(held):
                self._give_up(paused.keys())

    async def run(self, halt: Halt) -> None:
        """Look again and again until halted."""
        while not await halt.wait(self._every_ms):
            await self.look()
