"""
Where a record belongs on the ring of 2**128 hash keys that a stream's shards divide.

Rules: protocol.md §5.3, point 4; API reference of ``PutRecord`` (``ExplicitHashKey`` matches
``0|[1-9][0-9]{0,38}``, ``PartitionKey`` has 1 to 256 characters). Java: ``AggregatorUtil`` and the
KPL's ``UserRecord``. Which shard owns which range is not decided here.
"""

import re
from collections.abc import Iterable

from shardfleet.errors import InvalidRecord

try:
    # CPython's own: for a few bytes twice as quick as OpenSSL's, whose beginning costs the most.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    from hashlib import md5

MAX_HASH_KEY = 2**128 - 1
"""The largest hash key; ranges of shards include both ends."""

MAX_PARTITION_KEY_CHARACTERS = 256
"""Quota of ``PutRecord``: Unicode characters, not bytes."""

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,38}")


def hash_of_partition_key(partition_key: str) -> int:
    """
    Return the hash key that Kinesis gives to a partition key.

    It is the MD5 of the UTF-8 text, read as an unsigned big-endian 128-bit integer.

    Raises:
        InvalidRecord: the text has lone surrogates and hence no UTF-8 form.

    """
    return int.from_bytes(hash_digests([partition_key])[0], "big")


def hash_digests(partition_keys: Iterable[str]) -> list[bytes]:
    """
    Return ``hash_of_partition_key`` of many keys, each as 16 bytes with the highest first.

    Raises:
        InvalidRecord: one of them has lone surrogates and hence no UTF-8 form.

    """
    try:
        return [md5(key.encode(), usedforsecurity=False).digest() for key in partition_keys]
    except UnicodeEncodeError as error:
        utf8_of(error.object)
        raise


def effective_hash(partition_key: str, explicit_hash_key: str | None = None) -> int:
    """
    Return the hash key that decides a record's shard: the explicit one if there is one.

    Raises:
        InvalidRecord: the explicit hash key is no decimal in 0...2**128-1, or the partition key
            has no UTF-8 form.

    """
    if explicit_hash_key is None:
        return hash_of_partition_key(partition_key)
    return parse_hash_key(explicit_hash_key)


def parse_hash_key(text: str) -> int:
    """
    Return an explicit hash key as a number.

    Raises:
        InvalidRecord: not a decimal without sign, blanks or leading zeros in 0...2**128-1.

    """
    value = int(text) if _DECIMAL.fullmatch(text) else -1
    if not 0 <= value <= MAX_HASH_KEY:
        raise InvalidRecord(
            f"an explicit hash key of {len(text)} characters: expected a decimal number from 0 to "
            f"2**128-1 ({MAX_HASH_KEY}) without sign, blanks or leading zeros; correct it, or "
            f"leave it out to route by the partition key"
        )
    return value


def check_partition_key(partition_key: str) -> None:
    """
    Refuse a partition key that ``PutRecord`` would refuse.

    Raises:
        InvalidRecord: empty, longer than 256 characters, or without a UTF-8 form.

    """
    if not 1 <= len(partition_key) <= MAX_PARTITION_KEY_CHARACTERS:
        raise InvalidRecord(
            f"a partition key has {len(partition_key)} "
            f"characters: Kinesis takes 1 to {MAX_PARTITION_KEY_CHARACTERS}; give every record a "
            f"key, and shorten long ones (a digest of the key keeps its order)"
        )
    if not partition_key.isascii():
        utf8_of(partition_key)


def utf8_of(partition_key: str) -> bytes:
    """
    Return the bytes of a partition key as they go over the wire.

    Raises:
        InvalidRecord: the text has lone surrogates and hence no UTF-8 form.

    """
    try:
        return partition_key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecord(
            f"a partition key has a lone surrogate at "
            f"character {error.start}: it cannot be sent as UTF-8; decode the key properly"
        ) from None
