"""Shards that stand still: why, and when they go on, in words for a person."""

from __future__ import annotations

from msgspec import Struct


class StopNote(Struct, frozen=True, kw_only=True):
    """
    A stopped shard: by policy, until somebody resumes it, or by what it raised, for a while.

    Attributes:
        lease_key: the lease.
        position: of the record that could not be handled, ``sequence:sub``; or the progress.
        error: what went wrong, for a person.
        attempts: how often it was tried; 0: it goes on, and nothing is stopped any more.
        worker_id: who stopped it.
        at_ms: since when, epoch milliseconds.
        retry_ms: when it is tried again, epoch milliseconds; 0: when somebody resumes it.

    """

    lease_key: str
    position: str
    error: str
    attempts: int
    worker_id: str
    at_ms: int
    retry_ms: int = 0

    @property
    def outlook(self) -> str:
        """Return when it goes on, one sentence."""
        if self.retry_ms:
            return "It is tried again by itself; `shardfleet resume` has it tried at once."
        return "Nothing after that record is read until `shardfleet resume` lets it go on."

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        mend = "mend the handler or the record, then"
        if self.retry_ms:
            mend = "look into the worker's log; it is tried again by itself, or at once"
        return f"{mend}: shardfleet resume {self.lease_key}"


class MissingShard(StopNote, frozen=True):
    """A shard that the service does not know: no record is the reason, and nobody tried one."""

    @property
    def outlook(self) -> str:
        """Return when it goes on, one sentence."""
        return "It goes on when the service answers; `shardfleet release --ended` ends it."

    @property
    def advice(self) -> str:
        """Return what to do about it."""
        return f"wait, or if you know that it is over: shardfleet release {self.lease_key} --ended"
