"""
The frame around an aggregated record: magic number, protobuf body, MD5 of the body.

Rules: protocol.md §5.3, points 1 and 2. Java: ``AggregatorUtil.AGGREGATED_RECORD_MAGIC``. What
the body means is decided in ``deaggregate`` and ``aggregate``.
"""

import hashlib

MAGIC = b"\xf3\x89\x9a\xc2"
"""The first four bytes of every aggregated record (KPL aggregation format)."""

DIGEST_BYTES = 16
"""The MD5 of the body stands at the end."""

ENVELOPE_BYTES = len(MAGIC) + DIGEST_BYTES
"""What the frame adds to a body; a record of no more than this is a plain one, magic or not."""

DEFAULT_MAX_SUB_RECORDS = 200_000
"""
How many user records we put into, and take out of, one Kinesis record unless told otherwise.

A user record costs at least 6 bytes on the wire, so an ordinary 1 MiB Kinesis record cannot hold
more than 174,762: no honest producer meets the bound.
"""


def is_framed(data: bytes) -> bool:
    """Return whether ``data`` claims to be an aggregate: magic number and room for a body."""
    return data.startswith(MAGIC) and len(data) > ENVELOPE_BYTES


def body_of(data: bytes) -> bytes | None:
    """Return the protobuf body of a framed record, or None when the digest does not match."""
    # Digested in place; the copy is made of what is then in the processor's cache.
    digest = digest_of(memoryview(data)[len(MAGIC) : -DIGEST_BYTES])
    return data[len(MAGIC) : -DIGEST_BYTES] if digest == data[-DIGEST_BYTES:] else None


def frame(*pieces: bytes) -> bytes:
    """Return the body, given in pieces, with the magic number before and its digest behind it."""
    digest = hashlib.md5(usedforsecurity=False)
    for piece in pieces:
        digest.update(piece)
    return b"".join((MAGIC, *pieces, digest.digest()))


def digest_of(body: bytes | memoryview) -> bytes:
    """Return the format's checksum, MD5; it finds damage and proves nothing about the author."""
    return hashlib.md5(body, usedforsecurity=False).digest()
