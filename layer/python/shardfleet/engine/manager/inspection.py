"""
Documents that cannot be read, as the manager finds them: those a turn reads, and all by and by.

What no turn reads (pins, crash notes, windows, …) is looked at once a minute, eventually
consistent, up to two pages of 1 MB: a fleet's whole table but in very large ones, of which another
part is looked at each minute.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardfleet.engine.ports import Clock, Document, StateStore
from shardfleet.engine.state.documents import Documents, UnreadableDocument
from shardfleet.engine.state.kinds import KINDS, kind_of

INSPECT_EVERY_MS = 60_000


class Inspector:
    """
    What one invocation of the manager knows of documents that cannot be read.

    Attributes:
        documents: the table, read so that what cannot be read is noted here.

    """

    def __init__(self, store: StateStore, clock: Clock) -> None:
        """Nothing is looked at yet."""
        self.documents = Documents(store, self.note)
        self._clock = clock
        self._looked_ms: int | None = None
        self._met: dict[str, UnreadableDocument] = {}
        self._inspected: dict[str, UnreadableDocument] = {}

    def note(self, document: UnreadableDocument) -> None:
        """Note one that was met."""
        self._met[document.name] = document

    async def inspect_if_due(self) -> Sequence[Document]:
        """
        Look at what no turn reads, if it is time, and return what was seen.

        Raises:
            ShardfleetError: the table refused; the next turn looks again.

        """
        now_ms = self._clock.monotonic_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < INSPECT_EVERY_MS:
            return ()
        met = self._met
        self._met = {}
        try:
            page = await self.documents.raw.page()
            seen = list(page.documents)
            if page.after is not None:
                kind = KINDS[self._clock.now_ms() // INSPECT_EVERY_MS % len(KINDS)]
                seen += (await self.documents.raw.page((str(kind), " "))).documents
            self._read(seen)
            self._inspected = self._met
            self._looked_ms = now_ms
        finally:
            self._met = met
        return seen

    def _read(self, documents: Sequence[Document]) -> None:
        for document in documents:
            kind = kind_of(document.kind)
            if kind is not None:
                self.documents.typed(kind, document)

    def take(self) -> list[UnreadableDocument]:
        """Return all that are known of, ordered by name; those of the next turn are met anew."""
        found = self._inspected | self._met
        self._met = {}
        return [found[name] for name in sorted(found)]
