"""
The text of a file or of standard input, by its first bytes: packed or not, in UTF-8, -16 or -32.

Known are gzip, bzip2, xz and zstd, also several behind one another as `cat` leaves them, and the
byte order marks of Unicode. What is cut off, spoiled or something else is refused: half a file that
passes for a whole one is the worst that could come of it.
"""

from __future__ import annotations

import bz2
import codecs
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

from shardfleet.errors import ConfigurationError

BYTES_MOST = 1024**3
"""Of a file, and of what is packed in it: all of it is held in memory."""

STANDARD_INPUT = "-"

_READ = 1024**2
_PIECE = 4_096
"""So much is unpacked at once: of zstd it may become 128 MiB, of the others less."""


class _Unpacker(Protocol):
    """What the four have in common; each ends with its own check sum."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Packing(NamedTuple):
    name: str
    begins: bytes
    unpacker: Callable[[], _Unpacker]


def _zstd() -> _Unpacker:
    import zstandard  # noqa: PLC0415 - few inputs are packed so

    unpacker: _Unpacker = zstandard.ZstdDecompressor().decompressobj()
    return unpacker


_PACKINGS = (
    _Packing("gzip", b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),
    _Packing("bzip2", b"BZh", bz2.BZ2Decompressor),
    _Packing("xz", b"\xfd7zXZ\0", lzma.LZMADecompressor),
    _Packing("zstd", b"\x28\xb5\x2f\xfd", _zstd),
)
_BZIP2_BLOCK = b"1AY&SY"
"""Behind the first four bytes, which a column's name could have, too."""

_ENCODINGS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # It begins as UTF-16 does.
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive or a workbook: unpack it, or save it as CSV"),
    (b"\xd0\xcf\x11\xe0", "a workbook: save it as CSV"),
    (b"PAR1\x15", "Parquet: write it as JSON lines"),
    (b"Obj\x01", "Avro: write it as JSON lines"),
)


def text_of(file: str) -> tuple[str, str]:
    """
    Return an input's name for a person, and its text without a byte order mark.

    Args:
        file: its path, or `-` for standard input.

    Raises:
        ConfigurationError: it cannot be read, is too large, cut off, spoiled, or no text; the
            message names the file, the line where there is one, and what to do.

    """
    try:
        name, data = _bytes_of(file)
    except FileNotFoundError:
        raise ConfigurationError(f"{file}: no such file") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{file}: is a folder, a file is needed") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from None
    for packing in _PACKINGS:
        if data.startswith(packing.begins) and _is_packed(data, packing):
            data = _unpacked(name, data, packing)
            break
    return name, _decoded(name, data)


def _bytes_of(file: str) -> tuple[str, bytes]:
    if file == STANDARD_INPUT:
        return "standard input", _all_of(sys.stdin.buffer, "standard input")
    with Path(file).open("rb") as opened:
        return Path(file).name, _all_of(opened, file)


def _all_of(opened: BinaryIO, name: str) -> bytes:
    whole = bytearray()
    while piece := opened.read(_READ):  # A device may have no end.
        whole += piece
        if len(whole) > BYTES_MOST:
            raise ConfigurationError(
                f"{name}: more than {BYTES_MOST // 2**20:,} MiB, which are held in memory; cut it"
            )
    return bytes(whole)


def _is_packed(data: bytes, packing: _Packing) -> bool:
    return packing.name != "bzip2" or data.startswith(_BZIP2_BLOCK, 4)


def _unpacked(name: str, data: bytes, packing: _Packing) -> bytes:
    whole, at = bytearray(), 0
    while data.startswith(packing.begins, at):
        unpacker = packing.unpacker()
        while not unpacker.eof:
            piece = data[at : at + _PIECE]
            if not piece:
                raise ConfigurationError(
                    f"{name}:{_line(whole)}: its {packing.name} is cut off there; get the "
                    "whole file"
                )
            at += len(piece)
            try:
                whole += unpacker.decompress(piece)
            except Exception as error:  # noqa: BLE001 - each of the four has its own
                raise ConfigurationError(
                    f"{name}:{_line(whole)}: its {packing.name} is spoiled from there on "
                    f"({error}); get the file again"
                ) from None
            if len(whole) > BYTES_MOST:
                raise ConfigurationError(
                    f"{name}: more than {BYTES_MOST // 2**20:,} MiB unpacked, which are held in "
                    "memory; cut it"
                )
        at -= len(unpacker.unused_data)
    if data[at:].strip(b"\0"):  # Zeros fill up the blocks of tapes and of some file systems.
        raise ConfigurationError(
            f"{name}:{_line(whole)}: behind its {packing.name} stand {len(data) - at:,} bytes that "
            "are none; cut them off, or get the file again"
        )
    return bytes(whole)


def _line(text: bytearray) -> int:
    return text.count(b"\n") + 1


def _decoded(name: str, data: bytes) -> str:
    for begins, what in _FOREIGN:
        if data.startswith(begins):
            raise ConfigurationError(f"{name}: it is {what}")
    mark, encoding = next((each for each in _ENCODINGS if data.startswith(each[0])), (b"", "utf-8"))
    if not mark and b"\0" in data[:2] and len(data) > 1:
        wide = "UTF-16BE" if data[0] == 0 else "UTF-16LE"
        raise ConfigurationError(
            f"{name}: it looks like {wide} without a byte order mark; convert it: iconv -f {wide} "
            "-t UTF-8"
        )
    text = data[len(mark) :]
    try:
        return text.decode(encoding)
    except UnicodeDecodeError as error:
        line = text[: error.start].decode(encoding).count("\n") + 1
        found, family = f"byte {text[error.start]:#04x}", "-".join(encoding.upper().split("-")[:2])
        raise ConfigurationError(
            f"{name}:{line}: {found} is no {family}; convert the file to UTF-8"
        ) from None
