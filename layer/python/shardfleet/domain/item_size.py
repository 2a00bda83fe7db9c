"""
How large an item of DynamoDB is, by the rules that DynamoDB states.

Developer Guide, "DynamoDB item sizes and formats": text is its UTF-8 bytes, a number about a byte
for two digits and one more, a boolean or null one byte, a list or map three bytes and one for each
element, and an attribute's name counts as text. An item holds 400 KB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

T = TypeVar("T")

ITEM_BYTES_MOST = 400 * 1024
# What a document of the manager's holds at most, key and single values left out.
DOCUMENT_BYTES_MOST = 340 * 1024
_COLLECTION_BYTES = 3
_ELEMENT_BYTES = 1


def fitting(rows: Iterable[T], *, bytes_most: int = DOCUMENT_BYTES_MOST) -> list[T]:
    """Return the first rows that fit together into so many bytes."""
    found = list(rows)
    sizes = accumulate(value_bytes(row) + _ELEMENT_BYTES for row in found)
    return found[: sum(size <= bytes_most for size in sizes)]


def value_bytes(value: object) -> int:
    """Return the size of a document's value, bytes; of a number no less than it may be."""
    match value:
        case str():
            return len(value.encode())
        case bool() | None:
            return 1
        case int() | float():
            return len(str(value)) // 2 + 2
        case dict() | Mapping():  # what is asked first is answered quickest
            inner = sum(
                len(str(name).encode()) + value_bytes(each) + _ELEMENT_BYTES
                for name, each in value.items()
            )
            return _COLLECTION_BYTES + inner
        case list() | tuple() | Sequence():
            return _COLLECTION_BYTES + sum(value_bytes(each) + _ELEMENT_BYTES for each in value)
        case _:
            return len(str(value)) // 2 + 2
