"""
Buffers a shard's records to S3: a file per 64 MB or 5 minutes, the positions in its name.

For ``checkpoint`` ``manual``, whose ``max_open_bytes`` and ``max_open_age_ms`` are size and time.
"""

from collections.abc import Sequence

from s3_files import write

from shardfleet import Batch, Record


class Buffer:
    """One shard's open records; it begins empty: what was open elsewhere comes again."""

    records: Sequence[Record] = ()

    def handle(self, batch: Batch) -> None:
        """Keep the records, or write all, once they are many or old; a failed call keeps none."""
        records = (*self.records, *batch)
        self.records = write(batch, records) if batch.must_flush else records

    def ended(self, shard: Batch) -> None:
        """Write the rest: only then is the shard finished."""
        self.records = write(shard, self.records)

    def stopping(self, shard: Batch, until: int) -> None:
        """Write the rest before somebody else has the shard; one file takes seconds at most."""
        del until
        self.records = write(shard, self.records)
