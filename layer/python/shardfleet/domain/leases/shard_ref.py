"""
Which shard: outside of leases and adapters it is known with its stream, not by its lease's key.

How a key is spelled is here: with one stream it is the shard's id, as the KCL has it.
"""

from __future__ import annotations

from typing import NamedTuple


class ShardRef(NamedTuple):
    """Which shard of which stream; shard ids of two streams may be the same."""

    stream_arn: str
    shard_id: str

    @classmethod
    def of(cls, lease_key: str, stream_arn: str) -> ShardRef:
        """Return which shard of a stream a lease is of."""
        return cls(stream_arn, lease_key)

    @property
    def lease_key(self) -> str:
        """Return the key of its lease."""
        return self.shard_id

    def key_of(self, shard_id: str) -> str:
        """Return the key of the lease of another shard of its stream."""
        return self._replace(shard_id=shard_id).lease_key
