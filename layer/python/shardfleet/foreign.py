"""What others wrote, read within bounds or not at all; no error quotes it."""

from __future__ import annotations

import json
import math
from typing import Any, Never, Protocol

BYTES_MOST = 16 * 1024 * 1024
"""Of a text that somebody else wrote; the positions of 100,000 shards have 10 MiB."""


class ByteSource(Protocol):
    """What is read byte by byte: a file, or an answer's body."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes."""
        ...


def read_bytes(source: ByteSource, *, most: int = BYTES_MOST) -> bytes:
    """
    Return all bytes of a source.

    Raises:
        ValueError: there are more than `most`.

    """
    parts: list[bytes] = []
    while most >= 0 and (part := source.read(most + 1)):
        parts.append(part)
        most -= len(part)
    if most < 0:
        raise ValueError(f"it has more than {sum(map(len, parts)) + most} bytes")
    return b"".join(parts)


def read_json(text: str | bytes) -> Any:
    """
    Return what a text says in JSON.

    Raises:
        ValueError: it is none, has a number that is none or none that fits, or is nested too deep.

    """
    try:
        whole = text if isinstance(text, str) else text.decode()  # Not in UTF-16, as json guesses.
        return json.loads(whole, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None  # Which holds the text.
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(_: str) -> Never:
    raise ValueError("it has a number that is infinite or none")
