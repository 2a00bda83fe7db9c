"""Where what was given up is kept in a bucket: a folder for each fleet, a key for each document."""

from __future__ import annotations

from datetime import UTC, datetime

S3_PREFIX = "shardfleet/failed"


def folder_of(fleet: str, *, account: str, region: str) -> str:
    """Return the fleet's own folder of a bucket: its worker may write below that alone."""
    return f"{S3_PREFIX}/{account}/{region}/{fleet}/"


def key_of(
    folder: str,
    *,
    stream: str,
    shard_id: str,
    first_ms: int,
    span: tuple[tuple[int, int], tuple[int, int]],
) -> str:
    """
    Return where records are kept, one key for each first and last record.

    ``shardfleet/failed/<account>/<region>/<fleet>/<stream>/<shard>/YYYY/MM/DD/<first>-<last>.json``

    Args:
        folder: see :func:`folder_of`.
        stream: its name.
        shard_id: the shard.
        first_ms: when the first record arrived, epoch milliseconds; 0: Kinesis did not say.
        span: sequence number and sub-sequence number of the first record, and of the last.

    """
    day = f"{datetime.fromtimestamp(first_ms / 1000, tz=UTC):%Y/%m/%d}" if first_ms else "undated"
    first, last = (f"{number}-{sub}" for number, sub in span)
    return f"{folder}{stream}/{shard_id}/{day}/{first}-{last}.json"
