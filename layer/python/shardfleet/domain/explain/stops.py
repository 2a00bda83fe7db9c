"""Shards that stand still: why, and when they go on, in words for a person."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """
    Why a shard is stopped.

    Attributes:
        at_ms: since when, epoch milliseconds.
        position: of the record that could not be handled, ``sequence:sub``.
        error: what went wrong, for a person.
        retry_ms: when it is tried again by itself, epoch milliseconds; 0: when it is resumed.
        is_missing: not a record is the reason, but that the service does not know the shard.

    """

    at_ms: int
    position: str
    error: str
    retry_ms: int = 0
    is_missing: bool = False

    @property
    def outlook(self) -> str:
        """Return when it goes on, one sentence."""
        if self.is_missing:
            return "It goes on when the service answers; `shardfleet release --ended` ends it."
        if self.retry_ms:
            return "It is tried again by itself; `shardfleet resume` has it tried at once."
        return "Nothing after that record is read until `shardfleet resume` lets it go on."

    def advice(self, lease_key: str) -> str:
        """Return what to do about it."""
        if self.is_missing:
            return f"wait, or if you know that it is over: shardfleet release {lease_key} --ended"
        mend = "mend the handler or the record, then"
        if self.retry_ms:
            mend = "look into the worker's log; it is tried again by itself, or at once"
        return f"{mend}: shardfleet resume {lease_key}"
