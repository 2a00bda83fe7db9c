"""
A source that no product file knows: it looks at a shard once a second, and while it waits, leaves.

It has no iterators that a reader could see, no quotas and no subscription.
"""

from msgspec.structs import replace

from shardfleet.domain.reading.pages import StartingPosition, StartKind
from shardfleet.engine.retry import Halted

_LOOKS_APART_MS = 1_000


class ToySource:
    def __init__(self, stream, clock):
        self._stream = stream
        self._seen = {}
        self.ways = {}

    async def page(self, shard, start, *, resume_token, limit, halt):
        """Return what there is behind a sequence number, which is the token."""
        shard_id = shard.shard_id
        if resume_token:
            start = StartingPosition(StartKind.AFTER_SEQUENCE_NUMBER, resume_token)
            if self._seen.get(shard_id) == resume_token and await halt.wait(_LOOKS_APART_MS):
                raise Halted
        iterator = await self._stream.shard_iterator(shard_id, start)
        token = self._stream.continuation(shard_id, iterator)
        page = await self._stream.get_records(iterator, shard_id=shard_id, limit=limit)
        self._seen[shard_id] = token
        following = page.records[-1].sequence_number if page.records else token
        return replace(page, page_token=token, resume_token=page.resume_token and following)

    async def close(self):
        """Nothing is kept open."""
