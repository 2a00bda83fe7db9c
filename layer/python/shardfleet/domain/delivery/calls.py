"""What a handler is called for: each call that may kill the process is noted by its kind (H21)."""

from __future__ import annotations

from enum import StrEnum

from shardfleet.domain.delivery.hooks import Hook


class CallKind(StrEnum):
    """What one call into user code is for; the value is what a crash note says."""

    RECORDS = "records"
    WINDOW = "window"  # without records: the last call of a window
    FLUSH = "flush"  # without records: the handler is to checkpoint what is open
    STARTED = str(Hook.STARTED)
    ENDED = str(Hook.ENDED)
    LEASE_LOST = str(Hook.LEASE_LOST)
    STOPPING = str(Hook.STOPPING)

    @classmethod
    def _missing_(cls, _: object) -> CallKind:
        """Read a kind that another version has named: nothing is known of its records."""
        return cls.FLUSH

    @property
    def is_noted(self) -> bool:
        """
        Return whether a death in it is charged to the shard.

        Of a lease that is lost the notes are its next owner's, and the next turn does not have it:
        it cannot die of it again.
        """
        return self is not CallKind.LEASE_LOST

    @property
    def in_words(self) -> str:
        """Name the call to a person."""
        return _IN_WORDS.get(self, f"hook {self}")


_IN_WORDS = {
    CallKind.RECORDS: "call with records",
    CallKind.WINDOW: "last call of a window",
    CallKind.FLUSH: "called without records, while some are open",
}
