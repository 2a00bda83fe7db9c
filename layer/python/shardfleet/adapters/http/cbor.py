"""
What a service of AWS says in CBOR (RFC 8949), as far as a JSON service has something to say.

The twin of the JSON protocol, ``application/x-amz-cbor-1.1``: the AWS SDK for Java speaks it to
Kinesis unless it is told not to (``AwsCborProtocolFactory``). The same structures, data as bytes;
their ends are counted or marked. A timestamp is read as the number that it is, tagged as one or
not; other tags and what else no answer here has are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any

_NUMBER, _BYTES, _TEXT, _ARRAY, _MAP, _TAG = 0, 2, 3, 4, 5, 6
_EPOCH = 1  # A timestamp's tag: AWS counts milliseconds behind it (K96), RFC 8949 seconds.
_SHORT_TEXT, _SHORT_TEXT_END = 0x60, 0x78
_TEXT_8 = 0x78
_SIMPLE = {0xF4: False, 0xF5: True, 0xF6: None}
_MARKED_MAP = 0xBF
_LONGEST_TEXT_8 = 255
_FEWEST = 8  # Structures that are taken apart together.
_MARKED = 31  # Of a head: the end is not counted but marked.
_WORD, _LONGEST_WORD = 24, 27  # Of a head: the number is in the 1, 2, 4 or 8 bytes behind it.
_END = 0xFF
_DEPTH_MOST = 16

Reader = Callable[[bytes | bytearray, int], tuple[Any, int] | None]
"""Reads the value at a place of a body, and says where it ends; None: somebody else has to."""
_NO_READERS: Mapping[str, Reader] = {}


def head(kind: int, number: int) -> bytes:
    """Return what stands before a value of a kind (RFC 8949, 3.1), in the fewest bytes."""
    if number < _WORD:
        return bytes((kind << 5 | number,))
    width = max(0, (number.bit_length() - 1).bit_length() - 3)  # 8, 16, 32 or 64 bits.
    return bytes((kind << 5 | _WORD + width,)) + number.to_bytes(1 << width, "big")


def bytes_head(length: int) -> bytes:
    """Return what stands before so many bytes."""
    return head(_BYTES, length)


def text_head(length: int) -> bytes:
    """Return what stands before a text of so many bytes."""
    return head(_TEXT, length)


def number(value: int) -> bytes:
    """Return a number that is not negative."""
    return head(_NUMBER, value)


def text(value: str) -> bytes:
    """Return a text."""
    raw = value.encode()
    return text_head(len(raw)) + raw


def is_cbor(body: bytes | bytearray) -> bool:
    """Return whether a body begins with a structure in CBOR; no text in UTF-8 begins like that."""
    return bool(body) and body[0] >> 5 == _MAP


def decode(body: bytes | bytearray, *, readers: Mapping[str, Reader] = _NO_READERS) -> Any:
    """
    Return the value in a body.

    Args:
        body: all of it.
        readers: by member of the outermost structure, who reads it quicker.

    Raises:
        ValueError: it is none, more than one, or none of those that AWS's JSON knows, too.

    """
    try:
        value, at = _value(body, 0, _DEPTH_MOST, readers=readers)
    except IndexError:
        raise ValueError("the body ends within a value") from None
    if at != len(body):
        raise ValueError("something is behind the value")
    return value


def items(body: bytes | bytearray, at: int) -> tuple[int, int]:
    """
    Return how many values an array at a place has, -1 if its end is marked, and where they begin.

    Raises:
        ValueError: no array is there.

    """
    if body[at] >> 5 != _ARRAY:
        raise ValueError("no array where one is expected")
    return _number(body, at)


def members(body: bytes | bytearray, at: int) -> tuple[dict[str, Any], dict[str, range], int]:
    """
    Return the values of a structure at a place, where each is, and where the structure ends.

    Raises:
        ValueError, IndexError: no structure is there.

    """
    if body[at] >> 5 != _MAP:
        raise ValueError("no structure where one is expected")
    places: dict[str, range] = {}
    values, end = _map(body, at, _DEPTH_MOST, readers=_NO_READERS, places=places)
    return values, places, end


def _value(
    body: bytes | bytearray, at: int, depth: int, *, readers: Mapping[str, Reader] = _NO_READERS
) -> tuple[Any, int]:
    """Return the value at a place, and where it ends."""
    first = body[at]
    if first in _SIMPLE:
        return _SIMPLE[first], at + 1
    kind = first >> 5
    if kind in (_ARRAY, _MAP):
        if not depth:
            raise ValueError("structures within structures without end")
        if kind == _MAP:
            return _map(body, at, depth - 1, readers=readers, places={})
        return _array(body, at, depth - 1)
    if kind == _TEXT:
        return _text(body, at)
    value, at = _number(body, at)
    if kind == _TAG and value == _EPOCH and body[at] >> 5 == _NUMBER:
        kind, (value, at) = _NUMBER, _number(body, at)
    if kind > _BYTES or value < 0:
        raise ValueError("a value that JSON does not know")
    if kind == _BYTES:
        return _slice(body, at, value)
    return (-1 - value if kind else value), at


def _map(
    body: bytes | bytearray,
    at: int,
    depth: int,
    *,
    readers: Mapping[str, Reader],
    places: dict[str, range],
) -> tuple[dict[str, Any], int]:
    """Return a structure, and where it ends; note where its values are."""
    left, at = _number(body, at)
    found: dict[str, Any] = {}
    while left:
        if left < 0 and body[at] == _END:
            return found, at + 1
        key, begin = _text(body, at)
        read = readers.get(key)
        found[key], at = (read and read(body, begin)) or _value(body, begin, depth)
        places[key] = range(begin, at)
        left -= 1
    return found, at


def _array(body: bytes | bytearray, at: int, depth: int) -> tuple[list[Any], int]:
    left, at = _number(body, at)
    found: list[Any] = []
    while left:
        if left < 0 and body[at] == _END:
            return found, at + 1
        begin = at
        value, at = _value(body, at, depth)
        found.append(value)
        left -= 1
        if len(found) == 1 and isinstance(value, dict):
            more = _alike(body, begin, at - begin, first=value, most=left)
            found += more
            left -= len(more)
            at += len(more) * (at - begin)
    return found, at


def _alike(
    body: bytes | bytearray, begin: int, size: int, *, first: dict[str, Any], most: int
) -> list[dict[str, Any]]:
    """
    Return the structures behind one that differ from it in nothing but their texts' characters.

    The outcomes of a request's entries are mostly like that, hundreds of them, and to take each
    apart byte by byte would cost more than it did to send it. Here each byte that is no
    character is compared in one step for all, and the texts are cut out at their places.

    Args:
        body: with the structures in it.
        begin: of the first.
        size: bytes of it.
        first: what it says.
        most: so many follow at most; negative: as many as there are.

    Returns:
        none unless all that may follow are alike, and all texts ASCII.

    """
    fits = (len(body) - begin) // size
    count = fits if most < 0 else most + 1
    places = _places(first, size, marked=body[begin] == _MARKED_MAP)
    if not _FEWEST <= count <= fits or places is None:
        return []
    end = begin + count * size
    texts = {offset for place in places for offset in range(place.start, place.stop)}
    for offset in set(range(size)) - texts:
        column = body[begin + offset : end : size]
        if column.count(column[0]) != count:
            return []
    characters = body[begin:end].decode("latin-1")
    columns = [
        [characters[at : at + len(place)] for at in range(place.start, len(characters), size)]
        for place in places
    ]
    if not all("".join(column).isascii() for column in columns):
        return []
    rows = zip(*(column[1:] for column in columns), strict=True)
    return list(map(dict, map(zip, repeat(tuple(first)), rows)))


def _places(structure: dict[str, Any], size: int, *, marked: bool) -> list[range] | None:
    """Return where the texts of a structure of a size are; None if it has more than short ones."""
    at, places = 1, []
    for name, value in structure.items():
        if not isinstance(value, str) or max(len(name), len(value)) > _LONGEST_TEXT_8:
            return None
        at += _short_size(name) + _short_size(value)
        places.append(range(at - len(value), at))
    return places if at + marked == size else None


def _short_size(text: str) -> int:
    return len(text) + (1 if len(text) < _WORD else 2)


def _text(body: bytes | bytearray, at: int) -> tuple[str, int]:
    head = body[at]
    if _SHORT_TEXT <= head < _SHORT_TEXT_END:  # Most are: names of members, ids of shards.
        size, at = head - _SHORT_TEXT, at + 1
    elif head == _TEXT_8:
        size, at = body[at + 1], at + 2
    elif head >> 5 == _TEXT:
        size, at = _number(body, at)
    else:
        raise ValueError("no text where one is expected")
    raw, at = _slice(body, at, size)
    return raw.decode(), at


def _slice(body: bytes | bytearray, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if not at <= end <= len(body):
        raise ValueError("a length that the body does not have, or is marked")
    return bytes(body[at:end]), end


def _number(body: bytes | bytearray, at: int) -> tuple[int, int]:
    """Return the number of a head, -1 if the end is marked instead, and where it ends."""
    low, at = body[at] & 0x1F, at + 1
    if low < _WORD:
        return low, at
    if low <= _LONGEST_WORD:
        raw, at = _slice(body, at, 1 << low - _WORD)
        return int.from_bytes(raw, "big"), at
    if low == _MARKED:
        return -1, at
    raise ValueError("a head that RFC 8949 does not know")
