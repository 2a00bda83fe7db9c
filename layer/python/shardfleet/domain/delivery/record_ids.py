"""
An id in front of a record's data, by which a reader drops what an at-least-once writer sent twice.

A Kinesis record has no headers, so the id stands in a frame before the payload: four bytes of
magic, one byte with the length of the id, the id in UTF-8, then the payload unchanged. The magic
begins with a byte that no UTF-8 text and no KPL aggregate begins with, so that data without a
frame is recognized as such.
"""

from __future__ import annotations

from collections import OrderedDict

from shardfleet.errors import InvalidRecord

MAGIC = b"\xf5SF\x01"
"""Begins framed data; 0xF5 occurs nowhere in UTF-8 (RFC 3629), and the KPL's magic is F3899AC2."""

ID_BYTES_MOST = 255
"""The length of an id has one byte."""

FRAME_BYTES = len(MAGIC) + 1
"""What a frame adds to id and payload."""


def with_record_id(record_id: str, data: bytes) -> bytes:
    """
    Return the payload behind its id.

    Raises:
        InvalidRecord: the id is empty or longer than 255 bytes of UTF-8.

    """
    text = record_id.encode()
    if not 1 <= len(text) <= ID_BYTES_MOST:
        raise InvalidRecord(
            f"a record id has {len(text)} bytes: 1 to {ID_BYTES_MOST} are "
            "allowed; take a digest of a longer one"
        )
    return b"".join((MAGIC, bytes((len(text),)), text, data))


def split_record_id(data: bytes) -> tuple[str | None, bytes]:
    """Return id and payload; None and the data as they are where there is no whole frame."""
    if not data.startswith(MAGIC) or len(data) <= FRAME_BYTES:
        return None, data
    end = FRAME_BYTES + data[len(MAGIC)]
    if end == FRAME_BYTES or end > len(data):
        return None, data
    try:
        return data[FRAME_BYTES:end].decode(), data[end:]
    except UnicodeDecodeError:
        return None, data


class SeenIds:
    """
    The last ids that were seen, to recognize a repeat; bounded.

    A writer repeats a record within one repeated batch, so it is enough to remember more ids than
    a batch has records.

    Args:
        most: ids remembered.

    """

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._seen: OrderedDict[str, None] = OrderedDict()

    def is_new(self, record_id: str | None) -> bool:
        """Remember an id; False if it is remembered already. A record without one is new."""
        if record_id is None:
            return True
        if record_id in self._seen:
            self._seen.move_to_end(record_id)
            return False
        self._seen[record_id] = None
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return True
