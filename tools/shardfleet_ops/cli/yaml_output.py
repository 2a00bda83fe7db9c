"""
Commands' JSON as YAML: each document in block style, its texts quoted as JSON quotes them.

YAML takes JSON's scalars as they are (YAML 1.2, 1.3: JSON is a subset), so nothing is lost or
guessed: no text becomes a number, a date or a truth value, and all is ASCII.
"""

import io
import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

_PLAIN_KEY = re.compile(r"[a-z][a-z_]*")
_NO_PLAIN_KEYS = frozenset({"n", "no", "null", "off", "on", "true", "false", "y", "yes"})


class YamlWriter(io.TextIOBase):
    """
    A standard output that is given JSON documents and passes each on as YAML.

    Args:
        out: where to.

    """

    def __init__(self, out: TextIO) -> None:
        """Begin with no document."""
        self._out = out
        self._text = ""

    def write(self, text: str) -> int:
        """Take a piece; what is a whole document is written."""
        if not isinstance(text, str):  # Asked so what kind of stream it is.
            raise TypeError(type(text))
        self._text += text
        try:
            document = json.loads(self._text)
        except ValueError:
            return len(text)
        self._text = ""
        self._out.write("".join(f"{line}\n" for line in ["---", *_lines(document)]))
        return len(text)

    def flush(self) -> None:
        """Write what is no JSON as it is."""
        if self._text.strip():
            self._out.write(self._text)
        self._text = ""
        self._out.flush()


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inside in value.items():
            name = key if _PLAIN_KEY.fullmatch(key) and key not in _NO_PLAIN_KEYS else _quoted(key)
            yield from _under(f"{name}:", inside)
    elif isinstance(value, list) and value:
        for inside in value:
            first, *rest = _lines(inside)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _quoted(value)


def _under(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield name
        yield from (f"  {line}" for line in _lines(value))
    else:
        yield f"{name} {_quoted(value)}"


def _quoted(value: Any) -> str:
    return json.dumps(value).replace("\x7f", "\\u007f")
