"""Every option off: what the handler has returned from is done."""

from __future__ import annotations

from shardfleet.domain.stream.sequence import ExtendedSequenceNumber
from shardfleet.engine.shard.progress import Progress


class PlainProgress(Progress):
    """One batch after another, each of them done when its call has returned."""

    def pass_by(self, position: ExtendedSequenceNumber) -> None:
        """Go on behind a position."""
        self.held.note_progress(position)
